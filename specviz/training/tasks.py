"""What each kind of drafter learns: which states it reads, and which of the target's distributions it should match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.drafters.heads.adapter import ExitAdapter, write_adapter
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts import write_head
from specviz.drafters.heads.medusa import MedusaHeads, write_medusa
from specviz.drafters.heads.reduced import reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.pack import weight_of
from specviz.models.target import Target
from specviz.training.dataset import Batch
from specviz.training.loss import Loss, soft_loss
from specviz.training.passes import passes


class Task(Protocol):
    """A drafter in training."""

    @property
    def module(self) -> nn.Module:
        """Holds what is trained."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers whose states it reads."""

    @property
    def depth(self) -> int:
        """How many losses there are at most."""

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        """One per depth, up to `depth`."""

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The drafter in its layout."""


class HeadTask:
    """EAGLE-3's head and MTP's."""

    def __init__(self, target: Target, d2t: Tensor, kind: str, layers: tuple[int, ...], depth: int) -> None:
        """kind: "eagle3" or "mtp". The layer begins as the target's last, fc passes the last state on."""
        self.kind, self.layers, self.depth = kind, layers, depth
        self.module = self.head = Head(_config(target, d2t, kind, layers))
        self.head.d2t = d2t
        _begin_as_last_layer(self.head, target)
        self.head.bind(target)
        self.rows = weight_of(self.head.lm, target.model)
        self.scale: Tensor | None = None  # [F * Ht], by which the states are divided before fc
        self.width, self.last = int(target.config.hidden_size), int(target.config.num_hidden_layers)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        states = batch.hidden[:, :-1]  # the last row has nothing after it to predict
        wanted = batch.answer[:, 1:]  # row i learns the distribution after row i+1
        if self.kind == "eagle3":
            self.scale = self._scale(states) if self.scale is None else self.scale
            states = states / self.scale
        begin = int(wanted.any(0).float().argmax())
        found = []
        for number, normed in enumerate(passes(self.head, states, batch.tokens[:, 1:-1], depth, begin + 1)):
            rows = wanted.clone()
            rows[:, : begin + number] = False  # a draft begins after the prompt
            chosen = rows.nonzero(as_tuple=True)
            after = chosen[0], chosen[1] + 1
            found.append(
                soft_loss(normed[chosen], self.rows, batch.top_ids[after], batch.top_probs[after], batch.best[after])
            )
        return found

    def _scale(self, states: Tensor) -> Tensor:
        """[F * Ht]: how large each channel is, but 1 for the target's last layer, whose states come after the norm.

        A few channels of the others are larger than all the rest together, and hide them otherwise.
        """
        rows = states[:, 1:].flatten(0, 1).float()  # the first token's states are like no others
        scale = rows.square().mean(0).sqrt().clamp_min(1e-3)
        if self.layers[-1] == self.last:
            scale[-self.width :] = 1
        return scale.to(states.dtype)

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        weight = self.head.fc.weight.detach().clone()
        if self.scale is not None:
            with torch.no_grad():
                self.head.fc.weight /= self.scale
        write_head(self.head, folder, self.kind, about)
        with torch.no_grad():
            self.head.fc.weight.copy_(weight)


class MedusaTask:
    """All heads learn from the same state."""

    def __init__(self, target: Target, d2t: Tensor, heads: int, blocks: int) -> None:
        width = int(target.config.hidden_size)
        self.layers, self.depth = (int(target.config.num_hidden_layers),), heads
        self.module = self.heads = MedusaHeads(heads, blocks, width, target.vocab_size, len(d2t))
        self.heads.d2t = d2t
        self.heads.bind(target)
        self.rows = weight_of(self.heads.lm, target.model)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        found = []
        rows = batch.answer.shape[1]
        states = self.heads.states(batch.hidden.flatten(0, 1)).reshape(self.depth, *batch.hidden.shape)
        for head in range(depth):
            wanted = batch.answer.clone()
            wanted[:, max(0, rows - head - 1) :] = False
            wanted &= torch.nn.functional.pad(batch.answer, (0, head + 1))[:, head + 1 :]
            chosen = wanted.nonzero(as_tuple=True)
            after = chosen[0], chosen[1] + head + 1
            found.append(
                soft_loss(
                    states[head][chosen], self.rows, batch.top_ids[after], batch.top_probs[after], batch.best[after]
                )
            )
        return found

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_medusa(self.heads, folder, about)


