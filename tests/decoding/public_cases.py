"""What the tests of publicly reported bugs share."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from fakes import (
    SampledTree,
    TopKTree,
)
from transformers import PreTrainedModel

from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Drafter, DraftModel, EarlyExit, NGram, Plain
from specviz.models.target import Target
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
SETTINGS = Settings(gamma=4, max_new_tokens=16, stop_tokens=frozenset())
SAMPLED = replace(SETTINGS, sampler=Sampler(temperature=1, top_p=0.95))


def run(target: Target, drafter: Drafter, settings: Settings = SETTINGS, prompt: list[int] = PROMPT) -> list[Step]:
    return list(decode(target, drafter, prompt, settings))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def timeless(steps: list[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


def accepted(steps: list[Step]) -> int:
    return sum(step.num_accepted for step in steps)


def relative(model: PreTrainedModel, noise: float = 0.3) -> PreTrainedModel:
    """A model that often, not always, has the same favourite."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        head = twin.get_output_embeddings().weight
        head.add_(noise * head.std() * torch.randn(head.shape, generator=generator))
    return twin


def every_drafter(target: Target) -> dict[str, Drafter]:
    return {
        "plain": Plain(),
        "ngram": NGram(target),
        "early-exit": EarlyExit(target, 3),
        "draft-model": DraftModel(target, relative(target.model)),
        "self-draft": DraftModel(target, target.model),
        "top-k tree": TopKTree(relative(target.model), (3, 2, 1)),
        "sampled tree": SampledTree(relative(target.model), (2, 2, 1)),
    }


DRAFTERS = ("plain", "ngram", "early-exit", "draft-model", "self-draft", "top-k tree", "sampled tree")
every_kind = pytest.mark.parametrize("kind", DRAFTERS)
