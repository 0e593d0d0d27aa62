"""What the buttons do: generators from the controls' values to what the page shows, free of any browser."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gradio as gr

from specviz import runs
from specviz.errors import Cancelled, UserError
from specviz.measure import compare
from specviz.presets import Pairing
from specviz.ui import form, screens, wire
from specviz.ui.loading import Models
from specviz.ui.report import Record
from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import Turns, Visits

T = TypeVar("T")
log = logging.getLogger(__name__)

REPEATS = 3
MAX_PROMPT_TOKENS = 2048  # a longer one would hold the model for many seconds before its first token
YIELD_SECONDS = 0.07  # at most 14 updates a second, however fast the tokens come
LOOK_UP_SECONDS = 0.2  # how often loading looks whether to stop
UNEXPECTED = "Something went wrong on the server, which has the details in its log. Your settings are as you left them."
NOT_STARTED = "The run did not start: too many are waiting, or a setting is out of range. Press Run again in a moment."


class Stopped(Exception):
    """The visitor pressed Stop or left before there was anything to show."""


@dataclass(frozen=True, slots=True)
class Explorer:
    """The handlers of the Explore tab, and what they share between visitors."""

    pairings: dict[str, Pairing]
    models: Models
    visits: Visits = field(default_factory=Visits)
    turns: Turns = field(default_factory=Turns)

    def arrive(self, request: gr.Request) -> Screen:
        """Run was pressed: from here on, Stop has something to stop."""
        self.visits.arrive(_session(request))
        return screens.starting()

    def run(self, request: gr.Request, *values: Any) -> Iterator[Screen]:
        session = _session(request)
        stop = self.visits.begin(session)
        try:
            for screen in self.explore(form.Form(*values), stop):
                if screen.stop is not SKIP:  # the last one: from here on there is nothing to stop
                    self.visits.end(session, stop)
                yield screen
        finally:
            self.visits.end(session, stop)

    def stop(self, request: gr.Request) -> Screen:
        """The run ends by itself within a step; where there is none, the page is made ready again."""
        return Screen() if self.visits.stop(_session(request)) else screens.ready()

    def leave(self, request: gr.Request) -> None:
        self.visits.leave(_session(request))

    def failed(self, request: gr.Request) -> Screen:
        """Gradio itself refused the run, and says why in a message of its own."""
        self.visits.leave(_session(request))
        return screens.ready(screens.message(NOT_STARTED))

    def explore(self, asked: form.Form, stop: threading.Event) -> Iterator[Screen]:
        """A whole run, from the form to the verdict. The last screen, and no other, sets the buttons: ready again."""
        begun = False
        try:
            for screen in self._explore(form.read(asked, self.pairings), stop):
                begun = begun or screen.tokens is not SKIP
                yield screen
        except (Stopped, Cancelled):
            yield screens.ready(screens.message("Stopped before the first token", tone=""))
        except UserError as error:
            yield screens.ready(screens.message(str(error), begun=begun))
        except Exception:
            log.exception("a run failed")
            yield screens.ready(screens.message(UNEXPECTED, begun=begun))

    def _explore(self, ask: form.Ask, stop: threading.Event) -> Iterator[Screen]:
        loaded = yield from self._load(ask, stop)
        prepared = runs.prepare(
            loaded,
            ask.preset.kind,
            ask.drafter_settings,
            ask.prompt,
            ask.settings,
            max_prompt_tokens=MAX_PROMPT_TOKENS,
        )
        record = Record(prepared.run, drafter=ask.preset.title, repeats=REPEATS)
        with self.turns.queue(loaded.lock) as turn:
            while not turn.take():
                _unless(stop)
                yield Screen(verdict=screens.waiting(turn.ahead))
            yield from self._decode(prepared, record, stop)
            if ask.measure and record.drafts and record.is_complete:
                yield from self._measure(prepared, record, stop)
        record.done = True
        yield screens.finished(record, loaded)

    def _load(self, ask: form.Ask, stop: threading.Event) -> Generator[Screen, None, runs.Loaded]:
        loading = self.models.load(ask.pairing.id)
        while not loading.wait(LOOK_UP_SECONDS):
            _unless(stop)
            yield Screen(verdict=screens.working(loading.text))
        _unless(stop)
        return loading.result()

    def _decode(self, prepared: runs.Prepared, record: Record, stop: threading.Event) -> Iterator[Screen]:
        """Decode once, in full view. The time that showing takes is not measured. The run before stays in view until
        there is a first token, so that whatever goes wrong until then leaves it whole."""
        text = wire.head(uuid.uuid4().hex, record.run)
        yield Screen(verdict=screens.working("Reading the prompt"))
        shown = 0.0
        with _closing(prepared.steps()) as steps:
            for step in steps:
                record.steps.append(step)
                text += wire.line(step)
                if len(record.steps) == 1:
                    yield Screen(tokens=text, verdict=screens.progress(record), details="", chart=screens.chart(record))
                    shown = time.perf_counter()
                if stop.is_set():
                    break
                if time.perf_counter() - shown >= YIELD_SECONDS:
                    shown = time.perf_counter()
                    yield Screen(tokens=text, verdict=screens.progress(record))
        record.stopped = stop.is_set()
        yield Screen(tokens=text, verdict=screens.progress(record), chart=screens.chart(record))

    def _measure(self, prepared: runs.Prepared, record: Record, stop: threading.Event) -> Iterator[Screen]:
        """Decode again and again out of sight, speculative and plain in turns, and compare."""
        loaded = prepared.loaded
        drafter, prompt, settings = prepared.drafter, prepared.prompt, prepared.settings
        timed = compare(loaded.target, drafter, prompt, settings, repeats=REPEATS, should_stop=stop.is_set)
        warmed = 0
        yield Screen(verdict=screens.measuring(record, warmed), details=screens.details(record))
        try:
            with _closing(timed):
                for record.comparison in timed:
                    warmed += record.comparison.repeats == 0
                    if record.comparison.repeats < REPEATS:
                        yield Screen(verdict=screens.measuring(record, warmed))
        except Cancelled:
            record.stopped = True


@contextmanager
def _closing(iterator: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close it at once when the page turns away, rather than when memory is tidied."""
    try:
        yield iterator
    finally:
        getattr(iterator, "close", lambda: None)()


def _session(request: gr.Request) -> str:
    return request.session_hash or uuid.uuid4().hex


def _unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped
