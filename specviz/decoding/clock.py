"""Times of a step. Its phases are published only where they are asked for, since exact ones take synchronisation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from specviz.models.devices import synchronise


class Clock:
    """One per run. `begin` a step, time its `phase`s, then `take` the times, all in seconds."""

    def __init__(self, device: torch.device, phases: bool) -> None:
        self.device, self.phases = device, phases
        self._started = 0.0
        self.spent: dict[str, float] = {}  # seconds by phase; rough where nothing synchronises
        self._prefill: float | None = None

    @contextmanager
    def prefill(self) -> Iterator[None]:
        """Always synchronised: it happens once, and the first step's time must not contain it."""
        synchronise(self.device)
        started = perf_counter()
        yield
        synchronise(self.device)
        self._prefill = perf_counter() - started

    def begin(self) -> None:
        self.spent = {}
        self._started = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Synchronised only in runs that show phases. Drafting and verifying end as the host reads what came of them,
        so that their times mean something without it.
        """
        if self.phases:
            synchronise(self.device)
        started = perf_counter()
        yield
        if self.phases:
            synchronise(self.device)
        self.spent[name] = perf_counter() - started

    def take(self) -> dict[str, float | None]:
        """The step's times by the names of the trace's fields. Reading tokens back has synchronised the device."""
        seconds = perf_counter() - self._started
        prefill, self._prefill = self._prefill, None
        phases = {f"{name}_s": self.spent[name] if self.phases else None for name in ("draft", "verify", "decide")}
        return {"seconds": seconds, "prefill_s": prefill, **phases}
