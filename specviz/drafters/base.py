"""What every drafter is: one method that proposes, given all that has been committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler, draw


@dataclass(slots=True)
class Context:
    """All that has been committed. Drafters read it and never change it."""

    tokens: list[int]
    hidden: Tensor | None  # [len(tokens) - 1, D]: row i is the target's state after tokens[:i+1]

    def commit(self, committed: Sequence[int], hidden: Tensor | None, path: Sequence[int]) -> None:
        """Add a step's tokens and the hidden rows of those that went through the target, all but the last."""
        if self.hidden is not None and hidden is not None:
            rows = [node + 1 for node in (ROOT, *path)][: len(committed)]
            self.hidden = torch.cat([self.hidden, hidden[rows]])
        self.tokens.extend(committed)


@dataclass(frozen=True, slots=True)
class Assistant:
    """A loaded model that drafts for a target.

    `weights`: a hash or revision that identifies its parameters. `notes`: what was substituted as it was loaded.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    weights: str = ""
    notes: tuple[str, ...] = ()


class Drafter(Protocol):
    """A proposer. It has no rollback call: one with a cache crops it to the common prefix with `ctx.tokens`."""

    kind: str

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The target layers whose hidden states it reads."""

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        """A draft of depth at most gamma; it may be empty, and is for gamma 0."""


def draft_chain(
    step: Callable[[int], Tensor], ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator
) -> Draft:
    """Draft one token after another with step(token) -> logits [V] of the token that follows it.

    Drafting stops, with a note, where the logits give no distribution: the output does not depend on the draft.
    """
    tokens: list[int] = []
    q, logits = [], []
    note = None
    for _ in range(gamma):
        prefix = [*ctx.tokens, *tokens]
        row = step(prefix[-1])
        if not torch.isfinite(row.amax()):  # NaN, or nothing but -inf
            note = "The drafter returned logits that are not numbers; nothing is drafted where it does."
            break
        logits.append(row)
        q.append(sampler.probs(row[None], prefix)[0])
        tokens.append(draw(q[-1], rng))
    return Draft.chain(tokens, torch.stack(q), torch.stack(logits), note) if tokens else Draft.empty(note)
