"""What each kind of drafter learns: which states it reads, and which of the target's distributions it should match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specviz.drafters.heads.adapter import ExitAdapter, write_adapter
from specviz.drafters.heads.head import Combine, Head
from specviz.drafters.heads.layouts import read_head, write_head
from specviz.drafters.heads.medusa import MOST_BLOCKS, MOST_HEADS, MedusaHeads, read_medusa, write_medusa
from specviz.drafters.heads.reduced import read_reduced, reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.pack import weight_of
from specviz.models.slots import logits_of
from specviz.models.target import Target, exit_view
from specviz.training.beginning import (
    Earlier,
    begin_as_head,
    begin_as_heads,
    begin_as_last_layer,
    copy_parameters,
    form,
    head_config,
    layers_of,
    norm_scale,
)
from specviz.training.dataset import Batch
from specviz.training.loss import LmHead, Loss, soft_loss
from specviz.training.passes import passes

MOST_TIMES_WIDTH = 16  # the hidden size: an adapter's inner width; four times is usual for such layers


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
        """One per depth, up to `depth`; fewer where no row is left for more."""

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """The drafter in its layout."""


class HeadTask:
    """EAGLE-3's head and MTP's."""

    def __init__(
        self,
        target: Target,
        d2t: Tensor,
        kind: str,
        layers: tuple[int, ...],
        depth: int,
        *,
        joined: bool = False,
        begin_as: Earlier | None = None,
    ) -> None:
        """kind: "eagle3" or "mtp". The layer begins as the target's last, fc passes the last state on.

        joined: of "eagle3", that state and embedding meet as in an MTP head. begin_as: a trained MTP head that
        another, or a joined one, goes on from. Raises UserError if it is none of the same form.
        """
        self.kind, self.layers, self.depth = kind, layers, depth
        combine: Combine = "mtp-reversed" if kind == "mtp" else "joined" if joined else "wide"
        self.module = self.head = Head(head_config(target, d2t, combine, layers))
        if self.head.config.draft_vocab_size is not None:
            self.head.d2t = d2t
        begin_as_last_layer(self.head, target)
        if begin_as is not None:
            begin_as_head(self.head, read_head(begin_as.folder, target.config))
        self.head.bind(target)
        self.lm = _frozen(self.head.lm, target)
        self.scale: Tensor | None = None  # [F * Ht], by which the states are divided before fc
        self.width, self.last = int(target.config.hidden_size), int(target.config.num_hidden_layers)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        states = batch.hidden[:, :-1]  # the last row has nothing after it to predict
        wanted = batch.answer[:, 1:]  # row i learns the distribution after row i+1
        if not wanted.shape[1]:
            return []
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
            found.append(_loss(normed[chosen], self.lm, batch, after))
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

    def __init__(
        self, target: Target, d2t: Tensor, heads: int, blocks: int, *, begin_as: Earlier | None = None
    ) -> None:
        """begin_as: trained heads that these go on from. Raises UserError if they have another form."""
        if heads > MOST_HEADS or blocks > MOST_BLOCKS:
            raise UserError(
                f"{heads} Medusa heads of {blocks} blocks are asked for; give up to {MOST_HEADS} heads and "
                f"{MOST_BLOCKS} blocks."
            )
        width = int(target.config.hidden_size)
        self.layers, self.depth = (int(target.config.num_hidden_layers),), heads
        self.module = self.heads = MedusaHeads(heads, blocks, width, target.vocab_size, len(d2t), turned=True)
        if begin_as is not None:
            begin_as_heads(self.heads, read_medusa(begin_as.folder, target.config))
        self.heads.d2t = d2t
        self.heads.bind(target)
        self.lm = _frozen(self.heads.lm, target)

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
            found.append(_loss(states[head][chosen], self.lm, batch, after))
        return found

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_medusa(self.heads, folder, about)


class DraftModelTask:
    """A model of a few of the target's layers that reads tokens alone."""

    depth = 1

    def __init__(
        self, target: Target, d2t: Tensor, layers_from: Sequence[int], *, begin_as: Earlier | None = None
    ) -> None:
        """begin_as: a trained draft model that this one goes on from. Raises UserError if it has another form."""
        count = int(target.config.num_hidden_layers)
        if not layers_from or not all(0 <= layer < count for layer in layers_from):
            raise UserError(
                f"The draft model is to begin as layers {list(layers_from)}; the target has 0 to {count - 1}."
            )
        self.layers: tuple[int, ...] = ()
        self.d2t = d2t
        self.model: PreTrainedModel = reduced_model(target, len(layers_from), d2t, layers_from)
        for mine, theirs in zip(layers_of(self.model), layers_from, strict=True):
            copy_parameters(mine, layers_of(target.model)[theirs], target.model)
        copy_parameters(self.model.base_model.norm, target.model.base_model.norm, target.model)
        self.lm = _frozen(self.model.get_output_embeddings(), target)
        _check_plain_logits(self.model, self.lm, target.name)
        self.module = _trained_part(self.model)
        if begin_as is not None:
            other, _ = read_reduced(begin_as.folder, target)
            if form(other) != form(self.model):
                raise UserError(
                    "--begin-as holds a draft model of another form; give what `train draft-model` has written for "
                    "this target, and the same --layers-from."
                )
            copy_parameters(self.module, _trained_part(other), other)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        states = self.model.base_model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
        chosen = batch.answer.nonzero(as_tuple=True)
        return [_loss(states[chosen], self.lm, batch, chosen)]

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_reduced(self.model, self.d2t, folder, about)


