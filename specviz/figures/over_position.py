"""One drafter's acceptance length against the place in the output, or against the prompt's length."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import plain


class Bin(NamedTuple):
    """The passes between two bounds."""

    start: int
    end: int | None  # the first that is no longer within; None: no upper bound
    length: float  # acceptance length over the passes
    interval: tuple[float, float] | None  # 95 %; None of too few prompts
    prompts: int
    passes: int


class OverPositionInfo(NamedTuple):
    """Values of the figure."""

    title: str
    counted: str  # what the bounds count, as "tokens of the prompt"
    drafter: str
    bins: tuple[Bin, ...]


def plot(info: OverPositionInfo) -> go.Figure:
    if not info.bins:
        return style.empty(info.title, "No results yet.")
    places = list(range(len(info.bins)))
    lengths = [part.length for part in info.bins]
    tops = [part.interval[1] if part.interval else part.length for part in info.bins]
    bottoms = [part.interval[0] if part.interval else part.length for part in info.bins]
    figure = style.figure(info.title, plain(info.drafter, 44))
    figure.add_scatter(
        x=places,
        y=lengths,
        mode="lines+markers",
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [top - length for top, length in zip(tops, lengths, strict=True)],
            "arrayminus": [length - bottom for bottom, length in zip(bottoms, lengths, strict=True)],
            "color": style.GREY,
            "thickness": 1.5,
            "width": 4,
        },
        hovertext=[_in_words(part, info.counted) for part in info.bins],
        hoverinfo="text",
        line={"color": style.GREY, "width": 1, "dash": "dot"},
        marker={"symbol": "circle", "size": 8, "color": style.BLUE},
    )
    style.columns(figure, f"{info.counted}, from", 0, len(places) - 1)
    figure.update_xaxes(tickvals=places, ticktext=[str(part.start) for part in info.bins])
    low, high = min(bottoms), max(tops)
    room = 0.1 * max(high - low, 0.5)
    figure.update_yaxes(title_text="acceptance length", range=[max(1.0, low - room), high + room], nticks=5)
    return figure


def _in_words(part: Bin, counted: str) -> str:
    bounds = f"{part.start} or more" if part.end is None else f"{part.start} to {part.end - 1}"
    interval = "" if part.interval is None else f", {part.interval[0]:.2f}–{part.interval[1]:.2f}"
    prompts = f"{part.prompts} prompt{'' if part.prompts == 1 else 's'}"
    return (
        f"<b>{bounds} {counted}</b><br>acceptance length {part.length:.2f}{interval}<br>"
        f"{style.passes(part.passes)} of {prompts}"
    )
