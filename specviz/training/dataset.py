"""Training data in memory-mapped files as batches of sequences of about the same length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from specviz.errors import UserError
from specviz.training import shards
from specviz.training.shards import TOP, Shard

HELD_OUT = 64  # one sequence in so many is never trained on
BUCKET = 64  # batches of which the sequences are sorted by length at a time


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence lies."""

    shard: int
    first: int  # of its ids among the shard's
    row: int  # of its first row among the shard's
    length: int  # ids
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences padded to one length; B of them, L rows, row i being the target's state after token i.

    `answer[b, i]`: whether the target's distribution after row i is one of the answer's.
    """

    tokens: Tensor  # int64 [B, L + 1]
    hidden: Tensor  # [B, L, layers * H]
    top_ids: Tensor  # int64 [B, L, TOP], draft ids; 0 with probability 0 for what can't be drafted
    top_probs: Tensor  # float32 [B, L, TOP], summing to 1 or, where none can be drafted, to 0
    best: Tensor  # int64 [B, L], the draft id of the target's choice, -1 if it can't be drafted
    answer: Tensor  # bool [B, L]

    @property
    def count(self) -> int:
        """Answer tokens."""
        return int(self.answer.sum())

    def beside(self, parameter: Tensor) -> Batch:
        """On the device of what is trained, the states in its number format: the data may have been made in another."""
        moved = Batch(*(getattr(self, name).to(parameter.device) for name in self.__slots__))
        return replace(moved, hidden=moved.hidden.to(parameter.dtype))


class Dataset:
    """All shards of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if there are none, if they are not all of one kind, or if nothing is to be trained on."""
        self.shards: list[Shard] = [shards.read(path) for path in shards.shard_files(folder)]
        if not self.shards:
            raise UserError(f"{folder} holds no training data; make some with `python -m specviz train data`.")
        kinds = {(each.about.target, each.about.weights, each.about.hidden_layers) for each in self.shards}
        if len(kinds) > 1:
            raise UserError(f"{folder} holds data of several targets or layers; keep them in folders of their own.")
        self.about = self.shards[0].about
        self.training: list[Place] = []
        self.held_out: list[Place] = []
        trained_on = hashlib.sha256()
        for index, shard in enumerate(self.shards):
            first = row = 0
            for length, prompt_length in zip(shard.lengths, shard.prompt_lengths, strict=True):
                ids = shard.ids[first : first + length]
                digest = hashlib.sha256(ids.numpy().tobytes()).digest()
                place = Place(index, first, row, length, prompt_length)
                if digest[0] % HELD_OUT == 0:
                    self.held_out.append(place)
                else:
                    self.training.append(place)
                    trained_on.update(digest + prompt_length.to_bytes(4, "big"))
                first, row = first + length, row + length - 1
        self.digest = trained_on.hexdigest()  # of the conversations to train on, in their order
        if not self.answer_tokens:
            raise UserError(
                f"{folder} holds no answers to train on ({len(self.held_out)} conversations are held out); make more "
                "with `python -m specviz train data`."
            )

    @property
    def answer_tokens(self) -> int:
        """To train on."""
        return sum(place.length - place.prompt_length for place in self.training)

    def columns(self, layers: Sequence[int]) -> list[int]:
        """Where those layers stand in the rows. Raises UserError for one that the data has not."""
        missing = [layer for layer in layers if layer not in self.about.hidden_layers]
        if missing:
            raise UserError(
                f"The data holds layers {list(self.about.hidden_layers)}, not {missing[0]}; make it with those."
            )
        return [self.about.hidden_layers.index(layer) for layer in layers]

    def frequent(self, count: int, always: Sequence[int], vocab_size: int) -> Tensor:
        """Target ids [count] of the most frequent answer tokens, rising; those of `always` are among them."""
        counts = torch.zeros(vocab_size, dtype=torch.float64)
        for place in self.training:
            ids = self.shards[place.shard].ids[place.first + place.prompt_length : place.first + place.length].long()
            counts += torch.bincount(ids, minlength=vocab_size)
        counts[list(always)] = torch.inf
        return counts.topk(min(count, vocab_size)).indices.sort().values

    def batches(self, places: Sequence[Place], tokens: int, seed: int | None) -> Iterator[list[Place]]:
        """Groups of about so many tokens with the padding; shuffled by the seed, or in order of length."""
        order = list(places)
        random = Random(seed)
        if seed is None:
            order.sort(key=lambda place: place.length)
        else:
            random.shuffle(order)
        size = max(1, BUCKET * tokens // 200)
        for start in range(0, len(order), size):
            part = sorted(order[start : start + size], key=lambda place: place.length)
            groups: list[list[Place]] = []
            for place in part:
                if groups and (len(groups[-1]) + 1) * place.length <= tokens:
                    groups[-1].append(place)
                else:
                    groups.append([place])
            if seed is not None:
                random.shuffle(groups)
            yield from groups

    def load(self, places: Sequence[Place], columns: Sequence[int], width: int, t2d: Tensor) -> Batch:
        """columns: of the layers wanted; width: of a layer's state; t2d: [V] draft ids, -1 for what is not drafted."""
        count, rows = len(places), max(place.length for place in places) - 1
        tokens = torch.zeros(count, rows + 1, dtype=torch.long)
        hidden = torch.zeros(count, rows, len(columns) * width, dtype=self.shards[0].hidden.dtype)
        ids = torch.zeros(count, rows, TOP, dtype=torch.long)
        probs = torch.zeros(count, rows, TOP)
        answer = torch.zeros(count, rows, dtype=torch.bool)
        for index, place in enumerate(places):
            shard, there = self.shards[place.shard], place.length - 1
            tokens[index, : place.length] = shard.ids[place.first : place.first + place.length]
            found = slice(place.row, place.row + there)
            for to, column in enumerate(columns):
                part = shard.hidden[found, column * width : (column + 1) * width]
                hidden[index, :there, to * width : (to + 1) * width] = part
            ids[index, :there] = shard.top_ids[found]
            probs[index, :there] = shard.top_probs[found]
            answer[index, place.prompt_length - 1 : there] = True
        drafts = t2d[ids]
        probs.masked_fill_(drafts < 0, 0)
        probs /= probs.sum(-1, keepdim=True).clamp_min(1e-9)
        return Batch(tokens, hidden, drafts.clamp_min(0), probs, drafts[..., 0], answer)
