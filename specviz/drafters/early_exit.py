"""Early exit: the target's own first layers draft, and its LM head reads their state.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) trains targets for this; others can be tried, and mostly disagree
with themselves until late layers.
"""

from __future__ import annotations

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context, draft_chain
from specviz.models.target import Target, exit_view


class EarlyExit:
    kind = "early-exit"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, target: Target, exit_layer: int) -> None:
        """Raises UserError if the target has no such layer."""
        exit_view(target.model, exit_layer)
        self.target, self.exit_layer = target, exit_layer

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        with self.target.early_exit(self.exit_layer) as step:
            return draft_chain(step, ctx, gamma, sampler, rng)
