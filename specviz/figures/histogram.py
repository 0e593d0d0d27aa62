"""How many draft tokens each verify pass accepted."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.metrics import acceptance
from specviz.trace import Trace

TITLE = "Accepted draft tokens per pass"


class HistogramInfo(NamedTuple):
    """Values of the figure."""

    counts: tuple[int, ...]  # [j] verify passes that accepted exactly j draft tokens, j from 0 to gamma
    drafted_steps: int
    undrafted_steps: int  # not in the counts
    gamma: int
    mean: float | None  # accepted draft tokens per verify pass with a draft


def info(trace: Trace) -> HistogramInfo:
    numbers = acceptance(trace)
    drafted = numbers.steps - numbers.undrafted_steps
    return HistogramInfo(
        counts=numbers.histogram,
        drafted_steps=drafted,
        undrafted_steps=numbers.undrafted_steps,
        gamma=len(numbers.histogram) - 1,
        mean=numbers.accepted / drafted if drafted else None,
    )


def plot(info: HistogramInfo) -> go.Figure:
    if info.mean is None:
        return style.nothing_drafted(TITLE, info.undrafted_steps)
    subtitle = [f"mean {info.mean:.2f} over {style.passes(info.drafted_steps)} with a draft"]
    if info.undrafted_steps:
        subtitle.append(f"{style.passes(info.undrafted_steps)} without a draft left out")
    figure = style.figure(TITLE, *subtitle)
    figure.add_bar(
        x=list(range(info.gamma + 1)),
        y=list(info.counts),
        text=list(map(str, info.counts)) if info.gamma <= style.MOST_TICKS else None,  # else they would touch
        textposition="outside",
        textangle=0,
        cliponaxis=False,
        hovertext=[
            f"{accepted} accepted: {style.passes(count)}, {count / info.drafted_steps:.1%}"
            for accepted, count in enumerate(info.counts)
        ],
        hoverinfo="text",
        marker=style.area(style.BLUE),
    )
    highest = max(info.counts)
    style.columns(figure, "accepted draft tokens", 0, info.gamma)
    figure.update_yaxes(title_text="verify passes", range=[0, 1.2 * highest], nticks=4)
    if highest < 4:
        figure.update_yaxes(dtick=1)  # no half passes
    return figure
