"""A run in a browser, from Run to the verdict: what is shown is what was decoded, and Stop, Step and errors do as they
say."""

from __future__ import annotations

import re

import expected
import pytest
from browser import (
    choose_drafter,
    has_focus,
    headline,
    lines,
    make_step,
    run,
    run_measured,
    saved_trace,
    selected,
    served,
    settle,
    source,
    tiles,
    tokens,
    unfold,
    visit,
    wait_for_steps,
    wait_for_text,
    wait_until_ready,
)
from playwright.sync_api import Page
from stage import Loader, made, timeless

from specviz.presets import load_pairings
from specviz.ui import build_demo

pytestmark = pytest.mark.browser


def check_text(page: Page, trace: expected.Trace) -> None:
    """Tokens, the titles of the verify passes, and the counts of the legend."""
    assert tokens(page) == expected.tokens(trace)
    titles = page.locator(".sv-step").evaluate_all("steps => steps.map(step => step.getAttribute('aria-label'))")
    assert titles == [expected.sentence(step) for step in trace.steps]
    kinds = [piece.kind for piece in expected.every_piece(trace)]
    legend = "items => items.map(item => [item.firstChild.textContent, Number(item.querySelector('b').textContent)])"
    counts = dict(page.locator(".sv-legend li:has(b)").evaluate_all(legend))
    assert counts == {kind: kinds.count(kind) for kind in counts} and set(kinds) <= set(counts)
    more = f"{expected.untested(trace)} more drafted, untested after a rejection"
    assert page.locator(".sv-legend .sv-untested").inner_text() == more


def bars(page: Page, figure: str, trace: int = 0) -> dict[str, list[float]]:
    """x and y of a figure's bars or line, as Plotly has them."""
    page.wait_for_selector(f"#{figure} .js-plotly-plot .main-svg")
    values = "([box, index]) => (({x, y}) => ({x: [...x], y: [...y]}))(document.querySelector(box).data[index])"
    drawn: dict[str, list[float]] = page.evaluate(values, [f"#{figure} .js-plotly-plot", trace])
    return drawn


# --- a run from end to end -----------------------------------------------------------------------------------


def test_a_run_shows_exactly_what_was_decoded(browser, stage):
    address, actor, loader = stage
    actor.delay = 0.01
    with visit(browser, address) as page:
        settle(page, prompt="to be", budget=32)
        run_measured(page)
        actor.delay = 0.0
        trace = made(loader.loaded, "to be", max_new_tokens=32)
        assert timeless(saved_trace(page)) == timeless(trace)
        check_text(page, trace)
        assert source(page) == "live" and "tiny actor" in page.inner_text("#verdict .sv-source-text")
        per_pass = f"{len(trace.tokens) / len(trace.steps):.1f} tokens per verify pass"
        assert headline(page).startswith(per_pass) and "over 3 repeats" in headline(page)
        shown = tiles(page)
        assert shown == {**expected.tiles(trace), "speed-up": shown["speed-up"]}
        assert re.fullmatch(r"\d+\.\d\d×", shown["speed-up"]) and shown["speed-up"] in headline(page)
        badge = "identical to plain decoding all 32 tokens are the same."
        assert " ".join(page.inner_text(".sv-equality").split()).endswith(badge)
        assert "over 3 repeats" in page.inner_text("#verdict [role=status]")  # said aloud as well
        details = lines(page)
        assert details["Ended"] == "after 32 tokens, the most that were allowed"
        assert details["Drafted"].startswith(f"{sum(len(step.nodes) for step in trace.steps)}: ")
        assert details["Run"].startswith(
            "tiny actor · N-gram lookup (ngram min 1, ngram max 3, pick recent) · gamma 5 · "
        )
        assert bars(page, "histogram") == {"x": [0, 1, 2, 3, 4, 5], "y": expected.histogram(trace)}
        assert bars(page, "survival") == {"x": [1, 2, 3, 4, 5], "y": pytest.approx(expected.survival(trace))}
        for phase in range(3):  # draft, verify, decide
            times = bars(page, "time_share", phase)
            assert times["y"] == ["plain", "speculative"] and all(time >= 0 for time in times["x"])


