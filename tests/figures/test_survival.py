import json

import pytest
from drafts import drafted
from traces import step, trace

from specviz.figures import survival
from specviz.metrics import acceptance

RUN = trace("aaaa", "aaru", "ruuu", "aruu", "")


def test_values():
    info = survival.info(RUN)
    assert info.survival == (0.75, 0.5, 0.25, 0.25)
    assert info.conditional == (0.75, pytest.approx(2 / 3), 0.5, 1.0)
    assert (info.undrafted_steps, info.expected) == (1, 1.75)


@pytest.mark.parametrize("gamma", [1, 5, 8, 16])
def test_survival_sums_to_the_accepted_draft_tokens_per_pass(gamma: int):
    run = drafted(gamma, undrafted=3)
    numbers = acceptance(run)
    assert survival.info(run).expected == pytest.approx(numbers.accepted / 60)
    assert survival.info(run).expected == pytest.approx(numbers.acceptance_length_drafted - 1)


def test_bars_marks_and_words():
    drawn = json.loads(survival.plot(survival.info(RUN)).to_json())
    (bars, marks), layout = drawn["data"], drawn["layout"]
    assert (bars["type"], bars["x"], bars["y"]) == ("bar", [1, 2, 3, 4], [0.75, 0.5, 0.25, 0.25])
    assert (marks["type"], marks["x"], marks["y"]) == ("scatter", [1, 2, 3, 4], [0.75, pytest.approx(2 / 3), 0.5, 1])
    assert marks["marker"]["symbol"] == "diamond-open"
    assert bars["hovertext"][1] == (
        "<b>draft position 2</b><br>survival: 50.0% of drafts get past it<br>conditional: 66.7% once reached"
    )
    assert (bars["name"], marks["name"], layout["showlegend"]) == ("survival", "conditional", True)
    assert layout["yaxis"]["range"] == [0, 1] and layout["yaxis"]["tickformat"] == ".0%"
    assert layout["xaxis"]["title"]["text"] == "draft position" and layout["xaxis"]["range"] == [0.5, 4.5]
    assert layout["title"]["subtitle"]["text"] == "sums to 1.75 accepted per pass<br>1 pass without a draft left out"


def test_what_no_draft_reached_has_no_mark():
    bars, marks = survival.plot(survival.info(trace("aruu", "ruuu"))).data
    assert bars.y == (0.5, 0, 0, 0)
    assert marks.y == (0.5, 0.0, None, None) and not marks.connectgaps
    assert bars.hovertext[2].endswith("<br>survival: 0.0% of drafts get past it<br>conditional: never reached")


def test_nothing_is_left_out_when_every_pass_had_a_draft():
    layout = survival.plot(survival.info(trace("aruu", step("aacc", cut="stop_token")))).layout
    assert layout.title.subtitle.text == "sums to 1.50 accepted per pass"


def test_marks_get_smaller_before_they_touch():
    sizes = [survival.plot(survival.info(drafted(gamma))).data[1].marker.size for gamma in (1, 5, 8, 16, 64)]
    assert sizes == [9, 8, 7, 5, 4]
