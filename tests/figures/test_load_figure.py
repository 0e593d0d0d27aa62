"""The load figure: curves and points, what is marked, and that published points never go without their settings."""

import json
from math import log10

import pytest

from specviz.figures import load
from specviz.figures.load import GainPoint, LoadInfo, PublishedPoint

PUBLISHED = PublishedPoint(24, 0.93, "EAGLE, <8B>", ("EAGLE · 8B", "an engine · a GPU", "a setting that " * 6))
INFO = LoadInfo(
    gains=(GainPoint(1, 1.8, "measured"), GainPoint(2, 1.5, "interpolated"), GainPoint(8, 0.9, "measured")),
    roofline=(GainPoint(1, 1.9, "modelled"), GainPoint(256, 0.5, "modelled")),
    crossover=7.0,
    crossing="falls to 1 at batch 7.0",
    assumed=("acceptance length 2.00", "gamma 3, c = 0.1"),
    chosen=4,
    published=(PUBLISHED,),
)


def drawn(info: LoadInfo | None) -> dict:
    return json.loads(load.plot(info).to_json())


def test_what_is_measured_is_told_apart_from_what_is_modelled():
    roofline, gains, published = drawn(INFO)["data"]
    assert (roofline["mode"], roofline["line"]["dash"], roofline["y"]) == ("lines", "dot", [1.9, 0.5])
    assert (gains["mode"], gains["line"]["dash"], gains["x"], gains["y"]) == (
        "lines+markers", "solid", [1, 2, 8], [1.8, 1.5, 0.9]
    )  # fmt: skip
    assert gains["marker"]["symbol"] == ["circle", "circle-open", "circle"]
    assert gains["hovertext"][1] == "<b>batch 2: 1.50x</b><br>from passes, interpolated"
    assert published["mode"] == "markers" and published["marker"]["symbol"] == "diamond-open"  # nothing joins them


def test_a_published_point_has_all_its_settings_on_hover_and_no_tags():
    (text,) = drawn(INFO)["data"][2]["hovertext"]
    lines = text.split("<br>")
    assert lines[0] == "<b>published: EAGLE, &lt;8B&gt;</b>" and lines[1] == "batch 24: 0.93x"
    assert lines[2:4] == ["EAGLE · 8B", "an engine · a GPU"]
    assert " ".join(lines[4:]) == ("a setting that " * 6).strip() and max(map(len, lines[1:])) <= 46


def test_the_line_at_1_the_crossover_and_the_chosen_batch_size():
    layout = drawn(INFO)["layout"]
    lines = [(shape["x0"], shape["x1"], shape["y0"], shape["y1"]) for shape in layout["shapes"]]
    assert [line[2:] for line in lines[:1]] == [(1, 1)]
    assert [line[0] for line in lines[1:]] == [7.0, 4]
    (name,) = layout["annotations"]
    assert (name["text"], name["x"]) == ("1 at 7.0", pytest.approx(log10(7)))  # annotations take logarithms
    assert layout["title"]["subtitle"]["text"] == "<br>".join([*INFO.assumed, INFO.crossing])


def test_without_a_crossover_none_is_marked():
    layout = drawn(INFO._replace(crossover=None, crossing="does not cross", chosen=None))["layout"]
    assert len(layout["shapes"]) == 1 and not layout.get("annotations")


def test_the_axis_has_powers_of_two_and_holds_everything():
    axis = drawn(INFO)["layout"]["xaxis"]
    assert axis["type"] == "log" and axis["tickvals"] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert axis["range"][0] < 0 and axis["range"][1] > log10(256)
    wide = drawn(INFO._replace(gains=(GainPoint(100_000, 1.0, "measured"),)))["layout"]["xaxis"]
    assert len(wide["tickvals"]) <= 10 and wide["range"][1] > log10(100_000)
    assert drawn(INFO)["layout"]["yaxis"]["range"] == [0, pytest.approx(1.1 * 1.9)]


def test_without_published_points_there_is_no_name_for_them():
    assert [trace["name"] for trace in drawn(INFO._replace(published=()))["data"]] == ["roofline", "from passes"]


def test_without_a_measurement_it_says_so():
    for nothing in (None, INFO._replace(gains=())):
        figure = drawn(nothing)
        assert figure["data"] == [] and figure["layout"]["annotations"][0]["text"].startswith("No measurement")
