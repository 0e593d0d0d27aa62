"""On ZeroGPU a GPU is lent for one call at a time, to a process forked from this one.

What is loaded before the page is served is there after the fork, on the GPU. What goes there and comes back is
pickled, so it is plain data, and what the process there changes is lost. This process never has a GPU: the package
`spaces` stands in for one while models are loaded. What is said of it here was read in its release 0.51.3.
"""

from __future__ import annotations

import importlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gradio as gr
import httpx
import torch

from specviz import runs
from specviz.comparison import Comparison
from specviz.errors import Cancelled, UserError
from specviz.loaded import Loaded
from specviz.loaded import load as load_pairing
from specviz.presets import ModelSource, Pairing
from specviz.trace import Run, Step
from specviz.ui.form import EXACT, Ask
from specviz.ui.visits import Lock
from specviz.ui.work import Here, History, NoGPU, ShouldStop, closing

IS_ON = os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")  # as `spaces` reads it
DEFAULT = "smollm2-135m"  # the pairing to load where none is named: all that is loaded is moved for every visitor
USUAL = "auto"  # the number format that every pairing is loaded in
EXACT_MB = 6_000  # a pairing up to this size is loaded in float32 too

# ZeroGPU compares the seconds asked for, not those used, with what is left of a visitor's daily quota (2 minutes for
# somebody who is not logged in), and lets short calls go first: https://huggingface.co/docs/hub/spaces-zerogpu
LEAST_SECONDS, MOST_SECONDS = 10, 60
START_SECONDS = 5.0  # to fork, to move the weights and to read the prompt
FIRST_PACE = 0.1  # seconds per token, before the first run has told
MARGIN = 1.5
STOP_SECONDS = 0.05  # how often it is looked up whether to stop

Key = tuple[str, str, str]  # ids of the pairing and of the model that drafts ("" for none), number format
_models: dict[Key, Loaded] = {}
_paces: dict[tuple[Key, str], float] = {}  # seconds per token of the last run, by model and drafter
# One byte per call, 1 for stop. A fork shares this memory, while `spaces` itself tells only between two yields.
_stops = mmap.mmap(-1, 4096)
_calls = itertools.count()


@dataclass(frozen=True, slots=True)
class Job:
    """A use of a model in plain values, as it crosses to the process that has the GPU."""

    what: str  # a method of `Here`
    arguments: tuple[Any, ...]  # all but its last, `should_stop`
    model: Key
    ask: Ask
    history: History
    seconds: int  # asked for; it ends by itself after them
    call: int  # where `_stops` tells to stop


def load(pairings: Mapping[str, Pairing], *, offline: bool = False) -> Mapping[str, Pairing]:
    """Load what visitors can use, and return it. To be called in the main thread, before the page is served.

    Only there does `spaces` stand in for CUDA. Raises UserError for what can't be loaded.
    """
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # else transformers moves the weights in other threads
    for pairing in pairings.values():
        drafting = {preset.model.id: preset.model for preset in pairing.drafters if preset.model is not None}
        for number_format in (USUAL, EXACT) if pairing.memory_mb <= EXACT_MB else (USUAL,):
            for drafts in (None, *drafting.values()):
                print(f"specviz: loading {pairing.title} ({number_format})", flush=True)
                _models[_key(pairing, drafts, number_format)] = load_pairing(
                    pairing, drafts, dtype=number_format, offline=offline, having=list(_models.values())
                )
    return pairings


def there(pairing: Pairing, drafts: ModelSource | None, *, dtype: str, **_: Any) -> Loaded:
    """In place of `loaded.load` once the page is served: what has been loaded, and nothing else."""
    key = _key(pairing, drafts, dtype)
    if key not in _models:
        raise UserError(f"{pairing.title} is not loaded here in {dtype}, so choose the other number format.")
    return _models[key]


def _key(pairing: Pairing, drafts: ModelSource | None, number_format: str | None) -> Key:
    return pairing.id, "" if drafts is None else drafts.id, number_format or USUAL


def _work(job: Job) -> Iterator[Any]:
    """In the process that has the GPU: what the job asks for; at last the error that ended it, if it is one of ours."""
    torch.set_num_threads(1)  # threads of OpenMP do not survive the fork: more than one would wait for them for ever
    deadline = time.monotonic() + job.seconds
    try:
        work = Here(job.ask.prepared(_models[job.model], job.history))
        yield from getattr(work, job.what)(*job.arguments, lambda: _stops[job.call] == 1 or time.monotonic() > deadline)
    except (UserError, Cancelled) as error:  # of any other error, only its type would come back
        yield error


