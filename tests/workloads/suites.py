"""What the tests of suites share: a tiny target that is loaded, short prompts, and results built by hand."""

from __future__ import annotations

from typing import Any

from fakes import chat_target

from specviz.comparison import Phases
from specviz.loaded import Loaded
from specviz.presets import pairing
from specviz.workloads.arms import Arm
from specviz.workloads.prompts import Prompt
from specviz.workloads.results import Answer, Header, Result
from specviz.workloads.runner import Plan
from specviz.workloads.suites import Suite

PROMPTS = (
    Prompt("copy", "editing", ("abcabcabcabc",)),
    Prompt("count", "mathematics", ("one two one two",)),
    Prompt("rain", "story", ("rain, rain, rain",)),
)
TALK = Prompt("talk", "multi-turn", ("abcabc", "once more", "and again"))
SUITE = Suite("own", PROMPTS)
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "logit_bias": {}}
HEADER = Header(
    "tiny", "Tiny", "abc", "cpu, 1 thread", "float32", 1, {}, GREEDY, 0, 100, True, 1, "2026-01-01", (0.5, 0.25, 0.0)
)


def tiny_loaded() -> Loaded:
    return Loaded(
        pairing("smollm2-135m"), chat_target(2)
    )  # it says things twice, so that copying is accepted now and then


def plan(*suites: Suite, tokens: int = 40, repeats: int = 1, **changed: Any) -> Plan:
    return Plan(suites or (SUITE,), tokens, repeats, **changed)


def answer(*accepted: int, gamma: int = 4, prompt_tokens: int = 10) -> Answer:
    """An answer in steps that each drafted a chain of `gamma` and went on by what they accepted and one more."""
    committed = tuple(kept + 1 for kept in accepted)
    return Answer(prompt_tokens, (gamma,) * len(accepted), (gamma,) * len(accepted), accepted, committed)


def result(
    arm: Arm,
    prompt: str,
    speedup: float | None = 1.5,
    accepted: tuple[int, ...] = (1,),
    workload: str = "code",
    suite: str = "own",
    c: float | None = 0.1,
    v: float = 1.2,
    length: float = 2.1,
    **changed: Any,
) -> Result:
    """An answer in one step for each number accepted, plain at one second a token.

    What acceptance promises is 2.1 / (1.2 + 2 * 0.1) = 1.5.
    """
    phases = Phases(0.1, 0.2, 0.3, 0.4, 0.5, cost_ratio=c, verify_cost=v, gamma_used=2.0, acceptance_length=length)
    timed = speedup is not None
    values: dict[str, Any] = {
        "length": "short",
        "turns": 1,
        "answers": (answer(*accepted),),
        "plain_s": (1.0,) if timed else (),
        "speculative_s": (1 / speedup,) if speedup is not None else (),
        "phases": phases if timed else None,
        "outside": 0.04 if timed else None,
        "identical": True if timed else None,
        "divergence": None,
        **changed,
    }
    return Result(arm, suite, prompt, prompt, workload, **values)
