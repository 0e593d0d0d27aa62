"""What follows the drafter: which of its settings are shown, and where they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gradio as gr

from specviz.decoding.verify import LOSSLESS, RULES
from specviz.drafters import COMBINED_MIN, usual_gamma
from specviz.presets import DrafterPreset
from specviz.ui import form
from specviz.ui.form import CHAIN, TREE
from specviz.ui.parts import LATER, PER_PART, knows, names, parts, whose

Value = Any  # what a Gradio component takes

FALLBACK: dict[str, float] = {  # where a preset names no default
    "ngram_min": 1,
    "ngram_max": 3,
    "exit_layer": 8,
    "nodes": 8,
    "branches": 4,
    "confidence": 0.4,
}
NUMBERS = ("gamma", "second_gamma", *FALLBACK, *(LATER + setting for setting in PER_PART))
LABELS = {"nodes": "Nodes at most", "branches": "Branches per node", "confidence": "Confidence threshold"}
RULE_NAMES = {"token": "token by token", "block": "block"}
POLICY_NAMES = {form.FIXED: "always gamma", form.CONFIDENCE: "by confidence", form.ADAPTIVE: "adaptive"}


class Groups(NamedTuple):
    """Controls that are shown only for the drafters that they are for."""

    note: Value
    ngram: Value
    exit: Value
    shape: Value
    tree: Value  # within the one before
    second: Value
    rules: Value
    later: Value  # within the one before


class Starts(NamedTuple):
    """The drafter's settings, each with its default."""

    ngram_min: Value
    ngram_max: Value
    exit_layer: Value
    gamma: Value
    shape: Value
    nodes: Value
    branches: Value
    later_nodes: Value
    later_branches: Value
    second_gamma: Value
    policy: Value
    confidence: Value
    later_confidence: Value
    rule: Value


def groups(preset: DrafterPreset, shape: str) -> Groups:
    kinds = parts(preset)
    return Groups(
        preset.note,
        gr.update(visible="ngram" in kinds),
        gr.update(visible="early-exit" in kinds),
        gr.update(visible=knows(preset, "tree")),
        gr.update(visible=shape == TREE),
        gr.update(visible=len(kinds) > 1),
        gr.update(visible=preset.kind != "plain"),
        gr.update(visible=len(names(preset, "confidence")) > 1),
    )


def starts(preset: DrafterPreset, rule: str) -> Starts:
    """rule: the acceptance rule chosen so far, which stays if it can."""
    shape, policy = first_shape(preset, preset.defaults), first_policy(preset, preset.defaults)
    return Starts(
        default(preset, "ngram_min"),
        default(preset, "ngram_max"),
        default(preset, "exit_layer"),
        gr.update(value=default(preset, "gamma"), interactive=preset.kind != "plain"),
        shape,
        by_part(preset, "nodes"),
        by_part(preset, "branches"),
        by_part(preset, "later_nodes"),
        by_part(preset, "later_branches"),
        default(preset, "second_gamma"),
        policies(preset, policy),
        threshold(policy, by_part(preset, "confidence")),
        threshold(policy, by_part(preset, "later_confidence")),
        rules(shape, rule),
    )


def default(preset: DrafterPreset, name: str) -> Any:
    """A default of 0 only says that the setting is off, so that it is no place to start."""
    setting = name.removeprefix(LATER)
    if found := preset.defaults.get(_shared(preset, name)[0]):
        return found
    if setting == "gamma":
        return usual_gamma(preset.kind)
    if setting == "second_gamma":
        return default(preset, "gamma")
    return COMBINED_MIN if setting == "ngram_min" and len(parts(preset)) > 1 else FALLBACK[setting]


def by_part(preset: DrafterPreset, name: str) -> dict[str, Any]:
    """A number that parts of a combination may each have their own of: it says whose it is where that matters.

    name: of the control; the second one is shown only where the preset has a use for it.
    """
    setting = name.removeprefix(LATER)
    kinds = whose(preset, _shared(preset, name))
    label = f"{LABELS[setting]}: {kinds}" if kinds else LABELS[setting]
    visible = name == setting or len(names(preset, setting)) > 1
    return gr.update(value=default(preset, name), label=label, visible=visible)


def _shared(preset: DrafterPreset, name: str) -> list[str]:
    """What the preset calls the control's setting, or settings; of a second one without a use what the first has."""
    return names(preset, name.removeprefix(LATER))[-1 if name.startswith(LATER) else 0]


def first_shape(preset: DrafterPreset, settings: Mapping[str, Any]) -> str:
    return TREE if knows(preset, "tree") and any(settings.get(name) for name in names(preset, "tree")[0]) else CHAIN


def first_policy(preset: DrafterPreset, settings: Mapping[str, Any]) -> str:
    return form.CONFIDENCE if any(settings.get(name) for name in names(preset, "confidence")[0]) else form.FIXED


def policies(preset: DrafterPreset, policy: str) -> Value:
    """The choices of what decides on the draft length: who copies is never more or less sure."""
    is_unsure = knows(preset, "confidence")
    offered = [name for name in form.POLICIES if name != form.CONFIDENCE or is_unsure]
    info = "Adaptive asks in each step for the length that paid lately, gamma at most."
    if is_unsure:
        info = f"By confidence, a draft ends early after a token that the drafter is unsure of. {info}"
    return gr.update(choices=[(POLICY_NAMES[name], name) for name in offered], value=policy, info=info)


def threshold(policy: str, shown: Mapping[str, Any]) -> Value:
    return {**shown, "visible": policy == form.CONFIDENCE}


def choose_policy(policy: str) -> tuple[Value, Value]:
    """Both thresholds; the second stands in a group of its own, which is shown only where there is a use for it."""
    return threshold(policy, gr.update()), threshold(policy, gr.update())


def rules(shape: str, rule: str) -> Value:
    """The choices of the acceptance rule for drafts of that shape; `rule` stays if it is among them."""
    offered = [name for name in RULES if name != "block" or shape == CHAIN]
    named = [(RULE_NAMES.get(name, name) if name in LOSSLESS else f"{name}: lossy", name) for name in offered]
    lossless = "The first two are lossless." if shape == CHAIN else "The first is lossless; block would need a chain."
    lossy = "Typical is lossy: it keeps what the target finds not unlikely, so the output need not be the target's own."
    info = f"{lossless} {lossy}"
    return gr.update(choices=named, value=rule if rule in offered else "token", info=info)


def choose_shape(shape: str, rule: str) -> tuple[Value, Value]:
    """The tree's settings, and the rules that there are for it."""
    return gr.update(visible=shape == TREE), rules(shape, rule)
