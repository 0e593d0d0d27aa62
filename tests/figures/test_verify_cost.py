"""The cost figure: what is drawn, and what it says of every point."""

import json
from itertools import pairwise

from specviz.figures import verify_cost
from specviz.figures.verify_cost import Curve, VerifyCostInfo

SMALL = Curve(1, (1, 2, 4), (20.0, 21.0, 25.0), (1.0, 1.05, 1.25), (0.9, 1.0, 1.2), (1.2, 1.1, 1.5), (1.0, 1.0, 1.1))
LARGE = Curve(8, (1, 2), (40.0, 60.0), (2.0, 3.0), (1.9, 2.5), (2.0, 3.25), (1.5, 1.75))
INFO = VerifyCostInfo((SMALL, LARGE), "plain steps of one sequence", ("tiny <b>", "float32"))


def drawn(info: VerifyCostInfo | None) -> dict:
    return json.loads(verify_cost.plot(info).to_json())


def test_a_curve_is_drawn_solid_with_its_quartiles_and_dotted_as_the_roofline_has_it():
    modelled, measured, *_ = drawn(INFO)["data"]
    assert (modelled["name"], modelled["y"], modelled["line"]["dash"]) == ("roofline, batch 1", [1, 1, 1.1], "dot")
    assert (measured["name"], measured["x"], measured["y"]) == ("batch 1", [1, 2, 4], [1, 1.05, 1.25])
    assert "dash" not in measured["line"]
    assert [round(bar, 9) for bar in measured["error_y"]["array"]] == [0.2, 0.05, 0.25]
    assert [round(bar, 9) for bar in measured["error_y"]["arrayminus"]] == [0.1, 0.05, 0.05]


def test_hovering_tells_all_of_a_point_and_in_which_unit():
    text = drawn(INFO)["data"][3]["hovertext"][1]
    assert text == (
        "<b>batch 8, 2 rows</b><br>measured: 60.0 ms, 3.00<br>quartiles: 2.50 to 3.25<br>roofline, modelled: 1.75"
        "<br>in plain steps of one sequence"
    )


def test_every_curve_is_named_at_its_end_and_has_a_shape_of_its_own():
    figure = drawn(INFO)
    names = {note["text"]: (note["x"], note["y"]) for note in figure["layout"]["annotations"]}
    assert names == {"B 1": (4, 1.25), "B 8": (2, 3.0)}
    assert len({trace["marker"]["symbol"] for trace in figure["data"][1::2]}) == 2


def test_names_of_curves_that_end_together_are_kept_apart():
    curves = tuple(SMALL._replace(batch=batch) for batch in (1, 2, 4))
    heights = [note["y"] for note in drawn(VerifyCostInfo(curves, "u", ("s",)))["layout"]["annotations"]]
    apart = verify_cost.LABELS_APART * drawn(VerifyCostInfo(curves, "u", ("s",)))["layout"]["yaxis"]["range"][1]
    assert [round(high - low, 9) for low, high in pairwise(heights)] == [round(apart, 9)] * 2


def test_a_name_from_a_file_is_no_tag():
    layout = drawn(INFO)["layout"]
    assert layout["title"]["subtitle"]["text"].startswith("tiny &lt;b&gt;<br>float32<br>bars: quartiles")
    assert layout["yaxis"]["title"]["text"] == "plain steps of one sequence"
    assert layout["yaxis"]["range"][0] == 0 and layout["yaxis"]["range"][1] > 3.25


def test_without_a_measurement_it_says_so():
    for nothing in (None, VerifyCostInfo((), "u", ("s",))):
        figure = drawn(nothing)
        assert figure["data"] == []
        assert figure["layout"]["annotations"][0]["text"].startswith("No measurement is chosen")
