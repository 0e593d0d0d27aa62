"""From results to figures for every arm and every workload. Nothing here imports torch.

Acceptance lengths are given both step-weighted (over all verify passes of all prompts together, as golden acceptance
lengths are) and request-weighted (the mean of the prompts' own). What is timed is the median over the prompts, each of
which has its own plain run beside it, so that a machine that is slower for a while slows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any, Literal, NamedTuple

from specviz import trace
from specviz.workloads.arms import Arm
from specviz.workloads.result_file import SCHEMA
from specviz.workloads.results import Header, Result
from specviz.workloads.statistics import Interval, mean_interval, median_interval, ratio_interval

Verdict = Literal["faster", "slower", "no clear difference", "too few prompts"]

DEFINITIONS: dict[str, str] = {
    "acceptance_length": "Step-weighted: 1 + accepted / verify passes, over all passes of all prompts, undrafted ones "
    "included. Long answers count for more.",
    "acceptance_length_drafted": "The same over the passes that had a draft alone, as vLLM and golden acceptance "
    "lengths count it. Where a drafter often proposes nothing it is greater, and no speed-up follows from it.",
    "acceptance_interval": "Of the acceptance length, 95 %, by drawing the prompts anew with replacement (bootstrap, "
    "its tails widened for few prompts); none of fewer than 5 prompts.",
    "request_acceptance_length": "Request-weighted: the mean of the prompts' own acceptance lengths. Every prompt "
    "counts the same.",
    "request_interval": "The same interval, of the request-weighted mean.",
    "tokens_per_pass": "Decoded tokens / verify passes; less than the acceptance length where a run ends in mid-draft.",
    "acceptance_rate": "Accepted / drafted: the share of all draft tokens that was kept.",
    "survival": "Per draft position: the share of the passes with a draft that accepted every draft token up to and "
    "including it.",
    "cost_ratio": "c: seconds of drafting a token over those of a plain verify pass; the median over the prompts. Left "
    "out are steps without a draft, and those in which a drafter reads the prompt.",
    "verify_cost": "v: the mean verify pass, with a draft or without, over a plain one; the median over the prompts.",
    "gamma_used": "Mean depth of the drafts over all steps, undrafted ones included; the median over the prompts.",
    "speedup": "Plain over speculative time per token, prefill left out; the median over the prompts.",
    "speedup_interval": "The bootstrap interval of that median.",
    "quartiles": "The quartiles of the prompts' speed-ups, of fewer than 4 the extremes. Where 1 lies between them, "
    "or within the interval, there is no clear difference; of fewer than 5 prompts there is no verdict.",
    "total_speedup": "The same from the sums of all prompts' times.",
    "predicted": "Acceptance length / (v + gamma used * c), prompt by prompt; the median. A drafter's reading of the "
    "prompt is in the measured time and not in this.",
    "of_predicted": "Measured over predicted speed-up, prompt by prompt; the median.",
    "outside": "Share of the time, from a run's second step on, outside models' forward passes; the median.",
    "identical": "Prompts whose output is plain decoding's, token by token, of those that were compared.",
    "compared": "Prompts whose greedy output was compared with plain decoding's.",
    "near_ties": "Prompts whose output parts from plain decoding's where rounding decides between two tokens.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What an arm brought. `DEFINITIONS` says what each number is; None is what can't be computed or was not timed."""

    arm: Arm
    prompts: int
    acceptance_length: float
    acceptance_length_drafted: float | None
    acceptance_interval: Interval | None
    request_acceptance_length: float
    request_interval: Interval | None
    tokens_per_pass: float
    acceptance_rate: float | None
    survival: tuple[float, ...]  # [i - 1] for draft position i; () if nothing was drafted
    gamma_used: float | None
    cost_ratio: float | None
    verify_cost: float | None
    speedup: float | None
    speedup_interval: Interval | None
    quartiles: tuple[float, float] | None
    total_speedup: float | None
    predicted: float | None
    of_predicted: float | None
    outside: float | None
    identical: int
    compared: int
    near_ties: int

    @property
    def verdict(self) -> Verdict | None:
        if self.speedup is None or self.quartiles is None:
            return None
        if self.speedup_interval is None:
            return "too few prompts"
        if any(low <= 1 <= high for low, high in (self.quartiles, self.speedup_interval)):
            return "no clear difference"
        return "faster" if self.speedup > 1 else "slower"


class Place(NamedTuple):
    """Where prompts are from: a suite, and the kind of work within it."""

    suite: str
    workload: str


