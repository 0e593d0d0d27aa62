"""The page in a browser: what is on it, what Run, Stop and leaving do, and that text never becomes more than text."""

from __future__ import annotations

import time

import pytest
from browser import (
    headline,
    run,
    served,
    settle,
    tokens,
    visit,
    wait_for_steps,
    wait_for_text,
    wait_until,
    wait_until_ready,
)
from stage import HOSTILE

from specviz import runs
from specviz.decoding.engine import Settings
from specviz.runs import Loaded
from specviz.trace import Step
from specviz.ui import build_demo

pytestmark = pytest.mark.browser


def steps_of(loaded: Loaded, prompt: str, budget: int, gamma: int = 5) -> list[Step]:
    """The run that the page makes with its n-gram drafter, made directly."""
    settings = Settings(gamma=gamma, max_new_tokens=budget)
    drafter = {"ngram_min": 1, "ngram_max": 3, "pick": "recent"}
    return list(runs.prepare(loaded, "ngram", drafter, prompt, settings).steps())


def own_kind(step: Step) -> str:
    return step.last.kind if step.nodes and step.last else "plain"


def expected_tokens(steps: list[Step]) -> list[tuple[str, str]]:
    """What a chain's steps should show: the accepted, the rejected, what replaced it; no token without a text."""
    shown: list[tuple[str, str]] = []
    for step in steps:
        kinds = ["accepted"] * len(step.path) + ([own_kind(step)] if step.last else [])
        own = list(zip(step.text, kinds, strict=True))
        struck = [(node.text, "rejected") for node in step.nodes if node.outcome == "rejected"]
        cut = [(node.text, "cut") for node in step.nodes if node.outcome == "cut"]
        shown += own[: len(step.path)] + struck + own[len(step.path) :] + cut
    return [(text, kind) for text, kind in shown if text]


def test_the_first_page_explains_itself_and_asks_nothing_of_anyone_else(browser, stage):
    address, _, loader = stage
    calls = loader.calls
    with visit(browser, address) as page:
        for kind in ("accepted", "rejected", "correction", "bonus", "plain", "cut"):
            assert page.locator(f".sv-empty .sv-{kind}").inner_text() == kind
        assert page.locator("#run").is_enabled() and page.locator("#stop").is_disabled()
        assert "Copies what followed the same words" in page.inner_text(".sv-drafter-note")
    assert loader.calls == calls  # no model is loaded before it is asked for


def test_a_run_shows_exactly_the_tokens_of_its_trace(browser, stage):
    address, _, loader = stage
    with visit(browser, address) as page:
        settle(page, prompt="to be", budget=40)
        run(page)
        steps = steps_of(loader.loaded, "to be", 40)
        assert tokens(page) == expected_tokens(steps)
        assert {"accepted", "rejected", "correction", "plain"} <= {kind for _, kind in tokens(page)}
        titles = page.locator(".sv-step").evaluate_all("steps => steps.map(s => s.getAttribute('aria-label'))")
        assert len(titles) == len(steps)
        assert titles[0] == "step 1: nothing drafted, plain"
        accepted = sum(len(step.path) for step in steps)
        assert page.locator(".sv-legend li", has_text="accepted").locator("b").inner_text() == str(accepted)
        assert "over 3 repeats" in headline(page)
        page.wait_for_selector("#chart .js-plotly-plot")
        assert "gamma 5 · temperature 0 · seed 0" in page.inner_text("#details")
        assert "over 3 repeats" in page.inner_text("#verdict [role=status]", timeout=1000)


