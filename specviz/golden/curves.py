"""Golden curves as plain values: what they imply about each draft position, and whether a measurement agrees.

A curve has one mean acceptance length per draft length k, the token that ends a step included: no distribution and no
rates per position. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from specviz.errors import UserError
from specviz.theory import expected_length

Status = Literal["within", "above", "below", "can't tell", "not measured", "no golden value"]
STATUSES: dict[Status, str] = {
    "within": "It lies within the tolerance around the golden value.",
    "above": "Its whole interval lies above the tolerance around the golden value.",
    "below": "Its whole interval lies below the tolerance around the golden value.",
    "can't tell": "It lies outside the tolerance around the golden value, but its interval reaches in, or it has none.",
    "not measured": "There is a golden value for this draft length and no measurement.",
    "no golden value": "There is a measurement for this draft length and no golden value.",
}
OVERALL: dict[Status, str] = {
    "within": "All lengths that were compared are within the tolerance.",
    "above": "A length lies above the tolerance with its whole interval, and none below.",
    "below": "A length lies below the tolerance with its whole interval.",
    "can't tell": "A length lies outside the tolerance, but its interval reaches into it, or there are too few prompts "
    "for one: measure more.",
    "not measured": "None of the golden draft lengths was measured.",
}
TOLERANCE = 0.05  # of the golden value
_COLON = re.compile(r"([^:{}(]+?)\s*:\s+(.+)")
_EQUALS = re.compile(r"([\w-]+)=(\S+)")
_METHODS = re.compile(r"\b(MTP|EAGLE-?3?|DSpark|DFlash|Medusa|n-?gram|draft[ -]model)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean acceptance lengths by draft length, for a model (or model and drafter) in a mode, such as thinking_on.

    `model` and `mode` are "" where the file, a flat list, has no names.
    """

    model: str
    mode: str
    lengths: dict[int, float]  # draft length k -> acceptance length, in ascending order of k

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.model, self.mode))) or "unnamed"


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden file: its curves, and where they come from in its comments, kept word for word."""

    name: str  # of the file, without its ending
    curves: tuple[Curve, ...]
    comments: tuple[str, ...] = ()  # from the # on, in the file's order

    @property
    def provenance(self) -> dict[str, str]:
        """What the comments say as `key: value` or `key=value`, several in a line parted by |; all else is skipped."""
        found: dict[str, str] = {}
        for comment in self.comments:
            line = comment.lstrip("#").strip()
            if line.startswith(("{", "}", '"')):  # of a block of JSON
                continue
            for part in line.split(" | "):
                if stated := _COLON.fullmatch(part):
                    found.setdefault(stated[1].strip(), stated[2].strip())
                if inner := _EQUALS.fullmatch(stated[2] if stated else part):
                    found.setdefault(inner[1], inner[2])
        return found

    @property
    def source(self) -> str | None:
        """Where the figures were published or measured."""
        return next((value for key, value in self.provenance.items() if key.lower().startswith("source")), None)

    @property
    def status(self) -> str | None:
        """Whether they are `published` by others or `measured` here; None where the comments don't say."""
        return self.provenance.get("status")

    @property
    def method(self) -> str | None:
        """What drafted: as a comment states it, else as the one on what was measured names it; None if neither does."""
        if named := self.provenance.get("method"):
            return named
        measured = next((line for line in self.comments if line.lstrip("# ").startswith("Measured on")), "")
        found = _METHODS.search(measured)
        return found[0].lower() if found else None

    def curve(self, name: str | None = None) -> Curve:
        """The curve called MODEL/MODE, or MODEL or MODE where that is enough; the only one, if none is named."""
        fitting = [curve for curve in self.curves if name in (None, curve.name, curve.model, curve.mode)]
        if len(fitting) == 1:
            return fitting[0]
        known = ", ".join(curve.name for curve in self.curves)
        asked = "no curve is named" if name is None else f"{len(fitting)} curves are called {name!r}"
        raise UserError(f"In {self.name} {asked}; name one of: {known}.")


class Measured(NamedTuple):
    """An acceptance length that was measured, with its interval where there is one."""

    length: float
    low: float | None = None
    high: float | None = None
    drafts: int | None = None  # verify passes with a draft that it was counted over


