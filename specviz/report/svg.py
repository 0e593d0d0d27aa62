"""The report's charts as SVG: a few lines each, without a script, coloured by the page's own style sheet.

Lines differ in colour, dashes and the shape of their points, so that they are told apart without colours too.
"""

from __future__ import annotations

from html import escape

from specviz.report.blocks import Lines, Range, Ranges, Series
from specviz.report.names import visible

WIDTH, HEIGHT = 360, 200  # small, so that texts stay legible where the chart is shrunk to a phone's width
LEFT, RIGHT, TOP, BOTTOM = 38, 12, 8, 36
MOST_SERIES = 6  # that can be told apart
STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10)  # between two numbers on an axis
MOST_NUMBERS = 6
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",  # circle
    "M-3.5 -3.5h7v7h-7Z",  # square
    "M0 -4.5L4.5 4H-4.5Z",  # triangle
    "M0 -5L5 0L0 5L-5 0Z",  # diamond
    "M0 4.5L4.5 -4H-4.5Z",  # triangle on its tip
    "M-4.5 -1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3Z",  # cross
)


def lines(chart: Lines) -> str:
    """A line for each of the first series, and below them which is which."""
    shown = chart.series[:MOST_SERIES]
    ticks = _numbers(chart.lowest, chart.highest)
    top = max(chart.highest, ticks[-1])
    grid = "".join(_grid_line(value, _y(value, chart.lowest, top), chart.is_share) for value in ticks)
    places = "".join(
        f'<text class="tick middle" x="{_x(index, chart):.1f}" y="{HEIGHT - BOTTOM + 15}">{_text(name)}</text>'
        for index, name in enumerate(chart.places)
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    across = f'<text class="tick middle" x="{middle}" y="{HEIGHT - 4}">{_text(chart.across)}</text>'
    drawn = "".join(_line(series, place, chart, top) for place, series in enumerate(shown))
    keys = "".join(_key(series.name, place) for place, series in enumerate(shown))
    left_out = len(chart.series) - len(shown)
    more = f"<li>{left_out} more in the table alone</li>" if left_out else ""
    label = escape(f"{chart.upwards} against {chart.across}; the table has the numbers", quote=True)
    return (
        f'<div class="chart"><p class="upwards">{_text(chart.upwards)}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{grid}{places}{across}{drawn}</svg>'
        f'<ul class="keys">{keys}{more}</ul></div>'
    )


def ranges(chart: Ranges) -> str:
    """A row for each value: its name, a dot with its interval about the neutral value, and the number."""
    ends = [end for row in chart.rows for end in (row.value, *(row.interval or ()))] + [chart.neutral]
    low, high = min(ends), max(ends)
    room = 0.04 * ((high - low) or 1)
    rows = "".join(_range(row, chart.neutral, low - room, high + room) for row in chart.rows)
    return (
        f'<div class="chart"><p class="upwards">{_text(chart.what)}, with 95 % intervals; the dashed line is '
        f'{_text(chart.neutral_name)}</p><div class="ranges">{rows}</div></div>'
    )


def _range(row: Range, neutral: float, low: float, high: float) -> str:
    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}%"

    side = "better" if row.value > neutral else "worse"
    whisker = ""
    if row.interval is not None:
        whisker = f'<line class="whisker" x1="{place(row.interval[0])}" x2="{place(row.interval[1])}" y1="10" y2="10"/>'
    return (
        f'<div class="range {side}"><span>{_text(row.name)}</span><svg height="20" aria-hidden="true">'
        f'<line class="neutral" x1="{place(neutral)}" x2="{place(neutral)}" y1="0" y2="20"/>{whisker}'
        f'<circle cx="{place(row.value)}" cy="10" r="4.5"/></svg><b>{_text(row.said)}</b></div>'
    )


def _line(series: Series, place: int, chart: Lines, top: float) -> str:
    """With a gap where nothing was measured."""
    path = dots = ""
    is_drawing = False
    for index, value in enumerate(series.values):
        if value is not None:
            x, y = _x(index, chart), _y(value, chart.lowest, top)
            path += f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}"
            dots += f'<path d="{SHAPES[place]}" transform="translate({x:.1f} {y:.1f})"/>'
        is_drawing = value is not None
    return f'<g class="series s{place}"><title>{_text(series.name)}</title><path class="line" d="{path}"/>{dots}</g>'


def _key(name: str, place: int) -> str:
    sample = f'<path class="line" d="M0 7H28"/><path d="{SHAPES[place]}" transform="translate(14 7)"/>'
    drawn = f'<svg width="28" height="14" aria-hidden="true"><g class="series s{place}">{sample}</g></svg>'
    return f"<li>{drawn}{_text(name)}</li>"


def _grid_line(value: float, y: float, is_share: bool) -> str:
    said = f"{value:.0%}" if is_share else f"{value:g}"
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{said}</text>'
    )


def _numbers(low: float, high: float) -> list[float]:
    """Round numbers from `low`, which is one, up to `high` or just above."""
    step = next((step for step in STEPS if (high - low) / step <= MOST_NUMBERS - 1), high - low)
    count = -int(-(high - low) / step // 1)
    return [round(low + index * step, 2) for index in range(count + 1)]


def _x(index: int, chart: Lines) -> float:
    """Pixels; a place stands in the middle of its share of the width."""
    return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(chart.places)


def _y(value: float, low: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (top - low)


def _text(text: str) -> str:
    return escape(visible(text))
