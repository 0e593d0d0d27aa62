"""Tiny models for transformers' candidate generators: two trained tokenizers, MTP checkpoints, DFlash draft models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from fakes import VOCAB, byte_tokenizer, tiny_model, tiny_target
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_layers import MtpModel

from specviz.drafters import Assistant, Library
from specviz.models.load import load_model
from specviz.models.target import Target

TEXT = """The quick brown fox jumps over the lazy dog, and the dog, being lazy, does not jump. A target reads what a
draft model wrote; the draft model writes what the target would have written. Where they agree the text grows by several
words, and where they do not it grows by one. Nothing is lost, whoever writes: the words are always the words of the
target. Speculation is a wager: the draft is cheap, the reading is one pass, and the pass was to be paid for anyway."""


@cache
def trained_tokenizer(size: int, special: tuple[str, ...] = ("<s>", "</s>"), spaces: bool = False):
    """A BPE tokenizer trained on TEXT, byte-level or (spaces) one that writes a space as "▁"."""
    backend = Tokenizer(models.BPE(unk_token="<unk>") if spaces else models.BPE())
    if spaces:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(prepend_scheme="never"), decoders.Metaspace()
        alphabet = sorted({"▁" if letter == " " else letter for letter in TEXT})
    else:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*special, "<unk>"] if spaces else list(special)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXT.splitlines(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=special[0], eos_token=special[1])


def trained_text_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0, steps: int = 60, **overrides: object):
    """A tiny model that has learnt a good part of TEXT by heart."""
    settings = {"num_hidden_layers": 2, "max_position_embeddings": 512, **overrides}
    model = tiny_model(seed=seed, spread=1.0, vocab_size=len(tokenizer), **settings)
    ids = torch.tensor(tokenizer.encode(TEXT))
    windows = ids.unfold(0, 33, 8)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for _ in range(steps):
        logits = model(input_ids=windows[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def letters_tokenizer(*names: str) -> PreTrainedTokenizerFast:
    """These tokens and no others, ids in this order; those of two letters are merged where they occur."""
    backend = Tokenizer(
        models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[tuple(n) for n in names if n[1:]])
    )
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


# --- multi-token prediction ---------------------------------------------------------------------------------------

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
MTP_FAMILIES: dict[str, dict[str, object]] = {
    "mellum": {  # a single layer, stored under mtp.*
        "num_experts": 4,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "num_mtp_layers": 1,
        "mtp_layer_types": ["sliding_attention"],
        "mtp_mlp_layer_types": ["dense"],
    },
    "glm4_moe": {  # layers of experts, stored after the last of the model's own
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 2,
        "num_mtp_layers": 3,
    },
}
NAMES = {  # what the checkpoints call MtpModel's parameters
    "mellum": {
        "layers.0.enorm.": "mtp.pre_fc_norm_embedding.",
        "layers.0.hnorm.": "mtp.pre_fc_norm_hidden.",
        "layers.0.eh_proj.": "mtp.fc.",
        "layers.0.post_norm.": "mtp.norm.",
        "layers.0.mtp_block.": "mtp.layers.0.",
    },
    "glm4_moe": {
        **{f"layers.{k}.mtp_block.": f"model.layers.{k + 2}." for k in range(3)},
        **{f"layers.{k}.post_norm.": f"model.layers.{k + 2}.shared_head.norm." for k in range(3)},
        **{f"layers.{k}.": f"model.layers.{k + 2}." for k in range(3)},
    },
}


def save_mtp_checkpoint(folder: Path, family: str = "mellum", drop: str = "", **overrides: object) -> Path:
    """A target with MTP layers, in its family's layout. Its layers mostly predict the next token from the last one
    alone, and so do the MTP layers, so that they agree here and there. `drop`: leave out tensors whose name has it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**COMMON, **MTP_FAMILIES[family], **overrides})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    layers = MtpModel(model, config.num_mtp_layers).float()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *layers.layers.named_parameters()]:
            if parameter.dim() > 1:
                quiet = 0.2 if "embed" not in name and "lm_head" not in name else 2.0
                parameter.copy_(torch.randn_like(parameter) * quiet / parameter.shape[-1] ** 0.5)
        for layer in layers.layers:
            layer.eh_proj.weight[:, :32] += torch.eye(32)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in layers.layers.state_dict(prefix="layers.").items():
        start = next(start for start in NAMES[family] if name.startswith(start))
        tensors |= split_experts(NAMES[family][start] + name.removeprefix(start), tensor)
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if not (drop and drop in name)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def split_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Experts have a matrix each in checkpoints; transformers stacks them when it loads."""
    if name.endswith("experts.gate_up_proj"):
        start = name.removesuffix("gate_up_proj")
        halves = tensor.chunk(2, dim=1)
        return {
            f"{start}{expert}.{part}.weight": half[expert].clone()
            for part, half in zip(("gate_proj", "up_proj"), halves, strict=True)
            for expert in range(len(tensor))
        }
    if name.endswith("experts.down_proj"):
        start = name.removesuffix("down_proj")
        return {f"{start}{expert}.down_proj.weight": tensor[expert].clone() for expert in range(len(tensor))}
    return {name: tensor.clone()}


def load_target(folder: Path, packed: bool = False) -> Target:
    """Through the path that the app takes."""
    with pytest.MonkeyPatch.context() as patch:
        # transformers knows where the published sizes keep their MTP layers; the tiny one keeps them after layer 2.
        patch.setattr(Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.[234]\."])
        model, tokenizer = load_model(folder, torch.float32, torch.device("cpu"), packed=packed)
    return Target(model, tokenizer, name="tiny MTP", weights="hash of the target")


# --- DFlash -------------------------------------------------------------------------------------------------------


def dflash_model(seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random DFlash model for a `tiny_target`."""
    settings = {
        **{name: COMMON[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")},
        **{name: COMMON[name] for name in ("num_key_value_heads", "head_dim", "max_position_embeddings")},
        "num_hidden_layers": 2,
        "sliding_window": 16,
        "block_size": 4,
        "mask_token_id": VOCAB - 1,
        "target_layer_ids": [0, 2, 3],
    }
    config = AutoConfig.for_model("muse_glimmer_assistant", **{**settings, **overrides})
    torch.manual_seed(seed)
    return AutoModel.from_config(config).float().eval()


def teach_dflash(model: PreTrainedModel, target: Target, steps: int = 80) -> PreTrainedModel:
    """Train it on what the target says after random tokens."""
    tokens = torch.randint(0, VOCAB, (32, 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for _ in range(40):
            tokens = torch.cat([tokens, target.model(tokens).logits[:, -1:].argmax(-1)], 1)
        states = target.model(tokens, output_hidden_states=True).hidden_states
    rows = torch.cat([states[layer + 1] for layer in model.config.target_layer_ids], -1)
    block, masks = model.config.block_size, torch.full((len(tokens), model.config.block_size - 1), VOCAB - 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        end = 2 + 7 * step % (tokens.shape[1] - block - 1)
        noise = target.model.get_input_embeddings()(torch.cat([tokens[:, end : end + 1], masks], 1)).detach()
        states = model(noise_embeds=noise, context_hidden_states=rows[:, :end]).last_hidden_state[:, 1:]
        logits = target.model.get_output_embeddings()(states)
        wanted = tokens[:, end + 1 : end + block]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


# --- pairs that work ----------------------------------------------------------------------------------------------

_folders: list[TemporaryDirectory[str]] = []  # until the tests have ended


def mtp_pair(family: str, **overrides: object) -> tuple[Target, str, None]:
    _folders.append(TemporaryDirectory())
    return load_target(save_mtp_checkpoint(Path(_folders[-1].name), family, **overrides)), "mtp", None


def universal_pair(spaces: bool = False) -> tuple[Target, str, Assistant]:
    tokenizer, other = trained_tokenizer(400), trained_tokenizer(330, spaces=spaces)
    target = Target(trained_text_model(tokenizer), tokenizer, "tiny writer")
    return target, "universal", Assistant(trained_text_model(other, seed=1), other, "tiny helper", "hash of the helper")


def _dflash() -> tuple[Target, str, Assistant]:
    target = tiny_target()
    return target, "dflash", Assistant(teach_dflash(dflash_model(), target), None, "tiny blocks", "hash of the blocks")


PAIRS: dict[str, Callable[[], tuple[Target, str, Assistant | None]]] = {
    "universal": universal_pair,
    "mtp, 1 layer": lambda: mtp_pair("mellum"),
    "mtp, 3 layers": lambda: mtp_pair("glm4_moe"),
    "dflash": _dflash,
}


@cache
def pair(name: str) -> tuple[Target, str, Assistant | None]:
    """Target, method and assistant, made once."""
    return PAIRS[name]()


def library(name: str) -> tuple[Target, Library]:
    target, method, assistant = pair(name)
    return target, Library(target, method, assistant)
