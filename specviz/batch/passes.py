"""Forward passes over several sequences at once, each over the same rows again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specviz import memory
from specviz.errors import Cancelled, NotEnoughMemory, UserError
from specviz.models.cache import GrowingLayer, PrefixCache
from specviz.models.placement import input_device
from specviz.models.target import PREFILL_CHUNK


def sequences(text: Sequence[int], batch: int, length: int) -> Tensor:
    """[batch, length] token ids: the text over and over, each sequence begun at another of its places.

    They differ, so that a mixture of experts reads as many of them as it would for different users.
    """
    tokens = torch.tensor(list(text))
    begins = torch.arange(batch) * len(tokens) // batch
    return tokens[(begins[:, None] + torch.arange(length)) % len(tokens)]


class Passes:
    """Passes of a model over the first sequences of a batch, each after a context that was really read.

    There is a cache for every batch size, so that passes of all sizes can take turns.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: PretrainedConfig,
        ids: Tensor,
        context: int,
        batches: Iterable[int],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """ids: [B, context and the most rows], B at least the largest of `batches`.

        Reads the context. Raises UserError for a model with recurrent layers, and Cancelled soon after `should_stop()`
        turns true.
        """
        self.model, self.context = model, context
        self.ids = ids.to(input_device(model))
        whole = PrefixCache(config)
        if whole.is_recurrent:
            raise UserError(
                f"{config.model_type} models have recurrent layers, whose states a pass changes for good, so batches "
                "of it are not measured; choose a model with attention layers only."
            )
        self._read(whole, should_stop)
        self.caches = {batch: _first(whole, config, batch) if batch < len(ids) else whole for batch in batches}

    def forward(self, batch: int, rows: int) -> Tensor:
        """Logits [batch, rows, V] of the rows after the context. `forget` must follow."""
        logits: Tensor = self.model(**self._inputs(self.caches[batch], batch, self.context, rows)).logits
        return logits

    def forget(self, batch: int) -> None:
        """Take the last pass back: the cache holds the context again, and nothing else."""
        self.caches[batch].crop(self.context)

    def _read(self, cache: PrefixCache, should_stop: Callable[[], bool]) -> None:
        chunk = max(1, PREFILL_CHUNK // len(self.ids))
        for start in range(0, self.context, chunk):
            if should_stop():
                raise Cancelled
            rows = min(chunk, self.context - start)
            self.model.base_model(**self._inputs(cache, len(self.ids), start, rows))  # no logits are needed here

    def _inputs(self, cache: PrefixCache, batch: int, start: int, rows: int) -> dict[str, Any]:
        positions = torch.arange(start, start + rows, device=self.ids.device).expand(batch, rows)
        ids = self.ids[:batch, start : start + rows]
        return {"input_ids": ids, "position_ids": positions, "cache": cache.hf, "use_cache": True}


def _first(whole: PrefixCache, config: PretrainedConfig, batch: int) -> PrefixCache:
    """A cache of its own of the first sequences."""
    part = PrefixCache(config)
    for index, layer in enumerate(whole.hf.layers):
        if isinstance(layer, GrowingLayer) and layer.is_initialized:
            part.hf.update(layer.keys[:batch], layer.values[:batch], index)
    return part


def check_memory(
    models: Sequence[tuple[PretrainedConfig, int]],
    dtype_bytes: int,
    batches: Sequence[int],
    tokens: int,
    available: int,
) -> None:
    """Raise NotEnoughMemory, with the numbers, if caches and logits of all batch sizes do not fit beside the weights.

    models: configuration of each, and the most rows of its passes; tokens: of each sequence, rows included.
    """
    caches = sum(memory.kv_bytes(config, tokens, dtype_bytes) for config, _ in models) * sum(batches)
    logits = max(rows * config.get_text_config().vocab_size for config, rows in models) * max(batches) * dtype_bytes
    needed = caches + logits + (caches + logits) // 5
    if needed > available:
        raise NotEnoughMemory(
            f"Batches of {', '.join(map(str, batches))} with {tokens:,} tokens each need about {memory.human(needed)} "
            f"of memory beside the weights (KV caches {memory.human(caches)}, logits {memory.human(logits)}), and "
            f"{memory.human(available)} is free, so choose smaller batches or a shorter context."
        )
