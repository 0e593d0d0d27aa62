"""How far drafts get: the share that survives each draft position, and the share accepted of those that reach it."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.metrics import acceptance
from specviz.trace import Trace

TITLE = "Survival by draft position"


class SurvivalInfo(NamedTuple):
    """Values of the figure."""

    survival: tuple[float | None, ...]  # [i - 1] share of drafts accepted up to and including position i
    conditional: tuple[float | None, ...]  # [i - 1] share accepted at position i of those accepted before it
    undrafted_steps: int  # not in the shares
    expected: float | None  # accepted draft tokens per verify pass with a draft: the sum of survival


def info(trace: Trace) -> SurvivalInfo:
    numbers = acceptance(trace)
    known = [share for share in numbers.survival if share is not None]
    return SurvivalInfo(
        survival=numbers.survival,
        conditional=numbers.conditional,
        undrafted_steps=numbers.undrafted_steps,
        expected=sum(known) if known else None,
    )


def plot(info: SurvivalInfo) -> go.Figure:
    if info.expected is None:
        return style.nothing_drafted(TITLE, info.undrafted_steps)
    subtitle = [f"sums to {info.expected:.2f} accepted per pass"]
    if info.undrafted_steps:
        subtitle.append(f"{style.passes(info.undrafted_steps)} without a draft left out")
    positions = list(range(1, len(info.survival) + 1))
    figure = style.figure(TITLE, *subtitle)
    figure.add_bar(
        name="survival",
        x=positions,
        y=list(info.survival),
        hovertext=[_in_words(*values) for values in zip(positions, info.survival, info.conditional, strict=True)],
        hoverinfo="text",
        marker=style.area(style.BLUE),
    )
    marker_size = max(4, 9 - len(positions) // 4)  # pixels
    figure.add_scatter(
        name="conditional",
        x=positions,
        y=list(info.conditional),
        mode="lines+markers",
        hoverinfo="skip",  # the bar's text tells both
        cliponaxis=False,
        line={"color": style.GREY, "width": 1.5, "dash": "dot"},
        marker={"symbol": "diamond-open", "size": marker_size, "color": style.GREY, "line": {"width": 2}},
    )
    style.legend(figure)
    style.columns(figure, "draft position", 1, len(positions))
    figure.update_xaxes(ticklabelstandoff=4)  # room for a marker at 0%
    figure.update_yaxes(range=[0, 1], dtick=0.25, tickformat=".0%")
    return figure


def _in_words(position: int, survival: float | None, conditional: float | None) -> str:
    """Both shares at a position, in lines short enough for a narrow card."""
    lines = [f"<b>draft position {position}</b>"]
    if survival is not None:
        lines.append(f"survival: {survival:.1%} of drafts get past it")
    reached = "never reached" if conditional is None else f"{conditional:.1%} once reached"
    return "<br>".join([*lines, f"conditional: {reached}"])
