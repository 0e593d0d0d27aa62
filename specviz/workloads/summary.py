"""From a suite's results to figures for every arm and for every kind of prompt. Nothing here imports torch.

Acceptance is counted over all verify passes of all prompts together; what is timed is the median over the prompts, each
of which has its own plain run beside it, so that a machine that is slower for a while slows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal, NamedTuple

from specviz import trace
from specviz.workloads.arms import Arm
from specviz.workloads.results import SCHEMA, Header, Result

Verdict = Literal["faster", "slower", "no clear difference"]

DEFINITIONS: dict[str, str] = {
    "acceptance_length": "1 + accepted / verify passes, over all passes of all prompts, undrafted ones included.",
    "tokens_per_pass": "Decoded tokens / verify passes; less than the acceptance length where a run ends in mid-draft.",
    "cost_ratio": "c: seconds of drafting a token over those of a plain verify pass; the median over the prompts. Left "
    "out are steps without a draft, and those in which a drafter reads the prompt.",
    "verify_cost": "v: the mean verify pass, with a draft or without, over a plain one; the median over the prompts.",
    "gamma_used": "Mean depth of the drafts over all steps, undrafted ones included; the median over the prompts.",
    "speedup": "Plain over speculative time per token, prefill left out; the median over the prompts.",
    "quartiles": "The quartiles of the prompts' speed-ups, of fewer than 4 the extremes. Where 1 lies between them "
    "there is no clear difference.",
    "total_speedup": "The same from the sums of all prompts' times.",
    "predicted": "Acceptance length / (v + gamma used * c), prompt by prompt; the median. A drafter's reading of the "
    "prompt is in the measured time and not in this.",
    "of_predicted": "Measured over predicted speed-up, prompt by prompt; the median.",
    "outside": "Share of the time, from a run's second step on, outside models' forward passes; the median.",
    "identical": "Prompts whose output is plain decoding's, token by token.",
    "near_ties": "Prompts whose output parts from plain decoding's where rounding decides between two tokens.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What an arm brought. `DEFINITIONS` says what each number is; None is what can't be computed."""

    arm: Arm
    prompts: int
    acceptance_length: float
    tokens_per_pass: float
    gamma_used: float | None
    cost_ratio: float | None
    verify_cost: float | None
    speedup: float
    quartiles: tuple[float, float]
    total_speedup: float
    predicted: float | None
    of_predicted: float | None
    outside: float | None
    identical: int
    near_ties: int

    @property
    def verdict(self) -> Verdict:
        low, high = self.quartiles
        if low <= 1 <= high:
            return "no clear difference"
        return "faster" if low > 1 else "slower"


class OfKind(NamedTuple):
    """What an arm brought on the prompts of one kind."""

    kind: str
    prompts: int
    acceptance_length: float
    speedup: float  # the median over its prompts


def report(header: Header, results: Sequence[Result]) -> dict[str, Any]:
    """The object that `bench --suite --json` prints."""
    measured = rows(results)
    chosen = best(measured)
    return {
        "schema": SCHEMA,
        "header": trace.plain(header),
        "rows": [_plain(row) for row in measured],
        "best": {name: _plain(row) for name, row in chosen.items()},
        "by_prompt_kind": {
            name: [entry._asdict() for entry in by_prompt_kind(results, row.arm)] for name, row in chosen.items()
        },
    }


def _plain(row: Row) -> dict[str, Any]:
    return {**trace.plain(row), "verdict": row.verdict}


def rows(results: Iterable[Result]) -> list[Row]:
    """One row for every arm, in the order in which the arms first come."""
    groups: list[list[Result]] = []
    for result in results:
        group = next((group for group in groups if group[0].arm == result.arm), None)
        if group is None:
            groups.append([result])
        else:
            group.append(result)
    return [_row(group) for group in groups]


def best(rows: Sequence[Row]) -> dict[str, Row]:
    """The fastest row of every drafter, by its arm's name: the median speed-up decides, the first of equals stands."""
    names = dict.fromkeys(row.arm.name for row in rows)
    return {name: max((row for row in rows if row.arm.name == name), key=lambda row: row.speedup) for name in names}


def by_prompt_kind(results: Iterable[Result], arm: Arm) -> list[OfKind]:
    """What the arm brought on each kind of prompt."""
    own = [result for result in results if result.arm == arm]
    groups = {kind: [result for result in own if result.kind == kind] for kind in dict.fromkeys(r.kind for r in own)}
    return [
        OfKind(kind, len(group), acceptance_length(group), median(result.speedup for result in group))
        for kind, group in groups.items()
    ]


def acceptance_length(results: Sequence[Result]) -> float:
    """Over all verify passes of the results together."""
    return 1 + sum(result.accepted for result in results) / sum(result.steps for result in results)


def _row(results: Sequence[Result]) -> Row:
    speedups = [result.speedup for result in results]
    promised = [(result.speedup, result.phases.promised) for result in results]
    plain = sum(median(result.plain_s) * result.tokens for result in results)
    speculative = sum(median(result.speculative_s) * result.tokens for result in results)
    parted = [result.divergence for result in results if result.divergence is not None]
    return Row(
        arm=results[0].arm,
        prompts=len(results),
        acceptance_length=acceptance_length(results),
        tokens_per_pass=sum(result.tokens for result in results) / sum(result.steps for result in results),
        gamma_used=_middle([result.phases.gamma_used for result in results]),
        cost_ratio=_middle([result.phases.cost_ratio for result in results]),
        verify_cost=_middle([result.phases.verify_cost for result in results]),
        speedup=median(speedups),
        quartiles=_quartiles(speedups),
        total_speedup=plain / speculative,
        predicted=_middle([predicted for _, predicted in promised]),
        of_predicted=_middle([measured / predicted for measured, predicted in promised if predicted]),
        outside=_middle([result.outside for result in results]),
        identical=len(results) - len(parted),
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
