"""Early exit: the target's own first layers draft, and its LM head reads their state.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) trains targets for this. Others mostly disagree with themselves until
late layers; a small trained adapter between the exit and the LM head makes an early one useful.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context, Weights, draft_chain
from specviz.drafters.heads.adapter import ExitAdapter, read_adapter
from specviz.drafters.trained import notes_on
from specviz.errors import UserError
from specviz.models.target import Target, exit_view


class EarlyExit:
    kind = "early-exit"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        target: Target,
        exit_layer: int | None = None,
        weights: Weights | None = None,
        *,
        confidence: float = 0.0,
        adapter: ExitAdapter | None = None,
    ) -> None:
        """exit_layer: how many layers draft; by default the adapter's. weights: of an adapter; without, the bare exit.

        confidence: see `draft_chain`. adapter: instead of the file's.
        Raises UserError if the target has no such layer, or if the adapter was made for another layer or target.
        """
        self.name, self.weights = (weights.name, weights.hash) if weights else ("", "")
        self.notes = weights.notes if weights else ()
        if weights is not None and adapter is None:
            self.notes = notes_on(weights, target)
            adapter = read_adapter(weights.path, target.config)
        if exit_layer is None:
            if adapter is None:
                raise UserError(
                    f"Early exit needs to know after which of the {target.config.num_hidden_layers} layers to leave; "
                    "give the exit layer."
                )
            exit_layer = adapter.exit_layer
        elif adapter is not None and adapter.exit_layer != exit_layer:
            raise UserError(
                f"The adapter was trained for an exit after layer {adapter.exit_layer}, not {exit_layer}; leave the "
                "exit layer out, or switch the adapter off."
            )
        self.exit_layer = exit_layer
        exit_view(target.model, self.exit_layer)
        self.target, self.confidence = target, confidence
        self.adapter = None if adapter is None else adapter.bind(target, packed=True).eval()
        self.vocabulary = None if self.adapter is None else self.adapter.vocabulary

    @torch.inference_mode()
    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        if gamma == 0:
            return Draft.empty()
        with self.target.early_exit(self.exit_layer, head=None if self.adapter is None else self._guess) as step:
            return draft_chain(step, ctx, gamma, sampler, rng, self.confidence)

    def _guess(self, hidden: Tensor) -> Tensor:
        """Logits [V] from the exit's state [H]."""
        assert self.adapter is not None and self.vocabulary is not None
        return self.vocabulary.full(self.adapter(hidden))
