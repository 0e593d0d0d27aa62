"""What can be measured of how the page looks: contrast, width, order and sizes."""

from __future__ import annotations

import pytest
from browser import FRAMES, choose_drafter, has_focus, run, run_measured, settle, unfold, visit
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

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


def faint(page: Page) -> list[tuple[str, str, float]]:
    """(theme, text, contrast) of texts that are hard to read. The page changes from one theme to the other."""
    found = []
    for theme in ("light", "dark"):
        page.evaluate("isDark => document.body.classList.toggle('dark', isDark)", theme == "dark")
        page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
        ratios = [(theme, text.strip(), contrast(colour, behind)) for text, colour, behind in page.evaluate(TEXTS)]
        assert len(ratios) > 100
        found += [each for each in ratios if each[2] < LEAST_CONTRAST]
    return found


def unfold_all(page: Page) -> None:
    for accordion in ACCORDIONS:
        unfold(page, accordion)
    for summary in page.locator("details > summary").all():
        summary.click()
    page.locator("button.sv-tile").first.click()


def test_what_is_pale_or_sticks_out_or_is_small_is_found(browser, stage):
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    address, _, _ = stage
    with visit(browser, address) as page:
        name = page.locator(".sv-tile-name").first
        name.evaluate("name => { name.style.color = '#777'; }")
        on_white, on_dark = pytest.approx(4.48, abs=0.01), pytest.approx(3.68, abs=0.01)
        assert faint(page) == [("light", "tokens per pass", on_white), ("dark", "tokens per pass", on_dark)]
        assert sideways(page) == [] and small(page) == []
        name.evaluate("name => { name.style.width = '2000px'; }")
        assert sideways(page)[0] == "SPAN sv-tile-name"
        page.locator("#run").evaluate("run => { run.style.height = '20px'; }")
        assert [each.split()[-1] for each in small(page)] == ["20"]


def test_all_text_has_contrast_in_both_themes(browser, stage):
    address, actor, _ = stage
    actor.play(SCRIPT, delay=0.01)
    with visit(browser, address, "?__theme=dark") as page:
        assert page.evaluate("document.body.classList.contains('dark')")
        accepted = page.locator(".sv-flow .sv-accepted .sv-body").first
        assert accepted.evaluate("token => getComputedStyle(token).backgroundColor") == "rgb(11, 79, 120)"
        page.wait_for_selector("#time_share .main-svg")
        assert faint(page) == []
        settle(page, prompt="to be or not to be", stops="; to be o")
        run_measured(page)
        unfold_all(page)
        kinds = set()
        page.press(".sv-strip", "Home")
        for _ in range(page.locator(".sv-step").count()):
            for chip in page.locator(".sv-why-chip").all():
                kind = (chip.get_attribute("title") or "").split(",")[0]
                if kind not in kinds:
                    chip.press("Enter")
                    kinds.add(kind)
                    assert faint(page) == [], kind
            page.press(".sv-strip", "ArrowRight")
        assert kinds == {"accepted", "rejected", "untested", "cut", "correction", "bonus", "plain"}
        page.press(".sv-race-player-slider", "Home")
        assert faint(page) == []
        settle(page, prompt=" ")
        run(page)  # an error
        assert faint(page) == []


def test_the_cards_of_a_sampled_run_have_contrast(browser, stage):
    address, actor, _ = stage
    actor.play(None)
    with visit(browser, address) as page:
        choose_drafter(page, "Early exit", "24 of 30 layers")
        settle(page, exit_layer=3, gamma=3, heat=1, seed=4, prompt="to be", measure=False)
        run(page)
        for kind in ("rejected", "accepted"):  # their cards show the draw
            page.locator(f".sv-flow .sv-{kind}").first.click()
            assert page.locator(".sv-why-scale").count() == 1
            assert faint(page) == [], kind


def sideways(page: Page) -> list[str]:
    """What sticks out of the screen to the right, other than in a pane that scrolls or cuts for itself."""
    script = """() => {
      const isOut = (each) => each.getBoundingClientRect().right > innerWidth + 1;
      const isPane = (each) => getComputedStyle(each).overflowX !== "visible" && !isOut(each);
      const isHeld = (each) => !each.matches(".gradio-container") && (isPane(each) || isHeld(each.parentElement));
      return [...document.querySelectorAll(".gradio-container *")]
        .filter((each) => isOut(each) && each.checkVisibility() && !isHeld(each.parentElement))
        .map((each) => `${each.tagName} ${each.getAttribute("class")}`)
        .concat(document.documentElement.scrollWidth > innerWidth ? ["page"] : []);
    }"""
    found: list[str] = page.evaluate(script)
    return found


