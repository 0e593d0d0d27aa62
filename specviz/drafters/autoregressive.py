"""Drafting with an autoregressive head: EAGLE's and the prediction layers of MTP, as a chain or as a tree.

The head reads the states that the target computed in its verify passes anyway. Rows of true states are kept from step
to step; rows of the head's own guesses are dropped before the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context, Weights, draft_chain
from specviz.drafters.heads.head import Head
from specviz.drafters.heads.kept import bound_head
from specviz.drafters.trained import WithHeads
from specviz.drafters.tree import Growing, dynamic_tree
from specviz.models.cache import GrowingLayer
from specviz.models.target import PREFILL_CHUNK, Target


class Autoregressive(WithHeads):
    """What the kinds `eagle` and `mtp` share."""

    kind = ""

    def __init__(
        self,
        target: Target,
        weights: Weights,
        *,
        tree: bool = False,
        nodes: int = 8,
        branches: int = 4,
        confidence: float = 0.0,
        aux_convention: str = "",
        norm_before_residual: bool | None = None,
        head: Head | None = None,
    ) -> None:
        """tree, nodes, branches, confidence: see `dynamic_tree`, and `draft_chain` for the confidence of a chain.

        aux_convention, norm_before_residual: what a file may leave open; see `read_head`. head: one to be bound,
        instead of the one in the weights' folder. Raises UserError if the weights can't be read or were made for
        another target.
        """
        super().__init__(
            target, weights, are_read=head is None, tree=tree, nodes=nodes, branches=branches, confidence=confidence
        )
        if head is None:
            self.head = bound_head(weights.path, target, aux_convention or None, norm_before_residual)
        else:
            self.head = head.bind(target, packed=True).eval()
        self.vocabulary = self.head.vocabulary
        self._rows = GrowingLayer()  # the true ones first, then those of the guesses
        self._read: list[int] = []  # what the true rows were made from; row i has read token i+1
        self._context: Context | None = None  # of the run it is in

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self.head.config.hidden_layers

    @torch.inference_mode()
    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        known = len(ctx.tokens)
        limit = self.head.config.max_position_embeddings
        room = limit - known + 2  # row known - 2 gives the first token, and each further one adds a row
        if gamma > room:
            gamma = max(0, room)
            if gamma == 0:
                return Draft.empty(f"{self.name} holds {limit} tokens; beyond them nothing is drafted.")
        if gamma == 0 or known < 2:  # with a single token there is no state of the target yet
            return Draft.empty()
        output = self._catch_up(ctx)
        guess = _Guess(self.head, self._rows, output)
        if self.shape is None:
            return draft_chain(
                lambda token: self.vocabulary.full(guess.after(token)), ctx, gamma, sampler, rng, self.confidence
            )
        return dynamic_tree(
            guess.first, guess.expand, gamma, self.shape, self.vocabulary, self.confidence, detail=ctx.detail
        )

    def _catch_up(self, ctx: Context) -> Tensor:
        """Read all true states that were not read yet; the head's output [1, 1, H] in the last of them."""
        assert ctx.hidden is not None
        if ctx is not self._context:  # a new run reads its prompt anew: runs repeat bit for bit, and are timed alike
            self._context, self._read, self._rows = ctx, [], GrowingLayer()
        end = len(ctx.tokens) - 1
        # A row has read its token and the state before it, so it stays while the tokens up to that one do.
        start = max(0, _common(self._read, ctx.tokens) - 1)
        start = min(start, end - 1)  # if all were read, the last row is read again: its output is asked for
        self._rows.crop(self._rows.rows - start)
        self._read = ctx.tokens[: start + 1]
        for first in range(start, end, PREFILL_CHUNK):
            last = min(first + PREFILL_CHUNK, end)
            output = self._pass(self.head.fuse(ctx.hidden[first:last]), ctx.tokens[first + 1 : last + 1], first)
        self._read = list(ctx.tokens)
        return output[:, -1:]

    def _pass(self, features: Tensor, tokens: list[int], start: int) -> Tensor:
        """Outputs [1, T, H] of the true rows from `start` on; features: [T, H], of the target's states.

        Only the last is right, and only that is asked for. It sees all rows, so there is no mask; what those before it
        see does not matter, as a head is one layer deep: their keys and values follow from what they read.
        """
        end = start + len(tokens)
        positions = torch.arange(start, end, device=features.device)
        ids = torch.tensor([tokens], device=features.device)
        output: Tensor = self.head(features[None], ids, positions[None], self._rows, None, end)
        return output


class _Guess:
    """One step's drafting, from the output in the last true row.

    A row of a guess reads a drafted token and, for the state before it, what the head made of the row that drafted it.
    Its position goes on from the last true row by its depth.
    """

    def __init__(self, head: Head, rows: GrowingLayer, output: Tensor) -> None:
        """output: [1, 1, H]; rows: the true ones, to which those of the guesses are added."""
        self._head, self._rows = head, rows
        self._true = rows.rows
        self._nodes: list[int] = []  # nodes of a tree in the order of their rows
        logits, features = self._read_out(output)
        self.first = logits[0]  # [Vd] after the last committed token
        self._features = {ROOT: features[0]}  # [H] by node: what the rows of its children read
        self._asked = False

    def after(self, token: int) -> Tensor:
        """Logits [Vd] after one more token of a chain; the first is the last committed one, which has been read."""
        if not self._asked:
            self._asked = True
            return self.first
        logits, features = self._guess(self._features[ROOT][None], [token], [self._rows.rows], None)
        self._features[ROOT] = features[0]
        return logits[0]

    def expand(self, nodes: Sequence[int], tree: Growing) -> Tensor:
        """Logits [len(nodes), Vd] after those nodes of a tree, whose parents have been expanded."""
        self._nodes.extend(nodes)
        place = {node: self._true + index for index, node in enumerate(self._nodes)}
        paths = [tree.path(node) for node in nodes]
        features = torch.stack([self._features[tree.parents[node]] for node in nodes])
        mask = features.new_full((len(nodes), self._true + len(self._nodes)), torch.finfo(features.dtype).min)
        mask[:, : self._true] = 0
        seen = [(row, place[node]) for row, path in enumerate(paths) for node in path]
        mask[[row for row, _ in seen], [column for _, column in seen]] = 0
        positions = [self._true + len(path) - 1 for path in paths]
        logits, fed_back = self._guess(features, [tree.tokens[node] for node in nodes], positions, mask)
        self._features |= dict(zip(nodes, fed_back, strict=True))
        return logits

    def _guess(
        self, features: Tensor, tokens: list[int], positions: list[int], mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Add rows; features: [T, H]. Returns what `_read_out` does."""
        ids, places = torch.tensor([tokens, positions], device=features.device)
        output = self._head(features[None], ids[None], places[None], self._rows, mask, max(positions) + 1)
        return self._read_out(output)

    def _read_out(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, Vd] and what the next rows read, [T, H], from outputs [1, T, H]; normed once for both."""
        normed = self._head.normed(output)
        logits: Tensor = self._head.lm(normed)[0]
        return logits, (normed if self._head.config.feedback == "normed" else output)[0]


def _common(read: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning on."""
    if list(tokens[: len(read)]) == read:  # as nearly always; the rest takes a loop
        return len(read)
    differs = (index for index, pair in enumerate(zip(read, tokens, strict=False)) if pair[0] != pair[1])
    return next(differs, min(len(read), len(tokens)))
