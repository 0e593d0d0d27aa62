"""The loop: settings and prompts it refuses, where it ends, and that it can be left at any moment."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace

import pytest
import torch
from fakes import VOCAB, SampledTree, byte_tokenizer, reference_decode, tiny_model, tiny_target
from scripted import Replay, ScriptedTarget
from traces import RUN

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, Drafter, DraftModel, EarlyExit, NGram, Plain
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.trace import Step, Trace

PROMPT = [3, 4, 5, 3, 4, 5, 3]
NO_STOP = Settings(gamma=3, max_new_tokens=16, stop_tokens=frozenset())


def drafters(target: Target) -> dict[str, Drafter]:
    related = tiny_model("llama")
    with torch.no_grad():
        related.lm_head.weight.add_(0.5 * torch.randn(related.lm_head.weight.shape))
    every: dict[str, Drafter] = {
        "plain": Plain(),
        "ngram": NGram(target),
        "early-exit": EarlyExit(target, 2),
        "draft-model": DraftModel(target, related),
    }
    if not target.cache.is_recurrent:
        every["sampled tree"] = SampledTree(related, (2, 2, 1))
    return every


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def timeless(steps: list[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gamma": -1}, "Gamma is -1; give a draft length from 0 to 64."),
        ({"gamma": 65}, "Gamma is 65; give a draft length from 0 to 64."),
        ({"max_new_tokens": -1}, "The budget is -1 tokens; give 0 or more."),
        ({"stop_strings": ("x", "")}, "A stop string is empty; leave it out or give it at least one character."),
        ({"rule": "greedy"}, "There is no acceptance rule 'greedy'; choose one of token, block, typical."),
        ({"gamma_policy": "best"}, "There is no gamma policy 'best'; choose one of fixed, adaptive."),
        ({"seed": 2**63}, f"The seed is {2**63}; give a whole number of at most 63 bits."),
        ({"seed": -(2**63) - 1}, f"The seed is {-(2**63) - 1}; give a whole number of at most 63 bits."),
    ],
)
def test_settings_out_of_range_are_refused(wrong, sentence):
    with pytest.raises(UserError) as error:
        Settings(**wrong)
    assert str(error.value) == sentence


def test_settings_at_the_ends_of_their_ranges_work():
    for seed in (-(2**63), 2**63 - 1):
        settings = Settings(gamma=64, max_new_tokens=2, seed=seed, sampler=Sampler(temperature=1))
        assert len(tokens(list(decode(tiny_target(), NGram(tiny_target()), PROMPT, settings)))) == 2


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([], "The prompt is empty; give it at least one token."),
        ([1, VOCAB, 2], f"The prompt holds token id {VOCAB}; tiny llama knows 0 to {VOCAB - 1}."),
        ([-1], f"The prompt holds token id -1; tiny llama knows 0 to {VOCAB - 1}."),
        ([1] * 257, "The prompt has 257 tokens; tiny llama reads at most 256, so shorten it."),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(prompt, sentence):
    with pytest.raises(UserError) as error:
        next(decode(tiny_target(), Plain(), prompt, NO_STOP))
    assert str(error.value) == sentence


# --- budget and context ------------------------------------------------------------------------------------------


def test_a_budget_of_nothing_gives_no_step_and_ends_for_length():
    steps = list(decode(tiny_target(), NGram(tiny_target()), PROMPT, replace(NO_STOP, max_new_tokens=0)))
    assert steps == []
    assert Trace(replace(RUN, max_new_tokens=0), ()).finish_reason == "length"


def test_a_budget_of_one_drafts_nothing():
    """The one token is the target's own, so a draft could only be thrown away."""
    (step,) = decode(tiny_target(), NGram(tiny_target()), PROMPT, replace(NO_STOP, max_new_tokens=1))
    assert step.nodes == () and step.cut == "length"
    assert step.last is not None and step.committed == (step.last.token,)


