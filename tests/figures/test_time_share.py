import json

import pytest
from drafts import compared
from traces import trace

from specviz.comparison import Comparison
from specviz.figures import time_share
from specviz.figures.time_share import TimeShare, TimeShareInfo

RUN = trace("aaru")


def test_values():
    info = time_share.info(compared(), RUN)
    assert info.plain == pytest.approx((0, 12.6, 0.4))
    assert info.speculative == pytest.approx((16.2, 7.4, 1.1))
    assert (info.can_draft, info.cost_ratio, info.break_even) == (True, 0.97, pytest.approx(0.31))


@pytest.mark.parametrize("comparison", [None, Comparison(40, (), (), True, None)])
def test_what_was_not_measured_is_said(comparison: Comparison | None):
    info = time_share.info(comparison, RUN)
    assert info == TimeShareInfo(True, None, None, None, None)
    drawn = time_share.plot(info)
    assert drawn.data == ()
    assert drawn.layout.annotations[0].text == "Measured when the run is compared<br>with plain decoding."


@pytest.mark.parametrize("changes", [{"drafter": "plain"}, {"gamma": 0}])
def test_plain_decoding_is_never_compared(changes: dict[str, object]):
    drawn = time_share.plot(time_share.info(None, trace("", **changes)))
    assert drawn.layout.annotations[0].text == "This is plain decoding,<br>so there is nothing to compare."


def test_bars_and_words():
    drawn = json.loads(time_share.plot(time_share.info(compared(), RUN)).to_json())
    bars, layout = drawn["data"], drawn["layout"]
    assert [bar["name"] for bar in bars] == ["draft", "verify", "decide"]
    assert all(bar["y"] == ["plain", "speculative"] and bar["orientation"] == "h" for bar in bars)
    assert [bar["x"] for bar in bars] == [pytest.approx(x) for x in ([0, 16.2], [12.6, 7.4], [0.4, 1.1])]
    assert [bar["text"] for bar in bars] == [["0.00", "16.2"], ["12.6", "7.4"], ["0.40", "1.1"]]
    assert [bar["hovertext"][1] for bar in bars] == [
        "<b>speculative: draft</b><br>16.2 ms per token, 66%",
        "<b>speculative: verify</b><br>7.4 ms per token, 30%",
        "<b>speculative: decide</b><br>1.1 ms per token, 4%",
    ]
    assert bars[1]["hovertext"][0] == "<b>plain: verify</b><br>12.6 ms per token, 97%"
    assert [words["text"] for words in layout["annotations"]] == [
        "plain: 13.0 ms per token",
        "speculative: 24.7 ms per token",
    ]
    assert layout["barmode"] == "stack"
    assert layout["xaxis"]["range"] == [0, pytest.approx(1.05 * 24.7)]  # one axis for both rows
    assert layout["yaxis"]["range"][0] > layout["yaxis"]["range"][1]  # plain is the upper row


def test_phases_differ_in_pattern_as_well_as_in_colour():
    bars = time_share.plot(time_share.info(compared(), RUN)).data
    assert len({bar.marker.pattern.shape for bar in bars}) == len({bar.marker.line.color for bar in bars}) == 3


@pytest.mark.parametrize(
    ("cost_ratio", "acceptance_length", "words"),
    [
        (0.97, 2.44, "a draft token costs c = 0.97 plain steps;<br>it would pay below 0.31"),
        (0.2, 3.6, "a draft token costs c = 0.20 plain steps;<br>it pays below 0.60"),
        (0.0006, 3.6, "a draft token costs c = 0.0006 plain steps;<br>it pays below 0.60"),
        (0.0006, 1.202, "a draft token costs c = 0.0006 plain steps;<br>it would pay below 0.0005"),
        (0.602, 3.6, "a draft token costs c = 0.60 plain steps;<br>that is where it begins to pay"),
        (0.97, 1.2, "a draft token costs c = 0.97 plain steps;<br>no cost could pay: too little is accepted"),
        (0.97, 1.0, "a draft token costs c = 0.97 plain steps;<br>no cost could pay: too little is accepted"),
        (None, 1.0, ""),
    ],
)
def test_the_verdict_on_the_cost_ratio(cost_ratio: float | None, acceptance_length: float, words: str):
    drawn = time_share.plot(time_share.info(compared(cost_ratio, acceptance_length), RUN))
    assert drawn.layout.title.subtitle.text == words


def test_no_verdict_when_nothing_was_drafted():
    comparison = compared(cost_ratio=None, acceptance_length=1.0, gamma_used=0.0, draft_s=0.00001)
    drawn = time_share.plot(time_share.info(comparison, RUN))
    assert drawn.layout.title.subtitle.text == "" and len(drawn.data) == 3


def test_times_of_nothing_have_no_shares():
    nothing = TimeShare(0.0, 0.0, 0.0)
    drawn = time_share.plot(TimeShareInfo(True, nothing, nothing, None, None))
    assert drawn.data[0].hovertext[0] == "<b>plain: draft</b><br>0.00 ms per token"
