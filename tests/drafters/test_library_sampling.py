"""Sampled drafts of transformers' generators: q is what each token was drawn from, so the text is distributed as the
target's. The mistakes that must be found have been made in transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from assistants import dflash_model, letters_tokenizer, mtp_pair
from decoding.test_losslessness import (
    ALPHA,
    LAYERS,
    PROMPT,
    REAL_DECODES,
    VOCAB,
    exact_joint,
    logits_of,
    p_value,
    refuted,
    sampled,
)
from fakes import reference_logits, tiny_model, tiny_target

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters import Assistant, Context, Library
from specviz.models.target import Target

SAMPLERS = {
    "temperature 0.6": Sampler(0.6),
    "temperature 1.5": Sampler(1.5),
    "top-k": Sampler(1.5, top_k=3),
    "top-p": Sampler(1.5, top_p=0.7),
    "min-p": Sampler(1.0, min_p=0.15),
    "penalty and bias": Sampler(1.2, repetition_penalty=1.5, logit_bias={2: 1.5, 5: -1.0}),
}


def small_universal() -> tuple[Target, str, Assistant]:
    """Six of the target's eight tokens are the assistant's too, under other ids; both have tokens of their own."""
    tokenizer = letters_tokenizer("a", "b", "c", "d", "ab", "cd", "bc", "da")
    other = letters_tokenizer("d", "c", "b", "a", "ab", "da", "ac", "dd", "ca")
    model = tiny_model(
        seed=2, **{**LAYERS, "vocab_size": 12, "spread": 1.5}
    )  # three rows more than the tokenizer has tokens
    return tiny_target(tokenizer=tokenizer, **LAYERS), "universal", Assistant(model, other, "helper")


def small_dflash() -> tuple[Target, str, Assistant]:
    model = dflash_model(mask_token_id=VOCAB - 1, target_layer_ids=[1, 0])
    return tiny_target(**LAYERS), "dflash", Assistant(model, None, "blocks")


SMALL: dict[str, Callable[[], tuple[Target, str, Assistant | None]]] = {
    "universal": small_universal,
    "mtp, 1 layer": lambda: mtp_pair("mellum", vocab_size=VOCAB),
    "mtp, 3 layers": lambda: mtp_pair("glm4_moe", vocab_size=VOCAB),
    "dflash": small_dflash,
}


@cache
def small(name: str) -> tuple[Target, Library]:
    target, method, assistant = SMALL[name]()
    return target, Library(target, method, assistant)


def propose(target: Target, drafter: Library, sampler: Sampler, seed: int, gamma: int = 2) -> Draft:
    with torch.inference_mode():
        hidden = target.prefill(PROMPT[:-1], drafter.hidden_layers)
        return drafter.propose(Context(list(PROMPT), hidden), gamma, sampler, torch.Generator().manual_seed(seed))


every_method = pytest.mark.parametrize("name", SMALL)


# --- q --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", [name for name in SMALL if name != "mtp, 1 layer"])
def test_drafts_are_drawn_from_the_q_that_is_claimed(name, sampler):
    """huggingface/transformers#32867, #47932: q was another distribution than the one drawn from."""
    target, drafter = small(name)
    counts, claimed = np.zeros((VOCAB, VOCAB)), np.zeros((VOCAB, VOCAB))
    for seed in range(200):
        draft = propose(target, drafter, sampler, seed)
        assert draft.note is None and len(draft) == 2
        counts[draft.tokens] += 1
        first, second = draft.q.double().numpy()
        claimed[draft.tokens[0]] = first[draft.tokens[0]] * second / second.sum()
    assert p_value(counts, claimed / claimed.sum()) > ALPHA
    assert (counts > 0).sum() > 2, "drawn, not chosen"


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@every_method
def test_q_is_our_samplers_distribution_of_the_logits_shown(name, sampler):
    target, drafter = small(name)
    draft = propose(target, drafter, sampler, 1, gamma=3)
    for node in range(len(draft)):
        row, prefix = draft.logits[node], [*PROMPT, *draft.tokens[:node]]
        assert draft.q.shape[1] == row.numel() == VOCAB
        assert float(draft.q[node].sum()) == pytest.approx(1, abs=1e-6)
        if sampler.repetition_penalty == 1 or name != "universal":  # whose assistant counts its own tokens
            torch.testing.assert_close(draft.q[node], sampler.probs(row[None], prefix)[0], rtol=1e-6, atol=1e-7)


@every_method
def test_greedy_drafts_are_one_hot(name):
    target, drafter = small(name)
    draft = propose(target, drafter, Sampler(logit_bias={2: 1.0}), 0)
    assert len(draft) and torch.equal(draft.q, one_hot(draft.tokens, VOCAB))


def test_only_the_common_tokens_are_drawn_and_their_logits_are_the_assistants():
    """huggingface/transformers#45307: rows beyond the tokenizer broke the translation."""
    target, drafter = small("universal")
    assistant, own = drafter.model, [3, 2, 1, 0, 4, None, None, 5]  # of each of the target's tokens
    ids = drafter.method.reader(PROMPT)
    drafts = [propose(target, drafter, Sampler(3.0), seed) for seed in range(40)]
    assert {token for draft in drafts for token in draft.tokens} == {0, 1, 2, 3, 4, 7}
    for draft in drafts[:5]:
        read = [*ids, own[draft.tokens[0]]]
        for node, row in enumerate(reference_logits(assistant, read)[-2:]):
            expected = torch.tensor([-torch.inf if index is None else float(row[index]) for index in own])
            torch.testing.assert_close(draft.logits[node], expected, rtol=1e-4, atol=1e-4)


# --- the text -------------------------------------------------------------------------------------------------------

TEXTS = {
    "universal": "top-p",
    "mtp, 1 layer": "top-k",
    "mtp, 3 layers": "penalty and bias",
    "dflash": "temperature 1.5",
}


@every_method
def test_sampled_text_is_distributed_as_the_targets(name):
    target, drafter = small(name)
    sampler = SAMPLERS[TEXTS[name]]
    counts = sampled(target, drafter, sampler, REAL_DECODES)
    assert p_value(counts, exact_joint(logits_of(target), sampler)) > ALPHA


class ClaimsRaw(Library):
    """transformers#47932: tokens drawn after the filters, q from before them."""

    def propose(self, *args) -> Draft:
        draft = super().propose(*args)
        return replace(draft, q=torch.softmax(draft.logits, -1)) if len(draft) else draft


class ClaimsSoftmaxOfArgmax(Library):
    """transformers#32867: the likeliest token drafted, and the softmax reported as if it had been drawn."""

    def propose(self, ctx, gamma, sampler, rng) -> Draft:
        draft = super().propose(ctx, gamma, replace(sampler, temperature=0), rng)
        return replace(draft, q=torch.softmax(draft.logits, -1)) if len(draft) else draft


@pytest.mark.parametrize("mistake", [ClaimsRaw, ClaimsSoftmaxOfArgmax])
def test_a_wrong_q_is_found_at_the_same_sample_size(mistake):
    target, right_one = small("dflash")
    sampler = Sampler(1.5, top_k=5, logit_bias={2: 3.0, 5: 3.0})
    right = exact_joint(logits_of(target), sampler)
    blocks = Assistant(right_one.model, None, "blocks")
    wrong = sampled(target, mistake(target, "dflash", blocks), sampler, 2 * REAL_DECODES)
    assert refuted(wrong, right, REAL_DECODES) >= 99
    assert p_value(sampled(target, right_one, sampler, REAL_DECODES), right) > ALPHA
