"""The parts of a drafter, and what a preset calls their settings: `setting` for all parts, `kind.setting` for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specviz.drafter_settings import bare
from specviz.drafters import DRAFTERS, settings_of
from specviz.presets import DrafterPreset

LATER = "later_"  # begins the names of the second controls
PER_PART = ("nodes", "branches", "confidence")  # settings with a second control, for a part that differs


def parts(preset: DrafterPreset) -> list[str]:
    """The kinds that a combination is made of."""
    return preset.kind.split("+")


def knows(preset: DrafterPreset, setting: str) -> bool:
    """Whether the drafter, or a part of the combination, has that setting."""
    return any(setting in settings_of(kind) for kind in parts(preset) if kind in DRAFTERS)


def names(preset: DrafterPreset, setting: str) -> list[list[str]]:
    """What the preset calls the setting, control by control: names with equal defaults share one.

    There are two controls at most; what a third would be for stays as the preset has it. So do parts for which the
    preset switches off what others have.
    """
    found = [name for name in preset.defaults if bare(name) == setting and _reached(preset, name)]
    found = [name for name in found if preset.defaults[name]] or found or [setting]
    by_default: dict[Any, list[str]] = {}
    for name in found:
        by_default.setdefault(preset.defaults.get(name), []).append(name)
    return list(by_default.values())[:2]


def whose(preset: DrafterPreset, shared: Sequence[str]) -> str:
    """The parts that a control with these names is for; "" if the preset tells no parts apart."""
    if not any("." in name for name in preset.defaults if bare(name) == bare(shared[0])):
        return ""
    reached = {kind for name in shared for kind in _reached(preset, name)}
    return " and ".join(kind for kind in parts(preset) if kind in reached)


def _reached(preset: DrafterPreset, name: str) -> list[str]:
    """The parts that take the setting from this name: one by its own name goes before one for all."""
    kind, _, setting = name.rpartition(".")
    if kind:
        return [kind]
    takers = [part for part in parts(preset) if part in DRAFTERS and setting in settings_of(part)]
    return [part for part in takers if f"{part}.{setting}" not in preset.defaults]
