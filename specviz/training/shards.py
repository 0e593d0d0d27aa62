"""Training data on disk: sequences with what the target computed on them, a file for every few hundred."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specviz.errors import UserError
from specviz.training.output import whole

TOP = 16  # of the target's next-token distribution, kept per position
SEQUENCES = 256  # per shard


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and the target's answer to it; row i of each tensor is what the target computed after ids[:i+1].

    The last token was sampled but never read, so there is a row less than there are ids.
    """

    ids: list[int]
    prompt_length: int
    temperature: float  # that the answer was sampled at; NaN where that is not known
    kind: str
    hidden: Tensor  # [len(ids) - 1, D] of the layers that the data was made for
    top_ids: Tensor  # int32 [len(ids) - 1, TOP], the most probable first; zeros before the last row of the prompt
    top_probs: Tensor  # bfloat16 [len(ids) - 1, TOP], at temperature 1; zeros likewise


@dataclass(frozen=True, slots=True)
class About:
    """What a shard was made with."""

    target: str
    weights: str  # hash of the target's weights
    hidden_layers: tuple[int, ...]
    seed: int

    @classmethod
    def read(cls, metadata: dict[str, str]) -> About:
        layers = tuple(json.loads(metadata["hidden_layers"]))
        return cls(metadata["target"], metadata["weights"], layers, int(metadata["seed"]))

    def metadata(self) -> dict[str, str]:
        layers = json.dumps(self.hidden_layers)
        return {"target": self.target, "weights": self.weights, "hidden_layers": layers, "seed": str(self.seed)}


@dataclass(frozen=True, slots=True)
class Shard:
    """A file's tensors, of all its sequences one after the other, mapped into memory: what is not used is not read."""

    path: Path
    about: About
    ids: Tensor  # int32, all tokens
    lengths: list[int]
    prompt_lengths: list[int]
    temperatures: list[float]
    kinds: list[str]
    hidden: Tensor  # rows, of which each sequence has one less than tokens
    top_ids: Tensor
    top_probs: Tensor

    def answer_tokens(self) -> int:
        return sum(self.lengths) - sum(self.prompt_lengths)


def write(path: Path, sequences: Sequence[Sample], about: dict[str, str]) -> None:
    """One shard, which is there whole or not at all. `about`: see About.metadata. Raises UserError if that fails."""
    tensors = {
        "ids": torch.tensor([token for each in sequences for token in each.ids], dtype=torch.int32),
        "length": torch.tensor([len(each.ids) for each in sequences], dtype=torch.int32),
        "prompt_length": torch.tensor([each.prompt_length for each in sequences], dtype=torch.int32),
        "temperature": torch.tensor([each.temperature for each in sequences]),
        "hidden": torch.cat([each.hidden for each in sequences]),
        "top_ids": torch.cat([each.top_ids for each in sequences]),
        "top_probs": torch.cat([each.top_probs for each in sequences]),
    }
    with whole(path) as part:
        save_file(tensors, part, {**about, "kinds": json.dumps([each.kind for each in sequences])})


def read(path: Path) -> Shard:
    """Raises UserError for a file that is no shard."""
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            return Shard(
                path,
                About.read(metadata),
                opened.get_tensor("ids"),
                opened.get_tensor("length").tolist(),
                opened.get_tensor("prompt_length").tolist(),
                opened.get_tensor("temperature").tolist(),
                json.loads(metadata["kinds"]),
                *(opened.get_tensor(name) for name in ("hidden", "top_ids", "top_probs")),
            )
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UserError(f"{path} is no training data ({error!r}); remove it, or make it with `train data`.") from error


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
