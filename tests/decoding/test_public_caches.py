"""Bugs reported in other engines (caches), one test each; the docstring says where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import (
    VOCAB,
    reference_decode,
    tiny_target,
)
from public_cases import PROMPT, SAMPLED, SETTINGS, accepted, every_drafter, every_kind, relative, run, tokens
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, DraftModel, EarlyExit
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.models.target import Target


@every_kind
@pytest.mark.parametrize("architecture", ["sliding", "mixed"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bursts_beyond_a_sliding_window_see_the_window(attention, architecture, kind):
    """transformers#48280, mlx-lm#1914: mask and cache disagreed after a burst. Window 8, 40 tokens."""
    target = tiny_target(architecture)
    target.model.set_attn_implementation(attention)
    assert target.config.sliding_window == 8
    steps = run(target, every_drafter(target)[kind], replace(SETTINGS, gamma=6, max_new_tokens=40))
    assert tokens(steps) == reference_decode(target.model, PROMPT, 40)


def test_a_model_set_to_a_static_cache_is_decoded_exactly():
    """transformers#32946: speculation on a static cache went wrong; here every model gets a cache that rolls back."""
    target = tiny_target()
    expected = reference_decode(target.model, PROMPT, 16)
    target.model.generation_config.cache_implementation = "static"
    assert tokens(run(target, EarlyExit(target, 3))) == expected


@pytest.mark.parametrize("model_type", ["mamba", "falcon_h1"])
def test_a_cache_that_cannot_be_rolled_back_is_refused_in_one_sentence(model_type):
    """transformers#32946: what can't be taken back must be refused, not corrupted."""
    config = AutoConfig.for_model(model_type, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match=f"^{model_type} models .* choose [^.]*\\.$"):
        Target(model)


@torch.inference_mode()
def test_a_rejected_draft_leaves_no_trace_in_recurrent_states():
    """vllm-project/tpu-inference#3178: recurrent states kept what the rejected tokens had done to them."""
    target = tiny_target("hybrid")

    def states(of: Target) -> list[torch.Tensor]:
        layers = [layer for layer in of.cache.hf.layers if hasattr(layer, "recurrent_states")]
        return [state.clone() for layer in layers for state in (layer.conv_states[0], layer.recurrent_states[0])]

    target.prefill(PROMPT[:-1])
    target.verify(PROMPT[-1], Draft.chain([9, 10, 11], torch.zeros(3, VOCAB)))
    spoiled = states(target)
    assert target.keep(()) == 1
    fresh = tiny_target("hybrid")
    fresh.prefill(PROMPT)
    for kept, expected, after_draft in zip(states(target), states(fresh), spoiled, strict=True):
        torch.testing.assert_close(kept, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(after_draft, expected, rtol=1e-2, atol=1e-2)


class Checked(DraftModel):
    """A draft model that compares its cache with a fresh reading after every proposal."""

    checks = 0

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        draft = super().propose(ctx, gamma, sampler, rng)
        if len(draft):
            expected = [*ctx.tokens, *draft.tokens[:-1]]
            assert len(self.cache) == len(expected) and self._read == expected
            fresh = PrefixCache(self.config)
            self.model(input_ids=torch.tensor([expected]), cache=fresh.hf, use_cache=True)
            for mine, theirs in zip(self.cache.hf.layers, fresh.hf.layers, strict=True):
                torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-3, atol=1e-3)
            self.checks += 1
        return draft


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
def test_the_draft_cache_holds_exactly_the_accepted_prefix_and_self_draft_is_always_right(gamma):
    """mlxcel#994, gpt-fast#107, aprender#2014: the draft cache was trimmed too far, or missed the last draft token."""
    target = tiny_target()
    drafter = Checked(target, target.model)
    steps = run(target, drafter, replace(SETTINGS, gamma=gamma, max_new_tokens=30))
    assert drafter.checks >= 5
    assert all(node.outcome == "accepted" for step in steps for node in step.nodes)
    assert accepted(steps) == sum(len(step.nodes) for step in steps) > 0
    assert tokens(steps) == reference_decode(target.model, PROMPT, 30)
    stranger = Checked(target, relative(target.model, 0.5))
    mixed = run(target, stranger, replace(SETTINGS, gamma=gamma, max_new_tokens=30))
    assert 0 < accepted(mixed) < sum(len(step.nodes) for step in mixed)


@every_kind
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_a_second_turn_on_a_reused_drafter_equals_a_fresh_one(kind, settings):
    """vllm#47926: tokens restored from a prefix cache had no entries in the drafter's."""
    target = tiny_target()
    drafter = every_drafter(target)[kind]
    turn = [*PROMPT, *tokens(run(target, drafter, settings)), 1, 2, 3]
    second = run(target, drafter, settings, turn)
    fresh = run(target, every_drafter(target)[kind], settings, turn)
    assert tokens(second) == tokens(fresh)
    assert [step.path for step in second] == [step.path for step in fresh]
    assert [[node.token for node in step.nodes] for step in second] == [
        [node.token for node in step.nodes] for step in fresh
    ]


@torch.inference_mode()
def test_crop_has_one_meaning_for_us_and_one_for_transformers():
    """transformers#48000: an absolute length was taken for a number of tokens to remove, or the other way round."""
    target = tiny_target()
    target.prefill(PROMPT)
    rows = [layer.keys.clone() for layer in target.cache.hf.layers]
    target.cache.crop(5)  # ours: the length that stays
    assert len(target.cache) == 5
    target.cache.hf.crop(-2)  # transformers': minus the number to remove
    assert len(target.cache) == target.cache.hf.get_seq_length() == 3
    for layer, before in zip(target.cache.hf.layers, rows, strict=True):
        assert torch.equal(layer.keys, before[..., :3, :])
    target.cache.crop(7)
    assert len(target.cache) == 3, "cropping to more than there is changes nothing"
