"""Every outcome of whole runs, added up, is the target's own distribution, whoever drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoding.test_losslessness import LAYERS, SAMPLERS, VOCAB, counted, exact_joint, logits_of
from fakes import tiny_target
from trained import GIVEN, WIDTH, randomised

from specviz.decoding.draft import Draft
from specviz.drafters import Combined, Drafter, DraftModel, EarlyExit, Medusa, NGram
from specviz.drafters.heads.adapter import ExitAdapter
from specviz.drafters.heads.medusa import MedusaHeads
from specviz.drafters.heads.reduced import reduced_model
from specviz.models.target import Target

IDS = torch.tensor([1, 3, 4])


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(**LAYERS)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def medusa(target: Target, kind: type[Medusa] = Medusa, **settings: object) -> Medusa:
    heads = MedusaHeads(2, 1, WIDTH, VOCAB, len(IDS))
    heads.d2t = IDS
    return kind(target, GIVEN, heads=randomised(heads), **settings)


def with_adapter(target: Target) -> EarlyExit:
    adapter = ExitAdapter(1, WIDTH, 24, VOCAB, len(IDS))
    adapter.d2t = IDS
    return EarlyExit(target, weights=GIVEN, adapter=randomised(adapter), confidence=0.5)


def reduced(target: Target) -> DraftModel:
    return DraftModel(target, reduced_model(target, 1, IDS), d2t=IDS)


class SoftTree(Medusa):
    """A mistake: it chooses its nodes and reports the heads' probabilities as if it had drawn them."""

    def propose(self, ctx, gamma, sampler, rng) -> Draft:
        ctx.detail = True  # it reads the logits itself
        draft = super().propose(ctx, gamma, sampler, rng)
        return replace(draft, q=torch.softmax(draft.logits, -1)) if len(draft) else draft


class HeadsAsOne(Medusa):
    """A mistake: each guess comes from its own head, and is said to come from the first."""

    def propose(self, ctx, gamma, sampler, rng) -> Draft:
        draft = super().propose(ctx, gamma, sampler, rng)
        return replace(draft, q=draft.q[:1].expand(len(draft), -1)) if len(draft) else draft


DRAFTERS: dict[str, Callable[[Target], Drafter]] = {
    "medusa chain": medusa,
    "medusa tree": lambda target: medusa(target, tree=True, nodes=5, branches=2),
    "ngram tree": lambda target: NGram(target, tree=True, ngram_max=1),
    "ngram+medusa": lambda target: Combined([NGram(target, 2), medusa(target)], second_gamma=1),
    "early-exit": with_adapter,
    "draft-model": reduced,
}


@pytest.mark.parametrize(
    ("name", "sampler"), [*((name, "top-k") for name in DRAFTERS), ("ngram+medusa", "repetition penalty")]
)
def test_every_outcome_adds_up_to_the_target(name, sampler, target, every_outcome):
    joint = counted(target, DRAFTERS[name](target), SAMPLERS[sampler], every_outcome)
    assert joint.sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(joint, exact_joint(logits_of(target), SAMPLERS[sampler]), atol=1e-4)


@pytest.mark.parametrize("name", ["medusa chain", "ngram+medusa"])
def test_every_outcome_of_block_verification_adds_up_to_the_target(name, target, every_outcome):
    sampler = SAMPLERS["top-p"]
    joint = counted(target, DRAFTERS[name](target), sampler, every_outcome, rule="block")
    np.testing.assert_allclose(joint, exact_joint(logits_of(target), sampler), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings"), [(SoftTree, {"tree": True, "nodes": 5, "branches": 2}), (HeadsAsOne, {})]
)
def test_a_wrong_q_is_found(kind, settings, target, every_outcome):
    joint = counted(target, medusa(target, kind, **settings), SAMPLERS["temperature 1.5"], every_outcome)
    assert np.abs(joint - exact_joint(logits_of(target), SAMPLERS["temperature 1.5"])).max() > 1e-3
