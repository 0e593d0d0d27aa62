"""What changed from one set of results to another: differences with intervals, and which are beyond noise."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import style
from specviz.figures.layout import plain, set_height

TITLE = "Drift"
MOST_ROWS = 24
ROW = 38  # pixels
LONGEST_NAME = 34  # characters above an interval
MORE, LESS, NOISE, UNKNOWN = "▲", "▼", "≈", "?"
SYMBOLS = {MORE: "triangle-up", LESS: "triangle-down", NOISE: "circle-open", UNKNOWN: "x-thin-open"}
WORDS = {
    MORE: "more, beyond noise",
    LESS: "less, beyond noise",
    NOISE: "within noise",
    UNKNOWN: "too few prompts to tell",
}


class Change(NamedTuple):
    """A figure in both sets."""

    drafter: str
    workload: str
    before: float
    after: float
    interval: tuple[float, float] | None  # of after - before; None of too few prompts
    prompts: tuple[int, int]
    paired: bool  # the same prompts on both sides

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def mark(self) -> str:
        """MORE, LESS, NOISE or UNKNOWN."""
        if self.interval is None:
            return UNKNOWN
        low, high = self.interval
        return MORE if low > 0 else LESS if high < 0 else NOISE


class DriftInfo(NamedTuple):
    """Values of the figure."""

    measure: str  # "acceptance length" or "speed-up"
    before: str  # what the sets are called
    after: str
    changes: tuple[Change, ...]


def plot(info: DriftInfo) -> go.Figure:
    if not info.changes:
        if not info.after:
            return style.empty(TITLE, "Nothing is compared yet: choose", "a file or suite under “Compare with”.")
        return style.empty(TITLE, "These two have no drafter", "at the same setting in common.")
    shown = clearest(info.changes)
    left_out = len(info.changes) - len(shown)
    figure = style.figure(
        f"{TITLE} of {'the ' if info.measure == 'speed-up' else ''}{info.measure}",
        f"from {plain(info.before, 32)}",
        f"to {plain(info.after, 34)}",
        "▲ ▼ beyond noise, ≈ within, ? unknown",
        *([f"{left_out} smaller ones are in the table alone"] if left_out else []),
    )
    for place, change in enumerate(shown):
        _draw(figure, change, place)
    ends = [bound for change in shown for bound in (change.interval or ()) + (change.difference,)]
    furthest = 1.1 * max(map(abs, ends)) or 0.1
    figure.add_shape(
        type="line", x0=0, x1=0, y0=-0.6, y1=len(shown) - 0.4, line={"color": style.GREY, "dash": "dot", "width": 1}
    )
    figure.update_xaxes(
        title_text=f"change of {info.measure}", range=[-furthest, furthest], nticks=5, tickformat="+.2~f"
    )
    figure.update_yaxes(range=[len(shown) - 0.5, -0.8], visible=False)
    figure.update_layout(margin={"l": 6, "r": 6}, hovermode="closest")
    set_height(figure, figure.layout.margin.t + ROW * len(shown) + 50)
    return figure


def clearest(changes: tuple[Change, ...]) -> list[Change]:
    """As many as there is room for: those beyond noise first, then the largest; in the order in which they came."""
    ranked = sorted(
        changes, key=lambda change: (change.mark not in (MORE, LESS), change.interval is None, -abs(change.difference))
    )
    kept = ranked[:MOST_ROWS]
    return [change for change in changes if change in kept]


def _draw(figure: go.Figure, change: Change, place: int) -> None:
    """An interval with its mark, and above it whose it is and how much."""
    low, high = change.interval or (change.difference, change.difference)
    figure.add_scatter(
        x=[change.difference],
        y=[place],
        mode="markers",
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - change.difference],
            "arrayminus": [change.difference - low],
            "color": style.GREY,
            "thickness": 1.5,
            "width": 4,
        },
        hovertext=[_in_words(change)],
        hoverinfo="text",
        marker={"symbol": SYMBOLS[change.mark], "size": 11, "color": style.BLUE, "line": {"width": 1.5}},
    )
    name = f"{plain(change.workload, 16)} · {plain(change.drafter, LONGEST_NAME - 16)}"
    words = {"left": (0.0, name), "right": (1.0, f"{change.mark} {change.difference:+.2f}")}
    for side, (x, text) in words.items():
        figure.add_annotation(
            text=text, x=x, y=place - 0.2, xref="paper", xanchor=side, yanchor="bottom", showarrow=False
        )


def _in_words(change: Change) -> str:
    interval = "none" if change.interval is None else "{:+.2f} to {:+.2f}".format(*change.interval)
    pairs = "the same prompts" if change.paired else "other prompts"
    before, after = change.prompts
    return "<br>".join(
        [
            f"<b>{plain(change.workload)}</b>",
            plain(change.drafter),
            f"{change.before:.2f} → {change.after:.2f}: {WORDS[change.mark]}",
            f"interval of the change: {interval}",
            f"{before} and {after} prompts, {pairs}",
        ]
    )
