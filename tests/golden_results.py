"""Results of a suite to hold against golden lengths, built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specviz.comparison import Phases
from specviz.workloads.arms import Arm
from specviz.workloads.result_file import Results
from specviz.workloads.results import Answer, Header, Result

HEADER = Header(
    pairing="tiny",
    target="Tiny",
    weights="abc",
    device="cpu, 1 thread",
    dtype="float32",
    threads=1,
    versions={"specviz": "0.1.0"},
    sampler={"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
    seed=7,
    max_new_tokens=64,
    timed=True,
    repeats=1,
    date="2026-11-30",
    load=(0.5,),
)


def result(
    accepted: Sequence[int],
    drafted: Sequence[int] | None = None,
    *,
    kind: str = "eagle",
    gamma: int = 2,
    prompt: str = "one",
    workload: str = "code",
    costs: tuple[float, float] | None = None,
    settings: dict[str, Any] | None = None,
    weights: dict[str, str] | None = None,
) -> Result:
    """An answer with these draft tokens accepted, and drafted if not always gamma, step by step. costs: c and v."""
    tokens = tuple(drafted or [gamma] * len(accepted))
    answer = Answer(
        10, tuple(min(count, gamma) for count in tokens), tokens, tuple(accepted), tuple(a + 1 for a in accepted)
    )
    phases = Phases(0.1, 0.1, 0.1, 0.1, 0.1, *costs, float(gamma), 2.0) if costs else None
    arm = Arm(kind, settings or {}, gamma, weights or {})
    return Result(arm, "own", prompt, "hash", workload, "short", 1, (answer,), (), (), phases, None, None, None)


def written(file: Path, *found: Result, **header: Any) -> Path:
    """The file with these results; keywords change the header."""
    with Results(file) as results:
        results.begin(replace(HEADER, **header))
        for each in found:
            results.add(each)
    return file
