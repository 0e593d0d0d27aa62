"""A tiny target that writes text, and training data sampled from it."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from fakes import byte_tokenizer, tiny_target

from specviz.models.target import Target
from specviz.training.data import usual_layers
from specviz.training.dataset import HELD_OUT
from specviz.training.generate import Generator
from specviz.training.shards import About, Sample, write

SEED = 5


@cache
def target() -> Target:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}<s>"
    found = tiny_target("llama", 0, tokenizer, vocab_size=len(tokenizer), max_position_embeddings=512)
    found.weights = "hash"
    found.model.requires_grad_(False)
    return found


def sampled(count: int, slots: int = 5, seed: int = SEED) -> list[Sample]:
    generator = Generator(target(), usual_layers(target()), slots=slots, answer_tokens=12, seed=seed)
    return list(islice(generator.samples(), count))


@cache
def some() -> tuple[Sample, ...]:
    return tuple(sampled(160, slots=16))


def held_out(sample: Sample) -> bool:
    """Whether the sample's sequence is one that is never trained on."""
    return hashlib.sha256(torch.tensor(sample.ids, dtype=torch.int32).numpy().tobytes()).digest()[0] % HELD_OUT == 0


def written(folder: Path, parts: int = 2, samples: Sequence[Sample] | None = None) -> Path:
    """A folder of shards."""
    folder.mkdir()
    samples = some() if samples is None else samples
    about = About(target().name, target().weights, usual_layers(target()), SEED)
    size = -(-len(samples) // parts)
    for part in range(parts):
        file = folder / f"seed{SEED}-{part:05}.safetensors"
        write(file, samples[part * size : (part + 1) * size], about.metadata())
    return folder
