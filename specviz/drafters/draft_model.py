"""A separate small model drafts. It must speak the target's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context, draft_chain
from specviz.drafters.heads.vocabulary import DraftVocabulary
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.placement import input_device
from specviz.models.probe import check_rollback
from specviz.models.target import PREFILL_CHUNK, Target


class DraftModel:
    kind = "draft-model"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        target: Target,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "",
        weights: str = "",
        *,
        d2t: Tensor | None = None,
        notes: tuple[str, ...] = (),
        confidence: float = 0.0,
    ) -> None:
        """weights: what identifies the parameters, if known. confidence: see `draft_chain`.

        d2t: [Vd], the target's ids that the model's logits stand for, if it has a reduced vocabulary. notes: what has
        to be said of its weights.

        Raises UserError if the tokenizers differ, or if the model's cache can't be rolled back.
        """
        self.target, self.model, self.weights = target, model.eval(), weights
        self.name = name or model.config.model_type
        self.config = model.config.get_text_config(decoder=True)
        self.cache = PrefixCache(self.config)
        if self.cache.is_recurrent:
            raise UserError(f"{self.name} has recurrent layers, which can't be rolled back; choose another.")
        if model is not target.model:
            check_rollback(model, self.name)
        self.agreement = compare_vocabularies(target.tokenizer, tokenizer or target.tokenizer)
        self.vocabulary = None if d2t is None else DraftVocabulary(d2t.to(target.device), target.vocab_size)
        self.notes, self.confidence = notes, confidence
        self._masked = [token for token in self.agreement.foreign if token < target.vocab_size]
        self._known = int(model.get_input_embeddings().num_embeddings)  # ids it can read
        self._read: list[int] = []
        self._context: Context | None = None  # of the run it is in

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        limit = getattr(self.config, "max_position_embeddings", None)
        if limit is not None and len(ctx.tokens) + gamma - 1 > limit:
            gamma = max(0, limit - len(ctx.tokens) + 1)
            if gamma == 0:
                return Draft.empty(f"{self.name} holds {limit} tokens; beyond them nothing is drafted.")
        if (unknown := max(ctx.tokens)) >= self._known:
            return Draft.empty(f"{self.name} does not know token {unknown}; after it nothing is drafted.")
        if gamma == 0:
            return Draft.empty()
        if ctx is not self._context:  # a new run reads its prompt anew: runs repeat bit for bit, and are timed alike
            self._context = ctx
            self._rewind([])
        self._rewind(ctx.tokens)
        unread = ctx.tokens[len(self._read) : -1]

        def step(token: int) -> Tensor:
            logits = self._fitted(self._forward([*unread, token]))  # what it lacks is read along with the first token
            unread.clear()
            return logits

        return draft_chain(step, ctx, gamma, sampler, rng, self.confidence)

    def _rewind(self, tokens: list[int]) -> None:
        """Crop the cache to the longest common prefix with all of the tokens but the last."""
        common = 0
        for mine, committed in zip(self._read, tokens[:-1], strict=False):
            if mine != committed:
                break
            common += 1
        self.cache.crop(common)
        del self._read[common:]

    def _forward(self, tokens: list[int]) -> Tensor:
        """Logits [V of the drafter] after the last of these tokens."""
        for start in range(0, len(tokens) - PREFILL_CHUNK, PREFILL_CHUNK):
            self._pass(tokens[start : start + PREFILL_CHUNK])
        return self._pass(tokens[(len(tokens) - 1) // PREFILL_CHUNK * PREFILL_CHUNK :])

    def _pass(self, tokens: list[int]) -> Tensor:
        start = len(self._read)
        device = input_device(self.model)
        output = self.model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.arange(start, start + len(tokens), device=device)[None],
            cache=self.cache.hf,
            use_cache=True,
            logits_to_keep=1,
        )
        self._read.extend(tokens)
        logits: Tensor = output.logits[0, -1].to(self.target.device)
        return logits

    def _fitted(self, logits: Tensor) -> Tensor:
        """Logits [V of the drafter] over the target's vocabulary: padding cut off or filled, foreign tokens masked."""
        size = self.target.vocab_size
        if self.vocabulary is not None:
            return self.vocabulary.full(logits)
        if len(logits) < size:
            logits = torch.nn.functional.pad(logits, (0, size - len(logits)), value=-torch.inf)
        logits = logits[:size]
        if self._masked:
            logits = logits.index_fill(0, torch.tensor(self._masked, device=logits.device), -torch.inf)
        return logits


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two tokenizers agree: ids the drafter must not propose, and what to tell the user."""

    foreign: tuple[int, ...] = ()
    note: str | None = None


def compare_vocabularies(target: PreTrainedTokenizerBase | None, drafter: PreTrainedTokenizerBase | None) -> Agreement:
    """Check that every id means the same to both.

    Raises UserError naming the first token that differs. Differences among special or added tokens alone are
    harmless once masked: the drafter never proposes them, the target still can.
    """
    if target is drafter or target is None or drafter is None:
        return Agreement()
    theirs = {index: token for token, index in drafter.get_vocab().items()}
    ours = {index: token for token, index in target.get_vocab().items()}
    differing = [index for index in sorted(ours.keys() | theirs.keys()) if ours.get(index) != theirs.get(index)]
    special = {
        *target.all_special_ids,
        *drafter.all_special_ids,
        *target.added_tokens_decoder,
        *drafter.added_tokens_decoder,
    }
    for index in differing:
        if index not in special:
            raise UserError(
                f"The draft model's tokenizer differs from the target's: token {index} is {ours.get(index)!r} to the "
                f"target and {theirs.get(index)!r} to the drafter; choose a draft model of the target's family."
            )
    if not differing:
        return Agreement()
    first = differing[0]
    return Agreement(
        tuple(index for index in differing if index in theirs),
        f"{len(differing)} special tokens differ between target and drafter (token {first}: {ours.get(first)!r} and "
        f"{theirs.get(first)!r}); the drafter never proposes them.",
    )
