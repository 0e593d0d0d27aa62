"""Drafters: whoever proposes. `make_drafter` builds one by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specviz.drafters.base import Context, Drafter
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.models.target import Target

__all__ = ["DRAFTERS", "Context", "DraftModel", "Drafter", "EarlyExit", "NGram", "Plain", "make_drafter"]


def _self_draft(target: Target) -> Drafter:
    return DraftModel(target, target.model, target.tokenizer, f"{target.name} itself")


DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "plain": lambda target: Plain(),
    "ngram": NGram,
    "early-exit": EarlyExit,
    "draft-model": _self_draft,
}


def make_drafter(kind: str, target: Target, settings: Mapping[str, Any]) -> Drafter:
    """A drafter of that kind for that target. Raises UserError for unknown kinds and settings that can't work."""
    if kind not in DRAFTERS:
        raise UserError(f"There is no drafter {kind!r}; choose one of {', '.join(DRAFTERS)}.")
    return DRAFTERS[kind](target, **settings)