def test_what_a_figure_means_is_a_press_away(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        tile = page.locator("button.sv-tile").nth(1)
        tile.click()
        assert page.inner_text(".sv-meaning").startswith("acceptance rate: Accepted / drafted")
        tile.press("Escape")
        assert not page.locator(".sv-meaning").is_visible()
        page.click(".sv-key summary")
        assert "the target's own, nothing was drafted" in page.inner_text(".sv-key")
        page.click("#details summary")
        assert "Committed tokens / steps" in page.inner_text("#details")


def test_another_drafter_brings_its_note_and_its_settings_and_is_used(browser, stage):
    address, actor, loader = stage
    actor.play(None)
    with visit(browser, address) as page:
        settle(page, prompt="to be", budget=12, measure=False)
        for title, note, shows, gamma, kind, drafter in (
            ("Early exit", "24 of 30 layers", ["#exit-layer"], 2, "early-exit", {"exit_layer": 2}),
            ("The target itself", "Accepts everything", [], 4, "draft-model", {"source": "self"}),
            ("No drafter", "Ordinary decoding", [], 4, "plain", {}),
            ("N-gram lookup", "Copies what followed", ["#ngram-min", "#pick"], 5, "ngram", None),
        ):
            choose_drafter(page, title, note)
            groups = ("#exit-layer", "#ngram-min", "#pick")
            assert [name for name in groups if page.locator(name).is_visible()] == shows
            assert page.locator("#gamma input[type=number]").input_value() == str(gamma)
            if kind == "early-exit":
                settle(page, exit_layer=2)
            run(page)
            trace = made(loader.loaded, "to be", kind, drafter, gamma=gamma, max_new_tokens=12)
            assert tokens(page) == expected.tokens(trace)
            assert saved_trace(page).run.drafter == kind and f" · {title}" in lines(page)["Run"]


def test_every_setting_of_the_form_arrives_in_the_run(browser, stage):
    address, actor, _ = stage
    actor.play("to be, or not to be")
    asked = {"seed": 7, "budget": 30, "gamma": 3, "ngram_min": 2, "ngram_max": 4, "heat": 0.5, "top_k": 9}
    with visit(browser, address) as page:
        settle(page, prompt="to be", template="raw text", stops="or n\nnever", pick="most frequent", **asked)
        settle(page, top_p=0.9, min_p=0.05, penalty=1.1, precision="float32: exact", measure=False)
        run(page)
        header = saved_trace(page).run
        assert header.prompt_text == "to be" and not header.chat_template
        assert header.prompt == tuple(actor.tokenizer.encode("to be"))
        assert header.stop_strings == ("or n", "never")
        assert (header.seed, header.max_new_tokens, header.gamma, header.dtype) == (7, 30, 3, "float32")
        assert header.drafter_settings == {"ngram_min": 2, "ngram_max": 4, "pick": "frequent"}
        sampler = {"temperature": 0.5, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1}
        assert header.sampler == {**sampler, "logit_bias": {}}
        settings = "gamma 3 · temperature 0.5 · top-k 9 · top-p 0.9 · min-p 0.05 · repetition-penalty 1.1 · seed 7"
        assert settings in lines(page)["Run"] and lines(page)["Run"].endswith(" · raw prompt")
        assert lines(page)["Ended"] == "after 11 tokens, by a stop string"


# --- stop, and go on -----------------------------------------------------------------------------------------


# Notes for how long, in milliseconds, a click on Stop is not answered.
ANSWER = """() => {
  const stop = document.querySelector("#stop");
  stop.addEventListener("click", () => { window.pressed = performance.now(); });
  const look = () => {
    if (stop.innerText === "Stopping…" && stop.disabled) window.answered ??= performance.now() - pressed;
  };
  new MutationObserver(look).observe(stop, {subtree: true, childList: true, characterData: true, attributes: true});
}"""


def test_stop_answers_at_once_and_is_itself_again_at_the_end(browser, stage):
    address, actor, _ = stage
    actor.delay = 1.0  # far longer than the answer may take
    with visit(browser, address) as page:
        page.evaluate(ANSWER)
        page.click("#run")
        wait_for_text(page, "so far")
        page.click("#stop")
        assert page.wait_for_function("window.answered").json_value() < 500
        assert page.locator("#run").is_disabled() and page.locator("#step").is_disabled()
        wait_until_ready(page)
        page.wait_for_function("document.querySelector('#stop').innerText === 'Stop'")
        assert page.locator("#stop").is_disabled()


def test_stop_in_mid_run_keeps_the_text_and_run_works_again(browser, stage):
    address, actor, loader = stage
    with visit(browser, address) as page:
        settle(page, prompt="to be")
        for _ in range(2):
            actor.delay = 0.1
            page.click("#run")
            wait_for_text(page, "so far")
            wait_for_steps(page, 3)
            assert "Drawn when the run is over." in page.inner_text("#histogram")
            for shown_at_the_end in ("#race", "#details", "#follow-up"):
                assert not page.locator(shown_at_the_end).is_visible()
            page.click("#stop")
            wait_until_ready(page)
            stopped = saved_trace(page)
            count = len(stopped.tokens)
            assert headline(page).startswith(f"Stopped after {count} tokens, ")
            assert lines(page)["Ended"] == f"stopped by you after {count} tokens"
            actor.delay = 0.0
            trace = made(loader.loaded, "to be")
            assert 3 <= len(stopped.steps) < len(trace.steps)
            assert timeless(stopped).steps == timeless(trace).steps[: len(stopped.steps)]
            assert tokens(page) == expected.tokens(stopped)
        run(page)
        assert tokens(page) == expected.tokens(trace) and "over 3 repeats" in headline(page)


def test_the_keyboard_keeps_its_place_between_a_button_and_stop(browser, stage):
    address, actor, _ = stage
    actor.play("to be or not", delay=0.05)
    has_it = "name => document.activeElement.id === name"
    with visit(browser, address) as page:
        settle(page, measure=False)
        for button in ("run", "step"):
            page.focus(f"#{button}")
            page.keyboard.press("Enter")
            page.wait_for_function(has_it, arg="stop")
            wait_until_ready(page)
            page.wait_for_function(has_it, arg=button)
        page.focus("#run")
        page.keyboard.down("Enter")
        page.wait_for_function(has_it, arg="stop")
        page.keyboard.down("Enter")  # still held, which does not stop the run
        page.keyboard.up("Enter")
        page.focus("#prompt textarea")  # who has gone elsewhere stays there
        wait_until_ready(page)
        assert has_focus(page, "#prompt") and headline(page).endswith("; speed-up not measured")


# --- step by step --------------------------------------------------------------------------------------------


def test_each_step_is_one_verify_pass_and_is_explained_at_once(browser, stage):
    address, _, loader = stage
    with visit(browser, address) as page:
        settle(page, prompt="to be")
        trace = made(loader.loaded, "to be")
        for count in range(1, 5):
            make_step(page)
            part = expected.Trace(trace.run, trace.steps[:count])
            assert tokens(page) == expected.tokens(part)
            assert selected(page) == {count}
            assert headline(page).startswith(f"{count} verify pass")
            assert source(page) == "step by step"
        assert timeless(saved_trace(page)).steps == timeless(trace).steps[:4]
        settle(page, gamma=2)
        make_step(page)
        assert page.inner_text("#verdict .sv-status") == "The settings have changed, so this run began anew."
        assert selected(page) == {1} and page.locator(".sv-step").count() == 1
        run(page)  # a whole run
        trace = made(loader.loaded, "to be", gamma=2)
        assert tokens(page) == expected.tokens(trace) and source(page) == "live"
        make_step(page)  # after it, from the start
        assert page.locator(".sv-step").count() == 1 and selected(page) == {1}


def test_the_last_step_ends_the_run_and_the_next_one_begins_another(browser, stage):
    address, actor, loader = stage
    actor.play("to be or not to be")
    with visit(browser, address) as page:
        settle(page, prompt="to be")
        trace = made(loader.loaded, "to be")
        for _ in trace.steps:
            make_step(page)
        check_text(page, trace)
        assert source(page) == "live" and headline(page).endswith("; speed-up not measured")
        assert lines(page)["Ended"] == f"after {len(trace.tokens)} tokens, with the target's stop token"
        make_step(page)
        assert page.locator(".sv-step").count() == 1 and source(page) == "step by step"


# --- errors and conversations --------------------------------------------------------------------------------


def test_an_error_keeps_the_run_before_and_nothing_typed_is_lost(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        settle(page, prompt="to be", measure=False)
        run(page)
        before = (tiles(page), tokens(page), lines(page), saved_trace(page))
        settle(page, seed=0.5)
        run(page)
        assert headline(page) == "The seed is 0.5; give a whole number from 0 to 2,147,483,647."
        assert page.inner_text("#verdict .sv-status") == "Below is the run before this one."
        assert (tiles(page), tokens(page), lines(page), saved_trace(page)) == before
        settle(page, seed=7, prompt="   ")
        run(page)
        assert headline(page) == "The prompt is empty; type something, or choose an example."
        assert page.locator("#seed input").input_value() == "7"


def test_a_follow_up_goes_on_from_the_answer_until_the_conversation_is_ended(browser, stage):
    address, actor, _ = stage
    actor.play("aye.")
    encode = actor.tokenizer.encode
    turns = "count => document.querySelectorAll('#conversation dd').length === count"
    with visit(browser, address) as page:
        settle(page, prompt="to be?", measure=False)
        run(page)
        page.click("#follow-up")
        page.wait_for_function(turns, arg=2)
        page.wait_for_function("document.activeElement.closest('#prompt') !== null")
        assert page.locator("#prompt textarea").input_value() == ""
        assert page.locator("#conversation dd").all_inner_texts() == ["to be?", "aye."]
        assert not page.locator("#follow-up").is_visible()
        settle(page, prompt="and why?")
        run(page)
        header = saved_trace(page).run
        assert header.prompt == tuple(encode("to be?aye.and why?"))
        assert header.prompt_text == "User: to be?\n\nAssistant: aye.\n\nUser: and why?"
        assert f"({len(header.prompt)} tokens" in lines(page)["Prompt"]
        page.click("#follow-up")
        page.wait_for_function(turns, arg=4)
        page.get_by_role("button", name="List", exact=True).click()
        page.wait_for_function(turns, arg=0)
        page.click("#bring-back")
        page.wait_for_function(turns, arg=4)
        page.click("#start-over")
        page.wait_for_function(turns, arg=0)
        settle(page, prompt="to be?")
        run(page)
        assert saved_trace(page).run.prompt == tuple(encode("to be?"))


# --- without recordings, and with the real model -------------------------------------------------------------


def test_a_page_without_recordings_explains_itself(browser, stage):
    _, actor, _ = stage
    with served(build_demo(loader=Loader(actor), recordings={})) as address, visit(browser, address) as page:
        assert page.locator(".sv-empty dt").all_inner_texts() == [
            "accepted",
            "rejected",
            "correction",
            "bonus",
            "plain",
            "cut",
        ]
        assert page.locator(".sv-empty").is_visible() and headline(page).startswith(
            "Which words does the drafter guess"
        )
        assert set(tiles(page).values()) == {"–"}
        for hidden in (".sv-legend", ".sv-flow", ".sv-why", ".sv-strip", "#race", "#details", "#follow-up"):
            assert not page.locator(hidden).is_visible(), hidden
        assert page.locator("#run").is_enabled() and page.locator("#stop").is_disabled()
        unfold(page, "sampling")
        settle(page, prompt="to be", measure=False)
        run(page)
        assert not page.locator(".sv-empty").is_visible() and source(page) == "live"
        for shown in (".sv-legend", ".sv-flow", ".sv-why", ".sv-strip", "#details"):
            assert page.locator(shown).is_visible(), shown


@pytest.mark.model
def test_the_default_target_runs_in_the_browser(browser, default_target):
    prompt, budget = "Count from 1 to 20, one number per line.", 32
    with (
        served(build_demo(device="cpu", dtype="float32", offline=True)) as address,
        visit(browser, address) as page,
    ):
        settle(page, prompt=prompt, budget=budget, measure=False)
        run(page)
        trace = made(default_target, prompt, max_new_tokens=budget)
        assert [step.committed for step in saved_trace(page).steps] == [step.committed for step in trace.steps]
        check_text(page, trace)
        assert "SmolLM2-135M-Instruct" in lines(page)["Run"]


# --- pairings ------------------------------------------------------------------------------------------------


def offered(page: Page) -> list[str]:
    return page.locator("#drafter label").all_inner_texts()


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_a_pairing_brings_its_drafters_by_mouse_and_by_keyboard(browser, stage, by):
    address, _, _ = stage
    titles = [preset.title for preset in load_pairings()["gpt2"].drafters]
    with visit(browser, address) as page:
        before = offered(page)
        page.click("#pairing input")
        if by == "mouse":
            page.locator("[role=option]", has_text="GPT-2").first.click()
        else:
            for key in ("ArrowDown", "ArrowDown", "Enter"):
                page.keyboard.press(key)
        page.wait_for_function("titles => [...document.querySelectorAll('#drafter label')].length === titles", arg=3)
        assert [text.strip() for text in offered(page)] == titles != before
        wait_for_text(page, "Run downloads GPT-2 first.", within="#status")
        page.click("#examples >> text=Translation")
        wait_for_text(page, "Recorded with SmolLM2-135M-Instruct; Run uses GPT-2.", within="#verdict")
        assert "Early exit" in page.inner_text("#verdict .sv-source")
