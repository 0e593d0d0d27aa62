"""Drafters: whoever proposes. `make_drafter` builds one by its kind, or several in turn by `kind+kind`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specviz.drafters import shipped
from specviz.drafters.base import Assistant, Context, Drafter, Weights
from specviz.drafters.combined import Combined
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.eagle import Eagle
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.heads.adapter import exit_of
from specviz.drafters.heads.files import about, check_target
from specviz.drafters.heads.reduced import read_reduced
from specviz.drafters.library import Library
from specviz.drafters.medusa import Medusa
from specviz.drafters.mtp import Mtp
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.models.target import Target

__all__ = [
    "ASSISTED",
    "DRAFTERS",
    "TREES",
    "WEIGHTED",
    "Assistant",
    "Combined",
    "Context",
    "DraftModel",
    "Drafter",
    "Eagle",
    "EarlyExit",
    "Library",
    "Medusa",
    "Mtp",
    "NGram",
    "Plain",
    "Weights",
    "make_drafter",
]

SELF, SHIPPED = "self", "shipped"  # sources: the target itself, or what comes with the project
JOINED = " + "  # between the sources of a combination's parts
Given = Assistant | Weights | None


def _draft_model(target: Target, source: str = "", confidence: float = 0.0, assistant: Given = None) -> Drafter:
    """source: "self" for the target as its own drafter, "shipped" or its name for what comes with the project; "" for
    the latter if there is one, else the former. Beside an assistant it only names that.
    """
    if isinstance(assistant, Assistant):
        return DraftModel(
            target, assistant.model, assistant.tokenizer, assistant.name, assistant.weights, confidence=confidence
        )
    shipped_one = shipped.find(DraftModel.kind, target)
    trained = source == SHIPPED or (shipped_one and (not source or shipped_one.name in source.split(JOINED)))
    if assistant is None and not trained:
        name = f"{target.name} itself"
        return DraftModel(target, target.model, target.tokenizer, name, target.weights, confidence=confidence)
    weights = _weights(DraftModel.kind, target, assistant)
    note = check_target(about(weights.path), target)
    model, d2t = read_reduced(weights.path, target)
    drafter = DraftModel(target, model, target.tokenizer, weights.name, weights.hash, d2t=d2t, confidence=confidence)
    drafter.notes = (*weights.notes, *([note] if note else []))
    return drafter


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
    if not adapter:
        return EarlyExit(target, exit_layer, confidence=confidence)
    weights = _trained(EarlyExit.kind, target, assistant)
    if weights is None or assistant is not None or exit_layer in (None, trained_for := exit_of(weights.path)):
        return EarlyExit(target, exit_layer, weights, confidence=confidence)
    bare = EarlyExit(target, exit_layer, confidence=confidence)
    bare.notes = (
        f"The trained adapter is for an exit after layer {trained_for}; after layer {exit_layer} none is used.",
    )
    return bare


def _eagle(
    target: Target,
    source: str = "",
    tree: bool = False,
    nodes: int = 8,
    branches: int = 4,
    confidence: float = 0.0,
    aux_convention: str = "",
    norm_before_residual: bool | None = None,
    assistant: Given = None,
) -> Drafter:
    """source: only names the weights. aux_convention, norm_before_residual: what some files leave open."""
    return Eagle(
        target,
        _weights(Eagle.kind, target, assistant),
        tree=tree,
        nodes=nodes,
        branches=branches,
        confidence=confidence,
        aux_convention=aux_convention,
        norm_before_residual=norm_before_residual,
    )


def _head(kind: type[Mtp] | type[Medusa]) -> Callable[..., Drafter]:
    def build(
        target: Target,
        source: str = "",
        tree: bool = False,
        nodes: int = 8,
        branches: int = 4,
        confidence: float = 0.0,
        assistant: Given = None,
    ) -> Drafter:
        """source: only names the weights."""
        weights = _weights(kind.kind, target, assistant)
        return kind(target, weights, tree=tree, nodes=nodes, branches=branches, confidence=confidence)

    return build


def _weights(kind: str, target: Target, given: Given) -> Weights:
    """As `_trained`; raises UserError if there are none."""
    found = _trained(kind, target, given)
    if found is None:
        raise UserError(
            f"No trained {kind} drafter for {target.name} is at hand; name one with --drafter-path, or train one with "
            f"`python -m specviz train {TRAINED_AS.get(kind, kind)}`."
        )
    return found


def _trained(kind: str, target: Target, given: Given) -> Weights | None:
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
    "eagle": _eagle,
    "medusa": _head(Medusa),
    "mtp": _head(Mtp),
    "library": _library,
}
ASSISTED = ("draft-model", "library")  # kinds in which another model can draft
WEIGHTED = ("eagle", "medusa", "mtp", "early-exit", "draft-model")  # kinds that can draft with trained weights
TREES = ("ngram", "eagle", "medusa", "mtp")  # kinds that can draft trees
TREE_SETTINGS = ("tree", "nodes", "branches")
TRAINED_AS = {"eagle": "eagle3"}  # what the training command calls a kind
COMBINED_MIN = 2  # tokens that must match before an n-gram drafts in place of a trained drafter


def make_drafter(kind: str, target: Target, settings: Mapping[str, Any], assistant: Given = None) -> Drafter:
    """A drafter of that kind for that target.

    kind: one of DRAFTERS, or several in turn, as in "ngram+eagle". settings: what the kind takes; each part of a
    combination takes those that it knows, and `kind.name` is for that part alone. assistant: the separate model, or
    the trained weights, for the kinds that take one.
    Raises UserError for unknown kinds and settings, and for what can't work together.
    """
    parts = kind.split("+")
    for part in parts:
        if part not in DRAFTERS:
            raise UserError(f"There is no drafter {part!r}; choose one of {', '.join(DRAFTERS)}.")
    if len(parts) == 1:
        drafter = _build(kind, target, settings, assistant)
        _check_sources(settings, [drafter], assistant)
        return drafter
    if len(set(parts)) < len(parts) or "plain" in parts:
        raise UserError(f"{kind} can't be combined; name each drafter once, and leave out plain.")
    shares, takers = _shares(parts, settings), _takers(parts, assistant)
    built = [_build(part, target, shares[part], assistant if part in takers else None) for part in parts]
    _check_sources(settings, built, assistant)
    return Combined(built, settings.get("second_gamma"))


def _build(kind: str, target: Target, settings: Mapping[str, Any], assistant: Given) -> Drafter:
    known = _known(kind)
    for name in settings:
        if name in TREE_SETTINGS and name not in known:
            raise UserError(f"{kind} drafts chains only; leave out {name!r}, or draft with {', '.join(TREES)}.")
        if name not in known:
            raise UserError(f"{kind} has no setting {name!r}; leave it out.")
    given = {"assistant": assistant} if kind in {*ASSISTED, *WEIGHTED} else {}
    return DRAFTERS[kind](target, **settings, **given)


def _shares(parts: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each part's settings out of those of a combination. Raises UserError for one that no part knows."""
    left = {name: value for name, value in settings.items() if name != "second_gamma"}
    shares: dict[str, dict[str, Any]] = {}
    for part in parts:
        own = {name.removeprefix(f"{part}."): value for name, value in left.items() if name.startswith(f"{part}.")}
        shares[part] = {name: value for name, value in left.items() if name in _known(part)} | own
    for name in left:
        if not any(name in share or name.startswith(f"{part}.") for part, share in shares.items()):
            raise UserError(f"{'+'.join(parts)} has no setting {name!r}; leave it out.")
    if parts[0] == NGram.kind:
        share = shares[NGram.kind]
        share.setdefault("ngram_min", min(COMBINED_MIN, share.get("ngram_max", COMBINED_MIN)))
    return shares


def _known(kind: str) -> set[str]:
    """Settings that the kind takes."""
    return {*inspect.signature(DRAFTERS[kind]).parameters} - {"target", "assistant"}


def _takers(parts: Sequence[str], given: Given) -> set[str]:
    """Parts of a combination that can draft with what is given; of several, the one that weights say they are for."""
    if not isinstance(given, Weights):
        return {*parts} & {*ASSISTED}
    takers = {*parts} & {*WEIGHTED}
    made_for = about(given.path).get("kind") if len(takers) > 1 else None
    return {made_for} if made_for in takers else takers


def _check_sources(settings: Mapping[str, Any], built: Sequence[Drafter], given: Given) -> None:
    """Raise UserError if a source names weights that none of the drafters has; beside a given one it only names that.

    A trace header names the weights of all parts, joined, so that the run can be done again.
    """
    at_hand = {"", SELF, SHIPPED, *(getattr(drafter, "name", "") for drafter in built)}
    named = [value for key, value in settings.items() if key.rpartition(".")[2] == "source"]
    for name in (name for value in named for name in str(value).split(JOINED)):
        if given is None and name not in at_hand:
            raise UserError(f"The drafter {name} has not been loaded; name its folder or Hub id.")