def test_the_key_to_the_colours_stays_within_reach(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        assert not page.locator(".sv-key").is_visible()
        settle(page, measure=False)
        run(page)
        page.click(".sv-key summary")
        assert "the target's own, nothing was drafted" in page.inner_text(".sv-key")
        assert "A thin line ends each verify pass." in page.inner_text(".sv-key")


def test_stop_answers_at_once_and_is_itself_again_at_the_end(browser, stage):
    address, actor, _ = stage
    actor.delay = 1.0
    with visit(browser, address) as page:
        page.click("#run")
        wait_for_text(page, "so far")
        page.click("#stop")
        page.wait_for_function("document.querySelector('#stop').innerText === 'Stopping…'", timeout=500)
        assert page.locator("#stop").is_disabled() and page.locator("#run").is_disabled()
        wait_until_ready(page)
        page.wait_for_function("document.querySelector('#stop').innerText === 'Stop'")
        assert page.locator("#stop").is_disabled()


def test_the_keyboard_keeps_its_place_between_run_and_stop(browser, stage):
    address, actor, _ = stage
    actor.delay = 0.03
    focused = "document.activeElement.id === '{}'"
    with visit(browser, address) as page:
        settle(page, measure=False)
        page.focus("#run")
        page.keyboard.press("Enter")
        page.wait_for_function(focused.format("stop"))
        wait_until_ready(page)
        page.wait_for_function(focused.format("run"))
        page.keyboard.press("Enter")
        page.wait_for_function(focused.format("stop"))
        page.focus("#seed input")  # who has gone elsewhere stays there
        wait_until_ready(page)
        assert page.evaluate("document.activeElement.closest('#seed') !== null")


def test_an_error_keeps_the_figures_of_the_run_before(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        settle(page, measure=False)
        run(page)
        tiles, shown = page.inner_text(".sv-tiles"), tokens(page)
        settle(page, seed=0.5)
        run(page)
        assert headline(page) == "The seed is 0.5; give a whole number from 0 to 2,147,483,647."
        assert (page.inner_text(".sv-tiles"), tokens(page)) == (tiles, shown)
        assert "Below is the run before this one." in page.inner_text("#verdict")


def test_stop_in_mid_run_keeps_the_text_and_run_works_again(browser, stage):
    address, actor, _ = stage
    actor.delay = 0.1
    with visit(browser, address) as page:
        for _ in range(2):
            page.click("#run")
            wait_for_text(page, "so far")
            wait_for_steps(page, 3)
            page.click("#stop")
            wait_until_ready(page)
            count = len([kind for _, kind in tokens(page) if kind not in ("rejected", "cut")])
            assert headline(page).startswith(f"Stopped after {count} token")
            assert 3 <= count < 40
        actor.delay = 0.0
        run(page)
        assert "over 3 repeats" in headline(page)


@pytest.mark.parametrize("moment", ["decoding", "measuring"])
def test_closing_the_tab_frees_the_model_within_a_step(browser, stage, moment):
    address, actor, loader = stage
    actor.delay = 0.02
    with visit(browser, address) as page:
        settle(page, budget=50)
        page.click("#run")
        wait_for_text(page, moment)
        actor.delay = 0.2  # slow enough that neither the run nor a repeat could end by itself
        wait_until(loader.loaded.lock.locked)
    passes = actor.passes
    wait_until(lambda: not loader.loaded.lock.locked())
    assert actor.passes <= passes + 2  # the one under way, and one while the news travels
    time.sleep(2 * actor.delay)
    assert not loader.loaded.lock.locked()


def test_two_visitors_take_turns_and_see_their_own_tokens_only(browser, stage):
    address, actor, loader = stage
    actor.play(None, delay=0.03)
    with visit(browser, address) as ann, visit(browser, address) as ben:
        for page, prompt in ((ann, "ann says"), (ben, "ben says")):
            settle(page, prompt=prompt, budget=30, measure=False)
        ann.click("#run")
        wait_for_steps(ann, 2)
        ben.click("#run")
        wait_for_text(ben, "Waiting: another run is using the model")
        wait_until_ready(ann)
        ben.wait_for_function("document.querySelector('.sv-lines')")
        wait_until_ready(ben)
        actor.delay = 0.0
        assert tokens(ann) == expected_tokens(steps_of(loader.loaded, "ann says", 30))
        assert tokens(ben) == expected_tokens(steps_of(loader.loaded, "ben says", 30))
        assert tokens(ann) != tokens(ben)


def test_hostile_tokens_are_shown_as_the_text_that_they_are(browser, stage):
    address, actor, _ = stage
    script = "".join(HOSTILE) + "🙂 \n\t\u05e9\u05dc\u05d5\u05dd"
    actor.play(script)
    with visit(browser, address) as page:
        settle(page, budget=60, measure=False)
        run(page)
        shown = [text for text, kind in tokens(page) if kind not in ("rejected", "cut")]
        assert "".join(shown) == script + "</s>"
        for token in (*HOSTILE, "🙂", " ", "\n", "\t"):
            assert token in shown
        assert page.locator("#tokens :is(b, img, script):not(.sv-legend b)").count() == 0
        assert "4 tokens make this one character" in page.locator(".sv-token", has_text="🙂").get_attribute("title")
        signs = page.locator(".sv-step .sv-space").evaluate_all("spaces => spaces.map(s => s.dataset.sign)")
        assert {"␣", "⏎", "⇥", "⟨U+200B⟩"} <= set(signs)
        # What is copied is the output, and nothing that was struck out.
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.sv-flow'))")
        assert page.evaluate("getSelection().toString()").strip() == (script + "</s>").strip()


def test_an_empty_prompt_gets_a_sentence_and_nothing_typed_is_lost(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        settle(page, prompt="   ", seed=7)
        run(page)
        assert headline(page) == "The prompt is empty; type something, or choose an example."
        assert page.locator("#seed input").input_value() == "7"
        page.click("text=Story")
        assert "clockmaker" in page.locator("#prompt textarea").input_value()
        settle(page, measure=False)
        run(page)
        assert "tokens per verify pass" in headline(page)


def test_a_drafter_brings_its_note_its_settings_and_its_draft_length(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        page.click("label:has-text('Early exit')")
        wait_for_text(page, "24 of 30 layers", within=".sv-drafter-note")
        page.wait_for_selector("text=Exit after layer")
        assert not page.locator("text=Shortest match").is_visible()
        assert page.locator("#gamma input[type=number]").input_value() == "2"


@pytest.mark.model
def test_the_default_target_runs_in_the_browser(browser, default_target):
    prompt, budget = "Count from 1 to 20, one number per line.", 32
    with (
        served(build_demo(device="cpu", dtype="float32", offline=True)) as address,
        visit(browser, address) as page,
    ):
        settle(page, prompt=prompt, budget=budget, measure=False)
        run(page, seconds=60)
        assert tokens(page) == expected_tokens(steps_of(default_target, prompt, budget))
        assert "SmolLM2-135M-Instruct" in page.inner_text("#details")
