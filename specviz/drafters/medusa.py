"""Medusa: heads that guess the next tokens all at once, each for one place, from the target's last state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import NOT_NUMBERS, Context, Weights, draft_chain
from specviz.drafters.heads.medusa import MedusaHeads, read_medusa
from specviz.drafters.trained import WithHeads
from specviz.drafters.tree import static_tree
from specviz.models.target import Target


class Medusa(WithHeads):
    """The heads know the last state but not the tokens between, so a deep guess is no wiser for a good shallow one."""

    kind = "medusa"

    def __init__(
        self,
        target: Target,
        weights: Weights,
        *,
        tree: bool = False,
        nodes: int = 8,
        branches: int = 4,
        confidence: float = 0.0,
        heads: MedusaHeads | None = None,
    ) -> None:
        """confidence: see `draft_chain`; a tree ends where even its best path is less probable. heads: not the file's.

        Raises UserError if the weights can't be read or were made for another target.
        """
        super().__init__(
            target, weights, are_read=heads is None, tree=tree, nodes=nodes, branches=branches, confidence=confidence
        )
        if heads is None:
            heads = read_medusa(weights.path, target.config)
        self.heads = heads.bind(target, packed=True).eval()
        self.hidden_layers = (int(target.config.num_hidden_layers),)  # after the final norm
        self.vocabulary = self.heads.vocabulary

    @property
    def deepest(self) -> int:
        """A token per head, and no path in a tree is longer than its nodes."""
        return min(self.heads.heads, super().deepest or self.heads.heads)

    @torch.inference_mode()
    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        if gamma == 0 or len(ctx.tokens) < 2:  # the target has read nothing yet
            return Draft.empty()
        assert ctx.hidden is not None
        # The last state saw all tokens but the last, which the target itself chose after it: head 0 guesses the next.
        logits = self.heads.logits(self.heads.states(ctx.hidden[-1:], heads=gamma))[:, 0]  # [depth, Vd]
        if self.shape is None:
            rows: Iterator[Tensor] = iter(self.vocabulary.full(logits))
            return draft_chain(lambda token: next(rows), ctx, len(logits), sampler, rng, self.confidence)
        if not torch.isfinite(logits.amax()):
            return Draft.empty(NOT_NUMBERS)
        if self.confidence > 0:
            sure = torch.softmax(logits.float(), -1).amax(-1).cumprod(0) >= self.confidence
            logits = logits[: 1 + int(sure.sum())]
        return static_tree(logits, self.shape, self.vocabulary, detail=ctx.detail)