class Verdict(NamedTuple):
    """What became of one draft length. `STATUSES` says what each status means."""

    k: int
    golden: float | None
    measured: Measured | None
    status: Status

    @property
    def deviation(self) -> float | None:
        """The measured length over the golden one, less 1."""
        return None if self.golden is None or self.measured is None else self.measured.length / self.golden - 1

    @property
    def off_by(self) -> str:
        """The deviation in words."""
        return "n/a" if self.deviation is None else f"{round(self.deviation, 3) + 0.0:+.1%}"  # never -0.0%


def compare(curve: Curve, measured: Mapping[int, Measured], tolerance: float = TOLERANCE) -> list[Verdict]:
    """A verdict for every draft length that is golden or measured, in ascending order.

    tolerance: how far a measurement may be off, as a share of the golden value. What noise could explain is not held
    against it: only if its whole interval is outside is it above or below. Nor does noise speak for it: outside, with
    an interval that reaches in, or without any, nothing can be told.
    """
    if not 0 <= tolerance < 1:
        raise UserError(f"The tolerance is {tolerance}; give a share from 0 to less than 1, such as 0.05.")
    return [_verdict(k, curve.lengths.get(k), measured.get(k), tolerance) for k in sorted({*curve.lengths, *measured})]


def _verdict(k: int, golden: float | None, measured: Measured | None, tolerance: float) -> Verdict:
    if measured is None:
        return Verdict(k, golden, None, "not measured")
    if golden is None:
        return Verdict(k, None, measured, "no golden value")
    slack = 1e-9  # a value on the very edge is within, whatever rounding made of it
    least, most = golden * (1 - tolerance) - slack, golden * (1 + tolerance) + slack
    if measured.low is not None and measured.low > most:
        return Verdict(k, golden, measured, "above")
    if measured.high is not None and measured.high < least:
        return Verdict(k, golden, measured, "below")
    return Verdict(k, golden, measured, "within" if least <= measured.length <= most else "can't tell")


def worst(verdicts: Iterable[Verdict]) -> Status:
    """One word for all, as `OVERALL` says: "below", "above" or "can't tell" if any is, else "within" if one is."""
    found = {verdict.status for verdict in verdicts}
    order: tuple[Status, ...] = ("below", "above", "can't tell", "within")
    return next((status for status in order if status in found), "not measured")


def counts(verdicts: Iterable[Verdict]) -> dict[Status, int]:
    """How many draft lengths have which status, those that none has left out."""
    found = [verdict.status for verdict in verdicts]
    return {status: found.count(status) for status in STATUSES if status in found}


def from_first_position(curve: Curve) -> dict[int, float] | None:
    """What every acceptance length would be if all positions were accepted as often as the first: independent draws.

    None if the curve has no value for k = 1, which says how often that is.
    """
    if 1 not in curve.lengths:
        return None
    alpha = curve.lengths[1] - 1
    return {k: expected_length(alpha, k) for k in curve.lengths}


def implied_survival(curve: Curve) -> tuple[float | None, ...]:
    """The share of drafts that get past each position, [i - 1] for position i, as far as the curve tells.

    Drafting a position more adds that position's survival: AL(k) - AL(k - 1), with AL(0) = 1. Measured curves are noisy
    and can fall, but survival can't rise with the position and is a share. So the nearest values that never rise stand
    in for the differences (pool adjacent violators: neighbours in the wrong order take their mean, so that their sum,
    which is the acceptance length, stays), and only then they are cut to 0 and 1. A running minimum would carry one low
    value on to all that follow. Where the curve leaves draft lengths out, only the sum over the gap is known: its
    positions take part with their mean, and are None.
    """
    steps = [(0, 1.0), *sorted(curve.lengths.items())]
    spans = [following - k for (k, _), (following, _) in pairwise(steps)]
    rises = [(length - before) / span for span, ((_, before), (_, length)) in zip(spans, pairwise(steps), strict=True)]
    survival: list[float | None] = []
    for span, share in zip(spans, _non_increasing(rises, spans), strict=True):
        survival += [min(1.0, max(0.0, share))] if span == 1 else [None] * span
    return tuple(survival)


def _non_increasing(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The non-increasing values that are nearest in weighted squares: pool adjacent violators."""
    pools: list[tuple[float, int, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        mean, size, count = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, heft, members = pools.pop()
            mean = (before * heft + mean * size) / (heft + size)
            size, count = size + heft, count + members
        pools.append((mean, size, count))
    return [mean for mean, _, count in pools for _ in range(count)]
