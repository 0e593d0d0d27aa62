"""Answers to programs: the work is done in a thread of its own, and the caller hears how far it is."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import gradio as gr

from specviz import runs, summary
from specviz.errors import Cancelled, UserError
from specviz.ui import handlers
from specviz.ui.facts import plural
from specviz.ui.handlers import Stopped
from specviz.ui.report import Record
from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import Visits

Answer = dict[str, Any]
Work = Generator[Screen, None, Answer]  # yields what the page would show meanwhile
log = logging.getLogger(__name__)

NEWS_SECONDS = 0.5  # how often the caller hears something; it is noticed by it, too, when nobody listens any more
STOPPED = "The run was stopped: its caller left, or asked for another one before it was over."
CUT_SHORT = "The run was ended before its first token, by the time limit or because loading was cancelled; ask again."
FAILED = "Something went wrong on the server, which has the details in its log."


async def answers(
    work: Callable[[threading.Event], Work], visits: Visits, caller: str, threads: ThreadPoolExecutor
) -> AsyncGenerator[Answer, None]:
    """{"status": how far it is} again and again, and at last the answer; raises gr.Error with one sentence.

    Not a plain generator, because Gradio could not end that before its next yield: a cancelled request, or one whose
    caller has left, is told to stop at once, and is over with the step under way.
    """
    stop, status = visits.begin(caller), deque(["Starting"], maxlen=1)
    here = copy_context()  # Gradio keeps the request there, and ZeroGPU looks in it for whose quota is used
    job = asyncio.get_running_loop().run_in_executor(threads, here.run, _outcome, work(stop), stop, status)
    try:
        while not (await asyncio.wait({job}, timeout=NEWS_SECONDS))[0]:
            yield {"status": status[0]}
        outcome = job.result()
        if isinstance(outcome, gr.Error):
            raise outcome
        yield outcome
    finally:
        stop.set()
        visits.end(caller, stop)
        await asyncio.wait({job})


def _outcome(work: Work, stop: threading.Event, status: deque[str]) -> Answer | gr.Error:
    """The answer, or what to tell the caller instead; `status`: the page's words for how far it is."""
    try:
        while True:
            screen = next(work)
            if screen.verdict is not SKIP:
                status.append(_words(screen.verdict))
    except StopIteration as end:
        answer: Answer = end.value
        return gr.Error(STOPPED, print_exception=False) if stop.is_set() else answer
    except (Stopped, Cancelled):
        return gr.Error(STOPPED if stop.is_set() else CUT_SHORT, print_exception=False)
    except UserError as error:
        return gr.Error(str(error), print_exception=False)
    except Exception:
        log.exception("a program's run failed")
        return gr.Error(FAILED, print_exception=False)


def _words(verdict: str) -> str:
    """What a verdict's card says: what is being done, else its headline."""
    card = json.loads(verdict)
    return card["status"] or "".join(text for text, _ in card["headline"])


def report(prepared: runs.Prepared, record: Record) -> Answer:
    """What is answered of a run: the object of `run --json`, with a warning if the time limit came first."""
    answer = summary.report(prepared, record.trace, record.comparison)
    if record.out_of_time:
        limit = f"The time limit of {handlers.TURN_SECONDS:.0f} s ended"
        done = record.comparison.repeats if record.comparison else 0
        measured = f"the measuring after {done} of {plural(record.repeats, 'repeat')}"
        what = measured if record.is_complete else f"the run after {plural(len(record.steps), 'step')}"
        answer["warnings"].append(f"{limit} {what}.")
    return answer
