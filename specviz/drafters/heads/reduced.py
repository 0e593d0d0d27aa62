"""A small draft model that shares its target's embeddings and LM head, of which it uses some rows only.

The layout is ours: config.json of the transformers class with few layers, and `draft_vocab_size`; tensors of the
decoder layers and the final norm under their usual names, and `d2t`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from specviz import memory
from specviz.drafters.heads.bounds import check_numbers
from specviz.drafters.heads.files import OURS, check_shapes, fill, open_checkpoint
from specviz.drafters.heads.folders import draft_ids, other_tensors, write_folder
from specviz.drafters.heads.offsets import D2T
from specviz.drafters.heads.shared import check_sizes, shared_lm_head
from specviz.errors import UserError
from specviz.models.alone import loading_alone
from specviz.models.checkpoint import CONFIG
from specviz.models.config import cleaned
from specviz.models.pack import pack
from specviz.models.target import Target
from specviz.refusals import brief, refused_as

MOST_LAYERS = 64
MOST_TABLES = 2**28  # bytes of what a model computes from its config alone; those with most have a few megabytes
_IN_FILE = "model."
_NOT_SIZES = ("model_type", "draft_vocab_size", "dtype", OURS)  # entries of config.json that the class does not take


def reduced_model(target: Target, layers: int, d2t: Tensor, like: Sequence[int] | None = None) -> PreTrainedModel:
    """A model of the target's kind with so many layers, to be trained, with the target's embeddings and LM head rows.

    Its logits are [.., Vd], over the target's ids that d2t [Vd] names.
    like: which of the target's layers each is to be like, counted from 0; by default the first ones.
    """
    like = range(layers) if like is None else like
    sizes = json.loads(target.config.to_json_string(use_diff=False))
    for name, entry in sizes.items():  # such as layer_types, which says what each layer attends to
        if "layer" in name and isinstance(entry, list) and len(entry) == target.config.num_hidden_layers:
            sizes[name] = [entry[layer] for layer in like]
    config = _config({**sizes, "num_hidden_layers": layers}, target.name)
    return _bound(_without_vocabulary(config), target, d2t, packed=False)


def read_reduced(folder: Path, target: Target) -> tuple[PreTrainedModel, Tensor]:
    """The draft model in a folder, bound to its target and packed for decoding, and d2t [Vd].

    Raises UserError for a folder of anything else, for a model of other sizes than the target's, or if a tensor is
    missing, unexpected or of another shape.
    """
    checkpoint = open_checkpoint(folder)
    where = checkpoint.where
    if D2T not in checkpoint.shapes or "draft_vocab_size" not in checkpoint.config:
        raise UserError(f"{where} holds no draft model with a reduced vocabulary (no {D2T}); give the folder of one.")
    config = _config(checkpoint.config, where)
    check_sizes(target, int(config.hidden_size), int(config.vocab_size))
    _check_positions(config, target, where)
    d2t = draft_ids(checkpoint, target.vocab_size)
    assert d2t is not None
    inside = {name.removeprefix(_IN_FILE): tensor for name, tensor in other_tensors(checkpoint).items()}
    with torch.device("meta"):  # its sizes are the file's: nothing is allocated before they are compared
        outline = _without_vocabulary(config).base_model
        check_shapes(outline, inside, where, _in_file)
    _check_tables(outline, where)
    model = _without_vocabulary(config)
    fill(model.base_model, inside, where, _in_file)
    return _bound(model, target, d2t, packed=True), d2t


def write_reduced(model: PreTrainedModel, d2t: Tensor, folder: Path, about: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors. about: what the "specviz" entry is to say of it."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    shared = tuple(
        f"{name}." for name, child in model.base_model.named_modules() if child is model.get_input_embeddings()
    )
    tensors = {
        _in_file(name): value for name, value in model.base_model.state_dict().items() if not name.startswith(shared)
    }
    write_folder(folder, config, tensors, about, int(model.config.vocab_size), d2t)


def _in_file(name: str) -> str:
    return f"{_IN_FILE}{name}"


def _config(entries: Mapping[str, Any], where: str) -> PretrainedConfig:
    """The config of a decoder of few layers. Raises UserError for entries that describe none."""
    sizes = {key: value for key, value in cleaned(entries).items() if key not in _NOT_SIZES}
    kind = entries.get("model_type")
    with refused_as(f"{CONFIG} of {where} describes no draft model", "so give the folder of one"):
        check_numbers(entries)
        config: PretrainedConfig = AutoConfig.for_model(kind, **sizes)
        layers = config.num_hidden_layers
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UserError(
            f"{CONFIG} of {where} has {brief(kind)} as model_type, which is no language model; give another."
        )
    if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
        raise UserError(f"{CONFIG} of {where} has {brief(layers)} as num_hidden_layers; give 1 to {MOST_LAYERS}.")
    return config


def _check_positions(config: PretrainedConfig, target: Target, where: str) -> None:
    """Raise UserError if the model claims to hold longer texts than its target does; some build tables for them."""
    own, theirs = (getattr(each, "max_position_embeddings", None) for each in (config, target.config))
    if isinstance(own, int) and isinstance(theirs, int) and own > theirs:
        raise UserError(
            f"The drafter in {where} names {own:,} as its positions, and {target.name} has {theirs:,}; give one that "
            "was made for this target."
        )


def _check_tables(outline: nn.Module, where: str) -> None:
    """Raise UserError if a model that has no storage yet would take much that its file does not hold."""
    held = outline.state_dict().keys()
    size = sum(table.nbytes for name, table in outline.named_buffers() if name not in held)
    if size > MOST_TABLES:
        raise UserError(
            f"The drafter in {where} would build tables of {memory.human(size)}, more than any does; give another."
        )


def _without_vocabulary(config: PretrainedConfig) -> PreTrainedModel:
    """The model that `config` describes, with nothing in the places of its embeddings and LM head."""
    # With a vocabulary of 1, next to nothing is initialised only to be thrown away.
    tiny = copy.deepcopy(config)
    tiny.vocab_size, tiny.tie_word_embeddings = 1, False
    tiny.pad_token_id = tiny.bos_token_id = tiny.eos_token_id = None
    problem = f"No {brief(config.model_type)} model can be built"
    with refused_as(problem, "so give another draft model"), loading_alone, torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModelForCausalLM._model_mapping[type(tiny)](tiny)
    model.set_input_embeddings(nn.Identity())
    model.set_output_embeddings(nn.Identity())
    for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(model.config, name, getattr(config, name))  # of the one config that all its modules hold
    return model


def _bound(model: PreTrainedModel, target: Target, d2t: Tensor, *, packed: bool) -> PreTrainedModel:
    """Give the model the target's device, number format, embeddings and LM head rows. packed: for decoding only."""
    model.to(device=target.device)
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay in float32, as in any loaded model
        parameter.data = parameter.data.to(target.dtype)
    if packed:
        pack(model)
    model.set_input_embeddings(target.model.get_input_embeddings())
    model.set_output_embeddings(shared_lm_head(target, d2t, packed=packed))
    return model.eval()
