"""What can be measured of how the page looks: contrast, width, order, sizes, and where the keyboard is."""

from __future__ import annotations

import pytest
from browser import choose_drafter, run, settle, unfold, visit
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
ACCORDIONS = ("sampling", "stopping", "models")
SCRIPT = "to be or not to be; to be or not to be"
LEAST_CONTRAST = 4.5
SMALLEST = 24  # pixels that a control has at least in both directions, for fingers

# [text, colour of the text, colour behind it] of all text that can be seen; colours as [red, green, blue], 0 to 255.
# What is turned off may be pale. Behind a text lie the colours of its ancestors, a gradient's worst one among them.
TEXTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([...top], below) => below.map((value, place) => top[3] * top[place] + (1 - top[3]) * value);
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    return over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const shown = [];
  const walker = document.createTreeWalker(document.querySelector(".gradio-container"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const isSeen = element.checkVisibility({visibilityProperty: true, opacityProperty: true});
    if (!node.data.trim() || !isSeen || element.closest(":disabled, script, style, option, .sv-spoken")) continue;
    const range = document.createRange();
    range.selectNode(node);
    if (!range.getBoundingClientRect().width) continue;
    const style = getComputedStyle(element);
    const isDrawing = element instanceof SVGElement;
    const under = behind(isDrawing ? element.closest("svg").parentElement : element);
    shown.push([node.data, over(rgba(isDrawing ? style.fill : style.color), under), under]);
  }
  return shown;
}"""


def contrast(*colours: list[float]) -> float:
    """The ratio that the accessibility guidelines (WCAG 2.2) define, 1 to 21."""

    def luminance(rgb: list[float]) -> float:
        shares = [value / 255 for value in rgb]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def faint(page: Page) -> dict[str, float]:
    """Texts that are hard to read, and their contrast."""
    ratios = [(text.strip(), contrast(colour, behind)) for text, colour, behind in page.evaluate(TEXTS)]
    assert len(ratios) > 100
    return {text: ratio for text, ratio in ratios if ratio < LEAST_CONTRAST}


def unfold_all(page: Page) -> None:
    for accordion in ACCORDIONS:
        unfold(page, accordion)
    for summary in page.locator("details:not([open]) > summary").all():
        summary.click()
    page.locator("button.sv-tile").first.click()


def test_the_contrast_is_measured_as_the_guidelines_say():
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)


@THEMES
def test_all_text_has_contrast_in_both_themes(browser, stage, theme):
    address, actor, _ = stage
    actor.play(SCRIPT)
    with visit(browser, address, f"?__theme={theme}") as page:
        page.wait_for_selector("#time_share .main-svg")
        assert faint(page) == {}
        settle(page, prompt="to be or not to be", stops="; to be o")
        run(page)
        unfold_all(page)
        token = page.locator(".sv-flow .sv-accepted .sv-body").first
        tint = {"light": "rgb(179, 217, 242)", "dark": "rgb(11, 79, 120)"}[theme]
        assert token.evaluate("token => getComputedStyle(token).backgroundColor") == tint
        page.wait_for_selector("#time_share .main-svg")
        kinds = set()
        page.press(".sv-strip", "Home")
        for _ in range(page.locator(".sv-step").count()):
            for chip in page.locator(".sv-why-chip").all():
                kind = (chip.get_attribute("title") or "").split(",")[0]
                if kind not in kinds:
                    chip.press("Enter")
                    kinds.add(kind)
                    assert faint(page) == {}, kind
            page.press(".sv-strip", "ArrowRight")
        assert kinds == {"accepted", "rejected", "untested", "cut", "correction", "bonus", "plain"}
        page.press(".sv-race-player-slider", "Home")
        assert faint(page) == {}
        settle(page, prompt=" ")
        run(page)  # an error
        assert faint(page) == {}


@THEMES
def test_the_empty_page_and_the_first_steps_have_contrast(browser, stage, theme):
    address, actor, _ = stage
    actor.play(None)
    with visit(browser, address, f"?__theme={theme}") as page:
        choose_drafter(page, "Early exit", "24 of 30 layers")
        settle(page, exit_layer=3, gamma=3, heat=1, seed=4, prompt="to be", measure=False)
        run(page)  # a sampled run: its cards show the draw
        for kind in ("rejected", "accepted"):
            page.locator(f".sv-flow .sv-{kind}").first.click()
            assert page.locator(".sv-why-scale").count() == 1
            assert faint(page) == {}, kind


def sideways(page: Page) -> list[str]:
    """What sticks out of the screen to the right, if anything makes the page scroll."""
    script = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
      .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
      .map((each) => `${each.tagName} ${each.className}`)"""
    found: list[str] = page.evaluate(script)
    return found


