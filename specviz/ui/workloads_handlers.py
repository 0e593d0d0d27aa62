"""What the controls of the Workloads tab do: plain functions and generators, free of any browser."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from specviz.drafters import DRAFTERS
from specviz.errors import Cancelled, UserError
from specviz.presets import Pairing
from specviz.ui import tables
from specviz.ui.handlers import UNEXPECTED, Explorer, session
from specviz.ui.offer import obstacle
from specviz.ui.visits import Visits
from specviz.ui.work import closing, here
from specviz.ui.workloads_files import HERE, File, Held, known, read_upload
from specviz.ui.workloads_measure import measure
from specviz.ui.workloads_order import Asked, read
from specviz.ui.workloads_view import FILE, NOTHING, Look, View, look
from specviz.workloads.charts import MEASURES

log = logging.getLogger(__name__)
SKIP: Any = gr.skip()
FIRST = "first "  # begins the version of a measurement's first results
CANNOT_BE_SHOWN = "This file can't be shown, and the server's log says why; choose another file."
NOT_STARTED = "Measuring did not start: too many are waiting. Press Measure again in a moment."
ON_ZERO = (
    "Measuring suites is not offered here: ZeroGPU lends its GPU for a minute at a time. Run python -m specviz bench "
    "--suite on a machine of your own, and load the results file above."
)


class Screen(NamedTuple):
    """Outputs of measuring, in the order of the page's components; what is left out stays as it is."""

    measured: Any = SKIP
    version: Any = SKIP  # changes with it, which makes the page draw anew
    shown: Any = SKIP
    said: Any = SKIP
    run: Any = SKIP
    stop: Any = SKIP


class Taken(NamedTuple):
    """Outputs of an upload; what is left out stays as it is."""

    uploaded: Any = SKIP
    problem: Any = SKIP
    shown: Any = SKIP
    compared: Any = SKIP


