"""Synthetic acceptance: how many draft tokens a step accepts under each law, for the same acceptance length."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import legends, style
from specviz.synthetic import LAWS, Distribution, Law, distribution

TITLE = "Accepted draft tokens, synthetic"
SHORT: dict[Law, str] = {"minimum-variance": "min. variance", "clamped-normal": "normal", "geometric": "geometric"}
LOOKS: dict[Law, tuple[str, str]] = {
    "minimum-variance": (style.BLUE, ""),
    "clamped-normal": (style.GREEN, "/"),
    "geometric": (style.GREY, "."),
}  # colour, pattern


class LawsInfo(NamedTuple):
    """Values of the figure."""

    asked: float  # acceptance length
    laws: tuple[Distribution, ...]


def side_by_side(length: float, gamma: int) -> LawsInfo:
    """All laws side by side; raises UserError where there can be no such length."""
    return LawsInfo(length, tuple(distribution(law, length, gamma) for law in LAWS))


def plot(info: LawsInfo | None) -> go.Figure:
    """None: what was asked for can't be."""
    if info is None:
        return style.empty(TITLE, "No such length can be replayed.")
    figure = style.figure(TITLE, f"synthetic: acceptance length {info.asked:g} asked for")
    for made in info.laws:
        colour, pattern = LOOKS[made.law]
        figure.add_bar(
            name=SHORT[made.law],
            x=list(range(made.gamma + 1)),
            y=list(made.shares),
            hovertext=[
                f"<b>{made.law}, synthetic</b><br>{count} accepted: {share:.1%} of steps"
                for count, share in enumerate(made.shares)
            ],
            hoverinfo="text",
            marker=style.area(colour, pattern),
        )
    legends.add(figure)
    style.columns(figure, "accepted draft tokens", 0, info.laws[0].gamma)
    figure.update_layout(barmode="group", hovermode="closest")
    figure.update_yaxes(title_text="share of steps", range=[0, 1.05], dtick=0.25, tickformat=".0%")
    return figure
