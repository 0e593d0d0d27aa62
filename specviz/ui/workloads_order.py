"""What is asked for where a suite is measured on the page, checked: the browser's own limits are only a convenience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from specviz.drafters import usual_gamma
from specviz.errors import UserError
from specviz.presets import DrafterPreset, Pairing
from specviz.ui.checks import whole
from specviz.ui.form import drafter_preset
from specviz.workloads.arms import Arm
from specviz.workloads.prompts import WORKLOADS
from specviz.workloads.runner import Plan
from specviz.workloads.suites import OWN, Suite, load_suite, sample

MOST_DRAFTERS = 3
MOST_PROMPTS = 6  # of each workload
LEAST_TOKENS, MOST_TOKENS = 16, 128
TIMED, UNTIMED = "timed", "untimed"


class Asked(NamedTuple):
    """The controls' values as they came; anything may be missing or wrong."""

    pairing: Any
    drafters: Any  # titles
    workloads: Any
    prompts: Any  # of each workload
    tokens: Any
    timed: Any


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured, within the limits."""

    pairing: Pairing
    presets: tuple[DrafterPreset, ...]
    plan: Plan


def read(asked: Asked, pairings: Mapping[str, Pairing]) -> Order:
    """Raises UserError with one sentence about the first thing that is wrong."""
    if not isinstance(asked.pairing, str) or asked.pairing not in pairings:
        raise UserError("Choose a pairing of the list.")
    pairing = pairings[asked.pairing]
    titles = asked.drafters if isinstance(asked.drafters, list) else []
    if not 1 <= len(titles) <= MOST_DRAFTERS:
        raise UserError(f"{len(titles)} drafters are chosen; choose one to {MOST_DRAFTERS}.")
    if len({*map(str, titles)}) < len(titles):
        raise UserError("A drafter is chosen twice; choose it once.")
    presets = tuple(drafter_preset(pairing, title) for title in titles)
    chosen = asked.workloads if isinstance(asked.workloads, list) else []
    workloads = [workload for workload in WORKLOADS if workload in chosen]
    if not workloads:
        raise UserError("No workload is chosen; choose at least one.")
    if asked.timed not in (TIMED, UNTIMED):
        raise UserError(f"Choose what is measured: {TIMED} or {UNTIMED}.")
    prompts = whole("The number of prompts", asked.prompts, 1, MOST_PROMPTS)
    own = load_suite(OWN)
    suite = Suite(OWN, tuple(prompt for prompt in own.prompts if prompt.workload in workloads))
    plan = Plan(
        suites=(sample(suite, prompts * len(workloads)),),
        max_new_tokens=whole("The number of new tokens", asked.tokens, LEAST_TOKENS, MOST_TOKENS),
        repeats=1 if asked.timed == TIMED else 0,
    )
    return Order(pairing, presets, plan)


def arm_of(preset: DrafterPreset) -> Arm:
    """The drafter as its preset sets it."""
    settings = {name: value for name, value in preset.defaults.items() if name != "gamma"}
    return Arm(preset.kind, settings, int(preset.defaults.get("gamma", usual_gamma(preset.kind))))
