"""Transformers' own candidate generators as a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Assistant, Context
from specviz.drafters.library_heads import DFlash, Mtp
from specviz.drafters.library_sampler import reason, seeded
from specviz.drafters.library_universal import Universal
from specviz.errors import UserError
from specviz.models.target import Target


class Run(Protocol):
    """A generator in the course of one run."""

    def carries_on(self, ctx: Context) -> bool:
        """Whether it can go on from where it drafted last; if not, a new one takes its place."""

    def draft(self, ctx: Context, gamma: int) -> Draft:
        """At most gamma tokens, for gamma > 0. It may draw from the global random state."""


class Method(Protocol):
    """One of transformers' generators, with the models it needs."""

    name: str  # of the model that drafts
    weights: str

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The target layers whose hidden states it reads."""

    @property
    def devices(self) -> Sequence[torch.device]:
        """Where it may draw random numbers."""

    def start(self, sampler: Sampler) -> Run:
        """A generator for a new run."""


METHODS: dict[str, type[Universal] | type[Mtp] | type[DFlash]] = {
    "universal": Universal,
    "mtp": Mtp,
    "dflash": DFlash,
}


class Library:
    """Any of METHODS. Each run has a generator of its own; after an error inside one, the next step starts another."""

    kind = "library"

    def __init__(self, target: Target, method: str = "universal", assistant: Assistant | None = None) -> None:
        """Raises UserError for an unknown method, or if it can't work with these models."""
        if method not in METHODS:
            raise UserError(f"There is no method {method!r}; choose one of {', '.join(METHODS)}.")
        self.method: Method = METHODS[method](target, assistant)
        self.model = target.model if assistant is None else assistant.model
        self.name, self.weights = self.method.name, self.method.weights
        self._context: Context | None = None  # of the run it is in
        self._run: Run | None = None

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self.method.hidden_layers

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        """One draw from `rng` seeds whatever the generator draws."""
        if gamma == 0:
            return Draft.empty()
        if ctx is not self._context:
            self._context, self._run = ctx, None
        seed = int(torch.randint(2**63 - 1, (), generator=rng))
        try:
            with seeded(seed, self.method.devices):
                if self._run is None or not self._run.carries_on(ctx):
                    self._run = self.method.start(sampler)
                return self._run.draft(ctx, gamma)
        except Exception as error:  # the output does not depend on the draft, so the run goes on without
            self._run = None
            return Draft.empty(f"Transformers' generator failed ({reason(error)}); nothing was drafted in this step.")
