"""A target that says what it is told, and drafters that know the script: for tests of where a run ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fakes import VOCAB
from transformers import PreTrainedTokenizerFast

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters.base import Context


class ScriptedTarget:
    """Has no model: after a prompt it says the script, token by token, whatever it is given to verify."""

    name = "scripted"
    device = torch.device("cpu")
    max_tokens = None

    def __init__(
        self,
        script: Sequence[int],
        prompt_length: int,
        tokenizer: PreTrainedTokenizerFast | None = None,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self.script, self.prompt_length = list(script), prompt_length
        self.tokenizer, self.stop_tokens = tokenizer, stop_tokens
        self.vocab_size = VOCAB if tokenizer is None else len(tokenizer)
        self.read = 0  # tokens in what would be the cache

    def prefill(self, tokens: Sequence[int], hidden_layers: tuple[int, ...] = (), *_: object) -> None:
        self.read = len(tokens)

    def verify(self, last: int, draft: Draft) -> tuple[torch.Tensor, None]:
        first = self.read + 1 - self.prompt_length  # place in the script of what follows `last`
        places = [first, *(first + depth for depth in draft.depths)]
        return 10 * one_hot([self.script[place % len(self.script)] for place in places], self.vocab_size), None

    def keep(self, path: Sequence[int]) -> int:
        self.read += 1 + len(path)
        return 0


class Replay:
    """Drafts a known continuation of the prompt, with a wrong token at the given places of it. q is one-hot."""

    kind = "replay"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self, script: Sequence[int], prompt_length: int, vocab_size: int = VOCAB, wrong: frozenset[int] = frozenset()
    ) -> None:
        self.script, self.prompt_length, self.vocab_size, self.wrong = list(script), prompt_length, vocab_size, wrong

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        start = len(ctx.tokens) - self.prompt_length
        tokens = [
            (self.script[place] + (place in self.wrong)) % self.vocab_size
            for place in range(start, min(start + gamma, len(self.script)))
        ]
        return Draft.chain(tokens, one_hot(tokens, self.vocab_size)) if tokens else Draft.empty()


class Refrain:
    """Drafts the same tokens every time."""

    kind = "refrain"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, tokens: Sequence[int], vocab_size: int = VOCAB) -> None:
        self.tokens, self.vocab_size = list(tokens), vocab_size

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        tokens = self.tokens[:gamma]
        return Draft.chain(tokens, one_hot(tokens, self.vocab_size)) if tokens else Draft.empty()
