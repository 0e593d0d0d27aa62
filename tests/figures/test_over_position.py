import json

import pytest

from specviz.figures import over_position
from specviz.figures.over_position import Bin, OverPositionInfo

INFO = OverPositionInfo(
    "Acceptance over the output",
    "tokens of the answer",
    "ngram, gamma 4",
    (Bin(0, 8, 1.5, (1.25, 2.0), 3, 40), Bin(512, None, 2.5, None, 1, 1)),
)


def drawn(info: OverPositionInfo):
    figure = json.loads(over_position.plot(info).to_json())
    return figure["data"], figure["layout"]


def test_points_with_intervals_and_how_much_they_are_of():
    [points], layout = drawn(INFO)
    assert points["y"] == [1.5, 2.5]
    assert (points["error_y"]["array"], points["error_y"]["arrayminus"]) == ([0.5, 0.0], [0.25, 0.0])
    assert points["hovertext"] == [
        "<b>0 to 7 tokens of the answer</b><br>acceptance length 1.50, 1.25–2.00<br>40 passes of 3 prompts",
        "<b>512 or more tokens of the answer</b><br>acceptance length 2.50<br>1 pass of 1 prompt",
    ]
    assert layout["xaxis"]["ticktext"] == ["0", "512"]
    assert layout["xaxis"]["title"]["text"] == "tokens of the answer, from"
    assert layout["yaxis"]["title"]["text"] == "acceptance length"
    assert layout["yaxis"]["range"] == [pytest.approx(1.125), pytest.approx(2.625)]


def test_the_axis_never_goes_below_one():
    _, layout = drawn(INFO._replace(bins=(Bin(0, 8, 1.0, None, 1, 9),)))
    assert layout["yaxis"]["range"] == [1.0, pytest.approx(1.05)]


def test_without_results_it_says_so():
    data, layout = drawn(INFO._replace(bins=()))
    assert data == [] and layout["annotations"][0]["text"] == "No results yet."
    assert layout["title"]["text"] == INFO.title
