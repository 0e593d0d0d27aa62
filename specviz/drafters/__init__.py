"""Drafters: whoever proposes. `make_drafter` builds one by its kind, or several in turn by `kind+kind`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from specviz.drafter_settings import TREES, bare, check_setting
from specviz.drafters.base import Assistant, Context, Drafter, Weights
from specviz.drafters.combined import Combined
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.eagle import Eagle
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.heads.files import about
from specviz.drafters.library import Library
from specviz.drafters.makers import (
    DRAFTERS,
    JOINED,
    LEFT_OPEN,
    SELF,
    SHIPPED,
    Given,
    adapter_of,
    reduced_of,
    weights_of,
)
from specviz.drafters.medusa import Medusa
from specviz.drafters.mtp import Mtp
from specviz.drafters.ngram import NGram
from specviz.drafters.plain import Plain
from specviz.errors import UserError
from specviz.models.target import Target

__all__ = [
    "ASSISTED",
    "DRAFTERS",
    "SELF",
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
    "settings_by_part",
    "settings_of",
    "usual_gamma",
    "weights_by_part",
]

ASSISTED = ("draft-model", "library")  # kinds in which another model can draft
WEIGHTED = ("eagle", "medusa", "mtp", "early-exit", "draft-model")  # kinds that can draft with trained weights
GAMMA, OTHER_GAMMA = 4, {"ngram": 5, "early-exit": 2}  # draft tokens are cheap to copy, and dear to compute
TREE_SETTINGS = ("tree", "nodes", "branches")
NO_SETTINGS = {"target", "assistant", "left_open"}  # what else the makers are given
COMBINED_MIN = 2  # tokens that must match before an n-gram drafts in place of a trained drafter


def make_drafter(kind: str, target: Target, settings: Mapping[str, Any], assistant: Given = None) -> Drafter:
    """A drafter of that kind for that target.

    kind: one of DRAFTERS, or several in turn, as in "ngram+eagle". settings: what the kind takes; each part of a
    combination takes those that it knows, and `kind.name` is for that part alone. assistant: the separate model, or
    the trained weights, for the kinds that take one.
    Raises UserError for unknown kinds and settings, for values that a setting can't have, and for what can't work
    together.
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
    shares, takers = settings_by_part(kind, settings), _takers(parts, assistant)
    built = [_build(part, target, shares[part], assistant if part in takers else None) for part in parts]
    _check_sources(settings, built, assistant)
    return Combined(built, settings.get("second_gamma"))


def _build(kind: str, target: Target, settings: Mapping[str, Any], assistant: Given) -> Drafter:
    known = settings_of(kind)
    for name in settings:
        if name in TREE_SETTINGS and name not in known:
            raise UserError(f"{kind} drafts chains only; leave out {name!r}, or draft with {', '.join(TREES)}.")
        if name not in known:
            raise UserError(f"{kind} has no setting {name!r}; leave it out.")
        check_setting(name, settings[name])
    given = {"assistant": assistant} if kind in {*ASSISTED, *WEIGHTED} else {}
    return DRAFTERS[kind](target, **settings, **given)


def _check_sources(settings: Mapping[str, Any], built: Sequence[Drafter], given: Given) -> None:
    """Raise UserError if a source names weights that none of the drafters has; beside a given one it only names that.

    A trace header names the weights of all parts, joined, so that the run can be done again.
    """
    at_hand = {"", SELF, SHIPPED, *(getattr(drafter, "name", "") for drafter in built)}
    named = [value for key, value in settings.items() if bare(key) == "source"]
    for name in (name for value in named for name in str(value).split(JOINED)):
        if given is None and name not in at_hand:
            raise UserError(f"The drafter {name} has not been loaded; name its folder or Hub id.")


def weights_by_part(
    kind: str, target: Target, settings: Mapping[str, Any], assistant: Given = None
) -> dict[str, Weights]:
    """The trained weights that `make_drafter` would read for each part; parts that read none are left out."""
    parts = kind.split("+")
    takers = _takers(parts, assistant)
    found: dict[str, Weights | None] = {}
    for part, share in settings_by_part(kind, settings).items():
        given = assistant if part in takers else None
        if part == DraftModel.kind:
            found[part] = reduced_of(target, share.get("source", ""), given)
        elif part == EarlyExit.kind:
            found[part] = adapter_of(target, share.get("exit_layer"), share.get("adapter", True), given)
        elif part in WEIGHTED:
            found[part] = weights_of(part, target, given)
    return {part: weights for part, weights in found.items() if weights is not None}


def _takers(parts: Sequence[str], given: Given) -> set[str]:
    """Parts of a combination that can draft with what is given; of several, the one that weights say they are for."""
    if not isinstance(given, Weights):
        return {*parts} & {*ASSISTED}
    takers = {*parts} & {*WEIGHTED}
    made_for = about(given.path).get("kind") if len(takers) > 1 else None
    return {made_for} if isinstance(made_for, str) and made_for in takers else takers


def settings_by_part(kind: str, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each part's settings out of those of a combination. Raises UserError for one that no part knows."""
    parts = kind.split("+")
    if len(parts) == 1:
        return {kind: dict(settings)}
    left = {name: value for name, value in settings.items() if name != "second_gamma"}
    shares: dict[str, dict[str, Any]] = {}
    for part in parts:
        own = {name.removeprefix(f"{part}."): value for name, value in left.items() if name.startswith(f"{part}.")}
        shares[part] = {name: value for name, value in left.items() if name in settings_of(part)} | own
    for name in left:
        if not any(name in share or name.startswith(f"{part}.") for part, share in shares.items()):
            raise UserError(f"{kind} has no setting {name!r}; leave it out.")
    if parts[0] == NGram.kind:
        share = shares[NGram.kind]
        share.setdefault("ngram_min", min(COMBINED_MIN, share.get("ngram_max", COMBINED_MIN)))
    return shares


def settings_of(kind: str) -> set[str]:
    """Settings that the kind takes."""
    return {*inspect.signature(DRAFTERS[kind]).parameters, *LEFT_OPEN.get(kind, ())} - NO_SETTINGS


def usual_gamma(kind: str) -> int:
    """The draft length to start from where nothing better is known; of a combination that of its dearest part."""
    return min(OTHER_GAMMA.get(part, GAMMA) for part in kind.split("+"))
