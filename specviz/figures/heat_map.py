"""Acceptance length or speed-up of every drafter on every workload, each cell with its number and its interval.

Cells are tints on the card's own background, so that one colour of text reads on all of them, in both themes.
"""

from __future__ import annotations

from math import log2
from typing import Literal, NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import broken, plain, set_height, small

Measure = Literal["acceptance length", "speed-up"]

BLUE, VERMILION = "0,114,178", "213,94,0"  # red, green, blue
FAINT, STRONG = 0.05, 0.6  # opacity
NAME_WIDTH, NAME_LINES = 13, 4  # of a column's name: characters, and lines for the drafter and its setting each
LONGEST_WORKLOAD = 22  # characters
ROW = 38  # pixels
NARROWEST_SCALE = 0.25  # a speed-up of 2 ** 0.25, so that differences of a few percent stay pale


class Cell(NamedTuple):
    """What a drafter brought on a workload."""

    value: float
    interval: tuple[float, float] | None  # 95 %; None of too few prompts
    mark: str  # a symbol that goes before the number; "" for none
    hover: tuple[str, ...]  # lines that say more


class HeatMapInfo(NamedTuple):
    """Values of the figure."""

    measure: Measure
    workloads: tuple[str, ...]  # lines, from the top; the first is all of them together
    drafters: tuple[tuple[str, str], ...]  # columns: name and setting
    cells: tuple[tuple[Cell | None, ...], ...]  # [workload][drafter]; None: not measured


def plot(info: HeatMapInfo) -> go.Figure:
    title = f"{info.measure.capitalize()} by workload"
    if not any(cell for line in info.cells for cell in line):
        untimed = info.measure == "speed-up" and bool(info.workloads)
        reason = ("Nothing was timed:", "acceptance alone was counted.") if untimed else ("No results yet.",)
        return style.empty(title, *reason)
    figure = style.figure(title, *_subtitle(info.measure))
    columns, lines = list(range(len(info.drafters))), list(range(len(info.workloads)))
    figure.add_heatmap(
        x=columns,
        y=lines,
        z=[[_colour_value(cell, info.measure) for cell in line] for line in info.cells],
        hovertext=[
            [_in_words(info, line, column) if cell else "" for column, cell in enumerate(cells)]
            for line, cells in enumerate(info.cells)
        ],
        hoverinfo="text",
        hoverongaps=False,
        xgap=2,
        ygap=2,
        showscale=False,  # every cell says its number
        **_scale(info),
    )
    _write(figure, info)
    if len(lines) > 1:  # between all together and each
        figure.add_shape(type="line", x0=-0.5, x1=len(columns) - 0.5, y0=0.5, y1=0.5, line={"color": style.GREY})
    names = [_name(*drafter) for drafter in info.drafters]
    workloads = [plain(name, LONGEST_WORKLOAD) for name in info.workloads]
    workloads[0] = f"<b>{workloads[0]}</b>"
    axis = {"ticks": "", "ticklabelstandoff": 4, "showgrid": False}
    figure.update_xaxes(tickvals=columns, ticktext=["<br>".join(name) for name in names], side="top", **axis)
    figure.update_yaxes(tickvals=lines, ticktext=workloads, range=[len(lines) - 0.5, -0.5], automargin=True, **axis)
    above = figure.layout.margin.t + style.LINE * max(map(len, names))
    figure.update_layout(margin={"t": above, "l": 8, "b": 6}, hovermode="closest")
    set_height(figure, above + ROW * len(lines) + 6)
    return figure


def _subtitle(measure: Measure) -> list[str]:
    if measure == "acceptance length":
        return ["tokens per verify pass, and the 95 % interval"]
    return ["over plain decoding, and the 95 % interval", "▲ faster, ▼ slower, ≈ unclear, ? too few"]


def _colour_value(cell: Cell | None, measure: Measure) -> float | None:
    """What the colour stands for; speed-ups by their logarithm, as twice as slow is as far from 1 as twice as fast."""
    if cell is None:
        return None
    return cell.value if measure == "acceptance length" else log2(cell.value)


def _scale(info: HeatMapInfo) -> dict[str, object]:
    values = [value for line in info.cells for cell in line if (value := _colour_value(cell, info.measure)) is not None]
    if info.measure == "acceptance length":
        return {"zmin": 1, "zmax": max(2.0, *values), "colorscale": _shades((0, BLUE, FAINT), (1, BLUE, STRONG))}
    furthest = max(NARROWEST_SCALE, *map(abs, values))
    slower, faster = ((0, VERMILION, STRONG), (0.5, VERMILION, FAINT)), ((0.5, BLUE, FAINT), (1, BLUE, STRONG))
    return {"zmin": -furthest, "zmax": furthest, "colorscale": _shades(*slower, *faster)}


def _shades(*stops: tuple[float, str, float]) -> list[tuple[float, str]]:
    return [(place, f"rgba({colour},{opacity})") for place, colour, opacity in stops]


def _write(figure: go.Figure, info: HeatMapInfo) -> None:
    """Each cell's number, and its interval in smaller print below; heat maps' own text knows one size only."""
    cells = [(x, y, cell) for y, line in enumerate(info.cells) for x, cell in enumerate(line)]
    for size, above, text in ((13, 0.17, _number), (10, -0.24, _interval)):
        figure.add_scatter(
            x=[x for x, _, _ in cells],
            y=[y - (above if cell and cell.interval else 0) for _, y, cell in cells],
            text=[text(cell, info.measure) for _, _, cell in cells],
            mode="text",
            textfont={"size": size},
            hoverinfo="skip",  # the cell's own text tells all
        )


def _number(cell: Cell | None, measure: Measure) -> str:
    if cell is None:
        return "n/a"
    return f"{cell.mark} {cell.value:.2f}{'x' if measure == 'speed-up' else ''}".strip()


def _interval(cell: Cell | None, measure: Measure) -> str:
    return "" if cell is None or cell.interval is None else "{:.2f}–{:.2f}".format(*cell.interval)


def _in_words(info: HeatMapInfo, line: int, column: int) -> str:
    cell = info.cells[line][column]
    drafter = ", ".join(info.drafters[column])
    return "<br>".join(
        [f"<b>{plain(info.workloads[line])}</b>", plain(drafter), *map(plain, cell.hover if cell else ())]
    )


def _name(drafter: str, setting: str) -> list[str]:
    """A column's name, line by line."""
    return broken(drafter, NAME_WIDTH, NAME_LINES) + [small(line) for line in broken(setting, NAME_WIDTH + 3, 2)]
