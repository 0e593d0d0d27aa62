"""The figures of golden lengths and of synthetic acceptance: their values, and what is drawn of them."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from specviz.errors import UserError
from specviz.figures import golden_curve, implied_survival, laws, laws_survival
from specviz.golden import Curve, Measured
from specviz.synthetic import LAWS

ONE = Curve("m", "on", {1: 1.5, 2: 2.0, 3: 1.9})
TWO = Curve("n", "on", {1: 1.8, 4: 2.4})
POINTS = {2: Measured(1.7, 1.6, 1.9, 40), 3: Measured(2.0)}
FIGURES = {
    "one": golden_curve.plot(golden_curve.overlay({"golden": ONE}, POINTS, 0.05, ["golden"])),
    "several": golden_curve.plot(golden_curve.overlay({"A": ONE, "B": TWO, "C": ONE, "D": ONE}, POINTS, 0.05)),
    "measured": golden_curve.plot(golden_curve.overlay({}, POINTS, 0.05)),
    "nothing": golden_curve.plot(golden_curve.overlay({}, {}, 0.05)),
    "survival": implied_survival.plot(implied_survival.of_curves({"A": ONE, "B": TWO}, ["B"])),
    "no survival": implied_survival.plot(implied_survival.of_curves({})),
    "laws": laws.plot(laws.side_by_side(2.6, 3)),
    "no laws": laws.plot(None),
    "laws survival": laws_survival.plot(laws.side_by_side(2.6, 3)),
    "no positions": laws_survival.plot(laws.side_by_side(1.0, 0)),
    "longest": laws.plot(laws.side_by_side(9.5, 16)),
}
COLOURS = {"#0072B2", "#009E73", "#7e7e7e", "rgba(0,114,178,0.4)", "rgba(0,158,115,0.4)", "rgba(126,126,126,0.4)"}


def by_name(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.name}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_keeps_to_the_house_style(name: str):
    drawn = json.loads(FIGURES[name].to_json())
    assert drawn["layout"]["title"]["text"] and "width" not in drawn["layout"]
    assert drawn["layout"]["xaxis"]["fixedrange"] and drawn["layout"]["dragmode"] is False
    for trace in drawn["data"]:
        assert trace["type"] in ("bar", "scatter")
        assert trace.get("hovertext") or trace["hoverinfo"] == "skip"
        colours = [trace.get("line", {}).get("color"), trace.get("marker", {}).get("color"), trace.get("fillcolor")]
        assert set(filter(None, colours)) <= COLOURS


def test_the_curve_its_band_the_prediction_and_what_was_measured():
    info = golden_curve.overlay({"golden": ONE, "B": TWO}, POINTS, 0.05, ["golden"])
    assert info.curves == {"golden": ONE.lengths, "B": TWO.lengths}
    assert info.independent == {1: 1.5, 2: 1.75, 3: 1.875}
    assert (info.measured, info.tolerance, info.published) == (POINTS, 0.05, ("golden",))
    low, high, *_ = FIGURES["one"].data
    assert low.y == pytest.approx((1.425, 1.9, 1.805)) and high.y == pytest.approx((1.575, 2.1, 1.995))
    assert high.fill == "tonexty" and not low.showlegend
    named = by_name(FIGURES["one"])
    assert list(named) == ["golden", "independent", "measured"]
    assert named["golden"].y == (1.5, 2.0, 1.9) and named["independent"].line.dash == "dot"
    points = named["measured"]
    assert (points.x, points.y) == ((2, 3), (1.7, 2.0))
    assert points.error_y.array == pytest.approx((0.2, 0)) and points.error_y.arrayminus == pytest.approx((0.1, 0))
    assert points.hovertext[0] == (
        "<b>measured, k = 2</b><br>1.70 tokens per verify pass<br>95 %: 1.60 to 1.90<br>over 40 passes with a draft"
    )
    assert named["independent"].hovertext[0].startswith("<b>modelled, k = 1</b>")
    assert FIGURES["one"].layout.title.subtitle.text == "band: golden ± 5%<br>published by others: golden"


def test_curves_are_told_apart_by_dash_and_mark():
    named = by_name(FIGURES["several"])
    looks = {(named[name].line.dash, named[name].marker.symbol) for name in "ABCD"}
    assert len(looks) == 4 and len({mark for _, mark in looks}) == 4
    assert FIGURES["several"].layout.height > FIGURES["one"].layout.height  # for its legend
    assert FIGURES["several"].layout.xaxis.range == (0.5, 4.5)


def test_without_anything_a_figure_says_why():
    assert FIGURES["nothing"].layout.annotations[0].text == "No curve is chosen,<br>and nothing was measured."
    assert FIGURES["measured"].layout.title.subtitle.text == "measured; no golden curve is chosen"
    assert FIGURES["no survival"].layout.annotations[0].text == "No curve is chosen."
    gaps = implied_survival.plot(implied_survival.of_curves({"A": Curve("", "", {7: 3.67})}))
    assert gaps.layout.annotations[0].text.startswith("The curve leaves draft lengths out")
    assert FIGURES["no laws"].layout.annotations[0].text == "No such length can be replayed."
    assert FIGURES["no positions"].layout.annotations[0].text == "Drafts of no tokens have no positions."


def test_implied_survival_and_what_independent_positions_would_have():
    info = implied_survival.of_curves({"A": ONE, "B": TWO}, ["B"])
    assert info.survival == {"A": (0.5, 0.5, 0.0), "B": (0.8, None, None, None)}
    assert info.independent == (0.5, 0.25, 0.125)
    named = by_name(FIGURES["survival"])
    assert named["B"].y == (0.8, None, None, None) and not named["B"].connectgaps
    assert named["A"].hovertext[1] == "<b>A, draft position 2</b><br>50.0% of drafts get past it"
    assert named["B"].hovertext[1].endswith("n/a")
    assert "published by others: B" in FIGURES["survival"].layout.title.subtitle.text


def test_the_laws_stand_side_by_side_and_are_called_synthetic():
    info = laws.side_by_side(2.6, 3)
    assert [made.law for made in info.laws] == list(LAWS)
    bars = FIGURES["laws"].data
    assert [bar.y for bar in bars] == [made.shares for made in info.laws]
    assert len({bar.marker.pattern.shape for bar in bars}) == 3 and FIGURES["laws"].layout.barmode == "group"
    assert bars[0].hovertext[2] == "<b>minimum-variance, synthetic</b><br>2 accepted: 60.0% of steps"
    lines = FIGURES["laws survival"].data
    assert [line.y for line in lines] == [made.survival for made in info.laws]
    assert len({(line.line.dash, line.marker.symbol) for line in lines}) == 3
    for name in ("laws", "laws survival"):
        assert "synthetic" in FIGURES[name].layout.title.text
        assert "synthetic" in FIGURES[name].layout.title.subtitle.text
    with pytest.raises(UserError):
        laws.side_by_side(5.0, 3)
