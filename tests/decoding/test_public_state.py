"""Bugs reported in other engines (context, state and devices, early exit), one test each; the docstring says where."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
from public_cases import DRAFTERS, PROMPT, SAMPLED, SETTINGS, accepted, every_drafter, every_kind, run, timeless, tokens
from scripted import Replay, ScriptedTarget
from traces import RUN

from specviz.decoding.draft import Draft
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, DraftModel, EarlyExit, Plain
from specviz.measure import first_divergence
from specviz.metrics import acceptance
from specviz.models import target as target_module
from specviz.models.target import Target
from specviz.trace import Trace


@every_kind
def test_a_prompt_of_more_than_512_tokens_works(kind):
    """llama.cpp#24707: a crash on long prompts only."""
    target = tiny_target(max_position_embeddings=1024)
    rng = random.Random(0)
    prompt = [rng.randrange(VOCAB) for _ in range(600)]
    settings = replace(SETTINGS, max_new_tokens=5)
    steps = run(target, every_drafter(target)[kind], settings, prompt)
    assert tokens(steps) == reference_decode(target.model, prompt, 5)


@pytest.mark.parametrize("architecture", ["llama", "mixed", "hybrid"])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 8, 9, 10, 13])
def test_prompts_around_the_edges_of_prefill_pieces_work(length, architecture, monkeypatch):
    """llama.cpp#24707: hidden states of a prompt read in several pieces must be joined in order."""
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 4)
    target = tiny_target(architecture)
    prompt = [(11 * place + 2) % VOCAB for place in range(length)]
    seen = []

    class Reading(Replay):
        hidden_layers = (0, 4)

        def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
            if not seen:
                seen.append(ctx.hidden.clone())
            return super().propose(ctx, gamma, sampler, rng)

    reference = reference_decode(target.model, prompt, 12)
    drafter = Reading(reference, length, wrong=frozenset({2, 7}))
    steps = run(target, drafter, replace(SETTINGS, max_new_tokens=12), prompt)
    assert tokens(steps) == reference
    assert seen[0].shape == (length - 1, 64)
    if length > 1:
        with torch.inference_mode():
            layers = target.model(
                input_ids=torch.tensor([prompt[:-1]]), use_cache=False, output_hidden_states=True
            ).hidden_states
        torch.testing.assert_close(seen[0], torch.cat([layers[0][0], layers[4][0]], -1), rtol=1e-4, atol=1e-3)


@every_kind
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_two_runs_with_the_same_settings_are_identical_and_change_no_config(kind, settings):
    """transformers#28759, transformers#40739: one run's draft length lived on in the next, in the model's config."""
    target = tiny_target()
    drafter = every_drafter(target)[kind]
    before = (target.model.config.to_dict(), target.model.generation_config.to_dict())
    first = timeless(run(target, drafter, settings))
    run(target, drafter, replace(settings, gamma=1, max_new_tokens=3), [9, 9, 8])
    second = timeless(run(target, drafter, settings))
    assert second == first
    assert (target.model.config.to_dict(), target.model.generation_config.to_dict()) == before
    assert {step.gamma_asked for step in first} == {settings.gamma}


