"""What every drafter is: one method that proposes, given all that has been committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler, draw

NOT_NUMBERS = "The drafter returned logits that are not numbers; nothing is drafted where it does."


@dataclass(slots=True)
class Context:
    """All that has been committed. Drafters read it and never change it."""

    tokens: list[int]
    hidden: Tensor | None  # [len(tokens) - 1, D]: row i is the target's state after tokens[:i+1]
    detail: bool = True  # whether the logits behind a tree will be looked at; what costs time is else left out
    _buffer: Tensor | None = field(default=None, init=False, repr=False)  # its first rows are `hidden`

    def commit(self, committed: Sequence[int], hidden: Tensor | None, path: Sequence[int]) -> None:
        """Add a step's tokens and the hidden rows of those that went through the target, all but the last.

        hidden: [n+1, D], of the last committed token and of the n draft tokens. Only the rows of the path are copied;
        what was read of `self.hidden` before stays as it is.
        """
        if self.hidden is not None and hidden is not None:
            rows = [node + 1 for node in (ROOT, *path)][: len(committed)]
            known, needed = len(self.hidden), len(self.hidden) + len(rows)
            if self._buffer is None or len(self._buffer) < needed:  # a new one is twice as long: that happens seldom
                self._buffer = self.hidden.new_empty(2 * needed, self.hidden.shape[1])
                self._buffer[:known] = self.hidden
            self._buffer[known:needed] = hidden[rows]
            self.hidden = self._buffer[:needed]
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


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder of trained weights, config.json and tensors, that a drafter builds itself from.

    `hash`: identifies its tensors. `notes`: what was substituted as it was obtained.
    """

    path: Path
    name: str
    hash: str = ""
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
    step: Callable[[int], Tensor],
    ctx: Context,
    gamma: int,
    sampler: Sampler,
    rng: torch.Generator,
    confidence: float = 0.0,
) -> Draft:
    """Draft one token after another with step(token) -> logits [V] of the token that follows it.

    Drafting stops after a token to which the drafter itself, at temperature 1, gives less than `confidence`. That
    token stays: whether a drawn token is proposed must not depend on its value, else its q would be wrong.

    Drafting also stops, with a note, where the logits give no distribution: the output does not depend on the draft.
    """
    tokens: list[int] = []
    q, logits = [], []
    note = None
    for _ in range(gamma):
        prefix = [*ctx.tokens, *tokens]
        row = step(prefix[-1])
        if not torch.isfinite(row.amax()):  # NaN, or nothing but -inf
            note = NOT_NUMBERS
            break
        logits.append(row)
        q.append(sampler.probs(row[None], prefix)[0])
        tokens.append(draw(q[-1], rng))
        if confidence > 0 and torch.softmax(row.float(), -1)[tokens[-1]] < confidence:
            break
    return Draft.chain(tokens, torch.stack(q), torch.stack(logits), note) if tokens else Draft.empty(note)
