"""What drafters begin as: parts of their target, whose LM head they share and whose language they so speak at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.drafters.heads.files import about, check_target
from specviz.drafters.heads.head import Combine, Head, HeadConfig
from specviz.drafters.heads.medusa import MedusaHeads
from specviz.errors import UserError
from specviz.models.checkpoint import WEIGHTS
from specviz.models.pack import weight_of
from specviz.models.sources import file_hash
from specviz.models.target import Target

# What two heads have in common if one can go on from the other.
SIZES = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "attention_bias", "qk_norm")
FORM = (*SIZES, "rms_eps", "rope_theta", "rope_scaling")
LOUD = 1.5  # how strongly a row finds itself among all others
# Entries of a draft model's config that say nothing of its layers.
NOT_FORM = ("transformers_version", "dtype", "architectures", "draft_vocab_size", "name_or_path", "specviz")
ROW_SIZE = 2.0**10  # of every entry: far above any eps, and its root mean square is exact


@dataclass(frozen=True, slots=True)
class Earlier:
    """A trained drafter that training goes on from."""

    folder: Path
    digest: str  # of its weights
    made: Mapping[str, Any]  # the command and the acceptance that it tells of itself

    @classmethod
    def read(cls, folder: Path, target: Target, say: Callable[[str], None]) -> Earlier:
        """Raises UserError if there is none, or if it was made for another target."""
        told = about(folder)
        if note := check_target(told, target):
            say(note)
        weights = folder / WEIGHTS
        if not weights.is_file():
            raise UserError(f"{folder} has no {WEIGHTS}, so it holds no drafter; give the folder of one.")
        made: dict[str, Any] = {key: told[key] for key in ("command", "acceptance") if key in told}
        return cls(folder, file_hash(weights)[:16], made)


def head_config(target: Target, d2t: Tensor, combine: Combine, layers: tuple[int, ...]) -> HeadConfig:
    """A head with a layer of the target's sizes. layers: whose states it reads."""
    text = target.config
    rope = dict(getattr(text, "rope_parameters", None) or {})
    theta, scaling = float(rope.pop("rope_theta", 10_000.0)), rope
    heads = int(text.num_attention_heads)
    width = int(text.hidden_size)
    return HeadConfig(
        hidden_size=width,
        intermediate_size=int(text.intermediate_size),
        num_heads=heads,
        # As many as there are queries: the head's attention is its only way to the embedding of the token it reads.
        num_kv_heads=heads if combine == "wide" else int(text.num_key_value_heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        rms_eps=float(text.rms_norm_eps),
        rope_theta=theta,
        rope_scaling=None if scaling.get("rope_type", "default") == "default" else scaling,
        max_position_embeddings=int(text.max_position_embeddings),
        hidden_layers=layers,
        target_hidden_size=width,
        vocab_size=target.vocab_size,
        draft_vocab_size=None if len(d2t) == target.vocab_size else len(d2t),
        combine=combine,
        feedback="normed",
    )


@torch.no_grad()
def begin_as_last_layer(head: Head, target: Target) -> None:
    """Far better than a random start: the head's layer already speaks the language of the LM head."""
    mine: Any = head.layers[0]
    theirs: Any = layers_of(target.model)[-1]
    width, wide = head.config.hidden_size, head.config.combine == "wide"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        weight = weight_of(getattr(theirs.self_attn, name), target.model)
        if name in ("k_proj", "v_proj"):
            groups = head.config.num_kv_heads * head.config.head_dim // len(weight)
            weight = weight.reshape(-1, head.config.head_dim, width).repeat_interleave(groups, 0).flatten(0, 1)
        own = getattr(mine.self_attn, name).weight
        if wide and name != "o_proj":
            own.zero_()
            own[:, width:] = weight
        else:
            own.copy_(weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(mine.mlp, name).weight.copy_(weight_of(getattr(theirs.mlp, name), target.model))
    mine.post_attention_layernorm.weight.copy_(norm_scale(theirs.post_attention_layernorm))
    if mine.input_layernorm is not None:
        mine.input_layernorm.weight.copy_(norm_scale(theirs.input_layernorm))
    own_norm: Any = head.norm
    own_norm.weight.copy_(norm_scale(target.model.base_model.norm))
    if head.config.fuses:
        head.fc.weight.zero_()
        head.fc.weight[:, -width:] = torch.eye(width)
    if wide:
        _read_own_token(head, mine.self_attn)
    else:
        _join(head).weight[:, :width] = torch.eye(width)  # the state; how its token's embedding joins it is drawn


def _join(head: Head) -> nn.Linear:
    """Where state and embedding meet."""
    return head.join if head.config.combine == "joined" else head.fc


@torch.no_grad()
def begin_as_head(head: Head, other: Head) -> None:
    """Go on from a trained MTP head that reads the last state alone. Raises UserError if it has another form."""
    mine, theirs = head.config, other.config
    trained = ("mtp-reversed", "normed", False, mine.hidden_layers[-1:])
    like_ours = (theirs.combine, theirs.feedback, theirs.zero_first_embedding, theirs.hidden_layers) == trained
    same = all(getattr(mine, name) == getattr(theirs, name) for name in FORM)
    if not like_ours or not same or hasattr(other, "lm_head") or hasattr(other, "embed_tokens"):
        raise UserError(
            "--begin-as holds no head that this one can begin as; give what `train mtp` has written for this target."
        )
    for name in ("layers", "norm", "embedding_norm", "feature_norm"):
        head.get_submodule(name).load_state_dict(other.get_submodule(name).state_dict())
    _join(head).weight.copy_(other.fc.weight)


def _read_own_token(head: Head, attention: Any) -> None:
    """In EAGLE-3's layer the embedding of the token that was read goes through the attention alone. So let two of
    three attention heads look at their own row, and hand on the part of its embedding that they see.
    """
    width, size = head.config.hidden_size, head.config.head_dim
    own_norm: Any = head.norm
    gain = own_norm.weight.square().mean().sqrt() / 2  # states that come after the target's norm are about so large
    for index in (each for each in range(head.config.num_heads) if each % 3 != 2 and (each + 1) * size <= width):
        rows = slice(index * size, (index + 1) * size)
        for projection, scale in ((attention.q_proj, LOUD), (attention.k_proj, LOUD), (attention.v_proj, 1)):
            projection.weight[rows] = 0
            projection.weight[rows, :width] = scale * torch.eye(width)[rows]
        attention.o_proj.weight[:, rows] = gain * torch.eye(width)[:, rows]


@torch.no_grad()
def norm_scale(norm: Any) -> Tensor:
    """What an RMSNorm multiplies normed rows by, [H]. Measured, for in some families that is 1 + weight."""
    return norm(torch.full_like(norm.weight, ROW_SIZE)[None])[0]  # type: ignore[no-any-return]


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Its decoder layers. Raises UserError if it shows none."""
    count = int(model.config.num_hidden_layers)
    for child in model.base_model.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise UserError(
        f"{model.config.model_type} models show no list of layers, so this drafter can't begin as one of them."
    )


@torch.no_grad()
def begin_as_heads(heads: MedusaHeads, others: MedusaHeads) -> None:
    """Go on from trained Medusa heads. Raises UserError if they have another form."""
    mine, theirs = dict(heads.named_parameters()), dict(others.named_parameters())
    if {name: each.shape for name, each in mine.items()} != {name: each.shape for name, each in theirs.items()}:
        raise UserError(
            "--begin-as holds Medusa heads of another form; give what `train medusa` has written for this target, and "
            "the same --heads and --blocks."
        )
    for name, parameter in mine.items():
        parameter.copy_(theirs[name])


def form(model: PreTrainedModel) -> dict[str, Any]:
    """All that its config says about its layers; an entry that is null may also be left out."""
    told = json.loads(model.config.to_json_string(use_diff=False))
    return {
        key: value
        for key, value in told.items()
        if value is not None and key not in NOT_FORM and not key.startswith("_")
    }


@torch.no_grad()
def copy_parameters(mine: nn.Module, theirs: nn.Module, model: nn.Module) -> None:
    """Parameters by name; the target's linear layers may be packed."""
    for name, module in mine.named_modules():
        other = theirs.get_submodule(name)
        for key, parameter in module.named_parameters(recurse=False):
            parameter.copy_(
                weight_of(other, model) if key == "weight" and isinstance(module, nn.Linear) else getattr(other, key)
            )