@pytest.mark.parametrize("target_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drafter_dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_in_another_number_format_drafts(target_dtype, drafter_dtype):
    """transformers#35099: the two models need not agree in how they are stored."""
    target = Target(tiny_model().to(target_dtype))
    drafter = DraftModel(target, tiny_model().to(drafter_dtype))
    for settings in (SETTINGS, SAMPLED):
        steps = run(target, drafter, settings)
        assert len(tokens(steps)) == 16 and accepted(steps) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("target_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("drafter_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drafter_device", ["cpu", "cuda"])
@pytest.mark.parametrize("target_device", ["cpu", "cuda"])
def test_a_drafter_on_another_device_drafts(target_device, drafter_device, target_dtype, drafter_dtype):
    """transformers#35099: the draft model on another device than the target."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    target = Target(tiny_model().to(target_device, target_dtype))
    drafter = DraftModel(target, tiny_model().to(drafter_device, drafter_dtype))
    for settings in (SETTINGS, SAMPLED):
        steps = run(target, drafter, settings)
        assert len(tokens(steps)) == 16 and accepted(steps) > 0
    if target_dtype == torch.float32:
        plain = tokens(run(target, Plain()))
        assert first_divergence(target, PROMPT, plain, tokens(run(target, drafter)), SETTINGS) is None
        for kind in DRAFTERS:
            if "tree" not in kind:
                assert tokens(run(target, every_drafter(target)[kind])) == plain, kind


@contextmanager
def untouched(target: Target) -> Iterator[None]:
    """Config, cache length and the next logits are the same afterwards, and no layer is missing."""
    before = target.model.config.to_dict()
    target.prefill(PROMPT[:-1])
    layers = list(target.model.base_model.layers)
    yield
    assert target.model.config.to_dict() == before
    assert list(target.model.base_model.layers) == layers
    target.prefill(PROMPT[:-1])
    logits, _ = target.verify(PROMPT[-1], Draft.empty())
    torch.testing.assert_close(logits[0], reference_logits(target.model, PROMPT)[-1], rtol=1e-4, atol=1e-3)


@torch.inference_mode()
def test_an_error_in_the_middle_of_an_early_exit_draft_leaves_the_target_whole():
    """transformers' EarlyExitCandidateGenerator sets config.num_hidden_layers and never resets it after an error."""
    target = tiny_target()
    with untouched(target):
        with pytest.raises(RuntimeError, match="in the middle"), target.early_exit(2) as step:
            step(PROMPT[-1])
            step(9)
            assert len(target.cache) == len(PROMPT) + 1
            raise RuntimeError("in the middle")
        assert len(target.cache) == len(PROMPT) - 1
        logits, _ = target.verify(PROMPT[-1], Draft.empty())
        torch.testing.assert_close(logits[0], reference_logits(target.model, PROMPT)[-1], rtol=1e-4, atol=1e-3)


@torch.inference_mode()
def test_a_layer_that_fails_in_an_early_exit_draft_leaves_the_target_whole():
    """The same, from inside a pass: the first layer has read the token, the second has not."""
    target = tiny_target()
    with untouched(target):

        def fail(*_: object) -> None:
            raise RuntimeError("out of memory")

        hook = target.model.base_model.layers[1].register_forward_pre_hook(fail)
        rng = torch.Generator()
        with pytest.raises(RuntimeError, match="out of memory"):
            EarlyExit(target, 3).propose(Context(PROMPT, None), 3, Sampler(), rng)
        hook.remove()
        assert [layer.rows for layer in target.cache.hf.layers] == [len(PROMPT) - 1] * 4


def test_closing_a_run_in_the_middle_of_an_early_exit_draft_leaves_the_target_whole():
    """A cancelled request ends a generator wherever it stands."""
    target = tiny_target()

    def drafting() -> Iterator[int]:
        with target.early_exit(2) as step:
            for token in (PROMPT[-1], 9, 10):
                yield int(step(token).argmax())

    with untouched(target), torch.inference_mode():
        generator = drafting()
        next(generator), next(generator)
        assert len(target.cache) == len(PROMPT) + 1
        generator.close()
        assert len(target.cache) == len(PROMPT) - 1


def test_early_exit_runs_in_two_threads_do_not_see_each_other():
    """A second user saw the truncated model of the first."""
    targets = [tiny_target(seed=0), tiny_target("mixed", seed=1)]
    expected = [reference_decode(target.model, PROMPT, 40) for target in targets]
    output: list[list[list[int]]] = [[], []]
    gate = threading.Barrier(2)

    def work(which: int) -> None:
        gate.wait()
        for exit_layer in (1, 2, 3):
            drafter = EarlyExit(targets[which], exit_layer)
            output[which].append(tokens(run(targets[which], drafter, replace(SETTINGS, max_new_tokens=40))))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert output == [[expected[0]] * 3, [expected[1]] * 3]
    assert [target.config.num_hidden_layers for target in targets] == [4, 4]


@pytest.mark.parametrize("exit_layer", [1, 2, 3])
def test_early_exit_runs_exactly_its_layers_per_draft_token_and_never_writes_to_the_config(exit_layer):
    """transformers' way writes to the config; an exit that ran all layers would only look like one."""
    target = tiny_target()
    expected = reference_decode(target.model, PROMPT, 16)
    calls = [0] * 4
    for index, layer in enumerate(target.model.base_model.layers):
        layer.register_forward_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    writes: list[str] = []

    class Spied(type(target.model.config)):
        def __setattr__(self, name: str, value: object) -> None:
            writes.append(name)
            super().__setattr__(name, value)

    target.model.config.__class__ = Spied
    steps = run(target, EarlyExit(target, exit_layer))
    assert tokens(steps) == expected
    drafted, passes = sum(len(step.nodes) for step in steps), 1 + len(steps)  # prefill and verify passes
    assert drafted > 10
    assert calls == [drafted + passes] * exit_layer + [passes] * (4 - exit_layer)
    assert writes == []
    target.model.config.num_hidden_layers = 4
    assert writes == ["num_hidden_layers"], "the spy sees nothing"


def test_accepted_tokens_are_counted_apart_from_emitted_ones():
    """transformers' _assisted_decoding counts the output's length: one too few accepted when a draft token ends it."""
    script = [5, 6, 7, 8, 9, 10]
    target = ScriptedTarget(script, 1)
    for budget, by_draft in ((3, 3), (5, 4)):
        stop = frozenset({script[budget - 1]})
        settings = replace(SETTINGS, gamma=4, max_new_tokens=6, stop_tokens=stop)
        (step,) = run(target, Replay(script, 1), settings, [1])
        assert len(step.committed) == budget and step.cut == "stop_token"
        assert step.num_accepted == by_draft
        assert (step.last is None) == (by_draft == budget)
    (step,) = run(target, Replay(script, 1), replace(SETTINGS, gamma=4, max_new_tokens=3), [1])
    assert (step.num_accepted, len(step.committed)) == (2, 3), "the last of a budget is the target's own"
    counted = acceptance(Trace(RUN, (step,)))
    assert counted.accepted == 2
