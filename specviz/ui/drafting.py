"""What follows the drafter: which of its settings are shown, and where they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gradio as gr

from specviz.decoding.verify import LOSSLESS, RULES
from specviz.drafters import COMBINED_MIN
from specviz.presets import DrafterPreset
from specviz.ui import form
from specviz.ui.form import CHAIN, TREE

Value = Any  # what a Gradio component takes

FALLBACK: dict[str, float] = {  # where a preset names no default
    "gamma": 4,
    "second_gamma": 4,
    "ngram_min": 1,
    "ngram_max": 3,
    "exit_layer": 8,
    "nodes": 8,
    "branches": 4,
    "confidence": 0.4,
}
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


class Starts(NamedTuple):
    """The drafter's settings, each with its default."""

    ngram_min: Value
    ngram_max: Value
    exit_layer: Value
    gamma: Value
    shape: Value
    nodes: Value
    branches: Value
    second_gamma: Value
    policy: Value
    confidence: Value
    rule: Value


def groups(preset: DrafterPreset, shape: str) -> Groups:
    kinds = form.parts(preset)
    return Groups(
        preset.note,
        gr.update(visible="ngram" in kinds),
        gr.update(visible="early-exit" in kinds),
        gr.update(visible=form.knows(preset, "tree")),
        gr.update(visible=shape == TREE),
        gr.update(visible=len(kinds) > 1),
        gr.update(visible=preset.kind != "plain"),
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
        default(preset, "nodes"),
        default(preset, "branches"),
        default(preset, "second_gamma"),
        policies(preset, policy),
        threshold(policy, value=default(preset, "confidence")),
        rules(shape, rule),
    )


def default(preset: DrafterPreset, name: str) -> Any:
    """A default of 0 only says that the setting is off, so that it is no place to start."""
    if found := preset.defaults.get(form.key(preset, name)):
        return found
    is_combination = len(form.parts(preset)) > 1
    if is_combination and name == "ngram_min":
        return COMBINED_MIN
    return default(preset, "gamma") if is_combination and name == "second_gamma" else FALLBACK[name]


def first_shape(preset: DrafterPreset, settings: Mapping[str, Any]) -> str:
    return TREE if settings.get(form.key(preset, "tree")) and form.knows(preset, "tree") else CHAIN


def first_policy(preset: DrafterPreset, settings: Mapping[str, Any]) -> str:
    return form.CONFIDENCE if settings.get(form.key(preset, "confidence")) else form.FIXED


def policies(preset: DrafterPreset, policy: str) -> Value:
    """The choices of what decides on the draft length: who copies is never more or less sure."""
    is_unsure = form.knows(preset, "confidence")
    offered = [name for name in form.POLICIES if name != form.CONFIDENCE or is_unsure]
    info = "Adaptive asks in each step for the length that paid lately, gamma at most."
    if is_unsure:
        info = f"By confidence, a draft ends early after a token that the drafter is unsure of. {info}"
    return gr.update(choices=[(POLICY_NAMES[name], name) for name in offered], value=policy, info=info)


def threshold(policy: str, **more: Value) -> Value:
    return gr.update(visible=policy == form.CONFIDENCE, **more)


def rules(shape: str, rule: str) -> Value:
    """The choices of the acceptance rule for drafts of that shape; `rule` stays if it is among them."""
    offered = [name for name in RULES if name != "block" or shape == CHAIN]
    named = [(RULE_NAMES.get(name, name) if name in LOSSLESS else f"{name}: lossy", name) for name in offered]
    lossless = "The first two are lossless." if shape == CHAIN else "The first is lossless; block would need a chain."
    info = f"{lossless} Typical is lossy: it keeps what the target finds not unlikely."
    return gr.update(choices=named, value=rule if rule in offered else "token", info=info)


def choose_shape(shape: str, rule: str) -> tuple[Value, Value]:
    """The tree's settings, and the rules that there are for it."""
    return gr.update(visible=shape == TREE), rules(shape, rule)
