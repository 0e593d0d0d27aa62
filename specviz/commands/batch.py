"""`batch`: what passes over several sequences cost on this device, and what that leaves of a run's speed-up."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from specviz import trace
from specviz.batch import results, table
from specviz.batch.measure import Plan, measure
from specviz.batch.model import Drafting, crossover, gain, modelled_gain, roofline
from specviz.batch.results import Measurement
from specviz.batch.text import OF_WHAT, text_of
from specviz.commands.common import drafter_settings, load, say
from specviz.drafters import DraftModel, make_drafter
from specviz.errors import UserError
from specviz.loaded import Loaded


def command(options: argparse.Namespace) -> None:
    drafting = _drafting(options)
    if options.drafter_path is not None and options.drafter == "plain":
        raise UserError("--drafter-path names a draft model; add --drafter draft-model to time its steps.")
    loaded = load(options)
    target = loaded.target
    plan = Plan(
        batches=options.batches,
        rows=options.rows,
        context=options.context,
        repeats=options.repeats,
        cell_seconds=options.cell_seconds,
        text=text_of(target),
        of_what=OF_WHAT,
    )
    drafter = _draft_model(options, loaded)
    with loaded.lock:
        measurement = _measured(loaded, plan, drafter)
    if options.out is not None:
        results.write(measurement, options.out)
        say(f"wrote {options.out}")
    if options.json:
        print(json.dumps(as_json(measurement, drafting), allow_nan=False))
        return
    print(table.costs(measurement))
    if drafting is not None:
        print(f"\n{table.speedups(measurement, drafting)}")


def as_json(measurement: Measurement, drafting: Drafting | None) -> dict[str, Any]:
    """The measurement, the roofline of its cells in seconds, and the speed-ups of a run that was described."""
    cells = [[cell.batch, cell.rows, roofline(measurement, cell.batch, cell.rows)] for cell in measurement.cells]
    found: dict[str, Any] = {
        "schema": results.SCHEMA,
        "measurement": trace.plain(measurement),
        "roofline": cells,
        "speedup": None,
    }
    if drafting is not None:
        gains = [gain(measurement, drafting, batch) for batch in measurement.batches]
        found["speedup"] = {
            "acceptance_length": drafting.length,
            "gamma": drafting.gamma,
            "cost_ratio": drafting.cost_ratio,
            "by_batch": [
                {
                    "batch": each.batch,
                    "speedup": each.speedup,
                    "verify": each.verify.how,
                    "draft": each.draft.how,
                    "roofline": modelled_gain(measurement, drafting, each.batch).speedup,
                }
                for each in gains
            ],
            "crossover": crossover(gains),
        }
    return found


def _drafting(options: argparse.Namespace) -> Drafting | None:
    """The run to compute speed-ups for; None if none is described. Raises UserError for what can't be."""
    length, gamma, ratio = options.acceptance_length, options.gamma, options.cost_ratio
    if length is None:
        if ratio is not None:
            raise UserError("--cost-ratio is for a speed-up, which needs --acceptance-length too.")
        return None
    if gamma < 1 or not 1 <= length <= gamma + 1:
        raise UserError(f"Drafts of {gamma} tokens have an acceptance length from 1 to {gamma + 1}, not {length:g}.")
    if ratio is None and options.drafter == "plain":
        raise UserError("A speed-up needs what drafting costs: give --cost-ratio, or --drafter draft-model.")
    if ratio is not None and not (math.isfinite(ratio) and ratio >= 0):
        raise UserError(f"--cost-ratio is {ratio:g}; give a number from 0 on.")
    return Drafting(length, gamma, ratio)


def _draft_model(options: argparse.Namespace, loaded: Loaded) -> DraftModel | None:
    if options.drafter == "plain":
        return None
    settings = drafter_settings(options, loaded.pairing)
    drafter = make_drafter(options.drafter, loaded.target, settings, loaded.assistant or loaded.head)
    assert isinstance(drafter, DraftModel)
    return drafter


def _measured(loaded: Loaded, plan: Plan, drafter: DraftModel | None) -> Measurement:
    """The measurement, with its progress on stderr."""
    said = ""
    tenth = 0
    for progress in measure(loaded.target, plan, drafter=drafter):
        if progress.total == 0:
            if progress.doing != said:
                say(progress.doing)
            said = progress.doing
        elif 10 * progress.done // progress.total > tenth:
            tenth = 10 * progress.done // progress.total
            left = "" if progress.seconds_left is None else f", about {progress.seconds_left:.0f} s left"
            say(f"timed {progress.done} of {progress.total} passes{left}")
    assert progress.measurement is not None
    return progress.measurement
