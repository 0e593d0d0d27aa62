"""Who reads or works in another way: with the keyboard alone, a screen reader, less motion, eyes that need contrast."""

from __future__ import annotations

from collections.abc import Iterator

import expected
import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import (
    FOLDED,
    headline,
    run,
    saved_trace,
    selected,
    settle,
    unfold,
    visit,
    wait_for_text,
    wait_until_ready,
)
from playwright.sync_api import Page
from stage import SCRIPT

pytestmark = pytest.mark.browser

PHONE, DESK = 375, 1280  # pixels
THROUGH = 100  # times that Tab is pressed at most; the page has fewer stops


def states(page: Page) -> Iterator[str]:
    """Brings into view whatever a visitor may come to see, and names it."""
    page.wait_for_selector("#histogram .js-plotly-plot")
    yield "a recorded run"
    settle(page, prompt=SCRIPT, budget=40)
    run(page)
    page.wait_for_selector(".sv-race-play")
    page.locator(".sv-flow .sv-rejected").first.click()
    yield "a run with its race, and why a token was rejected"
    page.locator(".sv-tile").first.click()
    page.wait_for_selector(".sv-meaning")
    yield "the meaning of a figure"
    for accordion in FOLDED:
        unfold(page, accordion)
    for summary in page.locator("summary").all():
        summary.click()
    yield "all that was folded"
    settle(page, seed=0.5)
    run(page)
    wait_for_text(page, "The seed is 0.5")
    yield "an error"


# --- rules of accessibility ----------------------------------------------------------------------------------


def broken_rules(page: Page) -> set[tuple[str, str]]:
    """(rule, element) of what hinders a visitor seriously; nothing is excused, not even in Gradio's own parts."""
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
    # Until a figure is drawn, Gradio shows a placeholder whose ARIA is not in order.
    page.wait_for_function("document.querySelectorAll('.sv-chart .js-plotly-plot').length === 3")
    return {
        (rule["id"], str(node["target"]))
        for rule in Axe().run(page).response["violations"]
        for node in rule["nodes"]
        if node["impact"] in ("serious", "critical")
    }


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(browser, stage, theme, width):
    address, _, _ = stage
    with visit(browser, address, f"?__theme={theme}", width=width) as page:
        for state in states(page):
            assert broken_rules(page) == set(), state


