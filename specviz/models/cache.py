"""The KV cache of a prefix, with exact rollback. The only file that touches transformers' caches."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from specviz.errors import UserError

FIRST_CAPACITY = 256  # rows; doubled when full


def capacity(rows: int) -> int:
    """Rows that a buffer for so many has: a power of two."""
    return max(FIRST_CAPACITY, 1 << (rows - 1).bit_length())


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer in a buffer that doubles, so that a new token is written, not concatenated.

    Sliding-window layers use it too: it keeps every row, so any number of tokens can be taken back, and the
    window is applied by the attention mask alone.
    """

    keys: Tensor  # views of the first `rows` rows of the buffers
    values: Tensor
    is_initialized: bool

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.key_buffer = self.value_buffer = torch.empty(0, 0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append rows [1, heads, k, head_dim]; returns all rows as views of the buffers."""
        end = self.rows + key_states.shape[-2]
        if not self.is_initialized or end > self.key_buffer.shape[-2]:
            self.key_buffer = self._grown(key_states, end)
            self.value_buffer = self._grown(value_states, end)
            if self.is_initialized:
                self.key_buffer[..., : self.rows, :] = self.keys
                self.value_buffer[..., : self.rows, :] = self.values
            self.is_initialized = True
        self.key_buffer[..., self.rows : end, :] = key_states
        self.value_buffer[..., self.rows : end, :] = value_states
        self._show(end)
        return self.keys, self.values

    @staticmethod
    def _grown(states: Tensor, rows: int) -> Tensor:
        shape = (*states.shape[:-2], capacity(rows), states.shape[-1])
        if states.device.type != "cpu":
            return states.new_empty(shape)
        # Straight from the system, which takes it back as soon as it is outgrown; the C library would keep it.
        pages = _pages(math.prod(shape) * states.element_size())
        return torch.frombuffer(pages, dtype=states.dtype).view(shape)

    def _show(self, rows: int) -> None:
        self.rows = rows
        self.keys = self.key_buffer[..., :rows, :]
        self.values = self.value_buffer[..., :rows, :]

    def get_seq_length(self) -> int:
        return self.rows

    def crop(self, tokens_to_remove: int) -> None:
        """Drop that many rows from the end; transformers passes the count as a negative number."""
        if tokens_to_remove and self.is_initialized:
            self._show(self.rows - abs(tokens_to_remove))

    def gather(self, base: int, rows: Sequence[int]) -> None:
        """Keep the first `base` rows and, after them, those `rows` (absolute indices, ascending)."""
        if not self.is_initialized:
            return
        end = base + len(rows)
        index = torch.tensor(rows, dtype=torch.long, device=self.key_buffer.device)
        self.key_buffer[..., base:end, :] = self.key_buffer.index_select(-2, index)
        self.value_buffer[..., base:end, :] = self.value_buffer.index_select(-2, index)
        self._show(end)


def _pages(size: int) -> mmap.mmap:
    """Memory of this process alone, in small pages, so that rows that were never written take none."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return pages


Snapshot = list[tuple[LinearAttentionLayer, dict[int, Tensor | None], dict[int, Tensor | None]]]


class PrefixCache:
    """What a model remembers of the tokens it has read: KV rows, and states of recurrent layers if it has any."""

    def __init__(self, config: PreTrainedConfig) -> None:
        """Raises UserError for a model whose cache can't be rolled back."""
        self.hf: Cache = DynamicCache(config=config)
        for index, layer in enumerate(self.hf.layers):
            if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
                self.hf.layers[index] = GrowingLayer()
            elif type(layer) is not LinearAttentionLayer:
                raise UserError(
                    f"{config.model_type} models keep a cache of kind {type(layer).__name__}, which can't be rolled "
                    "back after a rejection; choose a model with plain or sliding-window attention."
                )
        self._attention = [layer for layer in self.hf.layers if isinstance(layer, GrowingLayer)]
        self._recurrent = [layer for layer in self.hf.layers if isinstance(layer, LinearAttentionLayer)]
        if not self._attention:
            raise UserError(
                f"{config.model_type} models have recurrent layers only; choose one that has attention layers."
            )

    @property
    def is_recurrent(self) -> bool:
        """Whether a rejection needs a snapshot and a second pass over the accepted tokens."""
        return bool(self._recurrent)

    def __len__(self) -> int:
        """Tokens read."""
        return max(layer.rows for layer in self._attention)

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens. Layers that hold fewer (an early exit skipped them) stay."""
        for layer in self._attention:
            if layer.rows > length:
                layer.crop(layer.rows - length)

    def keep(self, base: int, rows: Sequence[int]) -> None:
        """Keep the first `base` tokens and then those at `rows`."""
        if list(rows) == list(range(base, base + len(rows))):  # as on every chain: nothing has to move
            self.crop(base + len(rows))
            return
        for layer in self._attention:
            layer.gather(base, rows)

    def snapshot(self) -> Snapshot:
        """Copies of the recurrent states, which can't be cropped."""
        return [
            (layer, _clone(layer.conv_states, layer), _clone(layer.recurrent_states, layer))
            for layer in self._recurrent
        ]

    def restore(self, snapshot: Snapshot) -> None:
        for layer, conv_states, recurrent_states in snapshot:
            for states, saved in ((layer.conv_states, conv_states), (layer.recurrent_states, recurrent_states)):
                for index, state in saved.items():
                    if state is not None:
                        states[index].copy_(state)
            for index in range(layer.number_of_states):
                if conv_states[index] is None and recurrent_states[index] is None:
                    layer.reset()  # nothing had been read at the time


def _clone(states: dict[int, Tensor | None], layer: LinearAttentionLayer) -> dict[int, Tensor | None]:
    return {
        index: state.clone() if state is not None and layer.has_previous_state[index] else None
        for index, state in states.items()
    }
