"""What passes over several tokens of several sequences cost: measured, and as the roofline has it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import plain, set_height

TITLE = "Cost of a pass"
HEIGHT = 320  # pixels
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")  # of one curve after the other
LABELS_APART = 0.075  # least distance of the names of two curves, in heights of the axis


class Curve(NamedTuple):
    """Passes of one batch size. All values stand at `rows`; costs are in units of the figure's plain step."""

    batch: int
    rows: tuple[int, ...]  # tokens per sequence, ascending
    milliseconds: tuple[float, ...]  # the median
    cost: tuple[float, ...]
    low: tuple[float, ...]  # the first quartile; the cost itself where there is none
    high: tuple[float, ...]
    roofline: tuple[float, ...]  # modelled, in units of the modelled plain step


class VerifyCostInfo(NamedTuple):
    """Values of the figure."""

    curves: tuple[Curve, ...]
    unit: str  # of costs, in a few words
    source: tuple[str, ...]  # what was measured, in lines of a few words


def plot(info: VerifyCostInfo | None) -> go.Figure:
    if info is None or not info.curves:
        return style.empty(TITLE, "No measurement is chosen:", "choose one, or measure here.")
    figure = style.figure(TITLE, *(plain(line, 40) for line in info.source), "bars: quartiles; dotted: roofline")
    for place, curve in enumerate(info.curves):
        figure.add_scatter(
            name=f"roofline, batch {curve.batch}",
            x=list(curve.rows),
            y=list(curve.roofline),
            mode="lines",
            line={"color": style.GREY, "width": 1, "dash": "dot"},
            hoverinfo="skip",  # the measured point tells both
        )
        figure.add_scatter(
            name=f"batch {curve.batch}",
            x=list(curve.rows),
            y=list(curve.cost),
            mode="lines+markers",
            line={"color": style.BLUE, "width": 1.5},
            marker={"size": 6, "color": style.BLUE, "symbol": SYMBOLS[place % len(SYMBOLS)]},
            error_y={
                "array": [high - cost for cost, high in zip(curve.cost, curve.high, strict=True)],
                "arrayminus": [cost - low for cost, low in zip(curve.cost, curve.low, strict=True)],
                "color": style.BLUE,
                "thickness": 1,
                "width": 3,
            },
            hovertext=[_in_words(curve, place, info.unit) for place in range(len(curve.rows))],
            hoverinfo="text",
            cliponaxis=False,
        )
    top = 1.05 * max(max(curve.high + curve.roofline) for curve in info.curves)
    last = max(curve.rows[-1] for curve in info.curves)
    for curve, y in zip(info.curves, _apart([curve.cost[-1] for curve in info.curves], top), strict=True):
        figure.add_annotation(
            text=f"B {curve.batch}", x=curve.rows[-1], y=y, xanchor="left", xshift=7, showarrow=False, font_size=12
        )
    set_height(figure, HEIGHT)
    figure.update_layout(hovermode="closest", margin={"r": 44, "l": 48})
    figure.update_xaxes(title_text="rows: tokens per sequence", range=[0.7, last + 0.15], dtick=1, showgrid=False)
    if last > style.MOST_TICKS:
        figure.update_xaxes(dtick=None, nticks=8)
    figure.update_yaxes(title_text=info.unit, range=[0, top], nticks=6)
    return figure


def _apart(heights: Sequence[float], top: float) -> list[float]:
    """Heights for names that do not cover each other: at the curves' ends, or above where another is in the way."""
    placed = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + LABELS_APART * top)
    return placed


def _in_words(curve: Curve, place: int, unit: str) -> str:
    rows = curve.rows[place]
    lines = [
        f"<b>batch {curve.batch}, {rows} row{'' if rows == 1 else 's'}</b>",
        f"measured: {curve.milliseconds[place]:.1f} ms, {curve.cost[place]:.2f}",
        f"quartiles: {curve.low[place]:.2f} to {curve.high[place]:.2f}",
        f"roofline, modelled: {curve.roofline[place]:.2f}",
        f"in {unit}",
    ]
    return "<br>".join(lines)
