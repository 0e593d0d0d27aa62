"""The Workloads tab: which files it takes, what it shows of them, and measuring on the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser as chromium
import gradio as gr
import pytest
from playwright.sync_api import Browser
from stage import HOSTILE, Actor, explorer, is_free
from workloads.suites import HEADER, result

from specviz import memory, trace
from specviz.errors import UserError
from specviz.recordings import load_examples
from specviz.ui import handlers, workloads_files, workloads_handlers, workloads_measure
from specviz.ui.controls import Controls
from specviz.ui.work import Here
from specviz.ui.workloads import workloads_tab
from specviz.ui.workloads_files import File, Held, read_upload
from specviz.ui.workloads_handlers import ON_ZERO, SKIP, Screen, Workloads
from specviz.ui.workloads_order import Asked, arm_of, read
from specviz.ui.workloads_view import Look, look
from specviz.workloads import runner
from specviz.workloads.arms import Arm
from specviz.workloads.result_file import SCHEMA, Results, parse
from specviz.workloads.results import Result

ONE, TWO = Arm("ngram", {"ngram_max": 3}, 1), Arm("ngram", {"ngram_max": 3}, 2)
ASKED = Asked("smollm2-135m", ["N-gram lookup", "The target itself"], ["question", "chat"], 1, 16, "untimed")


def text(*results: Result) -> str:
    lines = [{"schema": SCHEMA, "header": trace.plain(HEADER)}, *({"result": trace.plain(each)} for each in results)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def results(suite: str = "own", arm: Arm = ONE, speed: float | None = 1.5, kept: int = 1) -> list[Result]:
    return [
        result(arm, f"{workload}-{n}", speed, (kept, 0), workload, suite)
        for workload in ("code", "story")
        for n in range(3)
    ]


SHIPPED = File("first (shipped)", text(*results(), *results(arm=TWO, speed=0.5)))


# --- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path):
    def written(content: str, name: str = "a.jsonl", folder: str = "") -> str:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return str(path)

    return written


def test_files_are_read_and_told_apart_and_a_cut_line_is_left_out(file):
    paths = [file(text(*results()) + '{"result": {"arm"'), file(text(*results(kept=2)), folder="other")]
    first, second = read_upload(paths)
    assert (first.name, second.name) == ("a.jsonl", "a.jsonl (2)")
    assert len(workloads_files.read(first).results) == 6 and first.text.endswith("\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1 is not JSON"),
        ("{}\n", "holds no results of schema"),
        ("hello\n", "line 1 is not JSON"),
        (text(), "a.jsonl holds no results yet"),
        (text(result(ONE, "a")).replace('"own"', "3"), "line 2"),
        (text(*(result(replace(ONE, gamma=n + 1), "a") for n in range(49))), "49 ways of drafting; the page shows 48"),
        (text(*(result(ONE, f"{n}", workload=f"{n}") for n in range(41))), "41 workloads; the page shows 40"),
    ],
)
def test_other_files_are_refused_in_a_sentence(file, content: str, words: str):
    with pytest.raises(UserError, match=words):
        read_upload([file(content)])


def test_too_many_and_too_large_files_are_refused(file, monkeypatch):
    path = file(text(*results()))
    with pytest.raises(UserError, match="There are 3 files"):
        read_upload([path] * 3)
    monkeypatch.setattr(workloads_files, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"a\.jsonl has more than"):
        read_upload([path])


# --- what is shown -------------------------------------------------------------------------------------------


def test_what_the_visitor_brought_goes_before_what_is_shipped():
    own = File("own.jsonl", text(*results(speed=None)))
    view = look(Held((own,)), SHIPPED, Look())
    assert view.shown == gr.update(choices=["own.jsonl", "first (shipped)"], value="own.jsonl")
    view = look(Held((own,)), SHIPPED, Look(shown="first (shipped)"))
    assert view.shown["value"] == "first (shipped)"
    assert "timed once" in view.about and "12 of 12 outputs" not in view.about
    saved = Path(view.download["value"])
    assert saved.name == "first-shipped.jsonl" and saved.read_text(encoding="utf-8") == SHIPPED.text


def test_every_drafter_at_its_best_or_at_every_setting_and_by_either_measure():
    best = look(Held(), SHIPPED, Look())
    every = look(Held(), SHIPPED, Look(settings="every", measure="speed-up"))
    assert len(best.heat_map["value"].layout.xaxis.ticktext) == 1
    assert len(every.heat_map["value"].layout.xaxis.ticktext) == 2
    assert every.heat_map["value"].layout.title.text == "Speed-up by workload"
    assert every.numbers.count("<tr>") == 1 + 3 * 2 and "flatter" in best.about and "flatter" not in every.about
    closer = look(Held(), SHIPPED, Look(closer="ngram, gamma 2"))
    assert closer.survival.layout.title.subtitle.text.startswith("ngram, gamma 2")
    assert best.survival.layout.title.subtitle.text.startswith("ngram, gamma 1")


def test_every_visitor_gets_updates_of_their_own():
    first = look(Held(), SHIPPED, Look())
    first.closer.pop("value")  # as Gradio does when it sends them
    assert look(Held(), SHIPPED, Look()).closer["value"] == "ngram, gamma 1"


def test_suites_can_be_left_out_and_compared():
    both = File("two.jsonl", text(*results(), *results("mine", kept=4)))
    view = look(Held((both,)), None, Look())
    assert view.suites == gr.update(
        choices=[("own (6)", "own"), ("mine (6)", "mine")], value=["own", "mine"], visible=True
    )
    assert [value for _, value in view.compared["choices"]] == ["", "suite own", "suite mine"]
    one = look(Held((both,)), None, Look(suites=["mine"]))
    assert one.suites["value"] == ["mine"] and "6 of mine" in one.about
    drift = look(Held((both,)), None, Look(compared="suite mine"))
    assert drift.drift.layout.title.subtitle.text.startswith("from own<br>to mine")
    assert "more, beyond noise" in drift.drift_numbers


def test_files_can_be_compared():
    before, after = File("a", text(*results(kept=1))), File("b", text(*results(kept=1)))
    view = look(Held((before, after)), None, Look(compared="file b"))
    assert view.compared["value"] == "file b" and view.drift_numbers.count("within noise") == 1
    assert view.drift_numbers.count("too few prompts to tell") == 2, "three of each workload"
    gone = look(Held((before,)), None, Look(compared="file b"))
    assert gone.compared["value"] == "" and gone.drift_numbers == ""


def test_without_any_file_the_page_says_so():
    view = look(Held(), None, Look(shown="gone"))
    assert "No measurement comes with this page" in view.about and not view.download["interactive"]
    assert view.heat_map.layout.annotations[0].text == view.survival.layout.annotations[0].text == "No results yet."


def test_nothing_in_a_file_becomes_html():
    name = "".join(HOSTILE)
    hostile = File(name, text(*(result(ONE, f"{n}", 1.5, (1,), name, f"{name}{n % 2}") for n in range(6))))
    view = look(Held((hostile,)), None, Look(compared=f"suite {name}1"))
    for html in (view.about, view.numbers, view.choice, view.closer_numbers, view.drift_numbers):
        assert "<img" not in html and "<b>" not in html and "</script" not in html
    for figure in (view.heat_map["value"], view.survival, view.drift):
        assert "<img" not in figure.to_json() and "\\u003cimg" not in figure.to_json()
    assert "&lt;img" in view.numbers + view.choice


# --- uploads -------------------------------------------------------------------------------------------------


def tab(worker: Any = None, **stage: Any) -> tuple[Workloads, Any]:
    made, loader = explorer(**stage)
    return Workloads(made if worker is None else replace(made, worker=worker), SHIPPED), loader


def test_an_upload_is_shown_and_two_are_compared(file):
    handlers, _ = tab()
    paths = [file(text(*results()), name) for name in ("a.jsonl", "b.jsonl")]
    taken = handlers.take(paths, None)
    assert [each.name for each in taken.uploaded] == ["a.jsonl", "b.jsonl"] and taken.problem == ""
    assert taken.shown["value"] == "a.jsonl" and taken.compared["value"] == "file b.jsonl"
    gone = handlers.take(None, None)
    assert gone.uploaded == () and gone.shown["value"] == "first (shipped)" and gone.compared["value"] == ""


def test_a_wrong_upload_says_why_and_loses_nothing(file):
    handlers, _ = tab()
    taken = handlers.take([file("<b>hello\n")], None)
    assert 'role="alert"' in taken.problem and "line 1 is not JSON" in taken.problem
    assert taken.uploaded is taken.shown is taken.compared is SKIP


def test_a_file_that_nobody_foresaw_is_refused_in_a_sentence(file, caplog, monkeypatch):
    handlers, _ = tab()
    monkeypatch.setattr(workloads_handlers, "look", lambda *_: 1 / 0)
    taken = handlers.take([file(text(*results()))], None)
    assert "This file can&#x27;t be shown" in taken.problem and taken.uploaded is SKIP and "division" in caplog.text


def test_what_is_shipped_can_be_shown():
    first = workloads_files.shipped()
    view = look(Held(), first, Look())
    assert ("No measurement comes" in view.about) is (first is None)


# --- measuring here ------------------------------------------------------------------------------------------


def measured(handlers: Workloads, asked: Asked = ASKED, stop: threading.Event | None = None) -> Iterator[Screen]:
    return handlers.measured(asked, (), stop or threading.Event())


def found(screens: list[Screen]) -> list[Result]:
    file = next(screen.measured for screen in reversed(screens) if screen.measured is not SKIP)
    return parse(file.text, "here")[1]


@pytest.mark.parametrize("timed", ["untimed", "timed"])
def test_it_finds_what_the_runner_finds(timed: str):
    handlers, loader = tab()
    screens = list(measured(handlers, ASKED._replace(timed=timed)))
    order = read(ASKED, handlers.explorer.pairings)
    direct = Results()
    expected = list(runner.run(loader.loaded, [arm_of(preset) for preset in order.presets], order.plan, direct))
    assert [(each.arm, each.prompt, each.answers) for each in found(screens)] == [
        (each.arm, each.prompt, each.answers) for each in expected
    ]
    assert {each.workload for each in expected} == {"chat", "question"} and len(expected) == 4
    assert all(bool(each.plain_s) is (timed == "timed") for each in found(screens))
    assert "4 of 4" in screens[-3].said and "Measured 4 answers" in screens[-2].said
    assert [screen.shown["value"] for screen in screens if screen.shown is not SKIP] == ["measured here"]
    assert screens[-1].run["interactive"] and not screens[-1].stop["interactive"] and is_free(loader)
    assert all(screen.run is SKIP for screen in screens[:-1])


def test_the_first_results_are_shown_at_once_and_later_ones_only_where_they_were_chosen():
    handlers, _ = tab()
    screens = list(measured(handlers, ASKED._replace(drafters=["N-gram lookup"], workloads=["chat"])))
    first, *_, last = [screen for screen in screens if screen.measured is not SKIP]
    behind = Look(shown="first (shipped)")
    assert handlers.look_at_new(first.version, (), first.measured, *behind).shown["value"] == "measured here"
    assert handlers.look_at_new(last.version, (), last.measured, *behind).shown["value"] == "first (shipped)"
    assert first.version != last.version, "or the page would not draw anew"


def test_the_model_is_free_between_two_prompts():
    handlers, loader = tab()
    steps = measured(handlers)
    for screen in steps:
        if " of 4" in str(screen.said):
            assert is_free(loader)
            with loader.loaded.lock:  # somebody else's turn, which lasts until this one looks again
                waiting = next(steps)
            assert "Waiting for the model" in str(waiting.said) and waiting.measured is SKIP
            break
    steps.close()
    assert is_free(loader)


def test_results_are_shown_at_most_twice_a_second(monkeypatch):
    monkeypatch.setattr(workloads_measure, "SHOW_SECONDS", 1000.0)
    handlers, _ = tab()
    screens = list(measured(handlers, ASKED._replace(drafters=["N-gram lookup"], workloads=["chat"], prompts=3)))
    assert sum(" of 3" in str(screen.said) for screen in screens) == 3
    assert sum(screen.measured is not SKIP for screen in screens) == 2, "the first at once, then all together"


def test_results_that_were_not_shown_yet_are_not_lost(monkeypatch):
    monkeypatch.setattr(workloads_measure, "SHOW_SECONDS", 1000.0)
    handlers, _ = tab()
    stop = threading.Event()
    screens = []
    for screen in measured(handlers, stop=stop):
        screens.append(screen)
        if "3 of 4" in str(screen.said):
            stop.set()
    assert len(found(screens)) == 3 and screens[-1].measured is SKIP


def test_stop_ends_within_a_step_and_keeps_what_is_there():
    actor = Actor()
    handlers, loader = tab(actor=actor)
    stop = threading.Event()
    screens = []
    for screen in measured(handlers, stop=stop):
        screens.append(screen)
        if "1 of 4" in str(screen.said):
            stop.set()
            before = actor.passes
    assert "What was measured until then is kept" in screens[-1].said and screens[-1].run["interactive"]
    assert len(found(screens)) == 1 and actor.passes <= before + 1 and is_free(loader)
    [stopped] = [screen for screen in measured(handlers, stop=stop) if screen.run is not SKIP]
    assert stopped.said.count("Stopped.") == 1 and "kept" not in stopped.said


@pytest.mark.parametrize(
    ("module", "name", "words", "kept"),
    [
        (handlers, "TURN_SECONDS", "the longest turn", 0),
        (workloads_measure, "MOST_SECONDS", "the rest was left out", 1),
    ],
)
def test_nobody_holds_the_model_for_ever(monkeypatch, module: Any, name: str, words: str, kept: int):
    monkeypatch.setattr(module, name, 0.0)
    tabs, loader = tab()
    screens = list(measured(tabs))
    assert words in screens[-1].said and screens[-1].run["interactive"] and is_free(loader)
    assert sum(screen.measured is not SKIP for screen in screens) == kept


def test_what_does_not_fit_in_memory_is_refused_with_the_numbers(monkeypatch):
    handlers, _ = tab()
    monkeypatch.setattr(memory, "available_bytes", lambda device: -(10**12))
    [last] = [screen for screen in measured(handlers) if screen.run is not SKIP]
    assert "GB" in last.said and 'role="alert"' in last.said


def test_a_model_that_had_to_make_room_is_not_used(monkeypatch):
    handlers, loader = tab()
    models = handlers.explorer.models
    steps = measured(handlers)
    for screen in steps:
        if "1 of 4" in str(screen.said):
            monkeypatch.setattr(type(models), "there", lambda *_: None)
            break
    rest = list(steps)
    assert "had to make room for another model" in rest[-1].said and is_free(loader)


def test_prompts_that_do_not_fit_are_left_out_and_counted(monkeypatch):
    handlers, _ = tab()
    first = read(ASKED, handlers.explorer.pairings).plan.prompts[0]
    monkeypatch.setattr(runner, "unfit", lambda loaded, plan: {(first[0].name, first[1].id): "too long"})
    screens = list(measured(handlers))
    assert len(found(screens)) == 2 and "1 prompt was left out" in screens[-2].said
    monkeypatch.setattr(runner, "unfit", lambda loaded, plan: {(s.name, p.id): "too long" for s, p in plan.prompts})
    assert "can hold none of these prompts" in list(measured(handlers))[-1].said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pairing": "gone"}, "Choose a pairing"),
        ({"pairing": ["smollm2-135m"]}, "Choose a pairing"),
        ({"drafters": []}, "0 drafters are chosen"),
        ({"drafters": ["N-gram lookup"] * 4}, "4 drafters are chosen"),
        ({"drafters": ["N-gram lookup"] * 2}, "chosen twice"),
        ({"drafters": ["gone"]}, "Choose a drafter"),
        ({"workloads": []}, "No workload is chosen"),
        ({"workloads": ["gone"]}, "No workload is chosen"),
        ({"prompts": 7}, "The number of prompts is 7"),
        ({"tokens": 1000}, "The number of new tokens is 1000"),
        ({"timed": "maybe"}, "Choose what is measured"),
    ],
)
def test_what_is_out_of_range_is_refused_before_anything_is_loaded(changed: dict[str, Any], words: str):
    handlers, loader = tab()
    [last] = measured(handlers, ASKED._replace(**changed))
    assert words in last.said and last.run["interactive"] and loader.calls == 0


def test_what_nobody_foresaw_is_one_sentence(monkeypatch, caplog):
    handlers, loader = tab()
    monkeypatch.setattr(runner, "run", lambda *_, **__: iter([1 / 0]))
    last = list(measured(handlers))[-1]
    assert "Something went wrong" in last.said and "division" not in last.said and is_free(loader)
    assert "measuring a suite failed" in caplog.text


def test_where_the_gpu_is_lent_it_says_that_this_is_not_offered():
    handlers, loader = tab(worker=lambda prepared, ask, history: Here(prepared))
    [last] = measured(handlers)
    assert "ZeroGPU lends its GPU" in last.said and loader.calls == 0
    assert ON_ZERO.endswith("load the results file above.")


def test_another_pairing_brings_its_drafters():
    handlers, _ = tab()
    assert handlers.choose_pairing("gpt2") == gr.update(
        choices=["N-gram lookup", "DistilGPT2"], value=["N-gram lookup", "DistilGPT2"]
    )
    assert handlers.choose_pairing("gone") is SKIP
    assert ("SmolLM2 135M Instruct", "smollm2-135m") in handlers.offered()["choices"]


# --- the page ------------------------------------------------------------------------------------------------


def page(measurement: Path) -> gr.Blocks:
    made, _ = explorer()
    with gr.Blocks(analytics_enabled=False) as demo, gr.Tabs():
        with gr.Tab("Explore"):
            gr.HTML("")
        with gr.Tab("Workloads"):
            workloads_tab(Controls(made, load_examples(), {}), measurement)
    return demo


def test_no_event_is_public(tmp_path):
    events = page(tmp_path / "none.jsonl").get_config_file()["dependencies"]
    assert len(events) > 12 and {event["api_visibility"] for event in events} == {"private"}


def test_the_tab_shows_measures_and_fits_a_phone(browser: Browser, tmp_path):
    (tmp_path / "first.jsonl").write_text(SHIPPED.text, encoding="utf-8")
    with chromium.served(page(tmp_path / "first.jsonl")) as address:
        context = browser.new_context(viewport={"width": 375, "height": 812})
        complaints: list[str] = []
        shown = chromium.watched(context, address, complaints)
        shown.goto(address)
        shown.get_by_role("tab", name="Workloads").click()
        shown.locator("#workloads-about dl").wait_for()
        assert shown.locator("#workloads-shown input").input_value() == "first (shipped)"
        shown.locator("#workloads-map", has_text="1.50").wait_for()
        shown.locator("#workloads-numbers summary").click()
        assert shown.get_by_role("region", name="Acceptance length and speed-up by workload and drafter").is_visible()
        shown.locator("#workloads-measure").get_by_text("speed-up").click()
        shown.locator("#workloads-map", has_text="▲ 1.50x").wait_for()
        shown.locator("#suite-timed").get_by_text("acceptance alone").click()
        shown.locator("#suite-drafters").get_by_text("EAGLE head", exact=True).click()
        shown.locator("#suite-workloads").get_by_text("translation (").click()
        shown.locator("#suite-run").click()
        shown.locator("#suite-said", has_text="Measured 3 answers").wait_for()
        shown.locator("#workloads-about", has_text="3 of own").wait_for()
        assert shown.locator("#workloads-shown input").input_value() == "measured here"
        with shown.expect_download() as download:
            shown.click("#workloads-download")
        assert len(Path(download.value.path()).read_text(encoding="utf-8").splitlines()) == 4
        assert shown.evaluate("document.documentElement.scrollWidth") <= 375
        context.close()
        assert complaints == []
