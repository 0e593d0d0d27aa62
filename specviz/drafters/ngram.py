"""An n-gram table of the context: what followed the last n tokens before, follows again.

Known as prompt lookup decoding (Saxena 2023). No weights and next to no cost; pays where the output repeats the input.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters.base import Context
from specviz.errors import UserError
from specviz.models.target import Target

Pick = Literal["recent", "frequent"]


class NGram:
    kind = "ngram"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, target: Target, ngram_min: int = 1, ngram_max: int = 3, pick: Pick = "recent") -> None:
        """ngram_min, ngram_max: the shortest and the longest match looked for, in tokens, the longest first.

        pick: of several places that match, follow the most "recent" one, or at each token the most "frequent"
        continuation among them.
        """
        if not 1 <= ngram_min <= ngram_max <= 16:
            raise UserError(f"N-grams of {ngram_min} to {ngram_max} tokens don't work; give 1 <= min <= max <= 16.")
        self.target, self.ngram_min, self.ngram_max, self.pick = target, ngram_min, ngram_max, pick
        self._read: list[int] = []
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        self._index(ctx.tokens)
        places = self._matches(ctx.tokens)
        if not places or gamma == 0:
            return Draft.empty()
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
        """Places that followed the longest suffix of the context seen before, oldest first."""
        for n in range(min(self.ngram_max, len(tokens) - 1), self.ngram_min - 1, -1):
            if places := self._places.get(tuple(tokens[-n:])):
                return places
        return []

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