class DraftModelTask:
    """A model of a few of the target's layers that reads tokens alone."""

    depth = 1

    def __init__(self, target: Target, d2t: Tensor, layers_from: Sequence[int]) -> None:
        count = int(target.config.num_hidden_layers)
        if not layers_from or not all(0 <= layer < count for layer in layers_from):
            raise UserError(
                f"The draft model is to begin as layers {list(layers_from)}; the target has 0 to {count - 1}."
            )
        self.layers: tuple[int, ...] = ()
        self.d2t = d2t
        self.model: PreTrainedModel = reduced_model(target, len(layers_from), d2t)
        for mine, theirs in zip(_layers(self.model), layers_from, strict=True):
            _copy(mine, _layers(target.model)[theirs], target.model)
        _copy(self.model.base_model.norm, target.model.base_model.norm, target.model)
        self.rows = weight_of(self.model.get_output_embeddings(), target.model)
        self.module = nn.ModuleList([*_layers(self.model), self.model.base_model.norm])

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        states = self.model.base_model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
        chosen = batch.answer.nonzero(as_tuple=True)
        return [
            soft_loss(states[chosen], self.rows, batch.top_ids[chosen], batch.top_probs[chosen], batch.best[chosen])
        ]

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_reduced(self.model, self.d2t, folder, about)


class ExitTask:
    """An adapter for the state of one layer."""

    depth = 1

    def __init__(self, target: Target, d2t: Tensor, exit_layer: int, inner: int) -> None:
        width = int(target.config.hidden_size)
        self.layers = (exit_layer,)
        self.module = self.adapter = ExitAdapter(
            exit_layer, width, inner, target.vocab_size, len(d2t), float(target.config.rms_norm_eps)
        )
        self.adapter.d2t = d2t
        nn.init.zeros_(self.adapter.adapter.down.weight)
        with torch.no_grad():
            self.adapter.norm.weight.copy_(target.model.base_model.norm.weight)
        self.adapter.bind(target)
        self.rows = weight_of(self.adapter.lm, target.model)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        chosen = batch.answer.nonzero(as_tuple=True)
        states = self.adapter.states(batch.hidden[chosen])
        return [soft_loss(states, self.rows, batch.top_ids[chosen], batch.top_probs[chosen], batch.best[chosen])]

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_adapter(self.adapter, folder, about)


def _config(target: Target, d2t: Tensor, kind: str, layers: tuple[int, ...]) -> HeadConfig:
    text = target.config
    rope = dict(getattr(text, "rope_parameters", None) or {})
    theta, scaling = float(rope.pop("rope_theta", 10_000.0)), rope
    heads = int(text.num_attention_heads)
    width = int(text.hidden_size)
    return HeadConfig(
        hidden_size=width,
        intermediate_size=int(text.intermediate_size),
        num_heads=heads,
        # As many as there are queries: the head's attention is its only way to the embedding of the token it reads.
        num_kv_heads=heads if kind == "eagle3" else int(text.num_key_value_heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        rms_eps=float(text.rms_norm_eps),
        rope_theta=theta,
        rope_scaling=None if scaling.get("rope_type", "default") == "default" else scaling,
        max_position_embeddings=int(text.max_position_embeddings),
        hidden_layers=layers,
        target_hidden_size=width,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(d2t),
        combine="wide" if kind == "eagle3" else "mtp-reversed",
        feedback="normed",
    )


@torch.no_grad()
def _begin_as_last_layer(head: Head, target: Target) -> None:
    """Far better than a random start: the head's layer already speaks the language of the LM head."""
    mine: Any = head.layers[0]
    theirs: Any = _layers(target.model)[-1]
    width, wide = head.config.hidden_size, head.config.combine == "wide"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        weight = weight_of(getattr(theirs.self_attn, name), target.model)
        if name in ("k_proj", "v_proj"):
            groups = head.config.num_kv_heads * head.config.head_dim // len(weight)
            weight = weight.reshape(-1, head.config.head_dim, width).repeat_interleave(groups, 0).flatten(0, 1)
        own = getattr(mine.self_attn, name).weight
        if wide and name != "o_proj":
            own.zero_()
            own[:, width:] = weight
        else:
            own.copy_(weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(mine.mlp, name).weight.copy_(weight_of(getattr(theirs.mlp, name), target.model))
    mine.post_attention_layernorm.weight.copy_(theirs.post_attention_layernorm.weight)
    if mine.input_layernorm is not None:
        mine.input_layernorm.weight.copy_(theirs.input_layernorm.weight)
    own_norm: Any = head.norm
    own_norm.weight.copy_(target.model.base_model.norm.weight)
    if wide:
        head.fc.weight.zero_()
        head.fc.weight[:, -width:] = torch.eye(width)
    else:
        head.fc.weight[:, :width] = torch.eye(width)  # the state; how its token's embedding joins it is drawn


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    count = int(model.config.num_hidden_layers)
    for child in model.base_model.children():
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise UserError(
        f"{model.config.model_type} models show no list of layers, so this drafter can't begin as one of them."
    )


@torch.no_grad()
def _copy(mine: nn.Module, theirs: nn.Module, model: nn.Module) -> None:
    """Parameters by name; the target's linear layers may be packed."""
    for name, module in mine.named_modules():
        other = theirs.get_submodule(name)
        for key, parameter in module.named_parameters(recurse=False):
            parameter.copy_(
                weight_of(other, model) if key == "weight" and isinstance(module, nn.Linear) else getattr(other, key)
            )
