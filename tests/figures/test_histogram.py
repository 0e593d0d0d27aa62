import json

from drafts import drafted
from traces import trace

from specviz.figures import histogram


def test_values():
    info = histogram.info(trace("aaaa", "aaru", "ruuu", ""))
    assert info == histogram.HistogramInfo((1, 0, 1, 0, 1), drafted_steps=3, undrafted_steps=1, gamma=4, mean=2.0)
    assert histogram.info(trace(gamma=1)) == histogram.HistogramInfo((0, 0), 0, 0, 1, None)


def test_bars_and_words():
    drawn = json.loads(histogram.plot(histogram.info(trace("aaaa", "aaru", "ruuu", "ruuu", ""))).to_json())
    (bars,), layout = drawn["data"], drawn["layout"]
    assert (bars["x"], bars["y"], bars["text"]) == ([0, 1, 2, 3, 4], [2, 0, 1, 0, 1], ["2", "0", "1", "0", "1"])
    assert bars["hoverinfo"] == "text"
    assert bars["hovertext"] == [
        "0 accepted: 2 passes, 50.0%",
        "1 accepted: 0 passes, 0.0%",
        "2 accepted: 1 pass, 25.0%",
        "3 accepted: 0 passes, 0.0%",
        "4 accepted: 1 pass, 25.0%",
    ]
    assert layout["xaxis"]["title"]["text"] == "accepted draft tokens"
    assert layout["yaxis"]["title"]["text"] == "verify passes"
    assert layout["yaxis"]["range"] == [0, 2.4] and layout["yaxis"]["dtick"] == 1
    assert (
        layout["title"]["subtitle"]["text"] == "mean 1.50 over 4 passes with a draft<br>1 pass without a draft left out"
    )


def test_one_line_less_when_every_pass_had_a_draft():
    layout = histogram.plot(histogram.info(trace("aaaa"))).layout
    assert layout.title.subtitle.text == "mean 4.00 over 1 pass with a draft"


def test_counts_are_written_while_they_have_room():
    def written(gamma: int) -> tuple[str, ...] | None:
        (bars,) = histogram.plot(histogram.info(drafted(gamma))).data
        assert len(bars.y) == gamma + 1
        return bars.text

    assert written(10) is not None and len(written(10)) == 11
    assert written(11) is None