def small(page: Page) -> list[str]:
    """Controls that a finger misses."""
    script = """least => [...document.querySelectorAll(
        ".gradio-container :is(button, summary, select, input, textarea, [role=slider])")]
      .filter((each) => each.checkVisibility({visibilityProperty: true}))
      .map((each) => each.matches("input[type=radio], input[type=checkbox]") ? each.closest("label") : each)
      .filter((each) => Math.min(each.offsetWidth, each.offsetHeight) < least)
      .map((each) => `${each.tagName} ${each.className} ${each.offsetWidth} x ${each.offsetHeight}`)"""
    found: list[str] = page.evaluate(script, SMALLEST)
    return found


def test_a_phone_shows_everything_in_order_and_never_scrolls_sideways(browser, stage):
    address, actor, _ = stage
    actor.play(SCRIPT + " " + "a" * 150)
    with visit(browser, address, width=375, height=812, has_touch=True) as page:
        assert sideways(page) == []
        parts = "#prompt", "#run", "#verdict", "#tokens .sv-flow", ".sv-why", ".sv-strip", "#gamma", "#memory"
        assert tops(page, *parts) == sorted(tops(page, *parts))
        settle(page, prompt="to be or not to be", budget=200)
        run(page)
        assert sideways(page) == [] and page.locator("#race").is_visible()
        assert tops(page, *parts) == sorted(tops(page, *parts))
        unfold_all(page)
        assert sideways(page) == [] and small(page) == []
        page.press(".sv-strip", "Home")
        for _ in range(8):
            page.press(".sv-strip", "ArrowRight")
            assert sideways(page) == []
        page.press(".sv-race-player-slider", "Home")
        assert sideways(page) == []
        page.click("#follow-up")
        page.wait_for_selector(".sv-earlier dd")
        settle(page, prompt=" ")
        run(page)
        assert sideways(page) == []


def tops(page: Page, *parts: str) -> list[float]:
    return [page.locator(part).first.bounding_box()["y"] for part in parts]


@pytest.mark.parametrize("width", [320, 768, 1024, 1920])
def test_no_width_scrolls_sideways(browser, stage, width):
    address, _, _ = stage
    with visit(browser, address, width=width) as page:
        unfold_all(page)
        page.wait_for_selector("#time_share .main-svg")
        assert sideways(page) == []


@THEMES
def test_the_keyboards_place_is_always_visible_and_passing_by_changes_nothing(browser, stage, theme):
    address, _, _ = stage
    with visit(browser, address, f"?__theme={theme}") as page:
        choose_drafter(page, "Early exit", "24 of 30 layers")
        unfold_all(page)
        page.focus("#prompt textarea")
        seen = set()
        for _ in range(100):
            page.keyboard.press("Tab")
            place, outline, width = page.evaluate(FOCUSED)
            seen.add(place)
            assert place is None or (outline == "solid" and width >= 2), place
        parts = {"run", "step", "drafter", "sampling", "seed", "pairing", "tokens", "race", "details", "verdict"}
        assert parts <= seen
        assert page.locator("#drafter .selected").inner_text() == "Early exit"  # passing by the pairing changes nothing


FOCUSED = """() => {
  const element = document.activeElement;
  const parts = ["prompt", "run", "step", "drafter", "seed", "pairing", "sampling", "verdict", "tokens", "race", "details"];
  const place = element.closest(parts.map((part) => `#${part}`).join(", "));
  const style = getComputedStyle(element.type === "radio" ? element.closest("label") : element);
  return [place && place.id, style.outlineStyle, parseFloat(style.outlineWidth)];
}"""