def report(header: Header, results: Sequence[Result]) -> dict[str, Any]:
    """The object that `bench --suite --json` prints."""
    measured = rows(results)
    return {
        "schema": SCHEMA,
        "header": trace.plain(header),
        "rows": [_plain(row) for row in measured],
        "best": {name: _plain(row) for name, row in best(measured).items()},
        "by_workload": [
            {**place._asdict(), **_plain(row)} for place, found in by_workload(results).items() for row in found
        ],
    }


def _plain(row: Row) -> dict[str, Any]:
    return {**trace.plain(row), "verdict": row.verdict}


def rows(results: Iterable[Result]) -> list[Row]:
    """One row for every arm, in the order in which the arms first come."""
    return [_row(group) for group in by_arm(results)]


def by_arm(results: Iterable[Result]) -> list[list[Result]]:
    """The results of each arm, in the order in which the arms first come."""
    groups: list[list[Result]] = []
    for result in results:
        group = next((group for group in groups if group[0].arm == result.arm), None)
        if group is None:
            groups.append([result])
        else:
            group.append(result)
    return groups


def best(rows: Sequence[Row]) -> dict[str, Row]:
    """The best row of every drafter, by its arm's name, the first of equals: by median speed-up, else by acceptance."""
    names = dict.fromkeys(row.arm.name for row in rows)
    return {name: max((row for row in rows if row.arm.name == name), key=_merit) for name in names}


def _merit(row: Row) -> float:
    return row.acceptance_length if row.speedup is None else row.speedup


def by_workload(results: Iterable[Result]) -> dict[Place, list[Row]]:
    """The rows of each workload of each suite, in the order in which they first come."""
    groups: dict[Place, list[Result]] = {}
    for result in results:
        groups.setdefault(Place(result.suite, result.workload), []).append(result)
    return {place: rows(group) for place, group in groups.items()}


def accepted_of_drafts(results: Sequence[Result]) -> list[int]:
    """Accepted draft tokens of every pass that had a draft."""
    return [
        kept
        for result in results
        for answer in result.answers
        for depth, kept in zip(answer.depths, answer.accepted, strict=True)
        if depth
    ]


def survival(results: Sequence[Result]) -> tuple[float, ...]:
    """Per draft position, over all passes with a draft; () if there is none."""
    accepted = accepted_of_drafts(results)
    deepest = max((max(answer.depths) for result in results for answer in result.answers), default=0)
    return tuple(sum(kept >= i for kept in accepted) / len(accepted) for i in range(1, deepest + 1))


def _row(results: Sequence[Result]) -> Row:
    steps, accepted = [result.steps for result in results], [result.accepted for result in results]
    lengths, kept = [result.acceptance_length for result in results], accepted_of_drafts(results)
    drafted = sum(result.drafted for result in results)
    timed = [(result, result.speedup) for result in results if result.speedup is not None]
    speedups = [speedup for _, speedup in timed]
    phases = [result.phases for result in results if result.phases]
    promised = [(speedup, result.phases.promised) for result, speedup in timed if result.phases]
    plain = sum(median(result.plain_s) * result.tokens for result, _ in timed)
    speculative = sum(median(result.speculative_s) * result.tokens for result, _ in timed)
    parted = [result.divergence for result in results if result.divergence is not None]
    return Row(
        arm=results[0].arm,
        prompts=len(results),
        acceptance_length=1 + sum(accepted) / sum(steps),
        acceptance_length_drafted=1 + fmean(kept) if kept else None,
        acceptance_interval=ratio_interval([a + s for a, s in zip(accepted, steps, strict=True)], steps),
        request_acceptance_length=fmean(lengths),
        request_interval=mean_interval(lengths),
        tokens_per_pass=sum(result.tokens for result in results) / sum(steps),
        acceptance_rate=sum(accepted) / drafted if drafted else None,
        survival=survival(results),
        gamma_used=_middle([each.gamma_used for each in phases]),
        cost_ratio=_middle([each.cost_ratio for each in phases]),
        verify_cost=_middle([each.verify_cost for each in phases]),
        speedup=median(speedups) if speedups else None,
        speedup_interval=median_interval(speedups),
        quartiles=_quartiles(speedups) if speedups else None,
        total_speedup=plain / speculative if timed else None,
        predicted=_middle([predicted for _, predicted in promised]),
        of_predicted=_middle([measured / predicted for measured, predicted in promised if predicted]),
        outside=_middle([result.outside for result in results]),
        identical=sum(result.identical is True for result in results),
        compared=sum(result.identical is not None for result in results),
        near_ties=sum(divergence.near_tie for divergence in parted),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 4:  # of so few there are none; all of them have to be on one side of 1
        return min(values), max(values)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
