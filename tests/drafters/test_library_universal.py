"""A draft model with another tokenizer: what it reads, what becomes of what it writes, and its cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from assistants import TEXT, letters_tokenizer, library, pair, trained_text_model, trained_tokenizer, universal_pair
from fakes import reference_decode, tiny_model, tiny_target
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Assistant, Context, Library
from specviz.drafters.library_text import CommonVocabulary, Retokeniser
from specviz.models.cache import PrefixCache
from specviz.models.target import Target
from specviz.trace import Step

SETTINGS = Settings(gamma=4, max_new_tokens=40, stop_tokens=frozenset())
SENTENCE = "The draft model writes what the target"


def run(target: Target, drafter: Library, prompt: Sequence[int], settings: Settings = SETTINGS) -> list[Step]:
    return list(decode(target, drafter, list(prompt), settings))


def committed(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def accepted(steps: list[Step]) -> int:
    return sum(node.outcome == "accepted" for step in steps for node in step.nodes)


def with_bos(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """One that begins every text it encodes with its BOS token."""
    twin = copy.deepcopy(tokenizer)
    twin.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", twin.bos_token_id)]
    )
    return twin


# --- tokens to tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [False, True])
def test_text_survives_the_way_to_the_other_tokenizer_and_back(spaces):
    ours, theirs = trained_tokenizer(400), trained_tokenizer(330, spaces=spaces)
    ids = ours.encode(TEXT)
    there = Retokeniser(ours, theirs)(ids)
    assert there == theirs.encode(TEXT) != ids
    assert Retokeniser(theirs, ours)(there) == ids


def test_spaces_before_punctuation_are_kept():
    tokenizer = trained_tokenizer(400)
    ids = tokenizer.encode("a target , you 're")
    assert Retokeniser(tokenizer, tokenizer)(ids) == ids


def test_a_text_begins_with_one_bos_token_and_a_piece_of_it_with_none():
    """huggingface/transformers#46124: every piece that was tokenised got a BOS token of its own."""
    ours, theirs = trained_tokenizer(400), with_bos(trained_tokenizer(330))
    assert theirs.encode("The")[0] == theirs.bos_token_id
    read = Retokeniser(ours, theirs)
    ids = ours.encode(SENTENCE)
    assert read(ids, begin=True) == theirs.encode(SENTENCE)
    assert read([ours.bos_token_id, *ids], begin=True) == theirs.encode(SENTENCE), "not twice"
    assert theirs.bos_token_id not in read(ids)
    assert Retokeniser(theirs, with_bos(ours))(theirs.encode("The")[1:]) == ours.encode("The")
    assert Retokeniser(ours, trained_tokenizer(330))(ids, begin=True)[0] != 0, "one whose texts begin with none"


def test_special_tokens_that_both_have_are_passed_on_and_the_others_left_out():
    ours, theirs = trained_tokenizer(400, ("<s>", "<|end|>")), trained_tokenizer(330)
    chat = ours.encode("<s>The dog<|end|> and the fox<s>")
    assert Retokeniser(ours, theirs)(chat) == theirs.encode("<s>The dog and the fox<s>")
    assert ours.eos_token_id in chat and theirs.encode("<s>")[0] == theirs.bos_token_id


# --- what is drafted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [SENTENCE, "<s>The quick<|end|> brown<s> fox jumps", "", "é 火", "<|end|>"])
@pytest.mark.parametrize("bos", [False, True])
def test_greedy_text_is_the_targets_whatever_the_prompt_holds(prompt, bos):
    """huggingface/transformers#46936, #46124, among them chat templates."""
    ours = trained_tokenizer(400, ("<s>", "<|end|>"))
    theirs = with_bos(trained_tokenizer(330)) if bos else trained_tokenizer(330)
    target = Target(trained_text_model(ours), ours)
    drafter = Library(target, "universal", Assistant(trained_text_model(theirs, 1), theirs, "helper"))
    ids = ours.encode(prompt) or [ours.eos_token_id]
    steps = run(target, drafter, ids)
    assert committed(steps) == reference_decode(target.model, ids, 40)
    assert not any(step.note for step in steps[1:]) and any(step.nodes for step in steps)
    nothing_to_read = prompt in ("", "<|end|>") and not bos
    assert steps[0].note == ("There is no text yet that helper could read." if nothing_to_read else None)


