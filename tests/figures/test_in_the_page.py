"""The figures as gr.Plot draws them in a browser: whole, legible and as wide as their cards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr
import pytest
from browser import served
from drafts import compared, drafted
from playwright.sync_api import Browser, Page
from traces import trace

from specviz.figures import histogram, survival, time_share

pytestmark = pytest.mark.browser

RUNS = [drafted(1, steps=500), drafted(5, undrafted=3), drafted(8, steps=240), drafted(16, undrafted=120), trace()]
COSTS = [compared(), compared(0.2, 3.6), compared(1.31, 1.1, draft_s=0.2613), compared(0.0006, 3.6, 0.00005), None]
FIGURES = 3 * len(RUNS)
NARROW, WIDE = 255, 345  # pixels within a card


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with gr.Blocks(analytics_enabled=False) as demo, gr.Tabs():
        for tab in ("First", "Second"):
            with gr.Tab(tab):
                for run, comparison in zip(RUNS, COSTS, strict=True):
                    figures = (
                        histogram.plot(histogram.info(run)),
                        survival.plot(survival.info(run)),
                        time_share.plot(time_share.info(comparison, run)),
                    )
                    for figure in figures:
                        gr.Plot(figure, show_label=False, elem_classes=["sv-card", "sv-chart"], buttons=[])
    with served(demo) as found:
        yield found


@contextmanager
def cards(browser: Browser, address: str, width: int, theme: str = "light") -> Iterator[Page]:
    """The figures below each other, each `width` pixels wide; at the end the console must be clean."""
    page = browser.new_page(viewport={"width": 800, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else complaints.append(r.url))
    try:
        page.goto(f"{address}?__theme={theme}")
        page.wait_for_function("document.querySelectorAll('.gtitle').length >= " + str(FIGURES))
        resize(page, width)
        yield page
        assert complaints == []
    finally:
        page.close()


def resize(page: Page, width: int) -> None:
    page.add_style_tag(content=f".sv-chart.sv-card {{ width: {width}px; box-sizing: content-box; }}")
    page.evaluate("dispatchEvent(new Event('resize'))")
    wait_for_figures(page, width)


def wait_for_figures(page: Page, width: int) -> None:
    """Until all figures of the tab in view are as wide as their cards."""
    page.wait_for_function(f"""() => {{
      const plots = [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.clientWidth);
      const drawn = plots.filter((plot) => plot.querySelector(".main-svg")?.clientWidth === {width});
      return plots.length === {FIGURES} && drawn.length === {FIGURES};
    }}""")


@pytest.mark.parametrize("width", [NARROW, 280, WIDE])
def test_no_text_is_cut_or_lies_on_another(browser, address, width):
    with cards(browser, address, width) as page:
        assert page.evaluate(SPOILT) == []
        page.add_style_tag(content=".js-plotly-plot svg text { font-size: 20px !important; }")
        assert len(page.evaluate(SPOILT)) > 20  # so it would have been noticed


# Texts that leave their figure, and pairs of texts that touch; a pixel is left to rounding.
SPOILT = """() => [...document.querySelectorAll(".js-plotly-plot")].filter(e => e.clientWidth).flatMap((plot) => {
  const edge = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll("svg text")]
    .map((text) => [text.textContent, text.getBoundingClientRect()])
    .filter(([words, box]) => words && box.width);
  const outside = texts.filter(([, box]) =>
    box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1);
  const touching = texts.flatMap(([words, box], index) => texts.slice(index + 1)
    .filter(([, other]) => Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1
      && Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 3)
    .map(([others]) => [words, others]));
  return [...outside.map(([words]) => words), ...touching];
})"""


@pytest.mark.parametrize(("theme", "ink", "muted"), [("light", "#16181d", "#5b6170"), ("dark", "#eceef2", "#a3aabb")])
def test_the_page_colours_texts_and_marks(browser, address, theme, ink, muted):
    def paints(parts: str, attribute: str) -> set[str]:
        found = page.locator(parts).evaluate_all(f"all => all.map(e => getComputedStyle(e).{attribute})")
        assert len(found) >= 8, parts
        return set(found)

    with cards(browser, address, 300, theme) as page:
        assert paints(".gtitle, .bartext, .annotation text, .legendtext", "fill") == {rgb(ink)}
        assert paints(".gtitle-subtitle, .xtick text, .ytick text, .xtitle, .ytitle", "fill") == {rgb(muted)}
        assert paints(".scatterlayer path.point, .scatterlayer path.js-line", "stroke") == {rgb(ink)}
        assert paints(".legendlines path, .legendpoints path.scatterpts", "stroke") == {rgb(ink)}


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


def test_a_figure_follows_its_card_and_nothing_lies_over_it(browser, address):
    with cards(browser, address, WIDE) as page:
        resize(page, NARROW)
        resize(page, WIDE)
        heights = page.locator(".js-plotly-plot").evaluate_all("all => all.map(e => e.clientHeight).filter(Boolean)")
        assert set(heights) == {230}
        page.locator(".js-plotly-plot").first.hover()
        assert not any(bar.is_visible() for bar in page.locator(".modebar").all())


def test_a_figure_in_a_tab_that_was_hidden_has_its_cards_width(browser, address):
    with cards(browser, address, 300) as page:
        page.get_by_role("tab", name="Second").click()
        page.locator(".js-plotly-plot").last.wait_for(state="visible")
        page.locator(".js-plotly-plot").first.wait_for(state="hidden")
        wait_for_figures(page, 300)


def test_the_pointer_reads_a_whole_column_in_words_that_fit(browser, address):
    with cards(browser, address, NARROW) as page:
        plot = page.locator(".js-plotly-plot", has_text="Survival by draft position").nth(1)
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + NARROW - 20, box["y"] + 95, steps=3)  # high above the last bar
        page.wait_for_selector(".hovertext")
        words = plot.locator(".hovertext")
        assert words.text_content().startswith("draft position 5")
        edge = words.bounding_box()
        assert box["x"] <= edge["x"] and edge["x"] + edge["width"] <= box["x"] + NARROW + 1
        assert plot.locator(".axistext").count() == 0
