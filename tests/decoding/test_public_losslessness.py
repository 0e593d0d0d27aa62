"""Bugs reported in other engines (losslessness, greedy ties), one test each; the docstring says where."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from fakes import (
    VOCAB,
    reference_decode,
    reference_logits,
    tiny_model,
    tiny_target,
)
from public_cases import DRAFTERS, PROMPT, SETTINGS, every_drafter, every_kind, run, tokens
from scripted import Refrain, ScriptedTarget

from specviz.decoding.draft import Draft
from specviz.decoding.engine import decode
from specviz.decoding.sampling import Sampler, one_hot
from specviz.decoding.verify import accept
from specviz.drafters import Context, EarlyExit, NGram, Plain
from specviz.measure import compare, first_divergence
from specviz.models import target as target_module
from specviz.models.target import Target


def test_only_the_prefix_before_the_first_rejection_counts():
    """vllm#2658: tokens that happened to match after a rejection were counted as accepted. 1, 0, 1, 1 is one."""
    truth, drafted = [5, 6, 7, 8, 9], [5, 0, 7, 8]
    draft = Draft.chain(drafted, one_hot(drafted, VOCAB))
    verdict = accept(draft, one_hot(truth, VOCAB), torch.Generator())
    assert verdict.path == (0,) and verdict.token == 6 and verdict.kind == "correction"
    assert [trial.accepted for trial in verdict.trials] == [True, False]
    (step,) = run(ScriptedTarget(truth, 1), Refrain(drafted), replace(SETTINGS, max_new_tokens=5), [1])[:1]
    assert step.num_accepted == 1 and step.committed == (5, 6)
    assert [node.outcome for node in step.nodes] == ["accepted", "rejected", "untested", "untested"]


@every_kind
@pytest.mark.parametrize("seed", range(3))
def test_temperature_0_is_the_argmax_whatever_q_was(kind, seed):
    """jaymody/speculative-sampling#9: p must be one-hot before the ratio is taken, or greedy is not greedy."""
    target = tiny_target()

    class Warm:
        """Drafts at temperature 2, whatever the target does."""

        hidden_layers: tuple[int, ...] = ()

        def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
            return every_drafter(target)[kind].propose(ctx, gamma, Sampler(temperature=2), rng)

    steps = run(target, Warm(), replace(SETTINGS, seed=seed))
    assert tokens(steps) == reference_decode(target.model, PROMPT, 16)
    assert all(float(candidate.prob) in (0.0, 1.0) for step in steps for d in step.decisions for candidate in d.p)


def test_bf16_output_parts_from_plain_output_only_at_a_near_tie():
    """vllm#7627, vllm#41758, EAGLE#212, EAGLE#75, Medusa#99: greedy output differs from the baseline in half precision.

    Passes of different widths round differently. Where outputs part, the two tokens' logits must be as good as equal;
    in fp32 the same prompts do not part at all.
    """
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))] for _ in range(10)]
    settings = replace(SETTINGS, gamma=6, max_new_tokens=40)
    parted = 0
    for dtype in (torch.float32, torch.bfloat16):
        target = Target(tiny_model("qwen").to(dtype))
        for prompt in prompts:
            plain = tokens(run(target, Plain(), settings, prompt))
            drafted = tokens(run(target, EarlyExit(target, 3), settings, prompt))
            divergence = first_divergence(target, prompt, plain, drafted, settings)
            if divergence is not None:
                assert dtype == torch.bfloat16, "fp32 must be exact"
                assert plain[: divergence.index] == drafted[: divergence.index]
                assert divergence.plain == plain[divergence.index] != drafted[divergence.index]
                assert divergence.near_tie and abs(divergence.margin) < 0.3, divergence
                parted += 1
    assert parted >= 2, "nothing parted, so nothing was shown"


def test_a_wrong_token_is_no_near_tie():
    """The counterpart of the test above: an error must not pass for rounding."""
    target = Target(tiny_model("qwen").to(torch.bfloat16))
    plain = tokens(run(target, Plain()))
    for index in (0, 7, 15):
        with torch.inference_mode():
            least = int(reference_logits(target.model, [*PROMPT, *plain[:index]])[-1].argmin())
        wrong = [*plain[:index], least, *plain[index + 1 :]]
        divergence = first_divergence(target, PROMPT, plain, wrong, SETTINGS)
        assert divergence is not None and divergence.index == index
        assert not divergence.near_tie and divergence.margin > 1


def test_output_that_is_shorter_parts_where_it_ends():
    """A missing token is no tie either."""
    target = tiny_target()
    plain = tokens(run(target, Plain()))
    divergence = first_divergence(target, PROMPT, plain, plain[:-2], SETTINGS)
    assert divergence is not None and (divergence.index, divergence.speculative) == (14, None)
    assert divergence.margin is None and not divergence.near_tie
    assert first_divergence(target, PROMPT, plain, list(plain), SETTINGS) is None


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 21])
def test_every_drafter_prefills_in_the_same_pieces_as_the_baseline(length, monkeypatch):
    """mlx-lm#1109: a prompt read in other pieces than the baseline's flipped the first token."""
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 4)
    prompt = [(5 * place) % VOCAB for place in range(length)]
    seen = {}
    for kind in DRAFTERS:
        target = tiny_target()
        drafter = every_drafter(target)[kind]
        widths, logits = [], []
        target.model.base_model.register_forward_pre_hook(
            lambda module, args, kwargs, widths=widths: widths.append(kwargs["input_ids"].shape[-1]), with_kwargs=True
        )
        target.model.register_forward_hook(lambda *hooked, logits=logits: logits.append(hooked[-1].logits[0]))
        next(decode(target, drafter, prompt, replace(SETTINGS, gamma=0)))
        seen[kind] = (widths, logits[0])
    expected = [4] * ((length - 1) // 4) + [(length - 1) % 4] * bool((length - 1) % 4) + [1]
    for kind in DRAFTERS:
        assert seen[kind][0] == expected, kind
        assert torch.equal(seen[kind][1], seen["plain"][1]), kind


def test_a_comparison_reports_how_far_its_repeats_spread():
    """vllm#53436: the same text gave varying numbers between runs; one number alone says too little."""
    target = tiny_target()
    *_, result = compare(target, NGram(target), PROMPT, SETTINGS, repeats=3)
    assert result.repeats == len(result.ratios) == 3 and result.identical is True
    assert result.spread == (min(result.ratios), max(result.ratios))
    assert result.spread[0] <= result.speedup <= result.spread[1]