@pytest.mark.parametrize("name", ["plain", "ngram", "early-exit", "draft-model", "sampled tree"])
@pytest.mark.parametrize("length", [1, 12, 29, 31, 32])
def test_a_run_fills_the_context_and_no_position_beyond_it(name, length):
    """The token that follows the last position is still the target's to give."""
    target = tiny_target(max_position_embeddings=32)
    prompt = [(7 * place) % VOCAB for place in range(length)]
    reference = reference_decode(target.model, prompt, 33 - length)
    positions: list[int] = []
    target.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.extend(kwargs["position_ids"].flatten().tolist()), with_kwargs=True
    )
    steps = list(decode(target, drafters(target)[name], prompt, replace(NO_STOP, max_new_tokens=100)))
    assert len(tokens(steps)) == 33 - length and steps[-1].cut == "length"
    assert max(positions) == 31
    assert tokens(steps) == reference


def test_the_drafter_is_never_asked_for_more_than_can_be_kept():
    asked = []

    class Asked(Replay):
        def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
            asked.append(gamma)
            return super().propose(ctx, gamma, sampler, rng)

    script = list(range(1, 11))
    target = ScriptedTarget(script, 2)
    list(decode(target, Asked(script, 2), [1, 2], Settings(gamma=4, max_new_tokens=8)))
    assert asked == [4, 2]


def test_the_targets_own_stop_tokens_hold_unless_others_are_given():
    script = [5, 6, 7, 8, 9]
    target = ScriptedTarget(script, 2, stop_tokens=frozenset({7}))
    for stop, expected in ((None, [5, 6, 7]), (frozenset(), script), (frozenset({6}), [5, 6])):
        settings = Settings(gamma=4, max_new_tokens=5, stop_tokens=stop)
        assert tokens(list(decode(target, Replay(script, 2), [1, 2], settings))) == expected


# --- leaving a run and coming back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        *itertools.product(["llama", "hybrid"], ["plain", "ngram", "early-exit", "draft-model"]),
        ("llama", "sampled tree"),
        ("mixed", "sampled tree"),
    ],
)
def test_a_run_closed_after_any_step_leaves_target_and_drafter_ready(architecture, temperature, name):
    settings = replace(NO_STOP, max_new_tokens=10, sampler=Sampler(temperature=temperature))
    target = tiny_target(architecture)
    drafter = drafters(target)[name]
    fresh = timeless(list(decode(target, drafter, PROMPT, settings)))
    other = [9, 8, 7]
    for stop_after in range(len(fresh) + 1):
        run = decode(target, drafter, other if stop_after % 2 else PROMPT, settings)
        for _ in range(stop_after):
            next(run, None)
        run.close()
        again = timeless(list(decode(target, drafter, PROMPT, settings)))
        assert [step.committed for step in again] == [step.committed for step in fresh], stop_after
        assert [step.nodes for step in again] == [step.nodes for step in fresh], stop_after


def test_a_run_never_started_does_nothing():
    target = tiny_target()
    target.prefill(PROMPT)
    decode(target, Plain(), [1], NO_STOP).close()
    assert len(target.cache) == len(PROMPT)


