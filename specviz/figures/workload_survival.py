"""How far one drafter's drafts get on each workload: the share that survives each draft position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import plain, set_height, small

TITLE = "Survival by workload"
COLUMNS = 3  # panels side by side; as many as are legible in the narrowest card
MOST_PANELS = 18
LONGEST_WORKLOAD = 14  # characters above a panel
PANEL, BETWEEN = 66, 44  # pixels: a panel's height, and what is between two of them


class Panel(NamedTuple):
    """A workload."""

    workload: str
    survival: tuple[float, ...]  # [i - 1] share of drafts accepted up to and including position i; () without drafts
    drafts: int  # verify passes that had one


class WorkloadSurvivalInfo(NamedTuple):
    """Values of the figure."""

    drafter: str
    overall: tuple[float, ...]  # survival over all workloads together
    panels: tuple[Panel, ...]


def plot(info: WorkloadSurvivalInfo) -> go.Figure:
    if not info.overall:
        return style.empty(TITLE, "Nothing was drafted." if info.panels else "No results yet.")
    shown = sorted(info.panels, key=lambda panel: -sum(panel.survival))[:MOST_PANELS]
    left_out = len(info.panels) - len(shown)
    note = [f"{left_out} with less are in the table alone"] if left_out else []
    figure = style.figure(TITLE, plain(info.drafter, 44), "bars: the workload, line: all of them", *note)
    rows = -(-len(shown) // COLUMNS)
    top, bottom = figure.layout.margin.t + 20, 42
    height = rows * PANEL + (rows - 1) * BETWEEN
    figure.set_subplots(
        rows,
        COLUMNS,
        shared_yaxes=True,
        horizontal_spacing=0.04,
        vertical_spacing=BETWEEN / height if rows > 1 else 0,
    )
    for place, panel in enumerate(shown):
        _draw(figure, panel, info.overall, row=place // COLUMNS + 1, column=place % COLUMNS + 1)
    highest = max(share for shares in (info.overall, *(panel.survival for panel in shown)) for share in shares)
    _same_axes(figure, len(info.overall), highest, len(shown))
    figure.update_layout(margin={"t": top, "b": bottom, "l": 36}, bargap=0.25, hovermode="x")
    figure.add_annotation(
        text="draft position", x=0.5, y=0, yshift=-bottom, xref="paper", yref="paper", yanchor="bottom", showarrow=False
    )
    set_height(figure, top + height + bottom)
    return figure


def _draw(figure: go.Figure, panel: Panel, overall: Sequence[float], row: int, column: int) -> None:
    positions = list(range(1, len(overall) + 1))
    figure.add_bar(
        row=row,
        col=column,
        x=positions,
        y=list(panel.survival),
        hovertext=[_in_words(panel, position, all_of) for position, all_of in zip(positions, overall, strict=True)],
        hoverinfo="text",
        marker=style.area(style.BLUE),
    )
    figure.add_scatter(
        row=row,
        col=column,
        x=positions,
        y=list(overall),
        mode="lines+markers",
        hoverinfo="skip",  # the bar's text tells both
        cliponaxis=False,
        line={"color": style.GREY, "width": 1.5, "dash": "dot"},
        marker={"symbol": "diamond-open", "size": 5, "color": style.GREY},
    )
    corners: tuple[tuple[str, dict[str, object]], ...] = (
        (plain(panel.workload, LONGEST_WORKLOAD), {"x": 0, "xanchor": "left", "yanchor": "bottom"}),
        # Later positions never survive more often, so that this corner is free.
        (small(f"Σ {sum(panel.survival):.2f}"), {"x": 1, "xanchor": "right", "yanchor": "top"}),
    )
    for text, place in corners:
        figure.add_annotation(
            row=row, col=column, text=text, y=1, xref="x domain", yref="y domain", showarrow=False, **place
        )


def _same_axes(figure: go.Figure, deepest: int, highest: float, panels: int) -> None:
    """All panels are drawn to the scale of the first, with numbers at the left and at the bottom alone."""
    step = -(-deepest // 5)  # up to five numbers stand below the narrowest panel
    figure.update_xaxes(
        range=[0.4, deepest + 0.6],
        tick0=0,
        dtick=step,
        showgrid=False,
        fixedrange=True,
        tickangle=0,
        tickfont={"size": style.TEXT_SIZE, "color": style.GREY},
    )
    figure.update_yaxes(
        range=[0, 1.08 * highest or 1],
        nticks=3,
        tickformat=".0%",
        fixedrange=True,
        zeroline=False,
        gridcolor="rgba(128,128,128,0.25)",
        tickfont={"size": style.TEXT_SIZE, "color": style.GREY},
    )
    for place in range(panels, -(-panels // COLUMNS) * COLUMNS):
        number = place + 1
        figure.update_layout({f"xaxis{number}": {"visible": False}, f"yaxis{number}": {"visible": False}})


def _in_words(panel: Panel, position: int, overall: float) -> str:
    lines = [f"<b>{plain(panel.workload, 30)}</b>"]
    if position <= len(panel.survival):
        share = panel.survival[position - 1]
        lines += [f"{share:.1%} get past position {position}", f"of {style.passes(panel.drafts)} with a draft"]
    else:
        lines.append(f"no draft reached position {position}" if panel.survival else "nothing was drafted")
    return "<br>".join([*lines, f"all workloads: {overall:.1%}"])
