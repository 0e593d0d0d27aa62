import json

from specviz.figures import workload_survival
from specviz.figures.workload_survival import Panel, WorkloadSurvivalInfo

INFO = WorkloadSurvivalInfo(
    "eagle, gamma 2", (0.5, 0.25), (Panel("story", (0.4,), 10), Panel("code <b>", (0.8, 0.6), 30), Panel("json", (), 0))
)


def drawn(info: WorkloadSurvivalInfo):
    figure = json.loads(workload_survival.plot(info).to_json())
    return figure["data"], figure["layout"]


def test_workloads_come_by_what_is_accepted_each_beside_all_of_them():
    data, layout = drawn(INFO)
    bars, lines = data[::2], data[1::2]
    assert [each["y"] for each in bars] == [[0.8, 0.6], [0.4], []]
    assert all(each["y"] == [0.5, 0.25] and each["hoverinfo"] == "skip" for each in lines)
    assert [each.get("xaxis", "x") for each in bars] == ["x", "x2", "x3"]
    texts = [each["text"] for each in layout["annotations"]]
    assert texts[0] == "code &lt;b&gt;" and "Σ 1.40" in texts[1] and texts[2] == "story" and "Σ 0.40" in texts[3]
    assert {tuple(layout[axis]["range"]) for axis in ("yaxis", "yaxis2", "yaxis3")} == {(0, 1.08 * 0.8)}


def test_hovering_says_how_many_and_how_it_is_elsewhere():
    data, _ = drawn(INFO)
    assert data[0]["hovertext"][1] == (
        "<b>code &lt;b&gt;</b><br>60.0% get past position 2<br>of 30 passes with a draft<br>all workloads: 25.0%"
    )
    assert data[2]["hovertext"][1] == "<b>story</b><br>no draft reached position 2<br>all workloads: 25.0%"
    assert data[4]["hovertext"][0] == "<b>json</b><br>nothing was drafted<br>all workloads: 50.0%"


def test_what_there_is_no_room_for_is_said():
    most = workload_survival.MOST_PANELS
    panels = tuple(Panel(f"w{n}", (n / 100,), 1) for n in range(most + 2))
    data, layout = drawn(WorkloadSurvivalInfo("d", (0.5,), panels))
    assert len(data) == 2 * most and data[0]["y"] == [(most + 1) / 100]
    assert "2 with less are in the table alone" in layout["title"]["subtitle"]["text"]
    assert "alone" not in drawn(INFO)[1]["title"]["subtitle"]["text"]


def test_without_drafts_it_says_so():
    for info, words in (
        (WorkloadSurvivalInfo("", (), ()), "No results yet."),
        (WorkloadSurvivalInfo("d", (), (Panel("a", (), 0),)), "Nothing was drafted."),
    ):
        data, layout = drawn(info)
        assert data == [] and layout["annotations"][0]["text"] == words
