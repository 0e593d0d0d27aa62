"""No drafter: plain decoding, one token per verify pass, in the same loop as all the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context


@dataclass(frozen=True, slots=True)
class Plain:
    kind = "plain"
    hidden_layers: tuple[int, ...] = ()

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        return Draft.empty()