@pytest.mark.parametrize("where", ["propose", "probs", "verify"])
def test_an_error_anywhere_in_a_step_leaves_the_target_ready(where, monkeypatch):
    target = tiny_target()
    expected = tokens(list(decode(target, Plain(), PROMPT, NO_STOP)))
    calls = []

    def failing(*args: object, **kwargs: object) -> None:
        calls.append(1)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        owner = {"propose": NGram, "probs": Sampler, "verify": Target}[where]
        run = decode(target, NGram(target), PROMPT, NO_STOP)
        next(run)
        patch.setattr(owner, where, failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            next(run)
    assert calls == [1]
    assert tokens(list(decode(target, NGram(target), PROMPT, NO_STOP))) == expected


def test_logits_that_are_not_numbers_end_the_run_and_not_the_target():
    target = tiny_target()
    expected = tokens(list(decode(target, Plain(), PROMPT, NO_STOP)))
    spoil = target.model.lm_head.register_forward_hook(lambda module, args, out: out * torch.nan)
    with pytest.raises(UserError, match="not numbers"):
        list(decode(target, NGram(target), PROMPT, NO_STOP))
    spoil.remove()
    assert tokens(list(decode(target, NGram(target), PROMPT, NO_STOP))) == expected


def test_steps_come_one_at_a_time():
    """A page shows each step as it is decoded, and stops the run between two."""
    passes = []
    target = tiny_target()
    target.model.register_forward_hook(lambda *_: passes.append(1))
    run = decode(target, Plain(), PROMPT, NO_STOP)
    assert inspect.isgenerator(run) and passes == []
    for count in (1, 2, 3):
        next(run)
        assert len(passes) == count


def test_no_gradients_are_kept_and_none_are_switched_off_outside():
    target = tiny_target()
    run = decode(target, NGram(target), PROMPT, NO_STOP)
    next(run)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert all(not states.requires_grad for layer in target.cache.hf.layers for states in (layer.keys, layer.values))


def test_drafters_cannot_change_what_was_committed_unnoticed():
    """A context is the drafters' to read: none of them writes to it."""
    target = tiny_target()
    for name, drafter in drafters(target).items():
        ctx = Context(list(PROMPT), target.prefill(PROMPT[:-1], drafter.hidden_layers))
        with torch.inference_mode():
            drafter.propose(ctx, 3, Sampler(temperature=1), torch.Generator().manual_seed(0))
        assert ctx.tokens == PROMPT, name


# --- what steps say -------------------------------------------------------------------------------------------------


def test_the_first_step_reports_the_prefill_and_no_other_does():
    first, *others = decode(tiny_target(), NGram(tiny_target()), PROMPT, NO_STOP)
    assert first.prefill_s is not None and first.prefill_s > 0
    assert others and all(step.prefill_s is None for step in others)
    assert all(step.seconds is not None and step.seconds > 0 for step in (first, *others))


def test_phases_are_timed_only_where_they_are_asked_for():
    target = tiny_target()
    for step in decode(target, NGram(target), PROMPT, NO_STOP):
        assert (step.draft_s, step.verify_s, step.decide_s) == (None, None, None)
    for step in decode(target, NGram(target), PROMPT, NO_STOP, phases=True):
        phases = (step.draft_s, step.verify_s, step.decide_s)
        assert all(phase is not None and phase >= 0 for phase in phases)
        assert sum(phase or 0 for phase in phases) <= (step.seconds or 0)


def test_details_change_nothing_but_what_is_shown():
    target = tiny_target()
    sampled = replace(NO_STOP, sampler=Sampler(temperature=1, top_k=20))
    shown = list(decode(target, EarlyExit(target, 3), PROMPT, sampled))
    bare = list(decode(target, EarlyExit(target, 3), PROMPT, sampled, detail=False))
    assert [s.committed for s in shown] == [s.committed for s in bare]
    assert [[n.outcome for n in s.nodes] for s in shown] == [[n.outcome for n in s.nodes] for s in bare]
    assert all(step.decisions for step in shown) and not any(step.decisions for step in bare)
    assert all(node.p is None for step in bare for node in step.nodes)


def test_text_is_the_decoded_tokens():
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    prompt = list(byte_tokenizer().encode("Hi 😀"))
    for seed in range(10):
        settings = Settings(gamma=3, max_new_tokens=30, sampler=Sampler(temperature=1), seed=seed)
        steps = list(decode(target, EarlyExit(target, 3), prompt, settings))
        assert all(len(step.text) == len(step.committed) for step in steps)
        text = "".join(piece for step in steps for piece in step.text)
        assert text == byte_tokenizer().decode(tokens(steps), clean_up_tokenization_spaces=False)


def test_a_hybrid_target_says_how_much_it_read_twice():
    target = tiny_target("hybrid")
    reference = reference_decode(target.model, PROMPT, 16)
    steps = list(decode(target, Replay(reference, len(PROMPT), wrong=frozenset({1, 9})), PROMPT, NO_STOP))
    assert tokens(steps) == reference
    assert any(step.rerun for step in steps)
    for step in steps:
        rejected = any(node.outcome == "rejected" for node in step.nodes)
        assert step.rerun == (1 + step.num_accepted if rejected else 0)