def small(page: Page) -> list[str]:
    """Controls that a finger misses."""
    script = """least => [...document.querySelectorAll(
        ".gradio-container :is(button, summary, select, input, textarea, [role=slider])")]
      .filter((each) => each.checkVisibility({visibilityProperty: true}) && !each.closest("[aria-hidden=true]"))
      .map((each) => each.matches("input[type=radio], input[type=checkbox]") ? each.closest("label") : each)
      .filter((each) => Math.min(each.offsetWidth, each.offsetHeight) < least)
      .map((each) => `${each.tagName} ${each.className} ${each.offsetWidth} x ${each.offsetHeight}`)"""
    found: list[str] = page.evaluate(script, SMALLEST)
    return found


def test_a_phone_shows_everything_in_order_and_never_scrolls_sideways(browser, stage):
    address, actor, _ = stage
    actor.play(SCRIPT + " " + "a" * 50, delay=0.01)
    with visit(browser, address, width=375, height=812, has_touch=True) as page:
        assert sideways(page) == []
        parts = "#prompt", "#run", "#verdict", "#tokens .sv-flow", ".sv-why", ".sv-strip", "#gamma", "#memory"
        assert_in_order(page, *parts)
        settle(page, prompt="to be or not to be", budget=100)
        run_measured(page)
        assert 0 <= page.locator("#verdict").bounding_box()["y"] < 400  # Run leads there
        assert sideways(page) == []
        assert_in_order(page, *parts)
        unfold_all(page)
        assert sideways(page) == [] and small(page) == []
        assert page.locator(".sv-key dd").first.bounding_box()["width"] > 150  # beside no button
        cut = "boxes => boxes.filter((box) => getComputedStyle(box).overflow !== 'visible').length"
        assert page.locator(".sv-settings .tab-like-container").evaluate_all(cut) == 0  # each has a number's ring
        page.press(".sv-strip", "Home")
        for _ in range(8):
            page.press(".sv-strip", "ArrowRight")
            assert sideways(page) == []
        page.press(".sv-race-player-slider", "Home")
        assert sideways(page) == []
        page.click("#follow-up")
        page.wait_for_selector("#conversation dd")
        settle(page, prompt=" ")
        run(page)
        assert sideways(page) == []


def assert_in_order(page: Page, *parts: str) -> None:
    """From top to bottom."""
    script = "parts => parts.map(part => document.querySelector(part).getBoundingClientRect().top)"
    tops = page.evaluate(script, parts)
    assert tops == sorted(tops)


def test_no_width_scrolls_sideways(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        unfold_all(page)
        page.wait_for_selector("#time_share .main-svg")
        for width in (1920, 1024, 861, 768, 320):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("document.querySelector('#time_share .main-svg').clientWidth < innerWidth")
            page.evaluate(FRAMES)
            assert sideways(page) == [], width


def test_passing_by_with_the_keyboard_changes_nothing(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        choose_drafter(page, "Early exit", "24 of 30 layers")
        unfold(page, "models")
        before, asked = form(page), set()
        page.on("request", lambda request: asked.add(request) if request.method == "POST" else None)
        page.on("requestfinished", lambda request: asked.discard(request))
        page.focus("#prompt textarea")
        while not has_focus(page, "#precision"):
            page.keyboard.press("Tab")
        page.evaluate(FRAMES)
        while asked:  # what the server has answered could still change something
            page.evaluate(FRAMES)
        assert form(page) == before and before["drafter"] == "Early exit"


def form(page: Page) -> dict[str, str]:
    """What every control is set to."""
    script = """fields => Object.fromEntries(fields.flatMap((field) => {
      const name = field.closest("[id]:not(input, textarea)").id;
      if (field.type !== "radio" && field.type !== "checkbox") return [[name, field.value]];
      return field.checked ? [[name, field.closest("label").innerText]] : [];
    }))"""
    settings: dict[str, str] = page.locator(":is(.sv-ask, .sv-settings) :is(input, textarea)").evaluate_all(script)
    return settings
