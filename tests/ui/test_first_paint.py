"""The page before any model is there: it opens with a recorded run within two seconds, and examples answer at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import expected
import pytest
from browser import SECONDS, field, headline, lines, saved_trace, served, settle, source, tokens, visit, wait_for_text
from playwright.sync_api import Page
from stage import SCRIPT, Actor, Loader, timeless

from specviz import trace
from specviz.errors import UserError
from specviz.presets import load_pairings
from specviz.recordings import RECORDINGS, load_examples
from specviz.trace import Trace
from specviz.ui import build_demo

pytestmark = pytest.mark.browser

EXAMPLES = load_examples()
WITHIN = 2.0  # seconds
# Notes when, in milliseconds since the navigation, the first token could be seen.
FIRST_TOKEN = """(() => {
  const look = () => {
    const token = document.querySelector(".sv-flow .sv-token");
    if (token?.checkVisibility() && token.getBoundingClientRect().height > 0) window.firstToken = performance.now();
    else requestAnimationFrame(look);
  };
  look();
})()"""


def recorded(id: str) -> Trace:
    return trace.read(RECORDINGS / f"{id}.jsonl")


def check_recorded(page: Page, id: str) -> None:
    assert tokens(page) == expected.tokens(recorded(id))
    assert source(page) == "recorded"


@contextmanager
def loading(before: Callable[..., None]) -> Iterator[tuple[str, Loader]]:
    """A page of its own whose model is loaded after `before`."""
    loader = Loader(Actor(SCRIPT), before)
    with served(build_demo(loader=loader)) as address:
        yield address, loader


@pytest.fixture(scope="module")
def unloaded() -> Iterator[str]:
    """A page whose model never comes."""
    end = threading.Event()
    try:
        with loading(lambda progress: end.wait()) as (address, _):
            yield address
    finally:
        end.set()


def test_the_first_token_is_seen_within_two_seconds(browser, unloaded):
    with browser.new_context() as context:
        context.add_init_script(FIRST_TOKEN)
        page = context.new_page()
        seconds = []
        for _ in range(4):
            page.goto(unloaded, wait_until="commit")
            seconds.append(page.wait_for_function("window.firstToken").json_value() / SECONDS)
            check_recorded(page, next(iter(EXAMPLES)))
        assert min(seconds[1:]) < WITHIN, seconds  # the first one fetches all that the others have


def test_the_page_says_how_far_the_model_is(browser):
    released = threading.Event()

    def before(progress: Callable[[str, float | None], None]) -> None:
        progress("fetching the weights", 0.25)
        released.wait()

    try:
        with loading(before) as (address, loader), visit(browser, address) as page:
            page.wait_for_selector("#status progress")
            assert page.locator("#status progress").evaluate("bar => bar.value") == 0.25
            assert page.inner_text("#status").split("\n") == ["fetching the weights", "25 %"]
            check_recorded(page, next(iter(EXAMPLES)))
            assert page.locator("#memory .sv-memory-bar").count() == 0
            released.set()
            wait_for_text(page, "tiny actor is ready · float32", within="#status")
            assert page.locator("#status progress").count() == 0
            page.wait_for_selector("#memory .sv-memory-bar")
            assert "✓ Fits: " in page.inner_text("#memory")
            assert loader.calls == 1
    finally:
        released.set()


def test_a_model_that_cannot_be_had_leaves_the_recorded_runs_readable(browser):
    def before(progress: object) -> None:
        raise UserError("The disk is full, so free some space.")

    with loading(before) as (address, loader), visit(browser, address) as page:
        wait_for_text(page, "The disk is full, so free some space.", within="#status [role=alert]")
        assert "The recorded runs can be read without it, and Run tries again." in page.inner_text("#status")
        check_recorded(page, next(iter(EXAMPLES)))
        page.click("#run")
        wait_for_text(page, "The disk is full, so free some space.")
        check_headline_only(page)
        loader.before = lambda progress: None
        settle(page, measure=False)
        page.click("#run")
        page.wait_for_selector("#verdict .sv-pill-live")
        assert loader.calls == 3


def check_headline_only(page: Page) -> None:
    """The error stands above the recorded run, which stays."""
    assert page.inner_text("#verdict .sv-status") == "Below is the run before this one."
    assert tokens(page) == expected.tokens(recorded(next(iter(EXAMPLES))))


def test_every_example_answers_with_its_recorded_run_and_fills_the_form(browser, unloaded):
    titles = {preset.kind: preset.title for preset in next(iter(load_pairings().values())).drafters}
    with visit(browser, unloaded) as page:
        for id, example in reversed(EXAMPLES.items()):
            run = recorded(id)
            page.get_by_role("button", name=example.title, exact=True).click()
            wait_for_flow(page, run)
            check_recorded(page, id)
            assert timeless(saved_trace(page)) == timeless(run)
            assert value(page, "prompt") == example.prompt
            assert page.locator("#drafter .selected").inner_text() == titles[example.drafter]
            numbers = {"gamma": example.gamma, "heat": example.sampler["temperature"], "budget": example.max_new_tokens}
            assert {name: float(value(page, name)) for name in numbers} == numbers
            for name, shown in example.drafter_settings.items():
                if name in ("ngram_min", "ngram_max", "exit_layer"):
                    assert float(value(page, name.replace("_", "-"))) == shown
            assert lines(page)["Run"].startswith(f"{run.run.target} · {titles[example.drafter]}")
            assert page.locator("#status progress").is_visible()  # still no model
            assert not page.locator("#bring-back").is_visible()  # nothing of the visitor's own was replaced
        assert headline(page)[:3] == f"{len(run.tokens) / len(run.steps):.1f}"


def test_an_example_gives_back_the_words_that_it_replaced(browser, unloaded):
    example = EXAMPLES["story"]
    with visit(browser, unloaded) as page:
        settle(page, prompt="words of my own")
        page.get_by_role("button", name=example.title, exact=True).click()
        wait_for_flow(page, recorded("story"))
        assert value(page, "prompt") == example.prompt
        page.click("#bring-back")
        page.wait_for_function("document.querySelector('#prompt textarea').value === 'words of my own'")
        page.wait_for_selector("#bring-back", state="hidden")
        check_recorded(page, "story")


def wait_for_flow(page: Page, run: Trace) -> None:
    text = "".join(text for text, _ in expected.tokens(run))
    page.wait_for_function("text => document.querySelector('.sv-flow').textContent === text", arg=text)


def value(page: Page, name: str) -> Any:
    return field(page, name).input_value()
