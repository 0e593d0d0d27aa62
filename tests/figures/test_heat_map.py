import json

import pytest

from specviz.figures import heat_map
from specviz.figures.heat_map import Cell, HeatMapInfo

ACCEPTANCE = HeatMapInfo(
    "acceptance length",
    ("all prompts", "code", "<i>story</i>"),
    (("ngram", "gamma 4"), ("eagle (some/rather-long-name-of-weights)", "8 nodes, depth 3")),
    (
        (Cell(1.5, (1.25, 1.75), "", ("of both",)), Cell(2.5, None, "", ())),
        (Cell(1.25, (1.0, 1.5), "", ()), Cell(3.0, None, "", ())),
        (None, Cell(2.0, None, "", ())),
    ),
)
SPEED = HeatMapInfo(
    "speed-up",
    ("code", "story"),
    (("ngram", "gamma 4"),),
    ((Cell(2.0, (1.5, 2.5), "▲", ()),), (Cell(0.5, (0.4, 0.6), "▼", ()),)),
)


def drawn(info: HeatMapInfo):
    figure = json.loads(heat_map.plot(info).to_json())
    return figure["data"], figure["layout"]


def test_every_cell_says_its_number_and_its_interval():
    (cells, numbers, intervals), layout = drawn(ACCEPTANCE)
    assert cells["z"] == [[1.5, 2.5], [1.25, 3.0], [None, 2.0]]
    assert numbers["text"] == ["1.50", "2.50", "1.25", "3.00", "n/a", "2.00"]
    assert intervals["text"] == ["1.25–1.75", "", "1.00–1.50", "", "", ""]
    assert (numbers["x"], intervals["y"][0]) == ([0, 1, 0, 1, 0, 1], 0.24)
    assert numbers["y"] == [-0.17, 0, 0.83, 1, 2, 2], "a number without an interval stands in the middle"
    assert layout["yaxis"]["range"] == [2.5, -0.5], "from the top"
    assert layout["title"]["text"] == "Acceptance length by workload"


def test_names_are_broken_and_never_tags():
    _, layout = drawn(ACCEPTANCE)
    assert layout["yaxis"]["ticktext"] == ["<b>all prompts</b>", "code", "&lt;i&gt;story&lt;/i&gt;"]
    short, long = layout["xaxis"]["ticktext"]
    assert short == 'ngram<br><span style="font-size:10px">gamma 4</span>'
    assert long.startswith("eagle<br>(some/rather-<br>long-name-of-<br>weights)<br>")
    (cells, _, _), _ = drawn(ACCEPTANCE)
    assert cells["hovertext"][0][0] == "<b>all prompts</b><br>ngram, gamma 4<br>of both"
    assert cells["hovertext"][2][0] == "" and not cells["hoverongaps"]


def test_acceptance_is_coloured_from_one_on():
    (cells, _, _), _ = drawn(ACCEPTANCE)
    assert (cells["zmin"], cells["zmax"]) == (1, 3.0)
    assert cells["colorscale"] == [[0, "rgba(0,114,178,0.05)"], [1, "rgba(0,114,178,0.6)"]]


def test_slower_is_another_colour_and_says_so():
    (cells, numbers, _), layout = drawn(SPEED)
    assert cells["z"] == [[1.0], [-1.0]] and (cells["zmin"], cells["zmax"]) == (-1.0, 1.0)
    slowest, *_, fastest = cells["colorscale"]
    assert slowest == [0, "rgba(213,94,0,0.6)"] and fastest == [1, "rgba(0,114,178,0.6)"]
    assert numbers["text"] == ["▲ 2.00x", "▼ 0.50x"]
    assert "▼ slower" in layout["title"]["subtitle"]["text"]


def test_a_few_percent_stay_pale():
    (cells, _, _), _ = drawn(SPEED._replace(workloads=("code",), cells=((Cell(1.02, None, "≈", ()),),)))
    assert cells["zmax"] == 0.25 and cells["z"][0][0] < 0.03


def test_height_follows_the_lines():
    heights = [drawn(SPEED._replace(workloads=("w",) * n, cells=SPEED.cells[:1] * n))[1]["height"] for n in (1, 14)]
    assert heights[1] - heights[0] == 13 * heat_map.ROW


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (HeatMapInfo("acceptance length", (), (), ()), "No results yet."),
        (SPEED._replace(cells=((None,), (None,))), "Nothing was timed:<br>acceptance alone was counted."),
    ],
)
def test_an_empty_map_says_why(info: HeatMapInfo, words: str):
    data, layout = drawn(info)
    assert data == [] and layout["annotations"][0]["text"] == words
