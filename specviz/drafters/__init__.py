"""Drafters: whoever proposes. `make_drafter` builds one by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specviz.drafters.base import Context, Drafter
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.models.load import load_model, weight_hash
from specviz.models.target import Target

__all__ = ["DRAFTERS", "Context", "DraftModel", "Drafter", "EarlyExit", "NGram", "Plain", "make_drafter"]


def _draft_model(target: Target, source: str = "self") -> Drafter:
    """source: "self" for the target as its own drafter, or the folder of a smaller model."""
    if source == "self":
        return DraftModel(target, target.model, target.tokenizer, f"{target.name} itself")
    folder = Path(source)
    drafter = DraftModel(target, *load_model(folder, target.dtype, target.device), name=folder.resolve().name)
    drafter.weights = weight_hash(folder)
    return drafter


DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "plain": lambda target: Plain(),
    "ngram": NGram,
    "early-exit": EarlyExit,
    "draft-model": _draft_model,
}


def make_drafter(kind: str, target: Target, settings: Mapping[str, Any]) -> Drafter:
    """A drafter of that kind for that target. Raises UserError for unknown kinds and settings that can't work."""
    if kind not in DRAFTERS:
        raise UserError(f"There is no drafter {kind!r}; choose one of {', '.join(DRAFTERS)}.")
    return DRAFTERS[kind](target, **settings)
