"""What golden curves imply about each draft position: the share of drafts that get past it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from specviz.figures import legends, style
from specviz.figures.golden_curve import INDEPENDENT, LOOKS, whose
from specviz.golden import Curve, implied_survival

TITLE = "Implied survival by draft position"


class ImpliedSurvivalInfo(NamedTuple):
    """Values of the figure."""

    survival: dict[str, tuple[float | None, ...]]  # by the curves' short names; [i - 1] for position i
    independent: tuple[float, ...]  # of the first curve, if all positions were accepted as often as its first
    published: tuple[str, ...]  # names of the curves that others measured


def of_curves(curves: Mapping[str, Curve], published: Sequence[str] = ()) -> ImpliedSurvivalInfo:
    survival = {name: implied_survival(curve) for name, curve in curves.items()}
    first = next(iter(survival.values()), ())
    alpha = first[0] if first else None
    independent = () if alpha is None else tuple(alpha**position for position in range(1, len(first) + 1))
    return ImpliedSurvivalInfo(survival, independent, tuple(published))


def plot(info: ImpliedSurvivalInfo) -> go.Figure:
    known = [share for shares in info.survival.values() for share in shares if share is not None]
    if not known:
        return style.empty(TITLE, *(("No curve is chosen.",) if not info.survival else _GAPS))
    figure = style.figure(TITLE, "from rises of the acceptance length", *whose(info.published))
    for (name, shares), (dash, symbol) in zip(info.survival.items(), LOOKS, strict=False):
        _line(figure, name, shares, dash, symbol)
    if info.independent:
        _line(figure, INDEPENDENT, info.independent, "dot", None)
    legends.add(figure)
    style.columns(figure, "draft position", 1, max(map(len, info.survival.values())))
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(ticklabelstandoff=4)  # room for a marker at 0%
    figure.update_yaxes(range=[0, 1], dtick=0.25, tickformat=".0%")
    return figure


_GAPS = ("The curve leaves draft lengths out,", "so no position stands alone.")


def _line(figure: go.Figure, name: str, shares: tuple[float | None, ...], dash: str, symbol: str | None) -> None:
    positions = list(range(1, len(shares) + 1))
    figure.add_scatter(
        name=name,
        x=positions,
        y=list(shares),
        mode="lines+markers" if symbol else "lines",
        line={"color": style.GREY, "width": 1.5, "dash": dash},
        marker={"symbol": symbol, "size": 7, "color": style.GREY},
        hovertext=[
            f"<b>{'modelled' if name == INDEPENDENT else name}, draft position {position}</b><br>"
            + ("n/a" if share is None else f"{share:.1%} of drafts get past it")
            for position, share in zip(positions, shares, strict=True)
        ],
        hoverinfo="text",
        cliponaxis=False,
    )
