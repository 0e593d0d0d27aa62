"""What a measurement says of batch sizes: costs, measured or modelled, and what they leave of the speed-up.

Nothing here imports torch. Every number carries how it was come by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal, NamedTuple

from specviz import theory
from specviz.batch.results import Cell, Measurement

How = Literal["measured", "interpolated", "modelled"]
HOWS: tuple[How, ...] = ("measured", "interpolated", "modelled")  # from the best known to the least


class Cost(NamedTuple):
    """Seconds, and whether they were measured, lie in a straight line between two that were, or are modelled."""

    seconds: float
    how: How


def roofline(measurement: Measurement, batch: int, rows: int) -> float:
    """The least seconds of a pass over `rows` tokens of each of `batch` sequences, by what the device can reach.

    Of a mixture's experts those count that so many tokens are expected to read, if routing were even and random.
    """
    load, experts = measurement.work.load, measurement.work.experts
    if experts is not None:
        share = theory.experts_hit(experts.count, experts.per_token, batch * rows) / experts.count
        load = replace(load, weight_bytes=load.weight_bytes + share * experts.weight_bytes)
    return theory.step_seconds(measurement.machine, load, batch, rows, measurement.header.context)


def target_cost(measurement: Measurement, batch: int, rows: int) -> Cost:
    """A pass of the target: measured where there is a cell, else in a straight line between the nearest cells.

    Where there are none around it, the roofline is scaled to the nearest cell.
    """
    known = _between(measurement.cells, batch, rows)
    if known is not None:
        return known
    nearest = min(measurement.cells, key=lambda cell: abs(log(cell.batch / batch)) + abs(log(cell.rows / rows)))
    scale = nearest.median / roofline(measurement, nearest.batch, nearest.rows)
    return Cost(scale * roofline(measurement, batch, rows), "modelled")


def draft_cost(measurement: Measurement, batch: int, cost_ratio: float | None) -> Cost:
    """A step of the drafter for every sequence of the batch.

    cost_ratio: c at batch size 1, which the target's own curve over the batch carries on to others; None for the draft
    model that was measured, whose ratio at its nearest batch size serves where there are no cells around.
    """
    if cost_ratio is None:
        known = _between(measurement.drafting, batch, 1)
        if known is not None:
            return known
        nearest = min(measurement.drafting, key=lambda cell: abs(log(cell.batch / batch)))
        cost_ratio = nearest.median / target_cost(measurement, nearest.batch, 1).seconds
    return Cost(cost_ratio * target_cost(measurement, batch, 1).seconds, "modelled")


def _between(cells: Sequence[Cell], batch: int, rows: int) -> Cost | None:
    """From the cells of this batch size, or of those on both sides of it; None outside of what was measured."""
    batches = sorted({cell.batch for cell in cells})

    def at(batch: int) -> Cost | None:
        here = {cell.rows: Cost(cell.median, "measured") for cell in cells if cell.batch == batch}
        return _line(sorted(here), rows, here.get)

    return _line(batches, batch, at)


def _line(places: Sequence[int], place: int, at: Callable[[int], Cost | None]) -> Cost | None:
    """The cost at one of the places, or on the line between its two neighbours; None outside of them."""
    if place in places:
        return at(place)
    index = bisect_left(places, place)
    if index in (0, len(places)):
        return None
    before, after = at(places[index - 1]), at(places[index])
    if before is None or after is None:
        return None
    share = (place - places[index - 1]) / (places[index] - places[index - 1])
    return Cost(before.seconds + share * (after.seconds - before.seconds), "interpolated")


@dataclass(frozen=True, slots=True)
class Drafting:
    """What is assumed of a run: its acceptance length, the draft length, and c at batch size 1 (None: as measured)."""

    length: float
    gamma: int
    cost_ratio: float | None


class Gain(NamedTuple):
    """What speculative decoding comes to at one batch size, where all sequences step together."""

    batch: int
    drafting: Drafting
    plain: Cost
    verify: Cost
    draft: Cost  # one step of the drafter

    @property
    def speedup(self) -> float:
        """Acceptance length * T(B, 1) / (gamma * T_D(B) + T(B, gamma + 1))."""
        plain, gamma = self.plain.seconds, self.drafting.gamma
        return theory.speedup(self.drafting.length, gamma, self.draft.seconds / plain, self.verify.seconds / plain)

    @property
    def how(self) -> How:
        """How the least known of the target's two passes was come by."""
        return max(self.plain.how, self.verify.how, key=HOWS.index)

    @property
    def plain_tokens_per_s(self) -> float:
        """Of plain decoding, over all sequences."""
        return self.batch / self.plain.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.plain_tokens_per_s * self.speedup


def gain(measurement: Measurement, drafting: Drafting, batch: int) -> Gain:
    """From measured passes where there are any, see `target_cost`."""
    plain, verify = (target_cost(measurement, batch, rows) for rows in (1, drafting.gamma + 1))
    return Gain(batch, drafting, plain, verify, draft_cost(measurement, batch, drafting.cost_ratio))


def modelled_gain(measurement: Measurement, drafting: Drafting, batch: int) -> Gain:
    """By the roofline alone; a drafter that was measured keeps its cost ratio of batch size 1."""
    plain, verify = (Cost(roofline(measurement, batch, rows), "modelled") for rows in (1, drafting.gamma + 1))
    ratio = drafting.cost_ratio
    if ratio is None:
        ratio = draft_cost(measurement, 1, None).seconds / target_cost(measurement, 1, 1).seconds
    return Gain(batch, drafting, plain, verify, Cost(ratio * plain.seconds, "modelled"))


def crossover(gains: Sequence[Gain]) -> float | None:
    """The batch size at which the speed-up falls to 1; None if it doesn't within these."""
    return theory.crossover([each.batch for each in gains], [each.speedup for each in gains])


def crossing(gains: Sequence[Gain]) -> str:
    """The same in words; at least one gain."""
    batch = crossover(gains)
    if batch is not None:
        return f"falls to 1 at batch {batch:.1f}"
    if all(each.speedup <= 1 for each in gains):
        return "at 1 or below in all batches measured"
    if gains[0].speedup <= 1:
        return "rises above 1 in the batches measured"
    return "does not cross 1 in the batches measured"
