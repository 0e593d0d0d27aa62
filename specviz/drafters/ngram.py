"""An n-gram table of the context: what followed the last n tokens before, follows again.

Known as prompt lookup decoding (Saxena 2023). No weights and next to no cost; pays where the output repeats the input.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from typing import Literal

import torch

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafter_settings import MOST_NGRAM
from specviz.drafters.base import Context
from specviz.drafters.tree import Growing, Shape
from specviz.errors import UserError
from specviz.models.target import Target

Pick = Literal["recent", "frequent"]
MOST_PLACES = 64  # looked at, the most recent ones: a newline or a space alone would match thousands


class NGram:
    kind = "ngram"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        target: Target,
        ngram_min: int = 1,
        ngram_max: int = 3,
        pick: Pick = "recent",
        *,
        tree: bool = False,
        nodes: int = 8,
        branches: int = 4,
    ) -> None:
        """ngram_min, ngram_max: the shortest and the longest match looked for, in tokens, the longest first.

        pick: of several places that match, follow the most "recent" one, or at each token the most "frequent"
        continuation among them.

        tree: several continuations at once, at most `nodes` tokens in all and `branches` after each.
        """
        if not 1 <= ngram_min <= ngram_max <= MOST_NGRAM:
            raise UserError(
                f"N-grams of {ngram_min} to {ngram_max} tokens don't work; give 1 <= min <= max <= {MOST_NGRAM}."
            )
        self.target, self.ngram_min, self.ngram_max, self.pick = target, ngram_min, ngram_max, pick
        self.shape = Shape(nodes, branches) if tree else None
        self.deepest = self.shape and self.shape.nodes  # no path is longer; without a tree only gamma bounds it
        self._read: list[int] = []
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        self._index(ctx.tokens)
        places = self._matches(ctx.tokens)
        if not places or gamma == 0:
            return Draft.empty()
        if self.shape is not None:
            return self._tree(ctx.tokens, places, gamma, self.shape)
        follow = self._most_frequent if self.pick == "frequent" else self._most_recent
        tokens = follow(ctx.tokens, places, gamma)
        q = one_hot(tokens, self.target.vocab_size).to(self.target.device)  # chosen, not drawn
        return Draft.chain(tokens, q)

    def _index(self, tokens: list[int]) -> None:
        """Enter every n-gram that has a continuation under the place of that continuation."""
        if tokens[: len(self._read)] != self._read:
            self._read = []
            self._places.clear()
        for end in range(max(1, len(self._read)), len(tokens)):
            for n in range(self.ngram_min, min(self.ngram_max, end) + 1):
                self._places[tuple(tokens[end - n : end])].append(end)
        self._read = list(tokens)

    def _matches(self, tokens: list[int]) -> list[int]:
        """The latest places that followed the longest suffix of the context seen before, oldest first."""
        for n in range(min(self.ngram_max, len(tokens) - 1), self.ngram_min - 1, -1):
            if places := self._places.get(tuple(tokens[-n:])):
                return places[-MOST_PLACES:]
        return []

    def _tree(self, tokens: list[int], places: list[int], gamma: int, shape: Shape) -> Draft:
        """What followed the places, as a trie. Where they part, the more frequent or more recent one goes before."""
        tree = Growing([], [], [])
        reached: dict[int, tuple[list[int], list[int]]] = {ROOT: ([], places[::-1])}  # by node: its path, its places
        ahead: list[tuple[float, int]] = [(0.0, ROOT)]  # minus the log of what is given to a node
        for _ in range(shape.nodes + 1):  # the root among them; the best nodes come off the heap in turn
            if not ahead:
                break
            _, node = heapq.heappop(ahead)
            path, here = reached[node]
            if len(path) == gamma:
                continue
            nexts = self._continuations(tokens, path, here)
            shares = self._shares([len(found) for found in nexts.values()])
            following = list(nexts)[: shape.branches]
            children = tree.add(node, following, [math.log(share) for share in shares[: shape.branches]])
            for child, token in zip(children, following, strict=True):
                reached[child] = ([*path, token], nexts[token])
                heapq.heappush(ahead, (-tree.joint[child], child))
        return tree.draft(shape.nodes, self.target.vocab_size, self.target.device, None)

    def _continuations(self, tokens: list[int], path: list[int], places: list[int]) -> dict[int, list[int]]:
        """What comes after the path at each of the places, best first, and at which of them.

        places: the most recent first. Past the end of the context, the most recent goes on with the path itself.
        """
        nexts: dict[int, list[int]] = {}
        for place in places:
            index = place + len(path)
            if index < len(tokens):
                nexts.setdefault(tokens[index], []).append(place)
            elif self.pick == "recent":
                nexts.setdefault(path[index - len(tokens)], []).append(place)
        return dict(sorted(nexts.items(), key=lambda item: -len(item[1]))) if self.pick == "frequent" else nexts

    def _shares(self, counts: list[int]) -> list[float]:
        """What is given to each of several continuations, best first: its frequency, or half of what is left."""
        if self.pick == "frequent":
            return [count / sum(counts) for count in counts]
        return [1.0] if len(counts) == 1 else [0.5**rank for rank in range(1, len(counts) + 1)]

    @staticmethod
    def _most_recent(tokens: list[int], places: list[int], gamma: int) -> list[int]:
        """Copy from the latest place on; past the end of the context, go on with the draft itself."""
        text = list(tokens)
        for offset in range(gamma):
            text.append(text[places[-1] + offset])
        return text[len(tokens) :]

    @staticmethod
    def _most_frequent(tokens: list[int], places: list[int], gamma: int) -> list[int]:
        """At each depth the commonest token among the places that agree so far, the most recent of equals."""
        drafted: list[int] = []
        for offset in range(gamma):
            nexts = [(place, tokens[place + offset]) for place in places if place + offset < len(tokens)]
            if not nexts:
                break
            counts = Counter(token for _, token in reversed(nexts))  # most_common keeps first-seen order among equals
            best = counts.most_common(1)[0][0]
            drafted.append(best)
            places = [place for place, token in nexts if token == best]
        return drafted
