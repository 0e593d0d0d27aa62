"""What all figures share.

The page may be light or dark, so backgrounds are transparent, lines mid-grey and areas tints. A figure stands in a
card, does not know its width, and must be whole at 255 pixels: texts are short, and lines are broken here.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

BLUE = "#0072B2"  # Okabe and Ito's palette, told apart with any colour vision
GREEN = "#009E73"
GREY = "#7e7e7e"  # 4 to 1 on the white and on the dark panel, the most one grey can have; the page colours text itself
TINT = 0.4  # opacity of areas, so that text on them reads in both themes; an outline in full colour bounds them
FONT = "Inter, ui-sans-serif, system-ui, sans-serif"  # named here too, because Plotly measures text outside the page
HEIGHT = 230  # pixels; without a fixed height the page jumps when a figure arrives
TITLE_SIZE, TEXT_SIZE = 14, 12
LINE = 16  # pixels from one line of text to the next
LEGEND = 28  # pixels for it, below the axis
MOST_TICKS = 10  # whole numbers that stand side by side in the narrowest card


def figure(title: str, *subtitle: str) -> go.Figure:
    """A figure without data under a title and a line for each `subtitle`.

    Zooming is off, so that a finger on it scrolls the page.
    """
    small = {"size": TEXT_SIZE, "color": GREY}
    axis = {
        "title": {"font": small, "standoff": 6},
        "tickfont": small,
        "color": GREY,
        "gridcolor": "rgba(128,128,128,0.25)",
        "zeroline": False,
        "fixedrange": True,
        "tickangle": 0,
    }
    heading = {
        "text": title,
        "font": {"size": TITLE_SIZE, "weight": 600},
        "subtitle": {"text": "<br>".join(subtitle), "font": small},
        "x": 0,
        "xref": "container",
        "xanchor": "left",
        "y": 1 - TITLE_SIZE / HEIGHT,
        "yref": "container",
        "yanchor": "bottom",  # only with this, subtitles of one and of two lines begin at the same height
    }
    layout: dict[str, Any] = {
        "template": "none",
        "title": heading,
        "font": {"family": FONT, "color": GREY, "size": TEXT_SIZE},
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": TEXT_SIZE}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": HEIGHT,
        "margin": {"l": 44, "r": 4, "t": 34 + LINE * len(subtitle), "b": 40},
        "dragmode": False,
        "showlegend": False,
        "xaxis": axis,
        "yaxis": axis,
    }
    return go.Figure(layout=layout)


def empty(title: str, *reason: str) -> go.Figure:
    """A figure that says in its middle why it shows nothing."""
    chart = figure(title)
    chart.add_annotation(text="<br>".join(reason), x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    chart.update_layout(margin={"l": 0, "r": 0})
    chart.update_xaxes(visible=False)
    chart.update_yaxes(visible=False)
    return chart


def nothing_drafted(title: str, undrafted_steps: int) -> go.Figure:
    """The empty figure of a run in which no verify pass had a draft."""
    sentence = f"Nothing was drafted in {passes(undrafted_steps)}." if undrafted_steps else "No verify pass yet."
    return empty(title, sentence)


def area(colour: str, pattern: str = "") -> dict[str, Any]:
    """The marker of bars: a tint with an outline, and with a pattern where colour alone would tell segments apart."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    tint = f"rgba({red},{green},{blue},{TINT})"
    marker: dict[str, Any] = {"color": tint, "line": {"color": colour, "width": 1.5}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "fgcolor": colour, "bgcolor": tint, "size": 6, "solidity": 0.2}
    return marker


def legend(chart: go.Figure) -> None:
    """Name the traces in a row along the bottom; nothing can be switched off, so nothing goes missing by a slip."""
    place = {"x": 0, "xref": "container", "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    row = {**place, "orientation": "h", "traceorder": "normal", "itemclick": False, "itemdoubleclick": False}
    chart.update_layout(showlegend=True, legend=row, margin={"b": chart.layout.margin.b + LEGEND})


def columns(chart: go.Figure, title: str, first: int, last: int) -> None:
    """An axis with a column for each whole number from `first` to `last`; all its height answers to the pointer."""
    step = 1
    while last > MOST_TICKS * step:
        step *= 2
    chart.update_xaxes(title_text=title, range=[first - 0.5, last + 0.5], tick0=0, dtick=step, showgrid=False)
    chart.update_layout(bargap=0.2 if last - first > 2 else 0.5, hovermode="x")


def passes(count: int) -> str:
    return f"{count} pass" + ("" if count == 1 else "es")
