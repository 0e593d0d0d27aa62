"""Text between two tokenizers, and transformers' generators for assistants that have another one than the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.candidate_generator import (
    AssistantToTargetTranslator,
    AssistedCandidateGeneratorDifferentTokenizers,
    UniversalSpeculativeDecodingGenerator,
)

from specviz.drafters.library_sampler import SamplerProcessor, generation_config
from specviz.models.cache import PrefixCache

LOOKBEHIND = 10  # tokens before the assistant's draft that are tokenised together with it


class Retokeniser:
    """Ids of one tokenizer to those of another that stand for the same text.

    Special tokens that only the first one has, such as those of its chat template, are left out.
    """

    def __init__(self, source: PreTrainedTokenizerBase, destination: PreTrainedTokenizerBase) -> None:
        self.source, self.destination = source, destination
        known = destination.get_vocab()
        specials = zip(source.all_special_tokens, source.all_special_ids, strict=True)
        self._left_out = {index for token, index in specials if token not in known}
        bos = destination.bos_token_id
        self._begin = [bos] if bos is not None and destination.encode("a")[:1] == [bos] else []

    def __call__(self, tokens: Sequence[int], *, begin: bool = False) -> list[int]:
        """begin: as the beginning of a text, with one BOS token if the destination's texts begin with it."""
        kept = [token for token in tokens if token not in self._left_out]
        text = self.source.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        ids: list[int] = self.destination.encode(text, add_special_tokens=False)
        return [*self._begin, *ids] if begin and ids[: len(self._begin)] != self._begin else ids


class CommonVocabulary(AssistantToTargetTranslator):  # type: ignore[misc]
    """The tokens that two tokenizers spell alike, as transformers finds them, within the sizes of the two models.

    Nothing is pruned: transformers would cut the assistant's LM head down to these tokens for good.
    """

    def __init__(
        self,
        target: PreTrainedTokenizerBase,
        target_size: int,
        assistant: PreTrainedTokenizerBase,
        assistant_size: int,
        device: torch.device,
    ) -> None:
        """target_size, assistant_size: rows of the LM heads, which may be more or fewer than the tokenizers' ids."""
        self._assistant_size, self._device = assistant_size, device
        super().__init__(target, assistant, target_size)
        self.logits_processors = None  # what is not common is masked by `allowed`
        self.allowed = self._assistant_to_target_input_ids != self.SUPPRESS_TOKEN_ID  # [V of the assistant]

    def _get_assistant_to_target_input_ids(self) -> tuple[Tensor, dict[int, int]]:
        """As transformers', but one entry for each row of the assistant's LM head, and none beyond the target's."""
        found, _ = super()._get_assistant_to_target_input_ids()
        mapping = torch.full((self._assistant_size,), self.SUPPRESS_TOKEN_ID, dtype=torch.long, device=self._device)
        mapping[: len(found)] = found[: self._assistant_size].to(self._device)
        mapping[mapping >= self.target_vocab_size] = self.SUPPRESS_TOKEN_ID
        pairs = enumerate(mapping.tolist())
        return mapping, {theirs: own for own, theirs in pairs if theirs != self.SUPPRESS_TOKEN_ID}

    def to_target(self, rows: Tensor, fill: float) -> Tensor:
        """[..., V of the assistant] -> [..., V of the target], with `fill` where the assistant has no token."""
        fitted = rows.new_full((*rows.shape[:-1], self.target_vocab_size), fill)
        fitted[..., self._assistant_to_target_input_ids[self.allowed]] = rows[..., self.allowed]
        return fitted

    def get_target_logits(self, assistant_logits: Tensor) -> Tensor:
        """As transformers', which fails where torch's default dtype is not that of the logits: a load changes it."""
        return self.to_target(assistant_logits, self.FILTER_VALUE)


class Retokenising(AssistedCandidateGeneratorDifferentTokenizers):  # type: ignore[misc]
    """Universal assisted generation: what the assistant says is tokenised again for the target.

    Transformers tokenises new tokens apart from the text before them, with another BOS token each time, so that the
    assistant's view depends on where the steps ended, and a run left and resumed goes on differently. Here the whole
    text is tokenised at each step, and the cache cropped to the part that stayed the same.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reader: Retokeniser,
        writer: Retokeniser,
        processor: SamplerProcessor,
        **more: Any,
    ) -> None:
        super().__init__(
            input_ids=torch.empty(1, 0, dtype=torch.long),
            assistant_model=model,
            target_tokenizer=reader.source,
            assistant_tokenizer=reader.destination,
            generation_config=generation_config(processor.sampler),
            model_kwargs={},
            logits_processor=[processor],
            **more,
        )
        self._writer, self._processor = writer, processor
        self._cache = PrefixCache(model.config.get_text_config(decoder=True))  # can be cropped whatever its layers
        self.assistant_kwargs["cache"] = self._cache.hf

    def propose(self, ids: list[int], tokens: Sequence[int], gamma: int) -> list[int]:
        """The target's ids of a draft after `tokens`, whose text the assistant reads as `ids`."""
        device = self.assistant_model.device
        self._ids = torch.tensor([ids], dtype=torch.long, device=device)
        self.num_assistant_tokens = gamma
        self.assistant_lookbehind = min(LOOKBEHIND, len(ids))
        candidates, _ = self.get_candidates(torch.tensor([tokens], dtype=torch.long, device=device))
        drafted: list[int] = candidates[0, len(tokens) :].tolist()
        return drafted

    def _prepare_assistant_input_ids(self, input_ids: Tensor) -> tuple[Tensor, int]:
        return self._ids, 0

    def _update_past_and_masks(self, assistant_input_ids: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Crop the cache to what these ids and those it holds have in common, and leave at least one id to read."""
        common = 0
        for read, wanted in zip(self._processor.read, assistant_input_ids[0, :-1].tolist(), strict=False):
            if read != wanted:
                break
            common += 1
        self._cache.crop(common)
        return True

    def _prepare_generation_args(self, input_ids: Tensor, min_new_tokens: int, max_new_tokens: int) -> dict[str, Any]:
        self.generation_config.max_new_tokens = max_new_tokens
        return {
            "input_ids": input_ids,
            "generation_config": self.generation_config,
            "logits_processor": self.logits_processor,
        }

    def convert_source_tokens_to_target_tokens(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The end of the assistant's text, draft included, in the target's ids."""
        return torch.tensor([self._writer(input_ids[0].tolist())], dtype=torch.long, device=input_ids.device)


class Translating(Retokenising, UniversalSpeculativeDecodingGenerator):  # type: ignore[misc]
    """Universal speculative decoding: the assistant draws among the tokens of the common vocabulary."""
