"""The drafter that the options ask for: its kind and settings, what is left out as the pairing's preset has it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from specviz.drafter_settings import asks_for_tree, bare, check_setting
from specviz.drafters import ASSISTED, DRAFTERS, SELF, TREES, WEIGHTED, usual_gamma
from specviz.errors import UserError
from specviz.presets import DrafterPreset, Pairing, pairing

CONFIDENCE = 0.4
NGRAM = {"ngram_min": 1, "ngram_max": 3, "pick": "recent"}
CONFIDENT = tuple(kind for kind in DRAFTERS if kind not in ("plain", "ngram", "library"))
# Which kinds take an option, by its name among the parsed ones, and the setting that it is.
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ngram_min": ("ngram_min", ("ngram",)),
    "ngram_max": ("ngram_max", ("ngram",)),
    "ngram_pick": ("pick", ("ngram",)),
    "exit_layer": ("exit_layer", ("early-exit",)),
    "method": ("method", ("library",)),
    "tree": ("tree", TREES),
    "nodes": ("nodes", TREES),
    "branches": ("branches", TREES),
    "confidence": ("confidence", CONFIDENT),
    "aux_convention": ("aux_convention", ("eagle",)),
    "norm_before_residual": ("norm_before_residual", ("eagle",)),
}
SHAPE = ("tree", "nodes", "branches")


def settle_drafter(options: argparse.Namespace) -> None:
    """Fill in the drafter where none is named; refuse an unknown one, and options out of bounds or passed over by it.

    Raises UserError, one sentence.
    """
    if options.drafter is None:
        options.drafter = "ngram" if options.drafter_path is None else "draft-model"
    kinds = options.drafter.split("+")
    if unknown := [kind for kind in kinds if kind not in DRAFTERS]:
        raise UserError(f"There is no drafter {unknown[0]!r}; choose one of {', '.join(DRAFTERS)}, or several with +.")
    if options.drafter_path is not None and not {*kinds} & {*ASSISTED, *WEIGHTED}:
        raise UserError(
            f"--drafter-path names a model or a head that drafts, and {options.drafter} takes none; leave one of them "
            "out."
        )
    for option, (setting, takers) in OPTIONS.items():
        value, flag = getattr(options, option, None), f"--{option.replace('_', '-')}"
        if value is None:
            continue
        if not {*kinds} & {*takers}:
            raise UserError(
                f"{flag} is of {' or '.join(takers)}, not of {options.drafter}; choose --drafter {takers[0]}"
                f"{'' if len(takers) == 1 else ' or another of those'}, or leave it out."
            )
        check_setting(setting, value, flag)
    if (second := getattr(options, "second_gamma", None)) is not None:
        if len(kinds) == 1:
            raise UserError("--second-gamma is for combinations such as ngram+eagle; leave it out.")
        check_setting("second_gamma", second, "--second-gamma")
    usual = preset_defaults(options.drafter, _named_pairing(options))
    _settle_policy(options, usual)
    if "ngram" in kinds:
        for option in ("ngram_min", "ngram_max", "ngram_pick"):
            setting, _ = OPTIONS[option]
            if getattr(options, option) is None and len(kinds) == 1:
                setattr(options, option, usual.get(setting, NGRAM[setting]))


def settled_gamma(options: argparse.Namespace, loaded: Pairing | None = None) -> int:
    """The draft length: the one asked for, else the preset's of that kind, else what is usual for the kind.

    loaded: the pairing, once a target of the user's own has one.
    """
    if options.gamma is not None:
        return int(options.gamma)
    usual = preset_defaults(options.drafter, loaded or _named_pairing(options))
    return int(usual.get("gamma", usual_gamma(options.drafter)))


def _named_pairing(options: argparse.Namespace) -> Pairing | None:
    """None for a target of the user's own, which has its presets only once it was looked at."""
    return None if getattr(options, "target", None) else pairing(options.pairing)


def _settle_policy(options: argparse.Namespace, usual: Mapping[str, Any]) -> None:
    """Let the policy and the confidence agree: drafting by confidence is a setting of the drafter."""
    policy, confidence = getattr(options, "gamma_policy", None), getattr(options, "confidence", None)
    by_part = any(value for name, value in usual.items() if "." in name and bare(name) == "confidence")
    if policy is None:
        asks = (by_part or usual.get("confidence", 0)) if confidence is None else confidence
        policy = "confidence" if asks else usual.get("gamma_policy", "fixed")
    elif policy != "confidence" and confidence is not None:
        raise UserError(f"--confidence is of the policy confidence, not {policy}; leave one of them out.")
    if policy == "confidence":
        if not {*options.drafter.split("+")} & {*CONFIDENT}:
            raise UserError(
                f"{options.drafter} has no confidence to stop by; choose another --gamma-policy or drafter."
            )
        if confidence is None:
            confidence = usual.get("confidence", None if by_part else CONFIDENCE)
    options.gamma_policy, options.confidence = policy, confidence


def drafter_settings(options: argparse.Namespace, pairing: Pairing) -> dict[str, Any]:
    """The settings of the chosen drafter: those of the pairing's preset of that kind, changed by the options."""
    kinds, usual = options.drafter.split("+"), preset_defaults(options.drafter, pairing)
    left_out = {"gamma", "gamma_policy"}
    if getattr(options, "gamma_policy", None) != "confidence":
        left_out.add("confidence")
    settings = from_path(getattr(options, "drafter_path", None), options.drafter, _without(left_out, usual))
    for option, (setting, takers) in OPTIONS.items():
        value = getattr(options, option, None)
        if value is not None and {*kinds} & {*takers}:  # for all parts, also where the preset has it part by part
            settings = {**_without({setting}, settings), setting: value}
    if getattr(options, "second_gamma", None) is not None:
        settings["second_gamma"] = options.second_gamma
    if options.drafter == "library":
        settings.setdefault("method", "universal")
    if not asks_for_tree(settings):
        if named := [f"--{name}" for name in SHAPE[1:] if getattr(options, name, None) is not None]:
            raise UserError(f"{named[0]} shapes a tree, and a chain is drafted; add --tree, or leave it out.")
        settings = _without(SHAPE, settings)
    return settings


def from_path(named: str | None, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with --drafter-path, if it is given, in place of the source that a preset has."""
    if named is None:
        return dict(settings)
    kept = _without({"source"}, settings)
    return {**kept, "source": SELF} if named == SELF and "draft-model" in kind.split("+") else kept


def _without(left_out: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if bare(name) not in left_out}


def preset_defaults(kind: str, pairing: Pairing | None) -> dict[str, Any]:
    """The defaults of the pairing's preset for that kind; none if it offers no such drafter, or if there is none."""
    preset = preset_of(kind, pairing) if pairing else None
    return dict(preset.defaults) if preset else {}


def preset_of(kind: str, pairing: Pairing) -> DrafterPreset | None:
    """The pairing's first preset of that kind. A combination that it does not offer goes by its trained part."""
    kinds = [kind, *(part for part in kind.split("+") if part in {*ASSISTED, *WEIGHTED})]
    return next((preset for each in kinds for preset in pairing.drafters if preset.kind == each), None)
