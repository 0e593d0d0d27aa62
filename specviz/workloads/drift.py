"""Two sets of results compared: which differences are more than the choice of prompts can explain.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from specviz.workloads.arms import Arm
from specviz.workloads.results import Result
from specviz.workloads.statistics import Interval, difference_interval

ALL = "all"  # stands for a workload where all prompts are taken together

Sums = tuple[list[float], list[float]]  # parts and wholes, one each per prompt


class Difference(NamedTuple):
    """A figure in both sets, for one way of drafting on one workload."""

    arm: Arm  # as the first set has it
    workload: str  # ALL: over all that both have
    measure: str  # "acceptance length" or "speed-up"
    before: float
    after: float
    interval: Interval | None  # of after - before; None for too few prompts
    paired: bool  # the same prompts stand on both sides
    prompts: tuple[int, int]

    @property
    def is_beyond_noise(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def compare(one: Sequence[Result], other: Sequence[Result]) -> list[Difference]:
    """What both have in common: each way of drafting over all prompts, and on each workload of that name.

    Ways of drafting are the same if kind, settings and draft length are; their weights may have changed. The intervals
    are wide enough for all of the comparisons together (see `statistics.difference_interval`).
    """
    pairs = [
        (arm, workload, measure, sums(before), sums(after), _is_paired(before, after))
        for arm, before_all, after_all in _shared(one, other)
        for workload, before, after in _by_workload(before_all, after_all)
        for measure, sums in MEASURES.items()
    ]
    pairs = [pair for pair in pairs if pair[3][0] and pair[4][0]]
    return [
        Difference(
            arm,
            workload,
            measure,
            before=sum(before[0]) / sum(before[1]),
            after=sum(after[0]) / sum(after[1]),
            interval=difference_interval(before, after, paired=paired, comparisons=len(pairs)),
            paired=paired,
            prompts=(len(before[0]), len(after[0])),
        )
        for arm, workload, measure, before, after, paired in pairs
    ]


def _shared(one: Sequence[Result], other: Sequence[Result]) -> list[tuple[Arm, list[Result], list[Result]]]:
    """The ways of drafting that both have, with their results, in order of the prompts."""
    groups: list[dict[str, list[Result]]] = [{}, {}]
    for found, results in zip(groups, (one, other), strict=True):
        for result in sorted(results, key=lambda result: (result.suite, result.prompt, result.text)):
            found.setdefault(_way(result.arm), []).append(result)
    return [(group[0].arm, group, groups[1][way]) for way, group in groups[0].items() if way in groups[1]]


def _way(arm: Arm) -> str:
    """What makes two ways of drafting the same: not where the weights come from, nor which they are."""
    settings = sorted((name, value) for name, value in arm.settings.items() if name != "source")
    return f"{arm.kind} {settings} {arm.gamma}"


def _by_workload(
    one: Sequence[Result], other: Sequence[Result]
) -> list[tuple[str, Sequence[Result], Sequence[Result]]]:
    """All together, then each workload that both have; if there is one only, it is all."""
    names = [name for name in dict.fromkeys(r.workload for r in one) if any(r.workload == name for r in other)]
    parts = [(name, _of(name, one), _of(name, other)) for name in (names if len(names) > 1 else [])]
    return [(ALL, one, other), *parts]


def _of(workload: str, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.workload == workload]


def _is_paired(one: Sequence[Result], other: Sequence[Result]) -> bool:
    return [result.text for result in one] == [result.text for result in other]


def _acceptance(results: Sequence[Result]) -> Sums:
    return [float(r.steps + r.accepted) for r in results], [float(r.steps) for r in results]


def _speed(results: Sequence[Result]) -> Sums:
    """Seconds of plain and of speculative decoding; of one kind of timing alone there is no ratio."""
    timed = [result for result in results if result.plain_s]
    return (
        [median(r.plain_s) * r.tokens for r in timed],
        [median(r.speculative_s) * r.tokens for r in timed],
    )


MEASURES: dict[str, Callable[[Sequence[Result]], Sums]] = {"acceptance length": _acceptance, "speed-up": _speed}
