"""What the tests of the suite share: a tiny target that is loaded, and short prompts."""

from __future__ import annotations

from fakes import chat_target

from specviz.loaded import Loaded
from specviz.presets import pairing
from specviz.workloads.prompts import Prompt
from specviz.workloads.runner import Plan

PROMPTS = (
    Prompt("copy", "editing", "abcabcabcabc"),
    Prompt("count", "mathematics", "one two one two"),
    Prompt("rain", "story", "rain, rain, rain"),
)


def tiny_loaded() -> Loaded:
    return Loaded(
        pairing("smollm2-135m"), chat_target(2)
    )  # it says things twice, so that copying is accepted now and then


def plan(prompts: tuple[Prompt, ...] = PROMPTS, tokens: int = 40, repeats: int = 1) -> Plan:
    return Plan("own", prompts, tokens, repeats)
