"""The part of a run that uses the model: decode, make one step, measure. Here it is done in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from specviz import prompts, runs
from specviz.comparison import Comparison
from specviz.errors import UserError
from specviz.measure import compare
from specviz.trace import Run, Step
from specviz.ui.form import Ask
from specviz.ui.visits import Lock

T = TypeVar("T")
History = tuple[prompts.Turn, ...]
ShouldStop = Callable[[], bool]


class NoGPU(UserError):
    """No GPU can be had for the run now, or it was taken away again."""


class Work(Protocol):
    """Whoever does it. Closing an iterator ends it within a step, as `should_stop()` turning true does."""

    @property
    def run(self) -> Run:
        """The header of the run."""

    @property
    def lock(self) -> Lock:
        """To be held by whoever iterates."""

    def decode(self, should_stop: ShouldStop) -> Iterator[Step]:
        """All steps, or those until it is told to stop; raises Cancelled if that comes before the first."""

    def step(self, done: tuple[Step, ...], rng: bytes, should_stop: ShouldStop) -> Iterator[tuple[Step, bytes]]:
        """The step after those `done`, and nothing after it. `rng`: the generator's state, before it and after it."""

    def measure(self, repeats: int, should_stop: ShouldStop) -> Iterator[Comparison]:
        """As `measure.compare`."""


class Worker(Protocol):
    """Makes the work of a run."""

    def __call__(self, prepared: runs.Prepared, ask: Ask, history: History) -> Work: ...


@contextmanager
def closing(iterator: Iterator[T]) -> Iterator[Iterator[T]]:
    """Close it at once when whoever iterates turns away, rather than when memory is tidied."""
    try:
        yield iterator
    finally:
        getattr(iterator, "close", lambda: None)()


def here(prepared: runs.Prepared, ask: Ask, history: History) -> Work:
    return Here(prepared)


@dataclass(frozen=True, slots=True)
class Here:
    """In this process, on its own device."""

    prepared: runs.Prepared

    @property
    def run(self) -> Run:
        return self.prepared.run

    @property
    def lock(self) -> Lock:
        return self.prepared.loaded.lock

    def decode(self, should_stop: ShouldStop) -> Iterator[Step]:
        with closing(self.prepared.steps(should_stop=should_stop)) as steps:
            for step in steps:
                yield step
                if should_stop():
                    return

    def step(self, done: tuple[Step, ...], rng: bytes, should_stop: ShouldStop) -> Iterator[tuple[Step, bytes]]:
        generator = torch.Generator()
        generator.set_state(torch.tensor(list(rng), dtype=torch.uint8))
        with closing(self.prepared.steps(done=done, rng=generator, should_stop=should_stop)) as steps:
            step = next(steps)
        yield step, state_of(generator)

    def measure(self, repeats: int, should_stop: ShouldStop) -> Iterator[Comparison]:
        prepared = self.prepared
        return compare(
            prepared.loaded.target,
            prepared.drafter,
            prepared.prompt,
            prepared.settings,
            repeats=repeats,
            should_stop=should_stop,
        )


def state_of(generator: torch.Generator) -> bytes:
    """The state of a CPU generator as plain bytes."""
    return bytes(generator.get_state().tolist())
