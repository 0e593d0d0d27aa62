"""What can be measured of how the page looks: contrast, width and order."""

from __future__ import annotations

import pytest
from browser import run, settle, visit
from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(browser, stage, theme):
    address, _, _ = stage
    with visit(browser, address, f"?__theme={theme}") as page:
        settle(page, budget=40)
        run(page)
        token = page.locator(".sv-step .sv-accepted .sv-body").first
        tint = {"light": "rgb(179, 217, 242)", "dark": "rgb(11, 79, 120)"}[theme]
        assert token.evaluate("e => getComputedStyle(e).backgroundColor") == tint
        words = ".sv-step .sv-body", ".sv-legend li", ".sv-headline span", ".sv-status", "dt", "dd", "summary"
        for text in words:
            for element in page.locator(text).all()[:12]:
                if element.is_visible():
                    assert contrast(element.evaluate(COLOURS)) >= 4.5, text


COLOURS = """element => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  let behind = element;
  while (behind.parentElement && rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  return [rgb(getComputedStyle(element).color), rgb(getComputedStyle(behind).backgroundColor)];
}"""


def contrast(colours: list[list[float]]) -> float:
    """The ratio that the accessibility guidelines (WCAG 2.2) define, 1 to 21."""

    def luminance(rgb: list[float]) -> float:
        shares = [value / 255 for value in rgb[:3]]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def is_as_wide_as_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_phone_shows_prompt_run_and_settings_in_this_order_without_sideways_scrolling(browser, stage):
    address, actor, _ = stage
    actor.play("a" * 200)
    with visit(browser, address, width=375, height=812) as page:
        assert is_as_wide_as_the_screen(page)
        settle(page, budget=120, measure=False)
        run(page)
        assert is_as_wide_as_the_screen(page)
        parts = "#prompt", "#run", "#verdict", "#tokens", "#pairing"
        tops = [page.locator(part).bounding_box()["y"] for part in parts]
        assert tops == sorted(tops)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_keyboards_place_is_visible_and_so_is_the_text_of_the_chart(browser, stage, theme):
    address, _, _ = stage
    with visit(browser, address, f"?__theme={theme}") as page:
        settle(page, budget=40, measure=False)
        run(page)
        for words in page.locator("#chart svg text").all():
            if words.is_visible() and words.text_content():
                fill = words.evaluate(COLOURS.replace("(element).color", "(element).fill"))
                assert contrast(fill) >= 4.5, words.text_content()
        page.click("label:has-text('Early exit')")
        page.wait_for_selector("text=Exit after layer")
        page.focus("#prompt textarea")
        seen = set()
        for _ in range(36):
            page.keyboard.press("Tab")
            where, outline = page.evaluate(FOCUSED)
            if where:
                seen.add(where)
                assert outline == "solid", where
        assert {"run", "drafter", "seed"} <= seen
        page.wait_for_timeout(300)
        assert page.locator("#drafter .selected").inner_text() == "Early exit"  # passing by the pairing changes nothing


FOCUSED = """() => {
  const element = document.activeElement;
  const place = element.closest("#prompt, #run, #drafter, #seed");
  const style = getComputedStyle(element.type === "radio" ? element.closest("label") : element);
  return [place && place.id, style.outlineStyle];
}"""