@dataclass(frozen=True, slots=True)
class Workloads:
    """The handlers of the tab, and what they share between visitors."""

    explorer: Explorer
    shipped: File | None
    visits: Visits = field(default_factory=Visits)

    @property
    def measures_here(self) -> bool:
        return self.explorer.worker is here

    @property
    def pairings(self) -> dict[str, Pairing]:
        """Those that can run here."""
        models = self.explorer.models
        return {id: each for id, each in self.explorer.pairings.items() if not obstacle(each, models).sentence}

    # --- what is shown

    def look(self, uploaded: tuple[File, ...], measured: File | None, *values: Any) -> View:
        return look(Held(uploaded, measured), self.shipped, Look(*values))

    def look_at_new(self, version: str, uploaded: tuple[File, ...], measured: File | None, *values: Any) -> View:
        """There are new results. The first of them are shown whatever the page says, which may not have changed yet."""
        chosen = Look(*values)
        if version.startswith(FIRST):
            chosen = chosen._replace(shown=HERE)
        return look(Held(uploaded, measured), self.shipped, chosen)

    def take(self, paths: list[str] | None, measured: File | None) -> Taken:
        """Uploaded files: the first is shown, and compared with the second."""
        try:
            uploaded = read_upload(paths or [])
            held = Held(uploaded, measured)
            for measure in MEASURES:  # what can't be shown is refused now
                look(held, self.shipped, Look(measure=measure))
        except UserError as error:
            return Taken(problem=tables.problem(str(error)))
        except Exception:
            log.exception("an uploaded results file can't be shown")
            return Taken(problem=tables.problem(CANNOT_BE_SHOWN))
        names = list(known(held, self.shipped))
        shown = gr.update(choices=names, value=names[0] if names else None)
        others = [("nothing", NOTHING), *((f"all of {file.name}", FILE + file.name) for file in uploaded[1:])]
        return Taken(uploaded, "", shown, gr.update(choices=others, value=others[-1][1]))

    # --- measuring

    def offered(self) -> Any:
        """The pairings that can run here now; the user may have brought one meanwhile."""
        return gr.update(choices=choices(self.pairings))

    def choose_pairing(self, id: str) -> Any:
        """The drafters of the pairing."""
        if id not in self.explorer.pairings:
            return SKIP
        pairing = self.explorer.pairings[id]
        return gr.update(choices=offered(pairing), value=usual(pairing))

    def arrive(self, request: gr.Request) -> Screen:
        """Measure was pressed: from here on, Stop has something to stop."""
        self.visits.arrive(session(request))
        return Screen(said=said("Starting…"), run=gr.update(interactive=False), stop=gr.update(interactive=True))

    def run(self, request: gr.Request, uploaded: tuple[File, ...], *values: Any) -> Iterator[Screen]:
        """The last screen, and no other, sets the buttons: ready again."""
        visitor = session(request)
        stop = self.visits.begin(visitor)
        try:
            with closing(self.measured(Asked(*values), uploaded, stop)) as screens:
                yield from screens
        finally:
            self.visits.end(visitor, stop)

    def stop(self, request: gr.Request) -> Screen:
        """Measuring ends by itself within a step; where there is none, the page is made ready again."""
        return Screen(said=said("Stopping…")) if self.visits.stop(session(request)) else ready("")

    def leave(self, request: gr.Request) -> None:
        self.visits.leave(session(request))

    def failed(self, request: gr.Request) -> Screen:
        """Gradio itself refused to start, and says why in a message of its own."""
        self.visits.leave(session(request))
        return ready(tables.problem(NOT_STARTED))

    def measured(self, asked: Asked, uploaded: tuple[File, ...], stop: threading.Event) -> Iterator[Screen]:
        """From the controls to the results; whatever ends it early becomes a sentence, and what is there stays."""
        is_first = True
        try:
            if not self.measures_here:
                raise UserError(ON_ZERO)
            order = read(asked, self.explorer.pairings)
            with closing(measure(order, self.explorer.models, self.explorer.turns, stop)) as steps:
                for step in steps:
                    screen = Screen(said=said(step.said, step.share))
                    if step.file is not None:
                        version = f"{FIRST if is_first else ''}{time.monotonic()}"
                        screen = screen._replace(measured=step.file, version=version)
                    if step.file is not None and is_first:
                        is_first = False
                        shown = gr.update(choices=list(known(Held(uploaded, step.file), self.shipped)), value=HERE)
                        screen = screen._replace(shown=shown)
                    yield screen
            yield ready(SKIP)
        except Cancelled:
            yield ready(said("Stopped." if is_first else "Stopped. What was measured until then is kept."))
        except UserError as error:
            yield ready(tables.problem(str(error)))
        except Exception:
            log.exception("measuring a suite failed")
            yield ready(tables.problem(UNEXPECTED))


def choices(pairings: Mapping[str, Pairing]) -> list[tuple[str, str]]:
    """What the list says, and id."""
    return [(pairing.title, id) for id, pairing in pairings.items()]


def offered(pairing: Pairing) -> list[str]:
    """Titles of its drafters; plain decoding is measured beside each of them anyway."""
    return [preset.title for preset in pairing.drafters if preset.kind != "plain"]


def usual(pairing: Pairing) -> list[str]:
    """Titles of the two drafters to begin with: the pairing's first that draft, no combinations."""
    return [preset.title for preset in pairing.drafters if preset.kind in DRAFTERS and preset.kind != "plain"][:2]


def said(text: str, share: float | None = None) -> str:
    """A sentence on how it goes, which screen readers read out, and how much of it is done."""
    bar = "" if share is None else f'<progress class="sv-model-bar" max="1" value="{share:.3f}"></progress>'
    return f'<p class="sv-remark" role="status">{escape(text)}</p>{bar}'


def ready(last: Any) -> Screen:
    """Measure can be pressed again."""
    return Screen(said=last, run=gr.update(interactive=True), stop=gr.update(value="Stop", interactive=False))
