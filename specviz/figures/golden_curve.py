"""Acceptance length by draft length: golden curves, what was measured, and what independent draft tokens would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from specviz.figures import legends, style
from specviz.golden import Curve, Measured, from_first_position

TITLE = "Acceptance length, drafted"
MOST_CURVES = 4
INDEPENDENT = "independent"  # a model, not a measurement
LOOKS = (("solid", "circle"), ("dash", "square"), ("dashdot", "triangle-up"), ("longdash", "cross"))


class GoldenCurveInfo(NamedTuple):
    """Values of the figure. The first curve is the one that is compared with."""

    curves: dict[str, dict[int, float]]  # by their short names in the legend; draft length -> acceptance length
    independent: dict[int, float]  # of the first curve, if all positions were accepted as often as its first
    measured: dict[int, Measured]
    tolerance: float  # around the first curve, as a share of it
    published: tuple[str, ...]  # names of the curves that others measured


def overlay(
    curves: Mapping[str, Curve], measured: Mapping[int, Measured], tolerance: float, published: Sequence[str] = ()
) -> GoldenCurveInfo:
    """`curves`: MOST_CURVES at most, by names of one or two words; `published`: the names of those of others."""
    first = next(iter(curves.values()), None)
    independent = from_first_position(first) if first else None
    lengths = {name: curve.lengths for name, curve in curves.items()}
    return GoldenCurveInfo(lengths, independent or {}, dict(measured), tolerance, tuple(published))


def plot(info: GoldenCurveInfo) -> go.Figure:
    if not info.curves and not info.measured:
        return style.empty(TITLE, "No curve is chosen,", "and nothing was measured.")
    first = next(iter(info.curves), "")
    subtitle = f"band: {first} ± {info.tolerance:.0%}" if first else "measured; no golden curve is chosen"
    figure = style.figure(TITLE, subtitle, *whose(info.published))
    if first:
        _band(figure, info.curves[first], info.tolerance)
    for (name, lengths), (dash, symbol) in zip(info.curves.items(), LOOKS, strict=False):
        _line(figure, name, lengths, dash, symbol)
    if info.independent:
        _line(figure, INDEPENDENT, info.independent, "dot", None)
    if info.measured:
        _points(figure, info.measured)
    legends.add(figure)
    ks = [*info.measured, *(k for lengths in info.curves.values() for k in lengths)]
    style.columns(figure, "draft length k (tokens)", 1, max(ks))
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(title_text="tokens per pass", rangemode="normal", nticks=5)
    return figure


def whose(published: Sequence[str]) -> list[str]:
    """A line that says which curves are published ones, if any is."""
    return [f"published by others: {', '.join(published)}"] if published else []


def _band(figure: go.Figure, lengths: Mapping[int, float], tolerance: float) -> None:
    for sign, fill in ((-1, None), (1, "tonexty")):
        figure.add_scatter(
            x=list(lengths),
            y=[length * (1 + sign * tolerance) for length in lengths.values()],
            mode="lines",
            line={"width": 0, "color": style.BLUE},
            fill=fill,
            fillcolor="rgba(0,114,178,0.4)",
            hoverinfo="skip",
            showlegend=False,
        )


def _line(figure: go.Figure, name: str, lengths: Mapping[int, float], dash: str, symbol: str | None) -> None:
    figure.add_scatter(
        name=name,
        x=list(lengths),
        y=list(lengths.values()),
        mode="lines+markers" if symbol else "lines",
        line={"color": style.GREY, "width": 1.5, "dash": dash},
        marker={"symbol": symbol, "size": 7, "color": style.GREY},
        hovertext=[
            f"<b>{'modelled' if name == INDEPENDENT else name}, k = {k}</b><br>{length:.2f} tokens per verify pass"
            for k, length in lengths.items()
        ],
        hoverinfo="text",
        cliponaxis=False,
    )


def _points(figure: go.Figure, measured: Mapping[int, Measured]) -> None:
    """Diamonds with their intervals, where there are any."""
    points = list(measured.values())
    above = [0.0 if point.high is None else point.high - point.length for point in points]
    below = [0.0 if point.low is None else point.length - point.low for point in points]
    error: dict[str, Any] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 4}
    figure.add_scatter(
        name="measured",
        x=list(measured),
        y=[point.length for point in points],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 10, "color": style.GREEN, "line": {"width": 2}},
        error_y={**error, "color": style.GREEN, "thickness": 1.5},
        hovertext=[_in_words(k, point) for k, point in measured.items()],
        hoverinfo="text",
        cliponaxis=False,
    )


def _in_words(k: int, point: Measured) -> str:
    lines = [f"<b>measured, k = {k}</b>", f"{point.length:.2f} tokens per verify pass"]
    if point.low is not None and point.high is not None:
        lines.append(f"95 %: {point.low:.2f} to {point.high:.2f}")
    if point.drafts is not None:
        lines.append(f"over {style.passes(point.drafts)} with a draft")
    return "<br>".join(lines)
