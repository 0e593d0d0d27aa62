"""What heads of ours say beyond the public layouts, in the "specviz" entry of their config.json.

`shares_lm_head`: the LM head is the target's, its rows at d2t. `head`: entries of the HeadConfig that a layout leaves
open or fixes otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specviz.drafter_settings import OneOf
from specviz.drafters.heads.files import OURS, Checkpoint
from specviz.drafters.heads.head import HeadConfig
from specviz.drafters.heads.layouts.settings import TargetSizes, entry, flag, whole
from specviz.drafters.heads.layouts.taps import own_layers
from specviz.drafters.heads.offsets import D2T, T2D, from_offsets
from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG
from specviz.refusals import brief

CHOICES = {"feedback": OneOf(("output", "normed")), "zero_first_embedding": OneOf((True, False))}


def said(checkpoint: Checkpoint, target: TargetSizes, combines: tuple[str, ...]) -> dict[str, Any]:
    """Entries of the HeadConfig that the file says of itself; none for files of others. Raises UserError.

    combines: those that the layout has names for.
    """
    choices = {**CHOICES, "combine": OneOf(combines)}
    head = entry(entry(checkpoint.config, OURS, checkpoint.where), "head", checkpoint.where)
    found: dict[str, Any] = {}
    for key, value in head.items():
        if key == "hidden_layers":
            found[key] = own_layers(value, target, checkpoint.where)
        elif key in choices and choices[key].holds(value):
            found[key] = value
        else:
            raise UserError(
                f"{CONFIG} of {checkpoint.where} has {brief(value)} as {brief(key)} of its head, which this version "
                "does not know; update specviz, or give another drafter."
            )
    return found


def shares_lm_head(checkpoint: Checkpoint) -> bool:
    """Whether the file says that its LM head is the target's."""
    return bool(flag(entry(checkpoint.config, OURS, checkpoint.where), "shares_lm_head", checkpoint.where))


def entries(config: HeadConfig, shares: bool, keys: tuple[str, ...]) -> dict[str, Any]:
    """What to write into "specviz" for a head: the `keys` of its config, and whether it has no LM head of its own."""
    values = {key: getattr(config, key) for key in keys}
    return {"shares_lm_head": shares, "head": {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}}


def draft_vocabulary(
    checkpoint: Checkpoint, config: Mapping[str, Any], target: TargetSizes
) -> tuple[int | None, dict[str, Tensor]]:
    """The size of the draft vocabulary and its target ids as the head's `d2t`; None and nothing if it is the target's.

    Raises UserError if config and tensors do not agree.
    """
    where, size = checkpoint.where, config.get("draft_vocab_size")
    if D2T not in checkpoint.shapes:
        if T2D in checkpoint.shapes or (size is not None and size != target.vocab_size):
            raise UserError(f"The drafter in {where} has its own vocabulary, but {D2T} is missing; give all of it.")
        return None, {}
    ids = from_offsets(checkpoint.read([n for n in (D2T, T2D) if n in checkpoint.shapes]), target.vocab_size, where)
    if whole(config, "draft_vocab_size", where) != len(ids):
        raise UserError(
            f"{D2T} of {where} has {len(ids)} entries and draft_vocab_size is {size}; give another version."
        )
    if len(ids) == target.vocab_size:  # all of them, in order
        return None, {}
    return len(ids), {D2T: ids}
