"""Bugs reported in other engines (processors, seeds), one test each; the docstring says where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import (
    VOCAB,
    byte_tokenizer,
    reference_decode,
    reference_logits,
    tiny_target,
)
from public_cases import PROMPT, SAMPLED, SETTINGS, accepted, every_drafter, every_kind, run, timeless, tokens
from scripted import Replay

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters import NGram


def penalised(logits: torch.Tensor, seen: list[int], penalty: float) -> torch.Tensor:
    """The repetition penalty as its paper has it, one token after another."""
    logits = logits.clone()
    for token in set(seen):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return logits


def test_the_penalty_of_each_draft_token_sees_the_prefix_and_its_own_ancestors():
    """vllm#22987, vllm#6718: the penalty of later draft tokens did not know the earlier ones, or knew too many."""
    draft = Draft((4, 5, 6, 7, 4), (ROOT, ROOT, 0, 2, 1), torch.zeros(5, VOCAB))
    ancestry = [[], [4], [5], [4, 6], [4, 6, 7], [5, 4]]
    logits = 5 * torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(temperature=1, repetition_penalty=1.7)
    p = sampler.probs(logits, [1, 2, 2, 3], draft)
    for row, seen in enumerate(ancestry):
        alone = sampler.probs(logits[row][None], [1, 2, 2, 3, *seen])[0]
        assert torch.equal(p[row], alone), row
        by_hand = torch.softmax(penalised(logits[row], [1, 2, 3, *seen], 1.7), -1)
        torch.testing.assert_close(p[row], by_hand)


@every_kind
def test_penalised_greedy_output_equals_penalised_decoding_one_by_one(kind):
    """sglang#22049, sglang#28242: penalties were ignored, or one position's was used for all."""
    target = tiny_target("gpt2")
    plain = reference_decode(target.model, PROMPT, 24)
    expected = list(PROMPT)
    for _ in range(24):
        expected.append(int(penalised(reference_logits(target.model, expected)[-1], expected, 1.3).argmax()))
    assert expected[len(PROMPT) :] != plain, "the penalty changes nothing here"
    settings = replace(SETTINGS, max_new_tokens=24, sampler=Sampler(repetition_penalty=1.3))
    steps = run(target, every_drafter(target)[kind], settings)
    assert tokens(steps) == expected[len(PROMPT) :]
    assert kind in ("plain", "ngram") or accepted(steps) > 0


@every_kind
def test_probabilities_shown_are_the_targets_under_the_tokens_own_prefix(kind):
    """vllm#17876, vllm#34497: log probabilities of draft tokens were zero, or another position's."""
    target = tiny_target()
    steps = run(target, every_drafter(target)[kind], replace(SAMPLED, seed=3))
    nodes = 0
    for step in steps:
        before = [*PROMPT, *tokens(steps)][: step.start]
        for node in step.nodes:
            own, parent = [], node.parent
            while parent != ROOT:
                own.insert(0, step.nodes[parent].token)
                parent = step.nodes[parent].parent
            forced = torch.softmax(reference_logits(target.model, [*before, *own])[-1], -1)
            assert node.p_raw == pytest.approx(float(forced[node.token]), rel=1e-3, abs=1e-6)
            assert node.rank_p == 1 + int((forced > forced[node.token]).sum())
            nodes += 1
        for place, decision in enumerate(step.decisions):
            forced = reference_logits(target.model, [*before, *step.committed[:place]])[-1]
            expected = torch.softmax(forced, -1)
            assert decision.p[0].token == int(forced.argmax())
            for candidate in decision.p:
                assert candidate.raw == pytest.approx(float(expected[candidate.token]), rel=1e-3, abs=1e-6)
            assert decision.margin == pytest.approx(float(forced.topk(2).values.diff().abs()), abs=1e-3)
    assert nodes > 10 or kind == "plain"


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_a_token_ruled_out_inside_a_draft_is_rejected_at_its_place(gamma, offset):
    """vllm#44297: a constraint that takes effect inside a draft must bind from exactly there on."""
    target = tiny_target()
    free = reference_decode(target.model, PROMPT, 16)
    banned = free[offset]
    place = free.index(banned)
    expected = list(PROMPT)
    for _ in range(16):
        logits = reference_logits(target.model, expected)[-1].clone()
        logits[banned] -= 100
        expected.append(int(logits.argmax()))
    settings = replace(SETTINGS, gamma=gamma, sampler=Sampler(logit_bias={banned: -100.0}))
    steps = run(target, Replay(free, len(PROMPT)), settings)
    assert tokens(steps) == expected[len(PROMPT) :] and banned not in tokens(steps)
    assert tokens(steps)[:place] == free[:place]
    tried = [node for step in steps for node in step.nodes if node.token == banned and node.outcome != "untested"]
    assert all(node.outcome == "rejected" for node in tried)
    assert tried or place % (gamma + 1) == gamma, "the banned token came as the target's own, never as a draft"


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_ngram_drafts_across_special_tokens_stay_lossless(gamma):
    """vllm#40875: drafts copied across the template's own tokens corrupted structured output."""
    tokenizer = byte_tokenizer()
    target = tiny_target(tokenizer=tokenizer, vocab_size=259)
    prompt = list(tokenizer.encode("<s>user: hi</s><s>bot: hi</s><s>user: hi</s><s>bot: hi</s><s>user: hi"))
    settings = replace(SETTINGS, gamma=gamma, max_new_tokens=20)
    steps = run(target, NGram(target), settings, prompt)
    assert {tokenizer.bos_token_id, tokenizer.eos_token_id} & {node.token for node in steps[0].nodes} or gamma < 8
    assert tokens(steps) == reference_decode(target.model, prompt, 20)


@every_kind
def test_the_seed_decides_and_nothing_else_is_drawn_from(kind):
    """vllm#6038, vllm#13196: the seed was ignored, or changed nothing."""
    target = tiny_target()
    drafter = every_drafter(target)[kind]
    torch.manual_seed(1)
    first = timeless(run(target, drafter, replace(SAMPLED, seed=7)))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = timeless(run(target, drafter, replace(SAMPLED, seed=7)))
    assert torch.equal(torch.get_rng_state(), state), "the global random state was used"
    assert [step.committed for step in again] == [step.committed for step in first]
    assert [[node.r for node in step.nodes] for step in again] == [[node.r for node in step.nodes] for step in first]
    others = {tuple(tokens(run(target, drafter, replace(SAMPLED, seed=seed)))) for seed in range(8)}
    assert len(others) >= 7
