"""The training loop: batches, losses, steps; checkpoints to go on from, and agreement on what was held out."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from specviz.errors import UserError
from specviz.refusals import refused_as
from specviz.training.data import Say, clock
from specviz.training.dataset import Batch, Dataset, Place
from specviz.training.optimiser import Optimiser
from specviz.training.output import prepare, whole
from specviz.training.tasks import Task

DEPTH_WEIGHT = 0.8  # of each depth's loss, relative to the one before
CHECKPOINT = "checkpoint.pt"
EVALUATE_EVERY = 4.0  # minutes
EVALUATED = 160  # held-out sequences at most
AHEAD = 3  # batches read before they are needed

Load = Callable[[list[Place]], Batch]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train. Exactly one of `tokens` and `minutes` ends it."""

    tokens: int | None
    minutes: float | None
    batch_tokens: int = 3000
    learning_rate: float = 4e-3
    checkpoint_minutes: float = 3.0
    seed: int = 0
    made_with: str = ""  # what must be the same for a run to go on with another's checkpoint


@dataclass(slots=True)
class Progress:
    """Where training stands."""

    step: int = 0
    seen: int = 0  # answer tokens, repeated ones counted again
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0  # of the epoch
    curve: list[dict[str, Any]] = field(default_factory=list)  # points of "tokens" seen and "agreement", see evaluate

    def share(self, plan: Plan) -> float:
        """0 at the beginning, 1 at the end."""
        if plan.minutes is not None:
            return self.seconds / (60 * plan.minutes)
        return self.seen / (plan.tokens or 1)


def train(
    task: Task, data: Dataset, d2t: Tensor, vocab_size: int, width: int, plan: Plan, out: Path, say: Say
) -> Progress:
    """Train until the plan is done, or go on with what an earlier run left in `out`; returns how it went.

    Raises UserError if `out` can't be written to, or holds another run.
    """
    prepare(out)
    columns, trained = data.columns(task.layers), next(task.module.parameters())
    t2d = torch.full((vocab_size,), -1)
    t2d[d2t.cpu()] = torch.arange(len(d2t))

    def load(places: list[Place]) -> Batch:
        return data.load(places, columns, width, t2d)

    optimiser = Optimiser(task.module, plan.learning_rate)
    progress = _resume(out, task, optimiser, plan, data, say)
    held_out = list(data.batches(data.held_out[:EVALUATED], plan.batch_tokens, None))
    task.module.train()
    saved = evaluated = started = monotonic()
    before = progress.seconds
    while progress.share(plan) < 1:
        order = list(data.batches(data.training, plan.batch_tokens, plan.seed + progress.epoch))
        for batch in _ahead(order[progress.batch :], load):
            share = progress.share(plan)
            if share >= 1:
                break
            depth = _depth(share, task.depth, Random(f"{plan.seed} {progress.step}"))
            losses = task.losses(batch.beside(trained), depth)
            total = sum((DEPTH_WEIGHT**index * loss.mean for index, loss in enumerate(losses)), torch.zeros(()))
            if losses:
                total.backward()  # type: ignore[no-untyped-call]
            optimiser.step(share)
            progress.step += 1
            progress.batch += 1
            progress.seen += batch.count
            now = monotonic()
            progress.seconds = before + now - started
            if now - evaluated > 60 * EVALUATE_EVERY:
                _report(task, held_out, load, progress, plan, say)
                evaluated = monotonic()
                started += evaluated - now  # the time of evaluation is not training time
            if now - saved > 60 * plan.checkpoint_minutes:
                _save(out, task, optimiser, progress, plan, data)
                saved = monotonic()
        else:
            progress.epoch, progress.batch = progress.epoch + 1, 0
    _save(out, task, optimiser, progress, plan, data)
    _report(task, held_out, load, progress, plan, say)
    return progress


def _depth(share: float, most: int, random: Random) -> int:
    """How deep to train: shallow at first, since deep passes build on good shallow ones."""
    if share < 0.06:
        return 1
    if share < 0.2:
        return min(2, most)
    depths: list[int] = [2, 2, 3, 3, *range(4, max(most, 4) + 1)]
    return min(random.choice(depths), most)