def _lent(work: Callable[[Job], Iterator[Any]]) -> Callable[[Job], Iterator[Any]]:
    """The same, on a GPU that is lent for so long as the job says."""
    if not IS_ON:
        return work
    decorated: Callable[[Job], Iterator[Any]] = importlib.import_module("spaces").GPU(
        work, duration=lambda job: job.seconds
    )
    return decorated


on_gpu = _lent(_work)  # made on import: ZeroGPU wants to see one when the page is launched


@dataclass(frozen=True, slots=True)
class Lent:
    """The work of a run, each use of the model on a GPU lent for it. Raises NoGPU where none is."""

    # Every call has a process and a GPU to itself, and ZeroGPU makes them wait; there is no turn to wait for here.
    lock: ClassVar[Lock] = threading.Semaphore(1000)

    prepared: runs.Prepared
    ask: Ask
    history: History

    @property
    def run(self) -> Run:
        """The header; this process sees the weights on its CPU."""
        return replace(self.prepared.run, device=f"{torch.cuda.get_device_name()}, lent by ZeroGPU", threads=None)

    def decode(self, should_stop: ShouldStop) -> Iterator[Step]:
        seconds, tokens = 0.0, 0
        with closing(self._call("decode", (), 1, should_stop)) as steps:
            for step in steps:
                yield step
                seconds, tokens = seconds + (step.seconds or 0.0), tokens + len(step.committed)
        if tokens:
            _paces[self._model, self.ask.preset.title] = seconds / tokens

    def step(self, done: tuple[Step, ...], rng: bytes, should_stop: ShouldStop) -> Iterator[tuple[Step, bytes]]:
        return self._call("step", (done, rng), 0, should_stop)

    def measure(self, repeats: int, should_stop: ShouldStop) -> Iterator[Comparison]:
        passes = 2 * repeats + 4  # two to warm up and two with phases besides
        return self._call("measure", (repeats,), passes, should_stop)

    @property
    def _model(self) -> Key:
        return _key(self.ask.pairing, self.ask.preset.model, self.ask.dtype)

    def _call(self, what: str, arguments: tuple[Any, ...], passes: int, should_stop: ShouldStop) -> Iterator[Any]:
        """`passes`: how often the whole text is decoded."""
        pace = _paces.get((self._model, self.ask.preset.title), FIRST_PACE)
        wanted = START_SECONDS + MARGIN * pace * passes * self.ask.settings.max_new_tokens
        seconds = round(min(max(wanted, LEAST_SECONDS), MOST_SECONDS))
        call = next(_calls) % len(_stops)
        _stops[call] = 0
        job = Job(what, arguments, self._model, self.ask, self.history, seconds, call)
        with _refusals(), closing(on_gpu(job)) as items, _told(call, should_stop):
            for item in items:
                if isinstance(item, Exception):
                    raise item
                yield item


@contextmanager
def _told(call: int, should_stop: ShouldStop) -> Iterator[None]:
    """Tell the call to stop as soon as `should_stop()` turns true, and at the end in any case."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(STOP_SECONDS):
            if should_stop():
                _stops[call] = 1
                return

    threading.Thread(target=watch, name="watch for stop", daemon=True).start()
    try:
        yield
    finally:
        _stops[call] = 1  # before the iterator is closed, which waits for the other process
        over.set()


@contextmanager
def _refusals() -> Iterator[None]:
    """What `spaces` raises where no GPU is lent becomes NoGPU, in one sentence."""
    try:
        yield
    except gr.Error as error:
        if error.title == "ZeroGPU worker error" and "aborted" not in str(error.message):
            raise  # something went wrong in the other process; the log has it
        raise NoGPU(_why(f"{error.title}: {error.message}".lower())) from error
    except (httpx.HTTPError, RuntimeError) as error:  # what lends GPUs can't be reached, or answers something else
        raise NoGPU("ZeroGPU does not answer as it should; try again later.") from error


def _why(said: str) -> str:
    """`said`: title and message of the error, in small letters; some messages come under more than one title."""
    if "no gpu was available" in said or "queue" in said:
        return "No GPU came free on ZeroGPU in time; try again in a moment."
    if "aborted" in said:
        return "ZeroGPU took its GPU back before the run was over; ask for fewer tokens, or try again."
    if any(word in said for word in ("quota", "credits", "illegal duration", "limit")):
        return (
            "Your ZeroGPU quota does not cover this run; log in to Hugging Face for more, ask for fewer tokens, or "
            "come back tomorrow."
        )
    return "ZeroGPU lends no GPU now; try again later."
