"""Drafters: whoever proposes. `make_drafter` builds one by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specviz.drafters.base import Assistant, Context, Drafter
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.library import Library
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.models.target import Target

__all__ = [
    "ASSISTED",
    "DRAFTERS",
    "Assistant",
    "Context",
    "DraftModel",
    "Drafter",
    "EarlyExit",
    "Library",
    "NGram",
    "Plain",
    "make_drafter",
]


def _draft_model(target: Target, source: str = "self", assistant: Assistant | None = None) -> Drafter:
    """source: "self" for the target as its own drafter; anything else only names the assistant."""
    if assistant is not None:
        return DraftModel(target, assistant.model, assistant.tokenizer, assistant.name, assistant.weights)
    if source == "self":
        return DraftModel(target, target.model, target.tokenizer, f"{target.name} itself", target.weights)
    raise UserError(f"The draft model {source} has not been loaded; name a folder or a Hub id.")


def _library(
    target: Target, method: str = "universal", source: str = "", assistant: Assistant | None = None
) -> Drafter:
    """source: only names the assistant."""
    return Library(target, method, assistant)


DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "plain": lambda target: Plain(),
    "ngram": NGram,
    "early-exit": EarlyExit,
    "draft-model": _draft_model,
    "library": _library,
}
ASSISTED = ("draft-model", "library")  # kinds in which another model can draft


def make_drafter(kind: str, target: Target, settings: Mapping[str, Any], assistant: Assistant | None = None) -> Drafter:
    """A drafter of that kind for that target; `assistant`: the separate model, for the kinds that take one.

    Raises UserError for unknown kinds and for what can't work together.
    """
    if kind not in DRAFTERS:
        raise UserError(f"There is no drafter {kind!r}; choose one of {', '.join(DRAFTERS)}.")
    return DRAFTERS[kind](target, **settings, **({"assistant": assistant} if kind in ASSISTED else {}))