@torch.inference_mode()
def evaluate(task: Task, batches: list[list[Place]], load: Load) -> list[float]:
    """Agreement per depth: how often the drafter's first choice is the target's, given the text so far.

    Depths that no answer reaches are left out, so it is empty if nothing was held out.
    """
    agreed, rows = [0] * task.depth, [0] * task.depth
    trained = next(task.module.parameters())
    for places in batches:
        for index, loss in enumerate(task.losses(load(places).beside(trained), task.depth)):
            agreed[index] += loss.agreed
            rows[index] += loss.rows
    return [a / n for a, n in zip(agreed, rows, strict=True) if n]


def _report(
    task: Task,
    held_out: list[list[Place]],
    load: Callable[[list[Place]], Batch],
    progress: Progress,
    plan: Plan,
    say: Say,
) -> None:
    task.module.eval()
    agreement = evaluate(task, held_out, load)
    task.module.train()
    progress.curve.append({"tokens": progress.seen, "agreement": [round(value, 4) for value in agreement]})
    share = progress.share(plan)
    rate = progress.seen / max(progress.seconds, 1e-9)
    left = progress.seconds / max(share, 1e-9) - progress.seconds
    shown = " ".join(f"{value:.3f}" for value in agreement) or "not measured, for nothing is held out"
    say(
        f"step {progress.step}, {progress.seen:,} tokens at {rate:.0f} a second, held-out agreement {shown}, "
        f"{clock(max(left, 0))} left"
    )


def _ahead(order: list[list[Place]], load: Load) -> Iterator[Batch]:
    """Batches, read by a thread while the one before is being used."""
    ready: queue.Queue[Batch | Exception | None] = queue.Queue(AHEAD)
    done = threading.Event()

    def read() -> None:
        try:
            for places in order:
                if done.is_set():
                    return
                ready.put(load(places))
            ready.put(None)
        except Exception as error:  # raised again where the batch is wanted
            ready.put(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while (batch := ready.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        done.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.1)
            except queue.Empty:
                continue


def _save(out: Path, task: Task, optimiser: Optimiser, progress: Progress, plan: Plan, data: Dataset) -> None:
    scale = getattr(task, "scale", None)
    state = {"optimiser": optimiser.state(), "progress": json.dumps(asdict(progress)), "scale": scale}
    with whole(out / CHECKPOINT) as part, part.open("wb") as file:  # torch itself does not say why it can't write
        torch.save({**state, **_same_run(plan, data)}, file)


def _same_run(plan: Plan, data: Dataset) -> dict[str, Any]:
    """What must be the same for a run to go on with another's checkpoint. Order and size of the batches and the draft
    vocabulary depend on the data.
    """
    return {
        "made_with": plan.made_with,
        "batch_tokens": plan.batch_tokens,
        "conversations": len(data.training),
        "data": data.digest,
    }


def _resume(out: Path, task: Task, optimiser: Optimiser, plan: Plan, data: Dataset, say: Say) -> Progress:
    file = out / CHECKPOINT
    if not file.is_file():
        return Progress()
    with refused_as(f"{file} is no checkpoint of a training run", "so remove it to begin anew, or give another folder"):
        trained = next(task.module.parameters())  # the run may have begun on another device, in another number format
        found = torch.load(file, map_location=trained.device, weights_only=True)
        _check_same_run(found, _same_run(plan, data), out)
        optimiser.restore(found["optimiser"])
        if found["scale"] is not None:
            task.scale = found["scale"].to(trained)  # type: ignore[attr-defined]
        progress = Progress(**json.loads(found["progress"]))
    say(f"going on after step {progress.step}")
    return progress


def _check_same_run(found: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    """Raise UserError if a checkpoint is another run's; older ones do not say all of it."""
    began = {
        "made_with": found["made_with"],
        "batch_tokens": found.get("batch_tokens", now["batch_tokens"]),
        "conversations": found["conversations"],
        "data": found.get("data", now["data"]),
    }
    settings, settings_now = (f"{run['made_with']}, batch_tokens {run['batch_tokens']}" for run in (began, now))
    if settings != settings_now:
        raise UserError(f"{out} holds a run with other settings ({settings}, now {settings_now}); give another folder.")
    if began != now:
        raise UserError(
            f"The run in {out} began with other data ({began['conversations']:,} conversations to train on, now "
            f"{now['conversations']:,}); give it the same data, or begin in another folder."
        )
