"""Measure here: a suite decoded prompt by prompt, each in a turn of its own at the model, which visitors share."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from specviz import memory, runs
from specviz.errors import Cancelled, UserError
from specviz.loaded import Loaded
from specviz.presets import DrafterPreset, Pairing
from specviz.prompts import encode
from specviz.ui.handlers import LOOK_UP_SECONDS, TURN_SECONDS, over
from specviz.ui.loading import Models
from specviz.ui.offer import check_pairing
from specviz.ui.visits import Turns
from specviz.ui.work import closing
from specviz.ui.workloads_files import HERE, File
from specviz.ui.workloads_order import Order, arm_of
from specviz.workloads import runner
from specviz.workloads.result_file import Results
from specviz.workloads.results import Result
from specviz.workloads.runner import Plan

MOST_SECONDS = 1800.0  # that one measurement goes on
SHOW_SECONDS = 0.5  # at least, from one showing of the results to the next


class Progress(NamedTuple):
    """How far it is, and the results so far where there are more than before."""

    said: str
    file: File | None = None
    share: float | None = None  # that is done


class _OutOfTime:
    """Whether to stop: the visitor said so, or the turn has lasted too long."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self._is_over = over(stop)

    def begin(self) -> None:
        """A turn begins."""
        self._is_over = over(self.stop)

    def __call__(self) -> bool:
        return self._is_over()


def measure(order: Order, models: Models, turns: Turns, stop: threading.Event) -> Iterator[Progress]:
    """Measure every drafter on every prompt.

    Raises Cancelled within a step of `stop`, and UserError for what does not work; what was found until then has been
    yielded.
    """
    begun = time.monotonic()
    with TemporaryDirectory(prefix="specviz-") as folder, Results(Path(folder) / "measured.jsonl") as results:
        shown, when = 0, -SHOW_SECONDS
        try:
            for preset in order.presets:
                loaded = yield from _load(order.pairing, preset, models, stop)
                plan = _fitting(loaded, order.plan)
                memory.check(_needs(loaded, preset, plan))
                total = len(order.presets) * len(plan.prompts)
                for found in _in_turns(loaded, preset, plan, results, models, turns, stop):
                    if isinstance(found, str):
                        yield Progress(found)
                        continue
                    spent, done = time.monotonic() - begun, len(results.all)
                    is_due = spent - when >= SHOW_SECONDS
                    if is_due:
                        shown, when = done, spent
                    said = _progress(found, done, total, spent)
                    yield Progress(said, _file(results) if is_due else None, done / total)
                    if spent > MOST_SECONDS and done < total:
                        raise UserError(f"{MOST_SECONDS / 60:.0f} minutes are over, so the rest was left out.")
        except Exception:
            if len(results.all) > shown:
                yield Progress("", _file(results))
            raise
        left_out = len(order.plan.prompts) - len(plan.prompts)
        yield Progress(_ended(len(results.all), left_out, time.monotonic() - begun), _file(results))


def _load(
    pairing: Pairing, preset: DrafterPreset, models: Models, stop: threading.Event
) -> Generator[Progress, None, Loaded]:
    loaded = models.there(pairing, preset.model)
    if loaded is None:
        check_pairing(pairing, models)
        loading = models.load(pairing, preset.model)
        with loading.awaited(gives_up=True):
            while not loading.wait(LOOK_UP_SECONDS):
                _unless(stop)
                yield Progress(f"{loading.text[:1].upper()}{loading.text[1:]}…")
        loaded = loading.result()
    return loaded


def _fitting(loaded: Loaded, plan: Plan) -> Plan:
    """The plan without the prompts that the target can't hold; raises UserError where none is left."""
    unfit = runner.unfit(loaded, plan)
    suites = (
        replace(suite, prompts=tuple(prompt for prompt in suite.prompts if (suite.name, prompt.id) not in unfit))
        for suite in plan.suites
    )
    kept = replace(plan, suites=tuple(suite for suite in suites if suite.prompts))
    if not kept.suites:
        raise UserError(f"{loaded.target.name} can hold none of these prompts; choose other workloads.")
    return kept


def _needs(loaded: Loaded, preset: DrafterPreset, plan: Plan) -> memory.Budget:
    """What the longest conversation will need of memory."""
    tokens = max(
        len(encode(loaded.target, prompt.text)) + len(prompt.turns) * plan.max_new_tokens for _, prompt in plan.prompts
    )
    arm = arm_of(preset)
    return runs.needs(loaded, arm.kind, arm.settings, arm.gamma, tokens)


def _in_turns(
    loaded: Loaded,
    preset: DrafterPreset,
    plan: Plan,
    results: Results,
    models: Models,
    turns: Turns,
    stop: threading.Event,
) -> Iterator[Result | str]:
    """One drafter's results, each from a turn at the model of its own; while others have theirs, a word on that."""
    should_stop = _OutOfTime(stop)
    # The turn holds the lock already.
    running = runner.run(loaded, [arm_of(preset)], plan, results, lock=nullcontext(), should_stop=should_stop)
    with closing(running) as measured:
        while True:
            with turns.queue(loaded.lock) as turn:
                while not turn.take():
                    _unless(stop)
                    yield "Waiting for the model, which somebody else is using."
                if models.there(loaded.pairing, preset.model) is not loaded:
                    raise UserError(f"{loaded.target.name} had to make room for another model; measure again.")
                should_stop.begin()
                try:
                    result = next(measured, None)
                except Cancelled:
                    _unless(stop)
                    raise UserError(
                        f"A prompt took more than {TURN_SECONDS:.0f} s, the longest turn; ask for fewer tokens."
                    ) from None
            if result is None:
                return
            yield result


def _progress(result: Result, done: int, total: int, spent: float) -> str:
    left = spent / done * (total - done)
    when = f"about {left / 60:.0f} min" if left >= 90 else f"about {left:.0f} s"
    speed = "" if result.speedup is None else f", {result.speedup:.2f}x"
    what = f"{result.arm.kind} on {result.prompt}: {result.acceptance_length:.2f} tokens per pass{speed}"
    return f"{done} of {total}, {when} left. Last: {what}."


def _ended(done: int, left_out: int, seconds: float) -> str:
    how_long = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
    prompts = "1 prompt was" if left_out == 1 else f"{left_out} prompts were"
    missing = f" {prompts} left out: too long for the target." if left_out else ""
    return f"Measured {done} answers in {how_long}.{missing}"


def _file(results: Results) -> File:
    assert results.file is not None
    return File(HERE, results.file.read_text(encoding="utf-8"))


def _unless(stop: threading.Event) -> None:
    if stop.is_set():
        raise Cancelled
