"""What Measure here does in the Batch tab: it takes its turn at the model as every run does, and ends in time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr

from specviz.batch.measure import Plan, measure
from specviz.batch.results import Measurement
from specviz.batch.text import OF_WHAT, text_of
from specviz.errors import Cancelled, UserError
from specviz.loaded import Loaded
from specviz.presets import Pairing
from specviz.ui.facts import plural
from specviz.ui.handlers import LOOK_UP_SECONDS, UNEXPECTED, Explorer, over, session
from specviz.ui.offer import check_pairing
from specviz.ui.screens import SKIP
from specviz.ui.tables import note, problem
from specviz.ui.visits import Visits
from specviz.ui.work import closing, here

log = logging.getLogger(__name__)

BATCHES, ROWS, CONTEXT, REPEATS, CELL_SECONDS = (1, 2, 4, 8, 16), (1, 2, 3, 4, 6, 8), 256, 3, 6.0
YIELD_SECONDS = 0.5  # charts and texts change at most twice a second
NOT_HERE = (
    "ZeroGPU lends a GPU for one run at a time and takes it back soon after, so passes over batches are not measured "
    "here; use python -m specviz batch on a machine of your own, and upload its file."
)
NOT_STARTED = "Nothing was measured: too many are waiting. Press Measure here again in a moment."


class State(NamedTuple):
    """Values of measuring's outputs, or the outputs themselves. `measurement`: what the tab shows from now on."""

    words: Any  # HTML
    measurement: Any = SKIP
    measure: Any = SKIP  # the button
    stop: Any = SKIP


def ready(words: Any, measurement: Any = SKIP) -> State:
    return State(words, measurement, gr.update(interactive=True), gr.update(value="Stop", interactive=False))


@dataclass(frozen=True, slots=True)
class BatchRun:
    """The handlers of the button and of its Stop, and whose run is whose."""

    explorer: Explorer
    visits: Visits = field(default_factory=Visits)

    @property
    def pairing(self) -> Pairing:
        """The default one."""
        return next(iter(self.explorer.pairings.values()))

    @property
    def is_offered(self) -> bool:
        return self.explorer.worker is here

    def arrive(self, request: gr.Request) -> State:
        """The button was pressed: from here on, Stop has something to stop."""
        self.visits.arrive(session(request))
        return State(note("Starting"), SKIP, gr.update(interactive=False), gr.update(interactive=True))

    def run(self, request: gr.Request) -> Iterator[State]:
        visitor = session(request)
        stop = self.visits.begin(visitor)
        try:
            with closing(self.measured(stop)) as states:
                yield from states
        finally:
            self.visits.end(visitor, stop)

    def stop(self, request: gr.Request) -> State:
        """Measuring ends by itself within a pass; where there is none, the buttons are made ready again."""
        return State(SKIP) if self.visits.stop(session(request)) else ready(SKIP)

    def leave(self, request: gr.Request) -> None:
        self.visits.leave(session(request))

    def failed(self, request: gr.Request) -> State:
        """Gradio itself refused the event."""
        self.visits.leave(session(request))
        return ready(problem(NOT_STARTED))

    def measured(self, stop: threading.Event) -> Iterator[State]:
        """From loading the model to the measurement; the last state, and no other, makes the buttons ready again."""
        try:
            if not self.is_offered:
                raise UserError(NOT_HERE)
            loaded = yield from self._loaded(stop)
            with self.explorer.turns.queue(loaded.lock) as turn:
                while not turn.take():
                    _unless(stop)
                    yield State(note(_waiting(turn.ahead, turn.expected_seconds)))
                if self.explorer.models.there(self.pairing) is not loaded:
                    name = loaded.target.name
                    raise UserError(
                        f"{name} had to make room for another model while you waited; press Measure here again."
                    )
                yield from self._timed(loaded, stop)
        except Cancelled:
            yield ready(note("Stopped before every size had been timed once, so nothing was measured."))
        except UserError as error:
            yield ready(problem(str(error)))
        except Exception:
            log.exception("measuring batches failed")
            yield ready(problem(UNEXPECTED))

    def _loaded(self, stop: threading.Event) -> Generator[State, None, Loaded]:
        models, pairing = self.explorer.models, self.pairing
        there = models.there(pairing)
        if there is not None:
            return there
        check_pairing(pairing, models)
        loading = models.load(pairing, None)
        with loading.awaited(gives_up=True):
            while not loading.wait(LOOK_UP_SECONDS):
                _unless(stop)
                yield State(note(loading.text))
        return loading.result()

    def _timed(self, loaded: Loaded, stop: threading.Event) -> Iterator[State]:
        """Raises Cancelled if it ends before the first whole round."""
        plan = Plan(BATCHES, ROWS, CONTEXT, REPEATS, CELL_SECONDS, text_of(loaded.target), OF_WHAT)
        found: Measurement | None = None
        said = 0.0
        try:
            with closing(measure(loaded.target, plan, should_stop=over(stop))) as steps:
                for progress in steps:
                    found = progress.measurement or found
                    if time.monotonic() - said >= YIELD_SECONDS:
                        yield State(note(_doing(progress.doing, progress.done, progress.total, progress.seconds_left)))
                        said = time.monotonic()
        except Cancelled:
            if found is None:
                raise
        assert found is not None
        repeats = plural(found.header.repeats, "repeat")
        if found.header.repeats < REPEATS:
            why = "Stopped by you" if stop.is_set() else "The time for one turn was up"
            yield ready(note(f"{why}: measured with {repeats} in place of {REPEATS}."), found)
        else:
            yield ready(note(f"Measured, with {repeats} of each pass. The figures show it."), found)


def _unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise Cancelled


def _waiting(ahead: int, seconds: float | None) -> str:
    first = f"{plural(ahead, 'visitor')} before you" if ahead else "Waiting for the run before yours to end"
    return first if seconds is None else f"{first}, about {seconds:.0f} s"


def _doing(doing: str, done: int, total: int, seconds_left: float | None) -> str:
    text = doing[:1].upper() + doing[1:]
    if total:
        text += f": {done} of {total}"
    return text if seconds_left is None else f"{text}, about {seconds_left:.0f} s left"
