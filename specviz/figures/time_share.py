"""Where the time of a token goes, in plain and in speculative decoding, and whether the drafter is cheap enough."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.comparison import Comparison
from specviz.figures import style
from specviz.trace import Trace

TITLE = "Where the time goes"
LOOKS = {"draft": (style.BLUE, ""), "verify": (style.GREEN, "/"), "decide": (style.GREY, ".")}  # colour, pattern


class TimeShare(NamedTuple):
    """Milliseconds per token."""

    draft: float
    verify: float
    decide: float


class TimeShareInfo(NamedTuple):
    """Values of the figure."""

    can_draft: bool  # otherwise the run is plain decoding itself
    plain: TimeShare | None  # None: not measured
    speculative: TimeShare | None
    cost_ratio: float | None  # c: drafting one token over a plain verify pass
    break_even: float | None  # the c at which speculative decoding would be as fast as plain


def info(comparison: Comparison | None, trace: Trace) -> TimeShareInfo:
    can_draft = trace.run.drafter != "plain" and trace.run.gamma > 0
    phases = comparison.phases if comparison else None
    if phases is None:
        return TimeShareInfo(can_draft, None, None, None, None)
    return TimeShareInfo(
        can_draft,
        plain=TimeShare(0.0, 1000 * phases.plain_verify_s, 1000 * phases.plain_decide_s),
        speculative=TimeShare(1000 * phases.draft_s, 1000 * phases.verify_s, 1000 * phases.decide_s),
        cost_ratio=phases.cost_ratio,
        break_even=phases.break_even,
    )


def plot(info: TimeShareInfo) -> go.Figure:
    if info.plain is None or info.speculative is None:
        if not info.can_draft:
            return style.empty(TITLE, "This is plain decoding,", "so there is nothing to compare.")
        return style.empty(TITLE, "Measured when the run is compared", "with plain decoding.")
    rows = {"plain": info.plain, "speculative": info.speculative}
    figure = style.figure(TITLE, *_verdict(info))
    for phase, (colour, pattern) in LOOKS.items():
        times = [getattr(row, phase) for row in rows.values()]
        figure.add_bar(
            name=phase,
            orientation="h",
            x=times,
            y=list(rows),
            width=0.42,  # of a row; the rest is for its words
            text=list(map(_rounded, times)),
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertext=[_in_words(name, phase, time, sum(rows[name])) for name, time in zip(rows, times, strict=True)],
            hoverinfo="text",
            marker=style.area(colour, pattern),
        )
    for place, (name, row) in enumerate(rows.items()):
        words = f"{name}: {_rounded(sum(row))} ms per token"
        figure.add_annotation(text=words, x=0, y=place - 0.22, xanchor="left", yanchor="bottom", showarrow=False)
    figure.update_layout(
        barmode="stack",
        hovermode="closest",
        margin={"l": 5, "r": 4, "b": 22},
        uniformtext={"mode": "hide", "minsize": style.TEXT_SIZE},  # a number that does not fit is left out
    )
    style.legend(figure)
    longest = max(map(sum, rows.values()))
    figure.update_xaxes(range=[0, 1.05 * longest or 1], nticks=6, ticks="outside", showgrid=False)
    figure.update_yaxes(range=[1.3, -0.7], visible=False)  # plain above
    return figure


def _verdict(info: TimeShareInfo) -> list[str]:
    """What a draft token costs and what it may cost, in two lines short enough for a narrow card."""
    if info.cost_ratio is None or info.break_even is None:
        return []
    cost, limit = _ratio(info.cost_ratio), _ratio(info.break_even)
    price = f"a draft token costs c = {cost} plain steps;"
    if info.break_even <= 0:
        return [price, "no cost could pay: too little is accepted"]
    if cost == limit:
        return [price, "that is where it begins to pay"]
    return [price, f"it {'pays' if info.cost_ratio < info.break_even else 'would pay'} below {limit}"]


def _in_words(name: str, phase: str, time: float, total: float) -> str:
    share = f", {time / total:.0%}" if total else ""
    return f"<b>{name}: {phase}</b><br>{_rounded(time)} ms per token{share}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.4f}"


def _rounded(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds >= 1 else f"{milliseconds:.2f}"
