"""Transformers' own generators as a drafter: whatever they propose, the text is the target's. They alter nothing."""

from __future__ import annotations

import copy
import logging
import threading
from dataclasses import replace

import assistants
import pytest
import torch
import transformers
from assistants import PAIRS, library, pair
from fakes import byte_tokenizer, reference_decode, tiny_model, tiny_target

from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Assistant, Context, Library, make_drafter
from specviz.drafters.library_sampler import seeded
from specviz.errors import UserError
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4]
GREEDY = Settings(gamma=3, max_new_tokens=30, stop_tokens=frozenset())
SAMPLED = replace(GREEDY, sampler=Sampler(1.0, top_k=12, repetition_penalty=1.1, logit_bias={7: 2.0}), seed=5)

every_pair = pytest.mark.parametrize("name", PAIRS)


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def accepted(steps: list[Step]) -> int:
    return sum(node.outcome == "accepted" for step in steps for node in step.nodes)


def timeless(steps: list[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


def run(name: str, settings: Settings = GREEDY, prompt: list[int] = PROMPT) -> list[Step]:
    target, drafter = library(name)
    return list(decode(target, drafter, prompt, settings))


# --- the text is the target's -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 5])
@pytest.mark.parametrize("prompt", [[3], [3, 4], [6, 2, 9] * 11])
@every_pair
def test_greedy_text_is_the_targets_own(name, prompt, gamma):
    target, drafter = library(name)
    steps = list(decode(target, drafter, prompt, replace(GREEDY, gamma=gamma)))
    assert tokens(steps) == reference_decode(target.model, prompt, 30)
    before_any_pass = target.name != "tiny writer" and len(prompt) == 1
    for step in steps[before_any_pass:]:
        assert step.note is None and len(step.nodes) <= gamma


@every_pair
def test_a_long_run_stays_the_targets_and_some_of_it_was_drafted(name):
    steps = run(name, replace(GREEDY, gamma=4, max_new_tokens=200))
    assert tokens(steps) == reference_decode(pair(name)[0].model, PROMPT, 200)
    assert {step.note for step in steps} == {None}
    assert accepted(steps) >= 5
    assert accepted(run(name, replace(SAMPLED, gamma=4, max_new_tokens=60))) >= 5


@every_pair
def test_the_budget_is_kept(name):
    for budget in range(6):
        steps = run(name, replace(GREEDY, max_new_tokens=budget))
        assert tokens(steps) == reference_decode(pair(name)[0].model, PROMPT, budget)


@every_pair
def test_nothing_is_drafted_at_gamma_0_and_nothing_drawn(name):
    target, drafter = library(name)
    rng = torch.Generator().manual_seed(1)
    before = rng.get_state()
    assert len(drafter.propose(Context(PROMPT, None), 0, Sampler(), rng)) == 0
    assert torch.equal(rng.get_state(), before)
    assert tokens(list(decode(target, drafter, PROMPT, replace(GREEDY, gamma=0)))) == tokens(run(name))


@every_pair
def test_a_stop_token_inside_a_draft_ends_the_run(name):
    said = tokens(run(name))
    stop = said[7]
    steps = run(name, replace(GREEDY, gamma=5, stop_tokens=frozenset({stop})))
    assert tokens(steps) == said[: said.index(stop) + 1]


# --- runs repeat ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@every_pair
def test_the_same_settings_give_the_same_trace_whatever_ran_before(name, settings):
    target, drafter = library(name)
    first = list(decode(target, drafter, PROMPT, settings))
    list(decode(target, drafter, [5, 2], replace(settings, seed=9)))
    abandoned = decode(target, drafter, PROMPT, replace(settings, seed=3))
    next(abandoned), next(abandoned)
    abandoned.close()
    torch.manual_seed(123)  # nothing reads it
    assert timeless(list(decode(target, drafter, PROMPT, settings))) == timeless(first)
    assert timeless(run(name, settings)) == timeless(first), "nor does anything depend on an earlier drafter"


@every_pair
def test_seeds_matter_when_sampling_only(name):
    assert len({tuple(tokens(run(name, replace(SAMPLED, seed=seed)))) for seed in range(4)}) == 4
    assert len({tuple(tokens(run(name, replace(GREEDY, seed=seed)))) for seed in range(2)}) == 1


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@every_pair
def test_a_run_left_after_each_step_and_resumed_is_the_run_made_in_one_go(name, settings):
    target, drafter = library(name)
    whole = list(decode(target, drafter, PROMPT, settings))
    rng = torch.Generator().manual_seed(settings.seed)
    done: list[Step] = []
    while not (done and done[-1].cut):
        done.append(next(decode(target, drafter, PROMPT, settings, done=tuple(done), rng=rng)))
    assert tokens(done) == tokens(whole)
    assert [[node.token for node in step.nodes] for step in done] == [[n.token for n in step.nodes] for step in whole]


# --- nothing else is changed ----------------------------------------------------------------------------------------


def fingerprint(model) -> dict[str, object]:
    return {
        "config": copy.deepcopy(model.config.to_dict()),
        "generation config": copy.deepcopy(model.generation_config.to_dict()) if model.can_generate() else None,
        "modules": [(name, id(module)) for name, module in model.named_modules()],
        "weights": {name: weight.clone() for name, weight in model.state_dict().items()},
        "attributes": sorted(vars(model)),
    }


def assert_unchanged(model, before: dict[str, object]) -> None:
    after = fingerprint(model)
    weights = before.pop("weights"), after.pop("weights")
    assert after == before
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@every_pair
def test_models_configs_random_state_threads_and_logging_are_left_as_they_were(name, capfd):
    target, method, assistant = pair(name)
    models = [target.model, *([assistant.model] if assistant else [])]
    if assistant and assistant.model.can_generate():  # what real checkpoints bring along
        assistant.model.generation_config.update(repetition_penalty=1.3, temperature=0.6, top_p=0.9, do_sample=True)
    before = [fingerprint(model) for model in models]
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    level = transformers.logging.get_verbosity(), logging.root.level
    capfd.readouterr()
    drafter = Library(target, method, assistant)
    loading = capfd.readouterr().err
    for settings in (GREEDY, SAMPLED):
        list(decode(target, drafter, PROMPT, settings))
    assert capfd.readouterr() == ("", ""), "no warnings in the course of a run"
    assert not loading or "Loading weights" in loading
    for model, state in zip(models, before, strict=True):
        assert_unchanged(model, state)
    assert torch.equal(torch.get_rng_state(), random) and torch.get_num_threads() == threads
    assert (transformers.logging.get_verbosity(), logging.root.level) == level


def test_the_assistants_generation_config_changes_nothing():
    target, method, assistant = pair("universal")
    plain = timeless(run("universal", SAMPLED))
    changed = copy.deepcopy(assistant.model)
    changed.generation_config.update(
        repetition_penalty=2.0, top_k=1, no_repeat_ngram_size=2, suppress_tokens=[5], num_assistant_tokens=1,
        assistant_confidence_threshold=0.99, eos_token_id=3, pad_token_id=3,
    )  # fmt: skip
    drafter = Library(target, method, replace(assistant, model=changed))
    assert timeless(list(decode(target, drafter, PROMPT, SAMPLED))) == plain


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("name", ["universal", "dflash"])
def test_whether_scikit_learn_is_there_does_not_matter(name, present, monkeypatch):
    plain = timeless(run(name))
    monkeypatch.setattr("transformers.generation.candidate_generator.is_sklearn_available", lambda: present)
    assert timeless(run(name)) == plain


@every_pair
def test_two_threads_do_not_disturb_each_other(name):
    target, method, assistant = pair(name)
    expected = {seed: timeless(run(name, replace(SAMPLED, seed=seed))) for seed in (1, 2)}
    found = {}

    def work(seed: int) -> None:
        # Models are shared, the target's cache is not.
        own = type(target)(target.model, target.tokenizer, target.name, target.weights)
        drafter = Library(own, method, assistant)
        found[seed] = timeless(list(decode(own, drafter, PROMPT, replace(SAMPLED, seed=seed))))

    random = torch.get_rng_state()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert torch.equal(torch.get_rng_state(), random)


def test_the_global_generator_is_seeded_and_restored_even_after_an_error():
    before = torch.get_rng_state()
    drawn = []
    for seed in (7, 7, 8):
        with pytest.raises(RuntimeError, match="inside"), seeded(seed, [torch.device("cpu")]):
            drawn.append(float(torch.rand(())))
            raise RuntimeError("inside")
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1] != drawn[2]


# --- errors ---------------------------------------------------------------------------------------------------------


@every_pair
def test_an_error_inside_a_generator_costs_a_step_its_draft_and_is_named(name, monkeypatch):
    target, drafter = library(name)
    calls = []
    original = drafter.method.start

    def start(sampler):
        started = original(sampler)
        draft = started.draft

        def fail_once(ctx, gamma):
            calls.append(gamma)
            if len(calls) == 3:
                raise RuntimeError("out of memory\nmore about it")
            return draft(ctx, gamma)

        started.draft = fail_once
        return started

    monkeypatch.setattr(drafter.method, "start", start)
    steps = list(decode(target, drafter, PROMPT, GREEDY))
    assert tokens(steps) == reference_decode(target.model, PROMPT, 30)
    note = "Transformers' generator failed (out of memory); nothing was drafted in this step."
    assert [step.note for step in steps[:4]] == [None, None, note, None]
    assert not steps[2].nodes and steps[3].nodes


# --- what it is called, and what can't work -------------------------------------------------------------------------


def test_it_names_the_model_that_drafts():
    target, _, assistant = pair("universal")
    drafter = make_drafter("library", target, {"method": "universal", "source": "tiny helper"}, assistant)
    assert (drafter.kind, drafter.name, drafter.weights) == ("library", "tiny helper", "hash of the helper")
    assert drafter.model is assistant.model
    own = library("mtp, 1 layer")[1]
    assert (own.name, own.weights) == ("tiny MTP itself", "hash of the target")


def unlike(**settings: object) -> Assistant:
    return Assistant(assistants.dflash_model(**settings), None, "blocks")


TEXT = byte_tokenizer()
REFUSALS = {
    "There is no method 'medusa'; choose one of universal, mtp, dflash.": ("medusa", None),
    "The method universal needs a draft model; name a folder or a Hub id.": ("universal", None),
    "passes on text, and helper has no tokenizer; choose another model.": (
        "universal", lambda: Assistant(tiny_model(seed=1), None, "helper"),
    ),
    "blocks can't write text by itself; name a causal language model.": (
        "universal", lambda: replace(unlike(), tokenizer=TEXT),
    ),
    "helper has recurrent layers, which can't be rolled back; choose another.": (
        "universal", lambda: Assistant(tiny_model("hybrid", vocab_size=259), TEXT, "helper"),
    ),
    "The method mtp drafts with the target's own layers; leave the draft model out.": ("mtp", unlike),
    "tiny llama has no multi-token-prediction layers; choose another drafter.": ("mtp", None),
    "The method dflash needs a DFlash draft model made for the target; name one.": ("dflash", None),
    "helper is not a DFlash draft model; name one made for the target.": (
        "dflash", lambda: Assistant(tiny_model(), None, "helper"),
    ),
    "blocks reads states of width 64; tiny llama has 32, so choose": ("dflash", lambda: unlike(hidden_size=64)),
    "blocks reads layers 0, 4, counted from 0; tiny llama has 4 layers, so choose": (
        "dflash", lambda: unlike(target_layer_ids=[0, 4]),
    ),
    "blocks uses mask token 259; tiny llama has 259 tokens, so choose": (
        "dflash", lambda: unlike(mask_token_id=259),
    ),
    "blocks drafts blocks of 1; at least 2 are needed.": ("dflash", lambda: unlike(block_size=1)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSALS)
def test_what_cannot_work_is_refused_in_one_sentence(message):
    method, assistant = REFUSALS[message]
    target = tiny_target(tokenizer=TEXT, vocab_size=259)
    with pytest.raises(UserError) as error:
        Library(target, method, assistant() if assistant else None)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_target_without_a_tokenizer_is_refused():
    with pytest.raises(UserError, match="passes on text, and tiny llama has no tokenizer; choose another model"):
        Library(tiny_target(), "universal", Assistant(tiny_model(vocab_size=259), TEXT, "helper"))


def test_every_method_reads_the_layers_it_asks_for():
    assert library("universal")[1].hidden_layers == ()
    assert library("mtp, 3 layers")[1].hidden_layers == (2,)
    assert library("dflash")[1].hidden_layers == (1, 3, 4)
