"""A real browser for the page's tests: Chromium without a window, which can reach nothing but this machine."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, Playwright

from specviz import trace
from specviz.trace import Trace
from specviz.ui import launch_options

FLAGS = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
SECONDS = 1000  # Playwright counts in milliseconds
PATIENCE = 30  # seconds; only a page that hangs takes so long, however busy the machine is
FRAMES = """async () => {
  for (let frame = 0; frame < 5; frame += 1) await new Promise(requestAnimationFrame);
}"""
FOLDED = {  # what stands in the accordions, by the accordion's id
    "rules": {"policy", "confidence", "later-confidence", "rule"},
    "sampling": {"seed", "top-k", "top-p", "min-p", "penalty"},
    "stopping": {"template", "stops"},
    "models": {"pairing", "precision"},
}


def launch(playwright: Playwright) -> Browser:
    """The system's Chromium or Chrome, else the one that Playwright brought; fails in one sentence without either."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    try:
        return playwright.chromium.launch(executable_path=found, args=FLAGS)
    except Error as error:
        reason = str(error).splitlines()[0]
    pytest.fail(
        f"No Chromium could be started ({reason}); run `python -m playwright install chromium` "
        "or install your system's chromium package (Debian: apt-get install chromium).",
        pytrace=False,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(demo: gr.Blocks) -> Iterator[str]:
    """The page's address while it is served."""
    try:
        port = free_port()
        demo.launch(server_name="127.0.0.1", server_port=port, prevent_thread_lock=True, **launch_options())
        yield f"http://127.0.0.1:{port}/"
    finally:
        demo.close(verbose=False)


@contextmanager
def visit(
    browser: Browser, address: str, query: str = "", width: int = 1280, height: int = 900, **settings: Any
) -> Iterator[Page]:
    """One visitor with cookies and connections of their own, whose page has been drawn; at the end the console must be
    clean, and nothing have been asked of another machine. settings: of Playwright's context."""
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    complaints: list[str] = []
    try:
        page = watched(context, address, complaints)
        page.goto(address + query)
        wait_until_drawn(page)
        yield page
        assert complaints == []
    finally:
        context.close()


def watched(context: BrowserContext, address: str, complaints: list[str]) -> Page:
    """A tab that notes errors in its console, and requests to other machines, among the complaints."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE * SECONDS)
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else complaints.append(r.url))
    return page


def wait_until_drawn(page: Page) -> None:
    """Every part of the run's view is there, with a recorded run or empty."""
    for part in ("#verdict .sv-result", "#tokens .sv-trace", "#details .sv-result", "#status .sv-model"):
        page.wait_for_selector(part, state="attached")


def unfold(page: Page, accordion: str) -> None:
    """Open it if it is not. What it holds is made only now, and takes its first value some frames later."""
    head = page.locator(f"#{accordion} > .label-wrap")
    if "open" not in (head.get_attribute("class") or "").split():
        head.click()
        page.locator(f"#{accordion} :is(input, textarea)").first.wait_for()
        page.evaluate(FRAMES)


def settle(page: Page, **values: Any) -> None:
    """Set controls by the id of their component, with _ for -; of a radio the choice's words."""
    named = {key.replace("_", "-"): value for key, value in values.items()}
    for accordion, inside in FOLDED.items():
        if inside & named.keys():
            unfold(page, accordion)
    for name, value in named.items():
        if isinstance(value, bool):
            page.locator(f"#{name} input[type=checkbox]").set_checked(value)
        elif page.locator(f"#{name} input[type=radio]").count():
            page.locator(f"#{name} label").get_by_text(value, exact=True).click()
        else:
            field(page, name).fill(str(value))
            field(page, name).press("Tab")


def field(page: Page, name: str) -> Locator:
    return page.locator(f"#{name} :is(textarea, input[type=number])")


def choose_drafter(page: Page, title: str, note: str) -> None:
    """Wait for its note and settings as well, so that they do not overwrite what is set next."""
    settle(page, drafter=title)
    wait_for_text(page, note, within=".sv-ask .sv-note-small")


def run(page: Page) -> None:
    """Press Run and wait until it works again."""
    press(page, "#run")


def run_measured(page: Page) -> None:
    """Run with a race; again, as the page advises, where the machine was too busy for the repeats to agree. They nearly
    always do if an actor's delay is what takes the time."""
    for _ in range(5):
        run(page)
        if "too busy" not in headline(page):
            return
    raise AssertionError(headline(page))


def make_step(page: Page) -> None:
    press(page, "#step")


def press(page: Page, button: str) -> None:
    page.locator("#verdict .sv-headline").evaluate("headline => headline.className += ' old'")
    page.click(button)
    page.wait_for_selector("#verdict .old", state="detached")
    wait_until_ready(page)


def wait_until_ready(page: Page) -> None:
    page.wait_for_function("!document.querySelector('#run').disabled && !document.querySelector('#verdict .sv-busy')")


def wait_for_steps(page: Page, count: int) -> None:
    """A live run has come so far."""
    page.wait_for_function(
        "count => document.querySelector('.sv-pill-live') && document.querySelectorAll('.sv-step').length >= count",
        arg=count,
    )


def wait_for_text(page: Page, text: str, within: str = "#verdict") -> None:
    page.locator(within, has_text=text).first.wait_for()


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def tokens(page: Page) -> list[tuple[str, str]]:
    """(text, kind) of every token in view, in order."""
    script = "tokens => tokens.map(t => [t.textContent, t.className.match(/sv-(\\w+)/g)[1].slice(3)])"
    return [(text, kind) for text, kind in page.locator(".sv-flow .sv-token").evaluate_all(script)]


def headline(page: Page) -> str:
    return page.locator("#verdict .sv-headline").inner_text()


def source(page: Page) -> str:
    """Where the run in view is from, as the pill says."""
    return page.locator("#verdict .sv-pill span").last.inner_text()


def tiles(page: Page) -> dict[str, str]:
    """The figures by their names."""
    script = (
        "tiles => tiles.map(t => ['.sv-tile-name', '.sv-tile-value'].map(part => t.querySelector(part).textContent))"
    )
    return dict(page.locator(".sv-tile").evaluate_all(script))


def lines(page: Page) -> dict[str, str]:
    """The details of the run in view, by their names."""
    script = "lines => lines.map(line => [...line.children].map(part => part.textContent))"
    return dict(page.locator("#details .sv-lines dl > div").evaluate_all(script))


def saved_trace(page: Page) -> Trace:
    """The run in view, as the page saves it."""
    with page.expect_download() as download:
        page.click(".sv-save")
    return trace.read(Path(download.value.path()))


def selected(page: Page) -> set[int]:
    """The step that is selected, counting from 1, as text, strip, player and card have it: one number if they agree."""
    script = """() => {
      const groups = [...document.querySelectorAll(".sv-step")];
      const current = groups.findIndex((group) => group.classList.contains("sv-current"));
      const marker = document.querySelector(".sv-marker");
      const number = (selector) => Number(/step (\\d+)/.exec(document.querySelector(selector).textContent)?.[1]);
      return [
        current + 1,
        Number(document.querySelector(".sv-strip").getAttribute("aria-valuenow")),
        marker.hidden ? 0 : Number(marker.style.getPropertyValue("--sv-index")) + 1,
        number(".sv-place"),
        Number(document.querySelector(".sv-range").value),
        number(".sv-why-where"),
      ];
    }"""
    return set(page.evaluate(script))


def has_focus(page: Page, selector: str) -> bool:
    """Whether the keyboard's focus is on or in such an element."""
    return bool(page.evaluate("selector => document.activeElement.closest(selector) !== null", selector))
