"""What all figures share. The page may be light or dark, so backgrounds are transparent and lines mid-grey."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

BLUE = "#0072B2"  # Okabe and Ito's palette, told apart with any colour vision
GREY = "#7e7e7e"  # 4 to 1 on the white and on the dark panel, the most one grey can have; the page colours text itself
HEIGHT = 320  # pixels; without a fixed height the page jumps when a figure arrives


def figure(title: str, subtitle: str = "") -> go.Figure:
    """A titled figure without data; zooming is off, so that a finger on it scrolls the page."""
    axis = {
        "title": {"font": {"size": 14}, "standoff": 8},
        "color": GREY,
        "gridcolor": "rgba(128,128,128,0.25)",
        "zeroline": False,
        "fixedrange": True,
    }
    heading = {"text": title, "font": {"size": 16}, "subtitle": {"text": subtitle, "font": {"size": 13, "color": GREY}}}
    layout: dict[str, Any] = {
        "template": "none",
        "title": heading,
        "font": {"color": GREY, "size": 14},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": HEIGHT,
        "margin": {"l": 60, "r": 20, "t": 85, "b": 55},
        "dragmode": False,
        "showlegend": False,
        "xaxis": axis,
        "yaxis": axis,
    }
    return go.Figure(layout=layout)


def empty(title: str, reason: str) -> go.Figure:
    """A figure that says in its middle why it shows nothing."""
    chart = figure(title)
    chart.add_annotation(text=reason, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    chart.update_xaxes(visible=False)
    chart.update_yaxes(visible=False)
    return chart
