"""A real browser for the page's tests: Chromium without a window, which can reach nothing but this machine."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Browser, Error, Page, Playwright

from specviz.ui import launch_options

FLAGS = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
SECONDS = 1000  # Playwright counts in milliseconds


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
def visit(browser: Browser, address: str, query: str = "", width: int = 1280, height: int = 900) -> Iterator[Page]:
    """One visitor with cookies and connections of their own; at the end the console must be clean, and nothing have
    been asked of another machine."""
    context = browser.new_context(viewport={"width": width, "height": height})
    complaints: list[str] = []
    page = context.new_page()
    page.set_default_timeout(20 * SECONDS)
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else complaints.append(r.url))
    try:
        page.goto(address + query)
        page.wait_for_selector(".sv-empty")
        yield page
        assert complaints == []
    finally:
        context.close()


def settle(page: Page, **values: Any) -> None:
    """Set controls by the id of their component."""
    for name, value in values.items():
        if isinstance(value, bool):
            page.locator(f"#{name} input[type=checkbox]").set_checked(value)
        else:
            field = page.locator(f"#{name} :is(textarea, input[type=number])")
            field.fill(str(value))
            field.press("Tab")


def wait_for_steps(page: Page, count: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('.sv-step').length >= {count}")


def wait_for_text(page: Page, text: str, within: str = "#verdict") -> None:
    page.locator(within, has_text=text).first.wait_for()


def run(page: Page, seconds: float = 20) -> None:
    """Press Run and wait until it works again."""
    page.locator("#verdict .sv-headline").evaluate("headline => headline.className += ' old'")
    page.click("#run")
    page.wait_for_selector("#verdict .old", state="detached")
    wait_until_ready(page, seconds)


def wait_until_ready(page: Page, seconds: float = 20) -> None:
    ready = "!document.querySelector('#run').disabled && !document.querySelector('#verdict .sv-busy')"
    page.wait_for_function(ready, timeout=seconds * SECONDS)


def tokens(page: Page) -> list[tuple[str, str]]:
    """(text, kind) of every token in view, in order."""
    script = """tokens => tokens.map(t => [t.textContent, t.className.match(/sv-(\\w+)/g)[1].slice(3)])"""
    return [(text, kind) for text, kind in page.locator(".sv-flow .sv-token").evaluate_all(script)]


def headline(page: Page) -> str:
    return page.locator("#verdict .sv-headline").inner_text()


def wait_until(done: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