def test_a_model_that_drafts_for_itself_is_always_right():
    """Nothing is lost between the tokenizers where they are the same, with special tokens in the text or without."""
    tokenizer = trained_tokenizer(400)
    target = Target(trained_text_model(tokenizer), tokenizer)
    drafter = Library(target, "universal", Assistant(target.model, tokenizer, "itself"))
    for beginning in ("The", SENTENCE):  # shorter and longer than what is tokenised together with the draft
        steps = run(target, drafter, tokenizer.encode(beginning))
        assert accepted(steps) == sum(len(step.nodes) for step in steps) == 32
    prompt = tokenizer.encode("<s>The quick brown</s><s>fox jumps over the lazy")
    steps = run(target, drafter, prompt, replace(SETTINGS, max_new_tokens=12))
    assert accepted(steps) == sum(len(step.nodes) for step in steps) > 0


def test_a_template_the_assistant_does_not_know_costs_no_acceptance():
    """It reads the text without it, and drafts as it does for that text."""
    ours, theirs = trained_tokenizer(400, ("<s>", "<|end|>")), trained_tokenizer(330)
    target = Target(trained_text_model(ours), ours)
    drafter = Library(target, "universal", Assistant(trained_text_model(theirs, 1), theirs, "helper"))
    plain = ours.encode(SENTENCE)
    marked = [ours.eos_token_id, *plain[:3], ours.eos_token_id, *plain[3:]]
    drafts = [
        drafter.propose(Context(prompt, None), 6, Sampler(), torch.Generator()).tokens for prompt in (plain, marked)
    ]
    assert drafts[0] == drafts[1] and len(drafts[0]) >= 2


def test_a_bias_is_translated():
    target, drafter = library("universal")
    token = drafter.method.vocabulary.target_to_assistant_input_ids
    common = next(iter(token))
    prompt = target.tokenizer.encode(SENTENCE)
    sampler = Sampler(1.0, logit_bias={common: 100.0, 399: -1.0})
    draft = drafter.propose(Context(prompt, None), 3, sampler, torch.Generator().manual_seed(0))
    assert draft.tokens == (common,) * 3


def test_ids_the_target_has_no_row_for_are_never_drafted():
    """A tokenizer may have more tokens than the model has rows."""
    tokenizer = letters_tokenizer("a", "b", "c", "d", "ab", "cd")
    target = tiny_target(tokenizer=tokenizer, vocab_size=4)  # all but the merged ones
    helper = Assistant(tiny_model(seed=1, vocab_size=6), letters_tokenizer("b", "a", "ab", "c", "d", "cd"), "helper")
    for temperature in (0, 2):
        settings = replace(SETTINGS, sampler=Sampler(temperature))
        steps = run(target, Library(target, "universal", helper), [0, 2, 1], settings)
        assert {step.note for step in steps} == {None} and len(committed(steps)) == 40
        assert any(step.nodes for step in steps)
        assert all(node.token < 4 for step in steps for node in step.nodes)


def test_nothing_in_common_is_said_where_it_matters():
    tokenizer = letters_tokenizer("a", "b", "c", "d")
    target = tiny_target(tokenizer=tokenizer, vocab_size=4)
    helper = Assistant(tiny_model(seed=1, vocab_size=2), letters_tokenizer("x", "y"), "helper")
    drafter = Library(target, "universal", helper)
    (step,) = run(target, drafter, [0, 2, 1], replace(SETTINGS, max_new_tokens=2, sampler=Sampler(1.0)))[:1]
    assert step.note == "There is no text yet that helper could read."


# --- the common vocabulary ------------------------------------------------------------------------------------------


def test_common_tokens_are_those_spelt_alike_within_both_models():
    """huggingface/transformers#45307: more or fewer rows than tokens."""
    ours, theirs = letters_tokenizer("a", "b", "ab", "c"), letters_tokenizer("c", "d", "b", "a", "ab", "ba")
    for target_size, size, expected in (
        (4, 6, [3, -1, 1, 0, 2, -1]),
        (4, 8, [3, -1, 1, 0, 2, -1, -1, -1]),
        (4, 4, [3, -1, 1, 0]),
        (2, 6, [-1, -1, 1, 0, -1, -1]),
    ):
        common = CommonVocabulary(ours, target_size, theirs, size, torch.device("cpu"))
        assert common._assistant_to_target_input_ids.tolist() == expected
        assert common.target_to_assistant_input_ids == {ours: own for own, ours in enumerate(expected) if ours >= 0}
        assert common.allowed.tolist() == [token >= 0 for token in expected]
    rows = torch.arange(12.0).view(2, 6)
    common = CommonVocabulary(ours, 5, theirs, 6, torch.device("cpu"))
    assert common.to_target(rows, -1.0).tolist() == [[3, 2, 4, 0, -1], [9, 8, 10, 6, -1]]


