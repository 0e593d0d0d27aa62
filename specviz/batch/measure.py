"""Fair timing of passes over batches: all cells take turns, in an order that rotates, over the repeats."""

from __future__ import annotations

import datetime
import gc
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import torch
import transformers

import specviz
from specviz import memory
from specviz.batch.machine import attainable, work_of
from specviz.batch.model import roofline
from specviz.batch.passes import Passes, check_memory, sequences
from specviz.batch.results import Cell, Header, Measurement, Skipped
from specviz.drafters import DraftModel
from specviz.errors import Cancelled, UserError
from specviz.models.devices import describe, synchronise
from specviz.models.pack import is_packed
from specviz.models.placement import places
from specviz.models.target import Target
from specviz.workloads.results import load_averages

WARM_UPS = 2  # passes of every cell that do not count; the last of them tells how long it takes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `text`: token ids that fill the caches, over and over; `of_what`: what they are, in words."""

    batches: tuple[int, ...]
    rows: tuple[int, ...]
    context: int
    repeats: int
    cell_seconds: float  # cells whose passes are expected to take longer in all are left out
    text: tuple[int, ...]
    of_what: str

    def check(self, target: Target) -> None:
        """Raise UserError for what can't be measured."""
        if 1 not in self.batches or 1 not in self.rows:
            raise UserError("What is measured is compared with one token of one sequence, so have 1 among both lists.")
        if self.context < 1 or self.repeats < 1 or not self.cell_seconds > 0 or not self.text:
            raise UserError("The context, the repeats, the seconds per cell and the text must not be empty or 0.")
        tokens, most = self.context + max(self.rows), target.max_tokens
        if most is not None and tokens > most:
            raise UserError(f"{target.name} holds {most:,} tokens and {tokens:,} are asked for; shorten the context.")


class Progress(NamedTuple):
    """How far measuring is. `measurement`: all whole rounds so far, None before the first."""

    doing: str
    done: int  # timed passes
    total: int
    seconds_left: float | None
    measurement: Measurement | None


class _Item(NamedTuple):
    """One cell to be timed. `passes`: whose."""

    passes: Passes
    batch: int
    rows: int


@torch.inference_mode()
def measure(
    target: Target, plan: Plan, *, drafter: DraftModel | None = None, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Progress]:
    """Time passes of the target over every batch size and number of rows, and steps of the drafter's model.

    Whoever iterates holds the lock of the target's device. Yields before each part of the work and after each pass,
    never while one is timed; the last value holds the measurement. Each pass is over tokens that follow in the text,
    with the logits of all its rows, and is taken back untimed. Raises UserError for what can't be measured,
    NotEnoughMemory with the numbers, and Cancelled within one pass of `should_stop()` turning true.
    """
    plan.check(target)
    _check_memory(target, plan, drafter)
    yield Progress("measuring what the device reaches", 0, 0, None, None)
    machine = attainable(target.device, target.dtype)
    work, notes = work_of(target)
    measurement = Measurement(_header(target, plan, drafter, notes), machine, work, ())
    yield Progress(f"reading {max(plan.batches)} x {plan.context} tokens into the caches", 0, 0, None, None)
    ids = sequences(plan.text, max(plan.batches), plan.context + max(plan.rows))
    of_target = Passes(target.model, target.config, ids, plan.context, plan.batches, should_stop)
    items, expected = [], {}
    for item, seconds in _warmed(of_target, plan, measurement, should_stop):
        yield Progress("warming up passes of every size", 0, 0, None, None)
        if isinstance(seconds, Skipped):
            measurement = replace(measurement, skipped=(*measurement.skipped, seconds))
        else:
            items.append(item)
            expected[item] = seconds
    if drafter is not None:
        batches = [item.batch for item in items if item.rows == 1]
        of_drafter = Passes(drafter.model, drafter.config, ids, plan.context, batches, should_stop)
        for item in (_Item(of_drafter, batch, 1) for batch in batches):
            items.append(item)
            expected[item] = [_timed(item, target.device) for _ in range(WARM_UPS)][-1]
    times: dict[_Item, list[float]] = {item: [] for item in items}
    gc.collect()
    for repeat in range(plan.repeats):
        shift = repeat * len(items) // plan.repeats
        for place, item in enumerate((*items[shift:], *items[:shift])):
            if should_stop():
                raise Cancelled
            times[item].append(_timed(item, target.device))
            if place == len(items) - 1:
                measurement = _filled(measurement, times, of_target)
            yield _progress(times, expected, plan, measurement if measurement.cells else None)


