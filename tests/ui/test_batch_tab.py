"""The Batch tab: what it shows for what is asked, how it reads files, and how measuring takes its turn and ends."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import browser as chromium
import gradio as gr
import pytest
from measurements import measurement
from playwright.sync_api import Browser
from stage import Actor, explorer, is_free

from specviz.batch import drawn, measure, results
from specviz.batch.published import load_published
from specviz.batch.results import Measurement, Skipped
from specviz.errors import UserError
from specviz.recordings import load_recordings
from specviz.theory import Machine
from specviz.ui import batch, batch_run
from specviz.ui.batch_run import NOT_HERE, BatchRun, State
from specviz.ui.batch_view import Asked, references, show
from specviz.ui.handlers import Explorer
from specviz.ui.screens import SKIP

MEASURED = measurement()
ASKED = Asked(length=2.5, gamma=3, cost_ratio=0.1, as_measured=False, batch=8, unit=drawn.SAME_BATCH)
ANN = SimpleNamespace(session_hash="ann")


# --- what is shown


def test_the_numbers_at_a_batch_size():
    """8 sequences: a plain step takes 2 s, a pass over 4 rows 8 s, three drafter steps 0.6 s, for 2.5 tokens each."""
    shown = show(MEASURED, (), ASKED)
    assert "Batch 8: 0.58x, slower than plain" in shown.numbers
    for text in (
        "2000.0 ms",
        "8000.0 ms",
        "600.0 ms",
        "4 tok/s",
        "2 tok/s",
        "0.58x",
        "measured",
        "modelled",
        "from measured passes",
    ):
        assert f">{text}</td>" in shown.numbers
    assert [trace.name for trace in shown.load.data] == ["roofline", "from passes"]
    assert len(shown.verify_cost.data) == 6


@pytest.mark.parametrize(
    ("length", "verdict"),
    [
        (1.24, "Batch 1: 0.80x, slower than plain"),
        (1.55, "Batch 1: as fast as plain"),
        (3.1, "Batch 1: 2.00x, faster than plain"),
    ],
)
def test_slower_is_said_as_plainly_as_faster(length: float, verdict: str):
    """A step takes 1.55 plain ones: 1.25 to verify and 0.3 to draft."""
    assert verdict in show(MEASURED, (), ASKED._replace(length=length, batch=1)).numbers


@pytest.mark.parametrize(
    ("batch", "gamma", "known"),
    [
        (2, 1, ["measured", "measured", "from measured passes"]),
        (2, 2, ["measured", "between two measured", "from passes between two measured"]),
        (64, 1, ["modelled", "modelled", "from modelled passes"]),
    ],
)
def test_every_number_says_how_it_is_known(batch: int, gamma: int, known: list[str]):
    numbers = show(MEASURED, (), ASKED._replace(length=1.5, gamma=gamma, batch=batch)).numbers
    cells = [[part.rpartition(">")[2] for part in row.split("</td>")] for row in numbers.split("<tr>")[2:]]
    assert [cells[place][2] for place in (0, 1, 5)] == known


def test_what_is_measured_and_what_is_modelled_is_said():
    about = show(MEASURED, (), ASKED).about
    for words in (
        "a clock · float32 · 2026-01-02 · load average 0.5 at the start",
        "after 20 tokens of context, 3 repeats in turns",
        "the caches hold made-up text",
        "Modelled",
        "modelled: the cost ratio of batch size 1 at every batch size",
    ):
        assert words in about
    skipped = Measurement(MEASURED.header, MEASURED.machine, MEASURED.work, MEASURED.cells, (Skipped(64, 8, 31.5),))
    assert "batch 64 x 8 rows: a pass was expected to take up to 31.5 s" in show(skipped, (), ASKED).about


def test_a_measured_draft_model_is_used_only_if_asked_for():
    drafted = measurement(drafting={1: 0.1, 8: 1.0})
    assert ">3000.0 ms</td>" in show(drafted, (), ASKED._replace(as_measured=True)).numbers
    assert ">600.0 ms</td>" in show(drafted, (), ASKED).numbers
    assert ">600.0 ms</td>" in show(MEASURED, (), ASKED._replace(as_measured=True)).numbers  # there is none to use
    assert "the forward passes of tiny draft model were measured" in show(drafted, (), ASKED).about


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": 4.1}, "Drafts of 3 tokens can&#x27;t have an acceptance length of 4.1; choose 1 to 4."),
        ({"length": 0.9}, "acceptance length of 0.9"),
        ({"gamma": 17}, "out of bounds"),
        ({"cost_ratio": -0.1}, "out of bounds"),
        ({"batch": 0}, "The batch size is out of bounds"),
        ({"unit": "<b>"}, "out of bounds"),
        ({"length": None}, "A control is empty"),
    ],
)
def test_what_can_not_be_is_said_and_leaves_the_figure(changes: dict[str, Any], words: str):
    shown = show(MEASURED, (), ASKED._replace(**changes))
    assert words in shown.numbers and 'role="alert"' in shown.numbers and shown.load is SKIP


def test_without_a_measurement_everything_says_so():
    shown = show(None, (), ASKED)
    assert "Choose a measurement" in shown.numbers and shown.about == ""
    assert all("No measurement" in figure.layout.annotations[0].text for figure in (shown.load, shown.verify_cost))


def test_names_from_a_file_never_become_tags():
    hostile = measurement(target="<img src=x>", device="<script>", text="<b>", notes=("<i>",))
    shown = show(hostile, (), ASKED)
    for tag in ("<img", "<script", "<b>", "<i>"):
        assert tag not in shown.about + shown.numbers + str(shown.verify_cost.layout.title.subtitle.text)


def test_published_points_stand_with_all_that_they_hold_for():
    published = load_published()
    html = references(published.values())
    assert html.count("<dt>") == len(published)
    assert "batch 24: 0.93x" in html and "1 request per second: 2.80x" in html and "its caption an A100" in html
    on_the_axis = show(MEASURED, published.values(), ASKED).load.data[2]
    assert len(on_the_axis.x) == sum(point.batch is not None for each in published.values() for point in each.points)


# --- where it starts, and files


def test_sliders_start_at_recorded_runs_of_chains():
    found = batch.starts(load_recordings())
    assert "Code, ngram" in found and not any(name.startswith("E-mail") for name in found)  # which drafted a tree
    assert found["Code, ngram"][:3] == (4.36, 5, 0.002)
    assert all(1 <= asked.length <= asked.gamma + 1 for asked in found.values())


def test_shipped_measurements_are_listed_by_what_they_are(tmp_path: Path):
    assert batch.load_measurements(tmp_path) == {}
    results.write(MEASURED, tmp_path / "a.json")
    listed = batch.load_measurements(tmp_path)
    assert listed == {"tiny on a clock, float32": MEASURED}
    assert batch.follow(MEASURED, listed)[1] == "tiny on a clock, float32"
    other = measurement(drafting={1: 0.1})
    assert batch.follow(other, listed) == [gr.update(visible=True), None]
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="no measurement of schema 1"):
        batch.load_measurements(tmp_path)


def test_an_uploaded_file_is_shown_or_refused_in_a_sentence(tmp_path: Path):
    results.write(MEASURED, tmp_path / "a.json")
    found, words = batch.read_upload(str(tmp_path / "a.json"))
    assert found == MEASURED and "tiny on a clock, float32" in words
    (tmp_path / "b.json").write_text('{"schema": 7}', encoding="utf-8")
    found, words = batch.read_upload(str(tmp_path / "b.json"))
    assert found is SKIP and "The file is no measurement of schema 1" in words and str(tmp_path) not in words
    assert batch.read_upload(None) == [SKIP, SKIP]


# --- measuring


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "BATCHES", (1, 2))
    monkeypatch.setattr(batch_run, "ROWS", (1, 2))
    monkeypatch.setattr(batch_run, "CONTEXT", 16)
    monkeypatch.setattr(batch_run, "YIELD_SECONDS", 0.0)
    monkeypatch.setattr(measure, "attainable", lambda device, dtype: Machine(1e10, 1e11))


def is_ready(state: State) -> bool:
    return state.measure is not SKIP and state.measure["interactive"] and not state.stop["interactive"]


def measured(stage: Explorer, stop: threading.Event | None = None) -> list[State]:
    return list(BatchRun(stage).measured(stop or threading.Event()))


def test_measuring_ends_with_a_measurement_and_the_buttons_ready():
    stage, loader = explorer(Actor())
    states = measured(stage)
    last = states[-1]
    assert is_ready(last) and not any(map(is_ready, states[:-1])) and is_free(loader)
    assert last.measurement.header.target == "tiny actor" and last.measurement.header.repeats == 3
    assert [(cell.batch, cell.rows) for cell in last.measurement.cells] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    said = " ".join(str(state.words) for state in states)
    assert "Timing passes: 12 of 12" in said and "Measured, with 3 repeats of each pass" in said
    assert results.from_json(results.to_json(last.measurement), "it") == last.measurement


def test_it_waits_for_its_turn_and_stop_ends_the_waiting():
    stage, loader = explorer(Actor())
    stop = threading.Event()
    with loader.loaded.lock:
        said = []
        for state in BatchRun(stage).measured(stop):
            said.append(str(state.words))
            if "Waiting for the run before yours" in said[-1]:
                stop.set()
    assert "Waiting for the run before yours" in said[-2] and "nothing was measured" in said[-1]
    assert is_free(loader)


def test_a_model_that_made_room_while_it_waited_is_not_used():
    stage, loader = explorer(Actor())
    measured(stage)
    states = BatchRun(stage).measured(threading.Event())
    with loader.loaded.lock:
        next(states)  # waiting
        stage.models._there.clear()
    last = list(states)[-1]
    assert "had to make room for another model" in last.words and last.measurement is SKIP and is_free(loader)


def test_stop_keeps_the_rounds_that_were_whole():
    stage, loader = explorer(Actor())
    stop = threading.Event()
    for state in BatchRun(stage).measured(stop):
        if "Timing passes: 6 of 12" in str(state.words):
            stop.set()
    assert "Stopped by you: measured with 1 repeat in place of 3." in state.words
    assert state.measurement.header.repeats == 1 and is_ready(state) and is_free(loader)


def test_a_turn_has_an_end(monkeypatch: pytest.MonkeyPatch):
    stage, loader = explorer(Actor())
    monkeypatch.setattr(batch_run, "over", lambda stop: lambda: True)
    last = measured(stage)[-1]
    assert "nothing was measured" in last.words and last.measurement is SKIP and is_ready(last) and is_free(loader)


def test_what_goes_wrong_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    stage, loader = explorer(Actor())
    monkeypatch.setattr(batch_run, "CONTEXT", 10**6)
    assert "shorten the context" in measured(stage)[-1].words
    monkeypatch.setattr(batch_run, "text_of", lambda target: 1 / 0)
    last = measured(stage)[-1]
    assert "Something went wrong on the server" in last.words and is_ready(last) and is_free(loader)


def test_zerogpu_is_offered_nothing():
    stage, _ = explorer(Actor())
    lent = Explorer(stage.pairings, stage.models, worker=lambda *_: None)
    assert not BatchRun(lent).is_offered
    assert [state.words for state in measured(lent)] == [f'<p class="sv-problem" role="alert">{NOT_HERE}</p>']


def test_stop_reaches_the_visitors_own_measuring_and_no_other():
    stage, _ = explorer(Actor())
    run = BatchRun(stage)
    assert is_ready(run.stop(ANN))  # nothing to stop: the buttons are made ready again
    run.arrive(ANN)
    event = run.visits.begin("ann")
    assert run.stop(SimpleNamespace(session_hash="bob")).measure is not SKIP and not event.is_set()
    assert run.stop(ANN) == State(SKIP) and event.is_set()
    run.leave(ANN)
    assert not run.visits.is_running("ann") and is_ready(run.failed(ANN))


# --- in a browser


@pytest.mark.browser
def test_the_tab_in_a_browser(browser: Browser, tmp_path: Path):
    """Measure here brings a measurement, an upload another; a slider changes the numbers; all that fits on a phone."""
    results.write(MEASURED, tmp_path / "a.json")
    stage, _ = explorer(Actor())
    with gr.Blocks() as demo:
        batch.batch_tab(stage, tmp_path)
    with chromium.served(demo) as address:
        page = browser.new_page(viewport={"width": 375, "height": 800})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        page.locator("#batch-load .js-plotly-plot").wait_for()
        page.locator("#batch-size input[type=number]").fill("8")
        page.locator("#batch-numbers caption", has_text="Batch 8:").wait_for()
        page.locator("#batch-measure").click()
        page.locator("#batch-state", has_text="Measured, with 3 repeats").wait_for()
        page.locator("#batch-about", has_text="tiny actor").wait_for()
        upload = {"name": "m.json", "mimeType": "application/json", "buffer": results.to_json(MEASURED).encode()}
        page.locator("input[type=file]").set_input_files(upload)
        page.locator("#batch-about", has_text="a clock").wait_for()
        assert json.loads(page.evaluate("JSON.stringify(document.documentElement.scrollWidth)")) <= 375
        assert wrong == []
        page.close()