class ExitTask:
    """An adapter for the state of one layer."""

    depth = 1

    def __init__(self, target: Target, d2t: Tensor, exit_layer: int, inner: int) -> None:
        exit_view(target.model, exit_layer)  # raises UserError for a layer that a run could not leave at
        width = int(target.config.hidden_size)
        if inner > MOST_TIMES_WIDTH * width:
            raise UserError(
                f"The adapter's --width is {inner}; give up to {MOST_TIMES_WIDTH * width}, that is "
                f"{MOST_TIMES_WIDTH} times the target's."
            )
        self.layers = (exit_layer,)
        self.module = self.adapter = ExitAdapter(
            exit_layer, width, inner, target.vocab_size, len(d2t), float(target.config.rms_norm_eps)
        )
        self.adapter.d2t = d2t
        nn.init.zeros_(self.adapter.adapter.down.weight)
        with torch.no_grad():
            self.adapter.norm.weight.copy_(norm_scale(target.model.base_model.norm))
        self.adapter.bind(target)
        self.lm = _frozen(self.adapter.lm, target)

    def losses(self, batch: Batch, depth: int) -> list[Loss]:
        chosen = batch.answer.nonzero(as_tuple=True)
        return [_loss(self.adapter.states(batch.hidden[chosen]), self.lm, batch, chosen)]

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_adapter(self.adapter, folder, about)


def _trained_part(model: PreTrainedModel) -> nn.ModuleList:
    """Of a draft model, all but what it shares with its target."""
    return nn.ModuleList([*layers_of(model), model.base_model.norm])


def _loss(states: Tensor, lm: LmHead, batch: Batch, rows: tuple[Tensor, ...]) -> Loss:
    """Of states [N, H] against the target's distributions after the N rows that are named by their indices."""
    return soft_loss(states, lm, batch.top_ids[rows], batch.top_probs[rows], batch.best[rows])


def _frozen(lm: Any, target: Target) -> LmHead:
    return LmHead(weight_of(lm, target.model), lm.bias)


@torch.no_grad()
def _check_plain_logits(model: PreTrainedModel, lm: LmHead, name: str) -> None:
    """Raise UserError if a draft model does not draft from what its LM head gives, which is all that the loss knows."""
    output = model.base_model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=lm.weight.device), use_cache=False)
    states = 100 * lm.weight.abs().amax(0, keepdim=True)  # so large that a cap shows
    given: Tensor = model.get_output_embeddings()(states)
    if not torch.allclose(logits_of(model, output, states).float(), given.float(), equal_nan=True):
        raise UserError(
            f"{name} scales or caps its logits, and no draft model can be trained for that; train eagle3, mtp, medusa "
            "or early-exit."
        )
