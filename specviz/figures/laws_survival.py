"""Synthetic acceptance: the share of drafts that get past each position under each law."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures import legends, style
from specviz.figures.laws import SHORT, LawsInfo
from specviz.synthetic import Law

TITLE = "Survival by position, synthetic"
LOOKS: dict[Law, tuple[str, str]] = {
    "minimum-variance": ("solid", "circle"),
    "clamped-normal": ("dash", "square"),
    "geometric": ("dot", "triangle-up"),
}  # dash, symbol


def plot(info: LawsInfo | None) -> go.Figure:
    """None: what was asked for can't be."""
    if info is None:
        return style.empty(TITLE, "No such length can be replayed.")
    gamma = info.laws[0].gamma
    if not gamma:
        return style.empty(TITLE, "Drafts of no tokens have no positions.")
    figure = style.figure(TITLE, "synthetic; each sums to its length less 1")
    for made in info.laws:
        dash, symbol = LOOKS[made.law]
        figure.add_scatter(
            name=SHORT[made.law],
            x=list(range(1, gamma + 1)),
            y=list(made.survival),
            mode="lines+markers",
            line={"color": style.GREY, "width": 1.5, "dash": dash},
            marker={"symbol": symbol, "size": 7, "color": style.GREY},
            hovertext=[
                f"<b>{made.law}, synthetic</b><br>{share:.1%} of drafts get past position {position}"
                for position, share in enumerate(made.survival, start=1)
            ],
            hoverinfo="text",
            cliponaxis=False,
        )
    legends.add(figure)
    style.columns(figure, "draft position", 1, gamma)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(ticklabelstandoff=4)  # room for a marker at 0%
    figure.update_yaxes(range=[0, 1], dtick=0.25, tickformat=".0%")
    return figure
