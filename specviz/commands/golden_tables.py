"""The tables that `golden` prints in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specviz import golden
from specviz.golden import Curve, Difference, Verdict
from specviz.synthetic import Distribution


def of_curve(curve: Curve) -> str:
    """Lengths, and what they imply about each position."""
    survival, predicted = golden.implied_survival(curve), golden.from_first_position(curve) or {}
    return _columns(
        ["k", "AL", "survival", "independent"],
        *(
            [str(k), f"{length:.2f}", number(survival[k - 1]), number(predicted.get(k))]
            for k, length in curve.lengths.items()
        ),
    )


def of_verdicts(verdicts: Sequence[Verdict]) -> str:
    """What was measured beside what is golden."""
    return _columns(["k", "golden", "measured", "from", "to", "off by", ""], *map(_verdict, verdicts))


def _verdict(verdict: Verdict) -> list[str]:
    point = verdict.measured
    numbers = (point.length, point.low, point.high) if point else (None, None, None)
    return [str(verdict.k), *map(number, (verdict.golden, *numbers)), verdict.off_by, verdict.status]


def of_differences(differ: Mapping[str, Sequence[Difference]]) -> list[str]:
    """A line for each, with the curves that it is about unless it is about all. `differ`: by the curve's name."""
    lines = []
    for each in dict.fromkeys(found for several in differ.values() for found in several):
        curves = [name for name, several in differ.items() if each in several]
        lines.append(f"differs: {each}" + (f" ({', '.join(curves)})" if len(curves) < len(differ) else ""))
    return lines


def of_shares(made: Distribution, drawn: Sequence[int]) -> str:
    """The chance of every number of accepted tokens, and how often it was drawn."""
    return _columns(
        ["accepted", "chance", "drawn", "survival"],
        *(
            [str(count), *(f"{value:.4f}" for value in (share, drawn.count(count) / len(drawn), survival))]
            for count, (share, survival) in enumerate(zip(made.shares, (1.0, *made.survival), strict=True))
        ),
    )


def number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _columns(*rows: Sequence[str]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows)
