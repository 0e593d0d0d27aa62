"""Every tab of the whole page: it opens, its charts are drawn, nothing is cut off, no rule of accessibility broken."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import visit
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

CHARTS = {"Workloads": 5, "Golden": 4, "Memory": 1, "Batch": 2, "Production": 0}
PHONE, DESK = 375, 1280  # pixels


def open_tab(page: Page, name: str) -> None:
    """By its button, or from the menu that holds those which do not fit."""
    shown = page.get_by_role("tab", name=name, exact=True).first
    if not shown.is_visible():
        page.locator("button.overflow-menu, .overflow-menu button").first.click()
        page.locator(".overflow-dropdown button", has_text=name).click()
    else:
        shown.click()
    page.wait_for_function(
        "(count) => [...document.querySelectorAll('.sv-chart .js-plotly-plot')]"
        ".filter((each) => each.checkVisibility()).length === count",
        arg=CHARTS[name],
    )
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")


@pytest.mark.parametrize(("width", "theme"), [(DESK, "light"), (PHONE, "dark")])
def test_every_tab_opens_whole_and_keeps_the_rules(browser, stage, width, theme):
    address, _, _ = stage
    with visit(browser, address, f"?__theme={theme}", width=width) as page:
        for name in CHARTS:
            open_tab(page, name)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            broken = [
                (rule["id"], str(node["target"]))
                for rule in Axe().run(page).response["violations"]
                for node in rule["nodes"]
                if node["impact"] in ("serious", "critical")
            ]
            assert broken == [], name


def test_what_a_chart_shows_is_one_press_away(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        for name in ("Explore", *CHARTS):
            if name != "Explore":
                open_tab(page, name)
            for fold in page.locator(".sv-definition").all():
                if not fold.is_visible():
                    continue
                assert not fold.locator("p").is_visible()
                fold.locator("summary").click()
                assert len(fold.locator("p").inner_text()) > 60
            folds = [fold for fold in page.locator(".sv-definition").all() if fold.is_visible()]
            charts = [chart for chart in page.locator(".sv-chart").all() if chart.is_visible()]
            assert len(folds) == len(charts), f"{name}: every chart has its definition"