def _warmed(
    passes: Passes, plan: Plan, measurement: Measurement, should_stop: Callable[[], bool]
) -> Iterator[tuple[_Item, float | Skipped]]:
    """Every cell, the smallest first, with the seconds that its passes should take, or why it is left out.

    What a larger one will take is foretold from the one before it, by how the roofline grows.
    """
    device = passes.ids.device
    before: tuple[float, float] | None = None  # seconds of the last cell, and its roofline
    cells = sorted(((batch, rows) for batch in plan.batches for rows in plan.rows), key=lambda cell: cell[0] * cell[1])
    for batch, rows in cells:
        if should_stop():
            raise Cancelled
        item, modelled = _Item(passes, batch, rows), roofline(measurement, batch, rows)
        expected_s = 0.0 if before is None else before[0] * modelled / before[1]
        if expected_s * (WARM_UPS + plan.repeats) > plan.cell_seconds and before is not None:
            yield item, Skipped(batch, rows, expected_s)
            continue
        seconds = [_timed(item, device) for _ in range(WARM_UPS)][-1]
        before = seconds, modelled
        yield item, seconds


def _timed(item: _Item, device: torch.device) -> float:
    """Seconds of one pass, which is then taken back."""
    synchronise(device)
    started = perf_counter()
    item.passes.forward(item.batch, item.rows)
    synchronise(device)
    seconds = perf_counter() - started
    item.passes.forget(item.batch)
    return seconds


def _progress(
    times: dict[_Item, list[float]], expected: dict[_Item, float], plan: Plan, measurement: Measurement | None
) -> Progress:
    left = sum((plan.repeats - len(taken)) * expected[item] for item, taken in times.items())
    done = sum(map(len, times.values()))
    return Progress("timing passes", done, plan.repeats * len(times), left, measurement)


def _filled(measurement: Measurement, times: dict[_Item, list[float]], of_target: Passes) -> Measurement:
    """With the rounds that are whole."""
    cells = [(item, Cell(item.batch, item.rows, tuple(taken))) for item, taken in times.items()]
    repeats = len(cells[0][1].seconds)
    order = sorted(cells, key=lambda pair: (pair[1].batch, pair[1].rows))
    return replace(
        measurement,
        header=replace(measurement.header, repeats=repeats),
        cells=tuple(cell for item, cell in order if item.passes is of_target),
        drafting=tuple(cell for item, cell in order if item.passes is not of_target),
    )


def _check_memory(target: Target, plan: Plan, drafter: DraftModel | None) -> None:
    models: list[tuple[Any, int]] = [(target.config, max(plan.rows))]
    if drafter is not None:
        models.append((drafter.config, 1))
    available = sum(memory.available_bytes(place) for place in places(target.model))
    tokens = plan.context + max(plan.rows)
    check_memory(models, dtype_bytes=target.dtype.itemsize, batches=plan.batches, tokens=tokens, available=available)


def _busy(load: Sequence[float]) -> tuple[str, ...]:
    """What has to be said where other programs were using the processors at the start."""
    processors = os.cpu_count() or 1
    if not load or load[0] <= processors:
        return ()
    return (
        f"Other programs kept this machine busy (load average {load[0]:.1f}, {processors} processors), so "
        "times are longer and spread further than they would by themselves.",
    )


def _header(target: Target, plan: Plan, drafter: DraftModel | None, notes: Sequence[str]) -> Header:
    load = load_averages()
    return Header(
        target=target.name,
        weights=target.weights,
        device=describe(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads() if target.device.type == "cpu" else None,
        versions={
            "specviz": specviz.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "linear layers": "packed" if is_packed(target.model) else "as stored",
        },
        context=plan.context,
        text=plan.of_what,
        repeats=plan.repeats,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        load=load,
        drafter=None if drafter is None else drafter.name,
        notes=(*notes, *_busy(load)),
    )
