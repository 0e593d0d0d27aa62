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
from specviz.workloads.summary import by_arm

ALL = "all"  # stands for a workload where all that both have are taken together

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


def compare(one: Sequence[Result], other: Sequence[Result]) -> list[Difference]:
    """What both have in common: each way of drafting over the workloads that both have, and on each of these.

    Ways of drafting are the same if kind, settings, draft length and weights are, or else all but the weights, where
    that leaves no doubt. The intervals are wide enough for all of the comparisons together (see
    `statistics.difference_interval`).
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
    """The ways of drafting that both have, with their results, in order of the prompts.

    An arm goes with itself. What is left on both sides goes together by `_way`, if one arm of each side is so.
    """
    before, after = (by_arm(sorted(each, key=lambda r: (r.suite, r.prompt, r.text))) for each in (one, other))
    partners = {id(group): next((each for each in after if each[0].arm == group[0].arm), None) for group in before}
    taken = [partner for partner in partners.values() if partner]
    left = [group for group in before if not partners[id(group)]]
    free = [group for group in after if group not in taken]
    for group in left:
        alike = [each for each in free if _way(each[0].arm) == _way(group[0].arm)]
        rivals = [each for each in left if _way(each[0].arm) == _way(group[0].arm)]
        if len(alike) == len(rivals) == 1:
            partners[id(group)] = alike[0]
    return [(group[0].arm, group, partner) for group in before if (partner := partners[id(group)])]


def _way(arm: Arm) -> str:
    """What two ways of drafting have in common whose weights have changed."""
    settings = sorted((name, value) for name, value in arm.settings.items() if name != "source" or value == "self")
    return f"{arm.kind} {settings} {arm.gamma}"


def _by_workload(
    one: Sequence[Result], other: Sequence[Result]
) -> list[tuple[str, Sequence[Result], Sequence[Result]]]:
    """All of the workloads that both have, by their names, then each of them; if there is one only, it is all."""
    names = [name for name in dict.fromkeys(r.workload for r in one) if any(r.workload == name for r in other)]
    shared = [[result for result in results if result.workload in names] for results in (one, other)]
    parts = [(name, _of(name, one), _of(name, other)) for name in (names if len(names) > 1 else [])]
    return [(ALL, shared[0], shared[1]), *parts] if names else []


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
