"""What Run, Step and Stop do: generators from the controls' values to what the page shows, free of any browser."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr
import torch

from specviz import memory, prompts, runs
from specviz.errors import Cancelled, UserError
from specviz.loaded import Loaded
from specviz.models.text import TokenText
from specviz.presets import Pairing
from specviz.recordings import Recording
from specviz.trace import Run, Step
from specviz.ui import form, instead, screens, wire
from specviz.ui.loading import Models
from specviz.ui.offer import check_pairing
from specviz.ui.report import Record
from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import Turn, Turns, Visits
from specviz.ui.work import History as History
from specviz.ui.work import NoGPU, Work, Worker, closing, here, state_of

log = logging.getLogger(__name__)

REPEATS = 3
TURN_SECONDS = 120.0  # the longest that a visitor may hold the model at a stretch
YIELD_SECONDS = 0.07  # at most 14 updates a second, however fast the tokens come
LOOK_UP_SECONDS = 0.2  # how often loading looks whether to stop
UNEXPECTED = "Something went wrong on the server, which has the details in its log. Your settings are as you left them."
NOT_STARTED = "The run did not start: too many are waiting, or a setting is out of range. Press Run again in a moment."


class Stopped(Exception):
    """The visitor pressed Stop or left before there was anything to show."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """A run that is made step by step: all that the next step needs, in plain values, so that no model waits for it."""

    asked: tuple[form.Ask, History]  # with other settings, Step starts anew
    run: Run
    text: str  # of the trace view
    steps: tuple[Step, ...]
    rng: bytes  # state of the run's generator


@dataclass(frozen=True, slots=True)
class Explorer:
    """The handlers of the Explore tab, and what they share between visitors."""

    pairings: dict[str, Pairing]  # grows by the user's own, where those are allowed
    models: Models
    recordings: Mapping[str, Recording] = field(default_factory=dict)  # what is shown where no GPU can be had
    worker: Worker = here
    visits: Visits = field(default_factory=Visits)
    turns: Turns = field(default_factory=Turns)

    # --- events: whose they are, and until when there is something to stop

    def arrive(self, request: gr.Request) -> Screen:
        """Run was pressed: from here on, Stop has something to stop."""
        self.visits.arrive(session(request))
        return screens.starting()

    def arrive_to_step(self, request: gr.Request) -> Screen:
        """The same for Step, but what is in view stays."""
        self.visits.arrive(session(request))
        return screens.starting()._replace(verdict=SKIP)

    def run(self, request: gr.Request, history: History, *values: Any) -> Iterator[Screen]:
        yield from self._visit(request, lambda stop: self.explore(form.Form(*values), stop, history))

    def step(self, request: gr.Request, stepping: Stepping | None, history: History, *values: Any) -> Iterator[Screen]:
        yield from self._visit(request, lambda stop: self.one_step(form.Form(*values), stop, stepping, history))

    def stop(self, request: gr.Request) -> Screen:
        """The run ends by itself within a step; where there is none, the page is made ready again."""
        return Screen() if self.visits.stop(session(request)) else screens.ready()

    def leave(self, request: gr.Request) -> None:
        self.visits.leave(session(request))

    def failed(self, request: gr.Request) -> Screen:
        """Gradio itself refused the run, and says why in a message of its own."""
        self.visits.leave(session(request))
        return screens.ready(screens.message(NOT_STARTED))

    def _visit(self, request: gr.Request, work: Callable[[threading.Event], Iterator[Screen]]) -> Iterator[Screen]:
        visitor = session(request)
        stop = self.visits.begin(visitor)
        try:
            with closing(work(stop)) as shown:
                for screen in shown:
                    if screen.stop is not SKIP:  # the last one: from here on there is nothing to stop
                        self.visits.end(visitor, stop)
                    yield screen
        finally:
            self.visits.end(visitor, stop)

    # --- what they do

    def explore(self, asked: form.Form, stop: threading.Event, history: History = ()) -> Iterator[Screen]:
        """A whole run, from the form to the verdict. The last screen, and no other, sets the buttons: ready again."""
        yield from _in_words(lambda: self._explore(form.read(asked, self.pairings), history, stop))

    def one_step(
        self, asked: form.Form, stop: threading.Event, before: Stepping | None, history: History = ()
    ) -> Iterator[Screen]:
        """One verify pass: the next of `before` if that was asked for with the same settings, else the first."""
        yield from _in_words(lambda: self._one_step(form.read(asked, self.pairings), history, before, stop))

    def _explore(self, ask: form.Ask, history: History, stop: threading.Event) -> Iterator[Screen]:
        try:
            prepared, record = yield from self.made(ask, history, stop)
        except NoGPU as error:
            yield instead.of(ask, self.recordings, error)
            return
        ended = screens.finished(record, TokenText(prepared.loaded.target.tokenizer))
        ended = ended._replace(memory=screens.used(prepared))
        yield ended.offering((*history, prompts.Turn(ask.prompt, record.trace.text)))

    def made(
        self, ask: form.Ask, history: History, stop: threading.Event
    ) -> Generator[Screen, None, tuple[runs.Prepared, Record]]:
        """A run from loading to measuring, if it is to be measured; yields what is shown on the way.

        Raises NoGPU where none was had for its first step.
        """
        _, prepared = yield from self._prepare(ask, history, stop)
        work = self.worker(prepared, ask, history)
        record = Record(work.run, drafter=ask.preset.title, repeats=REPEATS)
        with self.turns.queue(work.lock) as turn:
            yield from wait(turn, stop)
            self._check_there(ask, prepared.loaded)
            try:
                yield from self._decode(work, record, stop)
            except NoGPU as error:
                if record.steps:
                    raise UserError(str(error)) from error
                raise
        # Measuring takes a turn of its own, so that those who wait see their first tokens before it.
        if ask.measure and record.drafts and record.is_complete:
            with self.turns.queue(work.lock) as turn:
                while not (stop.is_set() or turn.take()):
                    waiting = screens.waiting_to_measure(record, turn.ahead, turn.expected_seconds)
                    yield Screen(verdict=waiting, details=screens.details(record))
                record.stopped = stop.is_set()
                if turn.held:
                    yield from self._measure(work, record, stop)
        record.done = True
        return prepared, record

    def _one_step(
        self, ask: form.Ask, history: History, before: Stepping | None, stop: threading.Event
    ) -> Iterator[Screen]:
        loaded, prepared = yield from self._prepare(ask, history, stop)
        work = self.worker(prepared, ask, history)
        asked = (replace(ask, measure=False), history)  # nothing is measured step by step
        is_changed = before is not None and before.steps[-1].cut is None and before.asked != asked
        if before is None or before.steps[-1].cut or is_changed:
            rng = state_of(torch.Generator().manual_seed(prepared.settings.seed))
            before = Stepping(asked, work.run, wire.head(work.run, follow=True), (), rng)
        with self.turns.queue(work.lock) as turn:
            yield from wait(turn, stop)
            self._check_there(ask, loaded)
            try:
                with closing(work.step(before.steps, before.rng, stop.is_set)) as made:
                    step, rng = next(made)
            except NoGPU as error:
                yield instead.of(ask, self.recordings, error)
                return
        text = before.text + wire.line(step)
        stepping = replace(before, text=text, steps=(*before.steps, step), rng=rng)
        record = Record(before.run, list(stepping.steps), drafter=ask.preset.title, done=step.cut is not None)
        if step.cut is None:
            yield screens.paused(record, is_changed)._replace(tokens=text, stepping=stepping)
            return
        ended = screens.finished(record, TokenText(loaded.target.tokenizer))._replace(tokens=text, stepping=stepping)
        yield ended.offering((*history, prompts.Turn(ask.prompt, record.trace.text)))

    def _prepare(
        self, ask: form.Ask, history: History, stop: threading.Event
    ) -> Generator[Screen, None, tuple[Loaded, runs.Prepared]]:
        """Load the model, encode the prompt, and check that there is memory for the run."""
        drafts = ask.preset.model
        loaded = self.models.there(ask.pairing, drafts, ask.dtype)
        if loaded is None:
            check_pairing(ask.pairing, self.models)
            loading = self.models.load(ask.pairing, drafts, ask.dtype)
            with loading.awaited(gives_up=True):
                while not loading.wait(LOOK_UP_SECONDS):
                    _unless(stop)
                    yield Screen(verdict=screens.working(loading.text))
            loaded = loading.result()
        _unless(stop)
        prepared = ask.prepared(loaded, history)
        needed = runs.budget(prepared)
        yield Screen(memory=screens.budget(needed))
        memory.check(needed)
        return loaded, prepared

    def _check_there(self, ask: form.Ask, loaded: Loaded) -> None:
        """Raises UserError if another visitor's model has taken this one's memory meanwhile."""
        if self.models.there(ask.pairing, ask.preset.model, ask.dtype) is not loaded:
            name = loaded.target.name
            raise UserError(f"{name} had to make room for another model while you waited; press Run again.")

    def _decode(self, work: Work, record: Record, stop: threading.Event) -> Iterator[Screen]:
        """Decode once, in full view. The time that showing takes is not measured. The run before stays in view until
        there is a first token, so that whatever goes wrong until then leaves it whole."""
        text = wire.head(record.run)
        yield Screen(verdict=screens.working("Reading the prompt"))
        shown = 0.0
        with closing(work.decode(over(stop))) as steps:
            for step in steps:
                record.steps.append(step)
                text += wire.line(step)
                if len(record.steps) == 1:
                    yield screens.begun(record)._replace(tokens=text)
                    shown = time.perf_counter()
                if time.perf_counter() - shown >= YIELD_SECONDS:
                    shown = time.perf_counter()
                    yield Screen(tokens=text, verdict=screens.progress(record))
        if not record.is_complete:
            record.stopped, record.out_of_time = True, not stop.is_set()
        yield Screen(tokens=text, verdict=screens.progress(record))
        yield Screen(**screens.figures(record))

    def _measure(self, work: Work, record: Record, stop: threading.Event) -> Iterator[Screen]:
        """Decode again and again out of sight, speculative and plain in turns, and compare."""
        warmed = 0
        yield Screen(verdict=screens.measuring(record, warmed), details=screens.details(record))
        try:
            with closing(work.measure(REPEATS, over(stop))) as timed:
                for record.comparison in timed:
                    warmed += record.comparison.repeats == 0
                    if record.comparison.phases is None:
                        yield Screen(verdict=screens.measuring(record, warmed))
        except Cancelled:
            record.stopped, record.out_of_time = True, not stop.is_set()
        except NoGPU as error:
            note = f"The speed-up was not measured. {error}"
            record.run = replace(record.run, notes=(*record.run.notes, note))


def _in_words(work: Callable[[], Iterator[Screen]]) -> Iterator[Screen]:
    """The work's screens; whatever ends it early becomes a last screen with one sentence."""
    begun = False
    try:
        with closing(work()) as shown:
            for screen in shown:
                begun = begun or screen.tokens is not SKIP
                yield screen
    except (Stopped, Cancelled):
        yield screens.ready(screens.message("Stopped before the first token", tone=""))
    except UserError as error:
        yield screens.ready(screens.message(str(error), begun=begun))
    except Exception:
        log.exception("a run failed")
        yield screens.ready(screens.message(UNEXPECTED, begun=begun))


def wait(turn: Turn, stop: threading.Event) -> Iterator[Screen]:
    """Until it is the caller's turn; raises Stopped if `stop` comes first."""
    while not turn.take():
        _unless(stop)
        yield Screen(verdict=screens.waiting(turn.ahead, turn.expected_seconds))


def over(stop: threading.Event) -> Callable[[], bool]:
    """Whether the visitor stopped, or the turn that begins now has lasted too long."""
    deadline = time.monotonic() + TURN_SECONDS
    return lambda: stop.is_set() or time.monotonic() > deadline


def session(request: gr.Request) -> str:
    """The visitor's session; whoever has none, a program perhaps, is somebody new each time."""
    return request.session_hash or uuid.uuid4().hex


def _unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise Stopped
