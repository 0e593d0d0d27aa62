"""How many draft tokens each verify pass accepted."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.metrics import acceptance
from specviz.trace import Trace

TITLE = "Accepted draft tokens per verify pass"
CROWDED = 16  # with a larger gamma, zeros go without a label and ticks are thinned out


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
        steps = info.undrafted_steps
        return style.empty(TITLE, f"None of {_passes(steps)} had a draft." if steps else "No verify pass yet.")
    subtitle = f"mean {info.mean:.2f} over {_passes(info.drafted_steps)} with a draft"
    if info.undrafted_steps:
        subtitle += f"<br>{info.undrafted_steps} without a draft left out"  # two lines, for the width of a phone
    figure = style.figure(TITLE, subtitle)
    figure.add_bar(
        x=list(range(info.gamma + 1)),
        y=list(info.counts),
        text=[str(count) if count or info.gamma <= CROWDED else "" for count in info.counts],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{count / info.drafted_steps:.1%}" for count in info.counts],
        hovertemplate="%{x} accepted: %{y} verify passes, %{customdata}<extra></extra>",
        marker={"color": style.BLUE, "line": {"color": style.GREY, "width": 1}},
    )
    highest = max(info.counts)
    figure.update_xaxes(title_text="accepted draft tokens", tick0=0, dtick=1 + info.gamma // CROWDED, showgrid=False)
    figure.update_yaxes(title_text="verify passes", range=[0, highest * 1.15], dtick=1 if highest < 6 else None)
    return figure


def _passes(count: int) -> str:
    return f"{count} verify pass" + ("" if count == 1 else "es")
