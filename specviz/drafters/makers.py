"""Who builds each kind of drafter, out of what: the target itself, a model, or trained weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specviz.drafters import shipped
from specviz.drafters.base import Assistant, Drafter, Weights
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.eagle import Eagle
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.heads.adapter import exit_of
from specviz.drafters.heads.reduced import read_reduced
from specviz.drafters.library import Library
from specviz.drafters.medusa import Medusa
from specviz.drafters.mtp import Mtp
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.drafters.trained import notes_on
from specviz.errors import UserError
from specviz.models.target import Target

SELF, SHIPPED = "self", "shipped"  # sources: the target itself, or what comes with the project
JOINED = " + "  # between the sources of a combination's parts
Given = Assistant | Weights | None
TRAINED_AS = {"eagle": "eagle3"}  # what the training command calls a kind
LEFT_OPEN = {"eagle": ("aux_convention", "norm_before_residual")}  # settings for what some files do not say


def _draft_model(target: Target, source: str = "", confidence: float = 0.0, assistant: Given = None) -> Drafter:
    """source: "self" for the target as its own drafter, "shipped" or its name for what comes with the project; "" for
    the latter if there is one, else the former. Beside an assistant it only names that.
    """
    if isinstance(assistant, Assistant):
        return DraftModel(
            target, assistant.model, assistant.tokenizer, assistant.name, assistant.weights, confidence=confidence
        )
    weights = reduced_of(target, source, assistant)
    if weights is None:
        name = f"{target.name} itself"
        return DraftModel(target, target.model, target.tokenizer, name, target.weights, confidence=confidence)
    notes = notes_on(weights, target)
    model, d2t = read_reduced(weights.path, target)
    return DraftModel(
        target, model, target.tokenizer, weights.name, weights.hash, d2t=d2t, notes=notes, confidence=confidence
    )


def reduced_of(target: Target, source: str, given: Given) -> Weights | None:
    """The draft model of trained weights that reads the target's rows; None where a whole model, or the target, drafts.

    Raises UserError if a shipped one is asked for and there is none.
    """
    if given is not None:
        return given if isinstance(given, Weights) else None
    if source == SHIPPED:
        return _weights(DraftModel.kind, target, None)
    found = shipped.find(DraftModel.kind, target)
    return found if found and (not source or found.name in source.split(JOINED)) else None


def _library(target: Target, method: str = "universal", source: str = "", assistant: Given = None) -> Drafter:
    """source: only names the assistant."""
    if isinstance(assistant, Weights):
        raise UserError(f"{assistant.name} is a trained head, and transformers drafts with models; use its own kind.")
    return Library(target, method, assistant)


def _early_exit(
    target: Target,
    exit_layer: int | None = None,
    adapter: bool = True,
    source: str = "",
    confidence: float = 0.0,
    assistant: Given = None,
) -> Drafter:
    """adapter: whether to use a trained one, where there is one for this exit. source: only names it."""
    weights = adapter_of(target, exit_layer, adapter, assistant)
    drafter = EarlyExit(target, exit_layer, weights, confidence=confidence)
    if adapter and weights is None and (other := shipped.find(EarlyExit.kind, target)):
        trained_for = exit_of(other.path)
        drafter.notes = (
            f"The trained adapter is for an exit after layer {trained_for}; after layer {exit_layer} none is used.",
        )
    return drafter


def adapter_of(target: Target, exit_layer: int | None, adapter: bool, given: Given) -> Weights | None:
    """The adapter that early exit reads: the given one, else a shipped one that is for this exit."""
    found = weights_of(EarlyExit.kind, target, given) if adapter else None
    fits = found is None or given is not None or exit_layer in (None, exit_of(found.path))
    return found if fits else None


def _head(kind: type[Eagle] | type[Mtp] | type[Medusa]) -> Callable[..., Drafter]:
    def build(
        target: Target,
        source: str = "",
        tree: bool = False,
        nodes: int = 8,
        branches: int = 4,
        confidence: float = 0.0,
        assistant: Given = None,
        **left_open: Any,
    ) -> Drafter:
        """source: only names the weights. left_open: what the kind takes of LEFT_OPEN."""
        weights = _weights(kind.kind, target, assistant)
        return kind(target, weights, tree=tree, nodes=nodes, branches=branches, confidence=confidence, **left_open)

    return build


def _weights(kind: str, target: Target, given: Given) -> Weights:
    """As `weights_of`; raises UserError if there are none."""
    found = weights_of(kind, target, given)
    if found is None:
        raise UserError(
            f"No trained {kind} drafter for {target.name} is at hand; name one with --drafter-path, or train one with "
            f"`python -m specviz train {TRAINED_AS.get(kind, kind)}`."
        )
    return found


def weights_of(kind: str, target: Target, given: Given) -> Weights | None:
    """The weights that were given, else those that are shipped. Raises UserError if a language model was given."""
    if isinstance(given, Assistant):
        raise UserError(
            f"{given.name} is a language model, and {kind} drafts with trained weights; give those instead."
        )
    return given or shipped.find(kind, target)


DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "plain": lambda target: Plain(),
    "ngram": NGram,
    "early-exit": _early_exit,
    "draft-model": _draft_model,
    "eagle": _head(Eagle),
    "medusa": _head(Medusa),
    "mtp": _head(Mtp),
    "library": _library,
}
