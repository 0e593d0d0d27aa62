"""What a suite found out, prompt by prompt: plain values. Nothing here imports torch.

Acceptance is kept step by step, so that every figure can be computed anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import Any

from specviz.comparison import Divergence, Phases
from specviz.workloads.arms import Arm
from specviz.workloads.prompts import Prompt

CIRCUMSTANCES = ("date", "load")  # what may differ between a file's header and a run that goes on with it


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for every result of a file."""

    pairing: str  # its id
    target: str
    weights: str  # hash or revision of the target's
    device: str
    dtype: str
    threads: int | None
    versions: dict[str, str]
    sampler: dict[str, Any]  # as in a trace's header
    seed: int
    max_new_tokens: int  # of an answer, which ends earlier where the target ends it
    timed: bool  # otherwise acceptance alone was counted
    repeats: int
    date: str
    load: tuple[float, ...]  # the machine's load averages at the start, over 1, 5 and 15 minutes; () where unknown
    chat_template: bool = True
    batch: int = 1
    rule: str = "token"

    @property
    def temperature(self) -> float:
        return float(self.sampler["temperature"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a user turn, step by step: one entry per verify pass."""

    prompt_tokens: int  # the conversation before it included
    depths: tuple[int, ...]  # of the drafts; of a chain its tokens
    drafted: tuple[int, ...]  # draft tokens, in a tree all its nodes
    accepted: tuple[int, ...]
    committed: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.committed)


@dataclass(frozen=True, slots=True)
class Result:
    """One arm on one prompt.

    Acceptance is counted in a run of its own, which ends where the target ends its answer. Times are of further runs to
    as many tokens, without detail, plain and speculative in turns; `phases` and `outside` are of synchronised ones.
    """

    arm: Arm
    suite: str
    prompt: str  # its id within the suite
    text: str  # hash of the prompt's text
    workload: str
    length: str  # of the prompt, one of LENGTHS
    turns: int  # of the prompt
    answers: tuple[Answer, ...]  # one per turn, fewer where the conversation outgrew the target
    plain_s: tuple[float, ...]  # seconds per token, prefill left out; one per repeat, none if nothing was timed
    speculative_s: tuple[float, ...]
    phases: Phases | None
    outside: float | None  # share of the time, from the second step on, that no model's forward pass took
    identical: bool | None  # greedy output is plain decoding's; None where they were not or can't be compared
    divergence: Divergence | None  # where they part

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def steps(self) -> int:
        return sum(len(answer.accepted) for answer in self.answers)

    @property
    def accepted(self) -> int:
        return sum(sum(answer.accepted) for answer in self.answers)

    @property
    def drafted(self) -> int:
        return sum(sum(answer.drafted) for answer in self.answers)

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.steps

    @property
    def speedup(self) -> float | None:
        """Plain over speculative time per token: the median of the repeats' ratios; None if nothing was timed."""
        ratios = [plain / fast for plain, fast in zip(self.plain_s, self.speculative_s, strict=True)]
        return median(ratios) if ratios else None


def digest(prompt: Prompt) -> str:
    """What identifies a prompt's turns."""
    return sha256(json.dumps(prompt.turns).encode()).hexdigest()[:16]


def load_averages() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except (AttributeError, OSError):  # Windows has none
        return ()