def test_a_broken_rule_would_be_found(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        page.evaluate("""() => {
          const wrong = document.createElement("div");
          wrong.innerHTML = "<button id='nameless'></button><p id='pale' style='color: #bbb'>pale words</p>";
          document.querySelector("#verdict .sv-result").append(wrong);
        }""")
        assert broken_rules(page) == {("button-name", "['#nameless']"), ("color-contrast", "['#pale']")}


# --- motion --------------------------------------------------------------------------------------------------

MOTION = """() => {
  window.moved = new Set();
  const look = () => {
    for (const {effect} of document.getAnimations()) moved.add(effect.target.outerHTML.slice(0, 100));
    requestAnimationFrame(look);
  };
  look();
}"""


def test_nothing_moves_for_who_wants_less_motion(browser, stage):
    address, _, _ = stage
    with visit(browser, address, reduced_motion="reduce") as page:
        page.evaluate(MOTION)
        for state in states(page):
            for play in (".sv-play", ".sv-race-play"):
                page.click(play)
                page.click(play)
            page.hover("#run")
            page.hover(".sv-chip >> nth=0")
            assert page.evaluate("[...moved]") == [], state


def test_what_moves_would_be_seen(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        page.evaluate(MOTION)
        page.hover(".sv-chip >> nth=0")  # Gradio fades it
        page.wait_for_function("[...moved].some((html) => html.includes('sv-chip'))")


# --- the keyboard alone --------------------------------------------------------------------------------------

# The outlines and shadows that mark the element with the focus, or its label: now, and of the one before it, by now.
RINGS = """() => {
  const rings = (element) => [element, element.closest("label")].filter(Boolean).map((each) => {
    const {outlineStyle, outlineWidth, outlineColor, boxShadow} = getComputedStyle(each);
    return outlineStyle === "none" ? boxShadow : `${outlineStyle} ${outlineWidth} ${outlineColor} ${boxShadow}`;
  }).join(" / ");
  const before = window.hadFocus && rings(hadFocus);
  window.hadFocus = document.activeElement;
  return [hadFocus.outerHTML.slice(0, 100), rings(hadFocus), before];
}"""


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until that element has the focus; wherever it comes by, a ring appears, and goes again."""
    ring = None
    for _ in range(THROUGH):
        page.keyboard.press("Tab")
        element, next_ring, faded = page.evaluate(RINGS)
        assert "solid 2px" in next_ring, element
        assert ring is None or faded != ring, f"before {element}"
        ring = next_ring
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never came to {selector}")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_keyboard_alone_is_enough(browser, stage, width):
    address, _, _ = stage
    with visit(browser, address, width=width, reduced_motion="reduce") as page:  # so that rings are there at once
        tab_to(page, "#run")
        press(page, "Enter")
        page.wait_for_selector(".sv-pill-live")
        wait_until_ready(page)
        page.wait_for_function("document.activeElement.id === 'run'")

        tab_to(page, ".sv-tile")
        press(page, "Enter")
        assert page.inner_text(".sv-meaning").startswith("tokens per pass: ")
        press(page, "Escape")
        assert page.locator(".sv-meaning").is_hidden()

        tab_to(page, ".sv-flow .sv-token")
        press(page, "Home", "ArrowDown")
        assert selected(page) == {2}
        press(page, "ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft")
        assert selected(page) == {2}
        press(page, "End")
        count = page.locator(".sv-step").count()
        assert selected(page) == {count} and count > 5
        assert page.evaluate("document.activeElement.matches('.sv-selected')")

        tab_to(page, ".sv-strip")
        press(page, "Home", "ArrowRight", "ArrowRight")
        assert selected(page) == {3}

        tab_to(page, ".sv-play")
        press(page, "Enter")
        page.wait_for_function("/step [4-9] /.test(document.querySelector('.sv-place').textContent)")
        press(page, "Enter")
        assert page.inner_text(".sv-play") == "Play"

        tab_to(page, ".sv-race-play")
        press(page, "Enter")
        page.wait_for_function("document.querySelector('.sv-race-play').textContent === 'Pause'")
        page.wait_for_function(
            "document.querySelector('.sv-race-play').textContent === 'Play'"
        )  # at the end of the race


# --- a screen reader -----------------------------------------------------------------------------------------

SAID = """() => {
  window.said = [];
  for (const region of document.querySelectorAll("[role=status], [role=alert], [aria-live=polite]")) {
    const {id} = region.closest("#verdict, #tokens, #status, #race, #details") || region;
    const say = () => region.textContent && said.push([id, region.textContent]);
    new MutationObserver(say).observe(region, {childList: true, characterData: true, subtree: true});
  }
}"""


def test_a_screen_reader_hears_the_outcome_once_and_can_read_each_step(browser, stage):
    address, actor, _ = stage
    actor.delay = 0.01  # so that there are many updates
    with visit(browser, address) as page:
        settle(page, prompt="Tell me.", budget=24)
        page.evaluate(SAID)
        run(page)
        said = page.evaluate("said")
        assert [name for name, _ in said] == ["tokens", "tokens", "verdict"]  # nothing for each token, or each repeat
        assert said[0][1].startswith("Choose a token in the text")
        assert said[1][1] == page.inner_text(".sv-why-sentence")
        assert said[2][1].startswith(headline(page)) and "Output identical to plain decoding: all 24" in said[2][1]
        steps = page.locator(".sv-step[role=group]").evaluate_all("steps => steps.map((step) => step.ariaLabel)")
        assert steps == [expected.sentence(step) for step in saved_trace(page).steps] and len(steps) > 10
        settle(page, seed=0.5)
        run(page)
        assert page.evaluate("said.at(-1)") == [
            "verdict",
            "The seed is 0.5; give a whole number from 0 to 2,147,483,647.",
        ]