def test_tokens_with_another_sign_for_the_space_are_common():
    target, method, helper = universal_pair(spaces=True)
    drafter = Library(target, method, helper)
    ours, theirs = target.tokenizer.get_vocab(), drafter.method.reader.destination.get_vocab()
    mapping = drafter.method.vocabulary.target_to_assistant_input_ids
    assert mapping[ours["Ġthe"]] == theirs["▁the"] and len(mapping) > 100
    prompt = target.tokenizer.encode(SENTENCE)
    steps = run(target, drafter, prompt)
    assert committed(steps) == reference_decode(target.model, prompt, 40) and accepted(steps) > 5


# --- its cache ------------------------------------------------------------------------------------------------------


def assert_read(drafter: Library, expected: list[int]) -> None:
    """The cache holds exactly these ids, with the rows of a fresh reading."""
    generator = drafter._run.generator
    assert len(generator._cache) == len(expected)
    fresh = PrefixCache(drafter.model.config.get_text_config(decoder=True))
    with torch.no_grad():
        drafter.model(input_ids=torch.tensor([expected]), cache=fresh.hf, use_cache=True)
    for mine, theirs in zip(generator._cache.hf.layers, fresh.hf.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "sliding", "mixed", "gpt2"])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_the_cache_holds_the_text_and_the_draft(architecture, temperature):
    """huggingface/transformers#48280, #48000: sliding windows, and what a crop removes."""
    target, (ours, theirs) = pair("universal")[0], (trained_tokenizer(400), trained_tokenizer(330))
    model = tiny_model(architecture, seed=1, vocab_size=len(theirs))
    drafter = Library(target, "universal", Assistant(model, theirs, "helper"))
    read: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, out: read.append(args[0].numel()))
    ctx, rng = Context(ours.encode(SENTENCE), None), torch.Generator().manual_seed(0)
    for committed in (" would", " have written", ".", " Where they agree the text grows", " grows"):
        ids = theirs.encode(ours.decode(ctx.tokens))
        known = len(drafter._run.generator._cache) if drafter._run else 0
        read.clear()
        drafter.propose(ctx, 3, Sampler(temperature), rng)
        assert len(read) == 3 and (known == 0 or read[0] < len(ids)), "what it has read is not read again"
        held = drafter._run.processor.read
        assert held[: len(ids)] == ids and len(held) == len(ids) + 2, "the last of three is not read any more"
        assert_read(drafter, held)
        ctx.commit(ours.encode(committed), None, ())


def test_the_assistants_last_position_is_used_and_none_beyond():
    ours, theirs = trained_tokenizer(400), trained_tokenizer(330)
    target = Target(trained_text_model(ours), ours)
    model = tiny_model("llama", seed=1, vocab_size=len(theirs), max_position_embeddings=40)
    drafter = Library(target, "universal", Assistant(model, theirs, "shorty"))
    positions: list[int] = []
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(int(kwargs["position_ids"].max())), with_kwargs=True
    )
    steps = run(target, drafter, ours.encode(SENTENCE))
    assert committed(steps) == reference_decode(target.model, ours.encode(SENTENCE), 40)
    assert max(positions) == 39
    assert {step.note for step in steps} == {None, "shorty holds 40 tokens; beyond them nothing is drafted."}
    assert steps[0].nodes and steps[-2].note and not steps[-2].nodes


def test_a_new_run_reads_its_text_anew():
    """Otherwise the second of two timed runs would be spared what the first one paid for."""
    target, drafter = library("universal")
    prompt, read = target.tokenizer.encode(SENTENCE), []
    hook = drafter.model.get_input_embeddings().register_forward_hook(lambda _, args, out: read.append(args[0].numel()))
    for _ in range(2):
        read.clear()
        drafter.propose(Context(prompt, None), 2, Sampler(), torch.Generator())
        assert read == [len(drafter.method.reader(prompt)), 1]
    hook.remove()
