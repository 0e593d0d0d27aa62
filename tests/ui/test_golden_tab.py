"""The Golden tab: its handlers by value, and once in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from browser import FRAMES, served
from golden_results import result, written
from playwright.sync_api import Browser
from traces import trace

from specviz import trace as traces
from specviz.golden import Curve, Golden, Measured
from specviz.synthetic import distribution, synthetic_trace
from specviz.ui import golden, golden_view, synthetic

FILES = (
    Golden(
        "first",
        (Curve("m", "on", {1: 1.5, 2: 2.0}), Curve("m", "off", {1: 1.4})),
        ("# status: published | temperature: 0",),
    ),
    Golden("second", (Curve("m", "on", {1: 1.6}), Curve("n", "on", {3: 2.5})), ("# source: <b>there</b>",)),
)
SHIPPED = golden_view.choices(FILES)


def test_curves_are_called_by_file_and_mode_and_by_model_where_there_are_several():
    assert list(SHIPPED) == ["first · on", "first · off", "second · m/on", "second · n/on"]


def test_the_first_curve_is_compared_and_the_others_lie_over_it():
    facts = {"model": "m", "temperature": "0.7"}
    groups = {"eagle · own": golden_view.Taken({1: Measured(1.7, 1.65, 1.75, 9)}, facts)}
    shown = golden_view.show(["first · on", "second · m/on"], "eagle · own", 5, SHIPPED, groups)
    rows = shown.table.split("<tr>")[1:]
    cells = [re.findall("<t[hd][^>]*>([^<]*)<", row) for row in rows]
    assert cells[0] == ["k", "A", "survival", "independent", "measured", "95 %", "verdict", "B"]
    assert cells[1] == ["1", "1.50", "50%", "1.50", "1.70", "1.65 to 1.75", "above (+13.3%)", "1.60"]
    assert cells[2] == ["2", "2.00", "50%", "1.75", "n/a", "n/a", "not measured", "n/a"]
    assert "A length lies above the tolerance" in shown.table
    assert "Draft lengths: 1 above, 1 not measured." in shown.table
    assert "Not under the same conditions: temperature: 0 in the golden file, 0.7 in" in shown.table
    same = {"eagle · own": groups["eagle · own"]._replace(facts={"model": "m", "temperature": "0.0"})}
    assert "conditions" not in golden_view.show(["first · on"], "eagle · own", 5, SHIPPED, same).table
    assert [line.name for line in shown.lengths.data if line.name] == ["A", "B", "independent", "measured"]
    assert "published · m/on" in shown.facts and "&lt;b&gt;there" in shown.facts and "<b>there" not in shown.facts


def test_one_curve_alone_and_none():
    shown = golden_view.show(["first · on"], golden_view.NOTHING, 5, SHIPPED, {})
    assert "measured" not in shown.table.split("</thead>")[0] and "Upload results" in shown.table
    empty = golden_view.show([], golden_view.NOTHING, 5, SHIPPED, {})
    assert "Choose a golden curve" in empty.table and empty.lengths.data == ()


def test_an_uploaded_file_comes_first_and_a_broken_one_is_named(tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text("mine:\n  on: {1: 1.2}\n")
    found, listed, problem = golden_view.take_golden(str(own), list(SHIPPED), SHIPPED)
    assert list(found) == ["your file: own · on"] and problem == ""
    assert listed["value"] == ["your file: own · on", *list(SHIPPED)[:3]]  # four at most
    own.write_text("mine:\n  on: {1: 9}\n")
    found, listed, problem = golden_view.take_golden(str(own), ["your file: own · on", "first · on"], SHIPPED)
    assert (found, listed["choices"], listed["value"]) == ({}, list(SHIPPED), ["first · on"])
    assert str(tmp_path) not in problem
    assert "own.yaml, line 2: the acceptance length" in problem and 'role="alert"' in problem
    cleared = golden_view.take_golden(None, ["your file: own · on", "first · on"], SHIPPED)
    assert (cleared[0], cleared[1]["value"], cleared[2]) == ({}, ["first · on"], "")


def test_uploaded_results_and_runs_are_taken(tmp_path: Path):
    results = written(tmp_path / "r.jsonl", result([2, 1]), result([0], kind="ngram"))
    run = tmp_path / "t.jsonl"
    traces.write(trace("aa", gamma=2), run)
    found, listed, problem = golden_view.take_measured([str(run), str(results)])
    names = ["the uploaded runs", "eagle · own", "ngram · own"]
    assert list(found) == names and problem == ""
    assert (listed["choices"], listed["value"]) == ([*names, "none"], "the uploaded runs")
    assert found["the uploaded runs"].points[2].length == 3.0
    assert found["eagle · own"].facts["dtype"] == "float32"


def test_what_is_no_measurement_is_refused_in_a_sentence(tmp_path: Path):
    run, words = tmp_path / "synthetic.jsonl", tmp_path / "words.jsonl"
    traces.write(synthetic_trace(distribution("geometric", 2.0, 3), 3, seed=0), run)
    words.write_text("no json\n")
    for path, why in ((run, "synthetic.jsonl is synthetic"), (words, "words.jsonl, line 1 is not JSON")):
        found, listed, problem = golden_view.take_measured([str(path)])
        assert (found, listed["value"]) == ({}, "none") and why in problem and str(tmp_path) not in problem
    assert "upload 8 at most" in golden_view.take_measured([str(run)] * 9)[2]
    assert golden_view.take_measured(None)[2] == ""


def test_the_laws_their_lengths_and_modelled_speedups():
    shown = synthetic.show(2.6, 3, 0.1, 1.3, "minimum-variance")
    assert "modelled speed-up" in shown.table and "1.62x" in shown.table and "ACCEPTED_TOKENS=1.6" in shown.table
    assert "Synthetic" in shown.table and len(shown.shares.data) == 3
    assert "match-expected" in shown.table and "since 0.5.16" in shown.table
    geometric = synthetic.show(2.6, 3, 0.1, 1.3, "geometric").table
    assert "ACCEPTED_TOKENS" not in geometric and "since 0.5.16" not in geometric
    assert "As engines are told" not in synthetic.show(1, 0, 0.1, 1.0, "minimum-variance").table


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ((9, 3, 0.1, 1.2), "The acceptance length is 9; give a number from 1 to 4."),
        ((None, 3, 0.1, 1.2), "The acceptance length is missing"),
        ((2, 17, 0.1, 1.2), "The draft length gamma is 17"),
        ((2, 3, -1, 1.2), "The cost ratio c is -1"),
        ((2, 3, 0.1, 0), "The verify cost v is 0"),
    ],
)
def test_what_cannot_be_told_is_refused_in_a_sentence(told: tuple[Any, ...], why: str):
    shown = synthetic.show(*told, "minimum-variance")
    assert why in shown.table and 'role="alert"' in shown.table and shown.shares.data == ()


def test_a_run_to_download_is_synthetic():
    text, problem = synthetic.run(2.6, 3, "geometric", 20, 1)
    found = traces.parse(text.split("\n"))
    assert (found.run.mode, len(found.steps), problem) == ("synthetic", 20, "")
    assert synthetic.run(2.6, 3, "geometric", 501, 1)[0] == ""
    assert "The seed is -1" in synthetic.run(2.6, 3, "geometric", 20, -1)[1]


def test_no_event_of_the_tab_is_public():
    with gr.Blocks() as demo:
        golden.golden_tab(FILES)
    events = demo.get_config_file()["dependencies"]
    assert events and all(event["api_visibility"] == "private" for event in events)


@pytest.mark.browser
def test_the_tab_in_a_browser(browser: Browser, tmp_path: Path):
    """An upload is compared, a told length redrawn, and the run that is downloaded says that it is synthetic."""
    with gr.Blocks(analytics_enabled=False) as demo, gr.Tabs(), gr.Tab("Golden"):
        golden.golden_tab(FILES)
    with served(demo) as address:
        page = browser.new_page(viewport={"width": 375, "height": 812})
        complaints: list[str] = []
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        page.locator("#told-survival .main-svg").first.wait_for()
        page.set_input_files("#golden-measured input[type=file]", written(tmp_path / "r.jsonl", result([2, 1])))
        page.locator("#golden-table", has_text="can't tell (+25.0%)").wait_for()
        page.locator("#golden-lengths .legendtext", has_text="measured").wait_for()
        page.fill("#told-length input", "2.5")
        page.keyboard.press("Tab")
        page.locator("#told-table", has_text="2.500").wait_for()
        page.evaluate(FRAMES)
        with page.expect_download() as download:
            page.click("#told-download")
        header, *steps = Path(download.value.path()).read_text().splitlines()
        assert json.loads(header)["run"]["mode"] == "synthetic" and len(steps) == 100
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        page.close()
        assert complaints == []
