"""What is left of the speed-up as the batch grows, beside what others have published."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import broken, set_height

TITLE = "Speed-up over batch size"
HEIGHT = 340  # pixels
EXACT, NOT_EXACT = "circle", "circle-open"  # markers: of measured passes, and of what is interpolated or modelled


class GainPoint(NamedTuple):
    """The speed-up at a batch size."""

    batch: int
    speedup: float
    how: str  # "measured", or how the least known of its two passes was come by


class PublishedPoint(NamedTuple):
    """Somebody else's speed-up at a batch size, with all that it holds for, in lines of text."""

    batch: int
    speedup: float
    title: str
    settings: tuple[str, ...]


class LoadInfo(NamedTuple):
    """Values of the figure."""

    gains: tuple[GainPoint, ...]  # by batch size
    roofline: tuple[GainPoint, ...]  # modelled, over more batch sizes
    crossover: float | None  # where the gains fall to 1
    crossing: str  # the same in words
    assumed: tuple[str, ...]  # acceptance length, draft length and cost ratio, in lines of a few words
    chosen: int | None  # the batch size whose numbers are shown
    published: tuple[PublishedPoint, ...]


def plot(info: LoadInfo | None) -> go.Figure:
    if info is None or not info.gains:
        return style.empty(TITLE, "No measurement is chosen:", "choose one, or measure here.")
    figure = style.figure(TITLE, *info.assumed, info.crossing)
    figure.add_hline(y=1, line={"color": style.GREY, "width": 1.5})
    _curve(figure, "roofline", info.roofline, dash="dot", marked=False)
    _curve(figure, "from passes", info.gains, dash="solid", marked=True)
    if info.published:
        _published(figure, info.published)
    if info.crossover is not None:
        figure.add_vline(x=info.crossover, line={"color": style.GREY, "width": 1.5, "dash": "dash"})
        name = {"text": f"1 at {info.crossover:.1f}", "showarrow": False, "xanchor": "left", "xshift": 4}
        figure.add_annotation(**name, x=log10(info.crossover), y=0.02, yref="paper", yanchor="bottom")
    if info.chosen is not None:
        figure.add_vline(x=info.chosen, line={"color": style.BLUE, "width": 1})
    batches = [point.batch for points in (info.gains, info.roofline, info.published) for point in points]
    highest = max(point.speedup for points in (info.gains, info.roofline, info.published) for point in points)
    powers = [1 << exponent for exponent in range((max(batches) - 1).bit_length() + 1)]
    ticks = powers[:: 1 + len(powers) // (style.MOST_TICKS + 1)]
    style.legend(figure)
    set_height(figure, HEIGHT)
    below = figure.layout.margin.b + style.LINE + 4  # the names take two lines where it is narrow
    figure.update_layout(hovermode="closest", margin={"r": 10, "l": 48, "b": below})
    figure.update_xaxes(
        title_text="batch size, sequences side by side",
        type="log",
        range=[-0.08, log10(powers[-1]) + 0.08],
        tickvals=ticks,
        ticktext=list(map(str, ticks)),
        showgrid=False,
    )
    figure.update_yaxes(title_text="speed-up over plain decoding", range=[0, 1.1 * highest], nticks=6)
    return figure


def _curve(figure: go.Figure, name: str, points: Sequence[GainPoint], *, dash: str, marked: bool) -> None:
    colour = style.BLUE if marked else style.GREY
    figure.add_scatter(
        name=name,
        x=[point.batch for point in points],
        y=[point.speedup for point in points],
        mode="lines+markers" if marked else "lines",
        line={"color": colour, "width": 2 if marked else 1.5, "dash": dash},
        marker={
            "size": 8,
            "color": colour,
            "symbol": [EXACT if point.how == "measured" else NOT_EXACT for point in points],
        },
        hovertext=[f"<b>batch {each.batch}: {each.speedup:.2f}x</b><br>{name}, {each.how}" for each in points],
        hoverinfo="text",
    )


def _published(figure: go.Figure, points: Sequence[PublishedPoint]) -> None:
    """Points alone, never joined: they are of other models, engines and data, which the hover names."""
    figure.add_scatter(
        name="published",
        x=[point.batch for point in points],
        y=[point.speedup for point in points],
        mode="markers",
        marker={"size": 8, "color": style.GREEN, "symbol": "diamond-open", "line": {"width": 1.5}},
        hovertext=[_settings(point) for point in points],
        hoverinfo="text",
    )


def _settings(point: PublishedPoint) -> str:
    """The point and all that it holds for, in lines that a narrow card has room for."""
    settings = [line for text in point.settings for line in broken(text, 46, 3)]
    title = [f"<b>{line}</b>" for line in broken(f"published: {point.title}", 40, 2)]
    return "<br>".join([*title, f"batch {point.batch}: {point.speedup:.2f}x", *settings])
