"""Legends of more names than stand side by side in the narrowest card."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import set_height

PER_ROW = 2  # names side by side at 255 pixels


def add(figure: go.Figure) -> None:
    """Name the traces; the figure grows by the rows that the names need there, so that the axis keeps its place."""
    style.legend(figure)
    names = sum(trace.showlegend is not False for trace in figure.data)
    further = (names - 1) // PER_ROW * style.LINE
    set_height(figure, style.HEIGHT + further)
    figure.update_layout(margin={"b": figure.layout.margin.b + further})
