"""2,000 streamed tokens: the page is never busy for long, never behind the server, and gets only what is new."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import httpx
import pytest
from browser import lines, run, served, settle, visit
from playwright.sync_api import Browser, Page
from stage import FORM, Actor, Loader

from specviz.ui import build_demo, form

pytestmark = pytest.mark.browser

TOKENS = 2000
LONG = 50.0  # milliseconds: a longer task keeps the page from answering for longer than a reader overlooks
BEHIND = 1.0  # seconds from the server's last pass until all of it is in view
GROWTH = 1.3  # bytes per step in the last quarter of the run, over those in the first
ATTEMPTS = 3  # something else may keep the machine busy
LINE = 14  # words

VOCABULARY = (
    "a and boats bridge every from harbour house is keeper lamp letter light morning near of old one quiet river sea "
    "she small stone that the then there under walks wall which wind with"
)
WORDS = tuple(f" {word}" for word in VOCABULARY.split())  # each one token


def phrases() -> list[list[str]]:
    rng = Random(3)
    return [[rng.choice(WORDS) for _ in range(rng.randint(2, 6))] for _ in range(20)]


PHRASES = phrases()
PROMPT = "".join(word for phrase in PHRASES for word in phrase)  # so that there is as much to copy at the beginning


def prose(line: int | None) -> str:
    """2,000 tokens and a few, four fifths of the parts phrases of the prompt. line: words in one, None without end."""
    rng = Random(4)
    words: list[str] = []
    place = 0
    while len(words) <= TOKENS:
        part = rng.choice(PHRASES) if rng.random() < 0.8 else [rng.choice(WORDS)]
        words += part
        place += len(part)
        if line is not None and place >= line:
            words.append("\n")
            place = 0
    return "".join(words)


class Clocked(Actor):
    """Knows when its last verify pass was over."""

    last = 0.0  # seconds since the epoch

    def verify(self, *args: Any) -> Any:
        verified = super().verify(*args)
        self.last = time.time()
        return verified


@pytest.fixture(scope="module")
def long_stage() -> Iterator[tuple[str, Clocked]]:
    """The address of a page that allows 2,000 tokens, and the actor behind it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "MAX_TOKENS", TOKENS)
        actor = Clocked(tokens=WORDS)
        with served(build_demo(loader=Loader(actor))) as address:
            yield address, actor


# --- in the browser ------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A task of the page's main thread, in milliseconds."""

    start: float
    busy: float  # of the processor: what other programs took of the machine in between is not the page's doing


class Watched(NamedTuple):
    """What went on in the page's main thread."""

    tasks: list[Task]
    updates: list[float]  # milliseconds on the tasks' clock: when something had been added to the text

    @property
    def longest(self) -> float:
        """After the first update, which puts the run before away as well, up to the last one."""
        first, last = self.updates[0], self.updates[-1]
        return max(task.busy for task in self.tasks if first < task.start < last)


# `inView`: the steps in view, and since when, in seconds since the epoch.
WATCH = """() => {
  const flow = document.querySelector(".sv-flow");
  window.inView = [0, 0];
  new MutationObserver(() => {
    performance.mark("update");
    const steps = flow.querySelectorAll(".sv-step").length;
    requestAnimationFrame(() => setTimeout(() => { inView = [steps, Date.now() / 1000]; }));  // it is painted by then
  }).observe(flow, {childList: true, subtree: true});
}"""
TRACED = ["-*", "disabled-by-default-devtools.timeline", "blink.user_timing"]


@contextmanager
def watching(browser: Browser, page: Page) -> Iterator[Watched]:
    """Watches the page; what it saw is there afterwards."""
    watched = Watched([], [])
    page.evaluate(WATCH)
    browser.start_tracing(page=page, categories=TRACED)
    try:
        yield watched
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    marks = [event for event in events if event["name"] == "update"]
    thread = (marks[0]["pid"], marks[0]["tid"])
    tasks = [event for event in events if event["name"] == "RunTask" and (event["pid"], event["tid"]) == thread]
    watched.tasks.extend(Task(event["ts"] / 1000, event["tdur"] / 1000) for event in tasks if "tdur" in event)
    watched.updates.extend(event["ts"] / 1000 for event in marks)


def streamed(browser: Browser, address: str, actor: Clocked) -> tuple[Watched, float]:
    """A run of 2,000 tokens: what went on in the page, and how far behind the server it ended, in seconds."""
    with visit(browser, address) as page:
        settle(page, prompt=PROMPT, budget=TOKENS, measure=False)
        with watching(browser, page) as watched:
            run(page)
            page.wait_for_function(f"inView[0] === {actor.passes}")
        assert lines(page)["Ended"] == f"after {TOKENS} tokens, the most that were allowed"
        return watched, page.evaluate("inView[1]") - actor.last


@pytest.mark.parametrize("line", [LINE, None], ids=["lines", "one paragraph"])
def test_no_update_keeps_the_page_busy_for_long_and_the_last_token_is_in_view_within_a_second(
    browser, long_stage, line
):
    address, actor = long_stage
    for _ in range(ATTEMPTS):
        actor.play(prose(line))
        watched, behind = streamed(browser, address, actor)
        longest, updates = watched.longest, len(watched.updates)
        if longest <= LONG and behind <= BEHIND:
            break
    assert 2.0 <= TOKENS / actor.passes <= 2.5  # as in a run that pays
    assert updates >= 10  # and it came bit by bit
    assert longest <= LONG
    assert behind <= BEHIND


def test_a_task_that_keeps_the_page_busy_for_long_would_be_seen(browser, long_stage):
    address, _ = long_stage
    update = "performance.mark('update')"
    busy = "() => { const end = performance.now() + 300; while (performance.now() < end); }"
    with visit(browser, address) as page, watching(browser, page) as watched:
        for script in (update, busy, update):
            page.evaluate(script)
    assert watched.longest > LONG


# --- on the wire ---------------------------------------------------------------------------------------------

STEP = r"{\"index\":"  # begins each line of the trace, which is a text in the message


class Message(NamedTuple):
    """What the server sent at once."""

    bytes: int
    steps: int  # whose lines it holds
    draws: bool  # whether it holds figures


def messages(address: str, values: form.Form) -> list[Message]:
    """All that the server streams for a run, as a browser gets it."""
    config = httpx.get(f"{address}config").json()
    events = config["dependencies"]
    button = next(part["id"] for part in config["components"] if part["props"].get("elem_id") == "run")
    pressed = next(event["id"] for event in events if [button, "click"] in event["targets"])
    work = next(event["id"] for event in events if event["trigger_after"] == pressed)
    session = {"session_hash": uuid.uuid4().hex}
    asked = {"data": [None, *values], "fn_index": work, "trigger_id": button, **session}
    httpx.post(f"{address}gradio_api/queue/join", json=asked).raise_for_status()
    with httpx.stream("GET", f"{address}gradio_api/queue/data", params=session, timeout=60) as response:
        sent = [line for line in response.iter_lines() if line.startswith("data:")]
    return [Message(len(line.encode()), line.count(STEP), "plotly" in line) for line in sent]


def growth(parts: list[Message]) -> float:
    """Bytes per step in the last quarter of the messages, over those in the first."""
    quarter = len(parts) // 4
    first, last = (
        sum(part.bytes for part in some) / sum(part.steps for part in some)
        for some in (parts[:quarter], parts[-quarter:])
    )
    return last / first


def test_a_step_takes_no_more_bytes_at_the_end_of_a_run_and_none_is_sent_twice(long_stage):
    address, actor = long_stage
    actor.play(prose(LINE))
    received = messages(address, FORM._replace(prompt=PROMPT, max_new_tokens=TOKENS, measure=False))
    assert sum(part.steps for part in received) == actor.passes > 800
    growing = [part for part in received if part.steps and not part.draws]
    assert growth(growing) <= GROWTH
    # It would be noticed if each message held the text so far.
    whole = [part._replace(bytes=sum(each.bytes for each in growing[:at])) for at, part in enumerate(growing, 1)]
    assert growth(whole) > GROWTH
