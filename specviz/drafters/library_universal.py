"""Universal assisted decoding: the draft model may have any tokenizer, since it is given the text."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import takewhile

import torch
from transformers import GenerationConfig

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters.base import Assistant, Context
from specviz.drafters.library_sampler import SamplerProcessor
from specviz.drafters.library_text import CommonVocabulary, Retokeniser, Retokenising, Translating
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.probe import check_rollback
from specviz.models.target import Target


class Universal:
    """A draft model with a tokenizer of its own.

    Greedy runs draft whatever text it writes. Sampled runs draft from the tokens that both vocabularies hold, because
    only for those can q be told (Timor et al. 2025, arXiv 2502.05202).
    """

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, target: Target, assistant: Assistant | None) -> None:
        """Raises UserError without a draft model or tokenizers, or if the draft model's cache can't be rolled back."""
        if assistant is None:
            raise UserError("The method universal needs a draft model; name a folder or a Hub id.")
        if target.tokenizer is None or assistant.tokenizer is None:
            name = target.name if target.tokenizer is None else assistant.name
            raise UserError(f"The method universal passes on text, and {name} has no tokenizer; choose another model.")
        _check_model(target, assistant)
        self.target, self.name, self.weights = target, assistant.name, assistant.weights
        # What a generation is not told it takes from its model's generation config; this twin's says nothing.
        self.model = copy.copy(assistant.model)
        self.model.generation_config = GenerationConfig(
            num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
        self.devices = (target.device, self.model.device)
        self.config = self.model.config.get_text_config(decoder=True)
        self.reader = Retokeniser(target.tokenizer, assistant.tokenizer)
        self.writer = Retokeniser(assistant.tokenizer, target.tokenizer)
        self.vocabulary = CommonVocabulary(
            target.tokenizer, target.vocab_size, assistant.tokenizer, int(self.config.vocab_size), self.model.device
        )

    def start(self, sampler: Sampler) -> UniversalRun:
        return UniversalRun(self, sampler)


def _check_model(target: Target, assistant: Assistant) -> None:
    model, name = assistant.model, assistant.name
    # Models called assistants, such as Gemma 4's, read states of their target and have no cache of their own.
    if model.config.is_encoder_decoder or not model.can_generate() or "Assistant" in type(model).__name__:
        raise UserError(f"{name} can't write text by itself; name a causal language model.")
    if PrefixCache(model.config.get_text_config(decoder=True)).is_recurrent:
        raise UserError(f"{name} has recurrent layers, which can't be rolled back; choose another.")
    if model is not target.model:
        check_rollback(model, name)


class UniversalRun:
    """One run: a generator with a cache of what the assistant has read."""

    def __init__(self, universal: Universal, sampler: Sampler) -> None:
        self.universal, self.draws = universal, sampler.temperature > 0
        own = universal.vocabulary.target_to_assistant_input_ids
        bias = {own[token]: value for token, value in sampler.logit_bias.items() if token in own}
        self.processor = SamplerProcessor(
            replace(sampler, logit_bias=bias), universal.vocabulary.allowed if self.draws else None
        )
        model, reader, writer = universal.model, universal.reader, universal.writer
        self.generator: Translating | Retokenising
        if self.draws:
            self.generator = Translating(model, reader, writer, self.processor, atm_translator=universal.vocabulary)
        else:
            self.generator = Retokenising(model, reader, writer, self.processor)

    def carries_on(self, ctx: Context) -> bool:
        """Always: the text is tokenised anew."""
        return True

    def draft(self, ctx: Context, gamma: int) -> Draft:
        name = self.universal.name
        ids = self.universal.reader(ctx.tokens, begin=True)
        if not ids:
            return Draft.empty(f"There is no text yet that {name} could read.")
        limit = getattr(self.universal.config, "max_position_embeddings", None)
        room = gamma if limit is None else min(gamma, limit - len(ids) + 1)
        if room <= 0:
            return Draft.empty(f"{name} holds {limit} tokens; beyond them nothing is drafted.")
        self.processor.begin()
        drafted = self.generator.propose(ids, ctx.tokens, room)[:gamma]
        return self._drawn(drafted) if self.draws else self._written(drafted)

    def _drawn(self, tokens: list[int]) -> Draft:
        """Tokens drawn one by one, with the distributions they were drawn from."""
        draft, device = self.processor.draft(tokens), self.universal.target.device
        if not tokens or draft.logits is None:
            return draft
        fit = self.universal.vocabulary.to_target
        return replace(draft, q=fit(draft.q, 0.0).to(device), logits=fit(draft.logits, -torch.inf).to(device))

    def _written(self, tokens: list[int]) -> Draft:
        """Tokens of the text that was written, which no distribution over tokens stands behind."""
        target = self.universal.target
        known = list(takewhile(lambda token: token < target.vocab_size, tokens))
        return Draft.chain(known, one_hot(known, target.vocab_size).to(target.device)) if known else Draft.empty()
