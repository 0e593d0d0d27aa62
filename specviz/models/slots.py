"""Many sequences through one model at a time, each at its own length: for sampling training data, not for runs.

A slot holds one sequence. When it ends, another takes its place at once, so that every pass is full.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from specviz.errors import UserError
from specviz.models.target import shallow_copy

BLOCK = 32  # rows: the part of the buffers that a pass reads grows in such steps


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer for every slot, [slots, heads, rows, head_dim]."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots
        self.key_buffer = self.value_buffer = torch.empty(0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one row per slot at that slot's length; returns the rows that any slot has."""
        self.allocate(key_states, value_states)
        slots = self.slots
        self.key_buffer[slots.every, :, slots.lengths] = key_states[:, :, 0]
        self.value_buffer[slots.every, :, slots.lengths] = value_states[:, :, 0]
        return self.key_buffer[:, :, : slots.rows], self.value_buffer[:, :, : slots.rows]

    def allocate(self, keys: Tensor, values: Tensor) -> None:
        """Buffers for states of this kind, zeroed: what a slot has not written yet is masked, but must be finite."""
        if not self.key_buffer.numel():
            for name, states in (("key_buffer", keys), ("value_buffer", values)):
                size = (len(self.slots.every), states.shape[1], self.slots.capacity, states.shape[-1])
                setattr(self, name, states.new_zeros(size))

    def get_seq_length(self) -> int:
        return self.slots.rows


class Slots:
    """A model and the sequences that go through it. All slots are idle at first."""

    def __init__(self, model: PreTrainedModel, count: int, capacity: int, hidden_layers: tuple[int, ...] = ()) -> None:
        """count: sequences at a time; capacity: tokens each can hold.

        hidden_layers: whose hidden states are returned, numbered as in `Target.prefill`.
        Raises UserError for a model whose layers do not all attend to everything before.
        """
        config = model.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        windows = getattr(config, "sliding_window", None) and not getattr(config, "layer_types", None)
        if kinds != {"full_attention"} or windows or getattr(config, "attention_types", None):
            raise UserError(f"{config.model_type} models attend in windows or not at all; many at a time can't be run.")
        self.model, self.capacity, self.hidden_layers = model, capacity, hidden_layers
        self.every = torch.arange(count, device=model.device)
        self.lengths = torch.zeros(count, dtype=torch.long, device=model.device)
        self.busy = torch.zeros(count, dtype=torch.bool, device=model.device)
        self.rows = BLOCK
        self.cache = DynamicCache(config=config)
        self.cache.layers = [SlotLayer(self) for _ in self.cache.layers]

    @torch.inference_mode()
    def fill(self, slots: Sequence[int], prompts: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
        """Begin sequences anew: logits [len(slots), V] after each prompt, and each prompt's hidden rows [length, D]."""
        device = self.lengths.device
        ids = padded(prompts, device)
        # Padding on the right needs no mask: what comes before never sees it.
        fresh = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        output = self.model.base_model(
            input_ids=ids, cache=fresh, use_cache=True, output_hidden_states=bool(self.hidden_layers)
        )
        for layer, read in zip(self.cache.layers, fresh.layers, strict=True):
            layer.allocate(read.keys, read.values)
            for row, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
                layer.key_buffer[slot, :, : len(prompt)] = read.keys[row, :, : len(prompt)]
                layer.value_buffer[slot, :, : len(prompt)] = read.values[row, :, : len(prompt)]
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        self.lengths[list(slots)] = ends + 1
        self.busy[list(slots)] = True
        last = output.last_hidden_state[torch.arange(len(prompts), device=device), ends]
        logits = logits_of(self.model, output, last)
        hidden = hidden_rows(output, self.hidden_layers)
        return logits, [hidden[row, : len(prompt)] for row, prompt in enumerate(prompts)] if hidden is not None else []

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read one token [slots] in every slot: logits [slots, V], hidden rows [slots, D]. Idle slots read nonsense."""
        end = int(self.lengths.max()) + 1
        self.rows = min(-(-end // BLOCK) * BLOCK, self.capacity)
        beyond = torch.arange(self.rows, device=tokens.device)[None] > self.lengths[:, None]
        mask = torch.zeros(beyond.shape, dtype=self.model.dtype, device=tokens.device)
        mask.masked_fill_(beyond, torch.finfo(mask.dtype).min)
        output = self.model(
            input_ids=tokens[:, None],
            position_ids=self.lengths[:, None],
            attention_mask=mask[:, None, None],
            cache=self.cache,
            use_cache=True,
            output_hidden_states=bool(self.hidden_layers),
        )
        self.lengths += self.busy
        hidden = hidden_rows(output, self.hidden_layers)
        return output.logits[:, 0], None if hidden is None else hidden[:, 0]

    def rest(self, slot: int) -> None:
        """Leave a slot idle; it still takes part in every pass, at the cost of one row."""
        self.lengths[slot] = 0
        self.busy[slot] = False


def logits_of(model: PreTrainedModel, output: Any, states: Tensor) -> Tensor:
    """The model's logits [rows, V] for final states [rows, H]: some families scale or cap what the LM head gives.

    output: what the base model returned; the rest of the model runs on it with `states` as its last hidden state.
    """
    given = copy.copy(output)
    given.last_hidden_state = states[None]
    view = shallow_copy(model)
    view._modules[model.base_model_prefix] = _Returns(given)
    logits: Tensor = view(input_ids=None).logits[0]
    return logits


class _Returns(nn.Module):
    """In the place of a base model: returns what is there already."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any, **inputs: Any) -> Any:
        return self.output


def padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """[len(sequences), longest] token ids, zeros on the right."""
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(list(sequence))
    return ids.to(device)


def hidden_rows(output: Any, layers: tuple[int, ...]) -> Tensor | None:
    """What a model returned of its hidden states, [batch, rows, len(layers) * H]; None if no layer is asked for."""
    return torch.cat([output.hidden_states[layer] for layer in layers], -1) if layers else None
