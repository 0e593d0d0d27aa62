"""What all layouts read alike from a config.json: the sizes of the block, within limits, and its rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from specviz.drafters.heads.block import PART
from specviz.drafters.heads.files import Checkpoint
from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG
from specviz.refusals import brief

# Above these, building a head would take all memory before any of its tensors is compared.
MOST = {
    "hidden_size": 65_536,
    "target_hidden_size": 65_536,
    "intermediate_size": 524_288,
    "moe_intermediate_size": 524_288,
    "num_attention_heads": 1_024,
    "num_key_value_heads": 1_024,
    "head_dim": 4_096,
    "max_position_embeddings": 100_000_000,
    "vocab_size": 4_000_000,
    "draft_vocab_size": 4_000_000,
}
MOST_NUMBER = 1e15  # of a rotary base or an epsilon; beyond some size a whole number is no float any more


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What a layout needs to know of the target."""

    hidden_size: int
    num_layers: int
    vocab_size: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> TargetSizes:
        text = config.get_text_config(decoder=True)
        return cls(int(text.hidden_size), int(text.num_hidden_layers), int(text.vocab_size))


@dataclass(frozen=True, slots=True)
class Options:
    """What the user says where a file leaves it open.

    aux_convention: how the file numbers the target's layers, "input" (the state that enters layer i) or "output" (the
    state that leaves it). norm_before_residual: whether the residual branch starts after the norm of the features.
    """

    aux_convention: str | None = None
    norm_before_residual: bool | None = None

    def __post_init__(self) -> None:
        if self.aux_convention not in (None, "input", "output"):
            raise UserError(f"aux_convention is {self.aux_convention!r}; give input or output.")


def whole(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """A size from the config; raises UserError if it is missing and has no default, or is no size that heads have."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise UserError(f"{CONFIG} of {where} has no {key}, so give a version that is complete.")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST[key]:
        raise UserError(f"{CONFIG} of {where} has {brief(value)} as {key}, which is no size of a head; give another.")
    return value


def flag(config: Mapping[str, Any], key: str, where: str, default: bool | None = False) -> bool | None:
    """A switch from the config. Raises UserError if it is neither true nor false."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{CONFIG} of {where} has {brief(value)} as {key}, which is neither true nor false.")
    return default if value is None else value


def entry(config: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """A mapping inside the config, empty where it is missing. Raises UserError if it is something else."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{CONFIG} of {where} has {brief(value)} as {key}, which is no mapping; give another version.")
    return value or {}


def check_fits(config: Mapping[str, Any], target: TargetSizes, where: str) -> None:
    """Raise UserError if the config is of a head for a target of another width or vocabulary."""
    width = whole(config, "target_hidden_size", where, whole(config, "hidden_size", where))
    vocabulary = whole(config, "vocab_size", where)
    for kind, theirs, own in (("width", width, target.hidden_size), ("vocabulary", vocabulary, target.vocab_size)):
        if theirs != own:
            raise UserError(
                f"The drafter in {where} was made for another target: its {kind} is {theirs} and this target's {own}; "
                "choose one that was made for this target."
            )


def check_one_layer(layers: set[int], where: str) -> None:
    """Raise UserError unless these are the numbers of a single layer."""
    if layers != {0}:
        raise UserError(f"The drafter in {where} has {len(layers)} layers, {brief(sorted(layers))}; heads have one.")


def block_settings(checkpoint: Checkpoint, config: Mapping[str, Any], layer: str) -> dict[str, Any]:
    """The HeadConfig's entries that describe a Llama-style block, from the config and the tensors' names.

    config: the block's, which may lie inside the file's. layer: the prefix of the block's tensors in the file.
    What old configs leave out has the default of transformers' Llama. Raises UserError.
    """
    where = checkpoint.where
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UserError(f"The drafter in {where} uses {brief(activation)} between its layers; only silu is read here.")
    hidden_size = whole(config, "hidden_size", where)
    heads = whole(config, "num_attention_heads", where)
    kv_heads = whole(config, "num_key_value_heads", where, heads)
    if heads % kv_heads:
        raise UserError(
            f"The drafter in {where} has {heads} heads of queries and {kv_heads} of keys, which they can't share "
            "evenly; give another version."
        )
    rope = {**entry(config, "rope_scaling", where), **entry(config, "rope_parameters", where)}
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0
    kind = rope.get("rope_type", rope.get("type", "default"))
    if config.get(PART) is not None:  # as old configs have it
        rope.setdefault(PART, config[PART])
    return {
        "hidden_size": hidden_size,
        "intermediate_size": whole(config, "intermediate_size", where),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": whole(config, "head_dim", where, hidden_size // heads),
        "rms_eps": _positive(config, "rms_norm_eps", 1e-6, where),
        "rope_theta": _positive({"rope_theta": theta}, "rope_theta", 10_000.0, where),
        "rope_scaling": None if kind == "default" and rope.get(PART, 1) == 1 else {"rope_type": kind, **rope},
        "max_position_embeddings": whole(config, "max_position_embeddings", where, 2_048),
        "attention_bias": f"{layer}self_attn.q_proj.bias" in checkpoint.shapes,
        "qk_norm": f"{layer}self_attn.q_norm.weight" in checkpoint.shapes,
    }


def written_block(config: Any) -> dict[str, Any]:
    """The entries of a config.json that `block_settings` reads, for a HeadConfig."""
    return {
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": False,
    }


def _positive(config: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_NUMBER:
        raise UserError(
            f"{CONFIG} of {where} has {brief(value)} as {key}, which is no positive number of a head; give another."
        )
    return float(value)
