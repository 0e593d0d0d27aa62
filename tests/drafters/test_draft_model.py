"""A second model drafts: its cache follows the committed tokens, its vocabulary the target's; it may fail safely."""

from __future__ import annotations

import copy

import pytest
import torch
from fakes import VOCAB, byte_tokenizer, reference_decode, reference_logits, tiny_model, tiny_target
from tokenizers import Tokenizer
from traces import RUN
from trained import DRAFT_IDS, masked
from transformers import PreTrainedTokenizerFast

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, DraftModel, Weights, make_drafter
from specviz.drafters.draft_model import compare_vocabularies
from specviz.drafters.heads.reduced import reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.cache import PrefixCache
from specviz.trace import Step, Trace

PROMPT = [3, 4, 5, 3, 4, 5, 3]
SETTINGS = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset())


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def propose(drafter: DraftModel, tokens: list[int], gamma: int, temperature: float = 0, seed: int = 0) -> Draft:
    sampler, rng = Sampler(temperature=temperature), torch.Generator().manual_seed(seed)
    return drafter.propose(Context(list(tokens), None), gamma, sampler, rng)


def run(target, drafter, settings: Settings = SETTINGS, prompt: list[int] = PROMPT) -> list[Step]:
    return list(decode(target, drafter, prompt, settings))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


# --- what it proposes ---------------------------------------------------------------------------------------------


def test_a_greedy_draft_is_the_drafters_own_greedy_text():
    model = tiny_model(seed=1)
    draft = propose(DraftModel(tiny_target(), model), PROMPT, 5)
    assert list(draft.tokens) == reference_decode(model, PROMPT, 5)


@pytest.mark.parametrize("temperature", [0, 0.7, 2])
def test_q_is_what_each_token_was_drawn_from_and_logits_what_was_computed(temperature):
    model = tiny_model(seed=1)
    draft = propose(DraftModel(tiny_target(), model), PROMPT, 4, temperature)
    expected = reference_logits(model, [*PROMPT, *draft.tokens])[len(PROMPT) - 1 : -1]
    torch.testing.assert_close(draft.logits, expected, rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(draft.q, Sampler(temperature=temperature).probs(draft.logits, PROMPT))
    assert all(draft.q[node, token] > 0 for node, token in enumerate(draft.tokens))


def test_the_draw_decides_what_is_drafted_when_sampling():
    drafter = DraftModel(tiny_target(), tiny_model(seed=1))
    drafts = [propose(drafter, PROMPT, 5, 2, seed).tokens for seed in (0, 0, 1, 2)]
    assert drafts[0] == drafts[1] and len(set(drafts)) > 1


# --- its cache ------------------------------------------------------------------------------------------------------


def assert_read(drafter: DraftModel, expected: list[int]) -> None:
    """The cache holds exactly these tokens, with the rows of a fresh reading."""
    assert drafter._read == expected and len(drafter.cache) == len(expected)
    fresh = PrefixCache(drafter.config)
    drafter.model(input_ids=torch.tensor([expected]), cache=fresh.hf, use_cache=True)
    for mine, theirs in zip(drafter.cache.hf.layers, fresh.hf.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "following",
    [
        [*PROMPT, 9],  # all rejected
        [*PROMPT, 8, 8, 8, 8],  # none of it was drafted
        [3, 4, 9, 9],  # another prompt with a common beginning
        [7],  # another prompt of one token
        PROMPT,  # the same once more
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "mixed", "gpt2"])
def test_the_cache_is_cropped_to_the_common_prefix_and_filled_up(architecture, following):
    drafter = DraftModel(tiny_target(), tiny_model(architecture, seed=1))
    first = propose(drafter, PROMPT, 4)
    assert_read(drafter, [*PROMPT, *first.tokens[:-1]])
    second = propose(drafter, following, 3)
    assert_read(drafter, [*following, *second.tokens[:-1]])
    assert list(second.tokens) == reference_decode(drafter.model, following, 3)


def test_a_fully_accepted_draft_is_read_to_its_last_token():
    drafter = DraftModel(tiny_target(), tiny_model(seed=1))
    first = propose(drafter, PROMPT, 3)
    following = [*PROMPT, *first.tokens, 9]  # a bonus token follows
    second = propose(drafter, following, 2)
    assert_read(drafter, [*following, *second.tokens[:-1]])


def test_tokens_already_read_are_not_read_again():
    target = tiny_target()
    drafter = DraftModel(target, tiny_model(seed=1))
    read: list[int] = []
    drafter.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.extend(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    ctx, sampler, rng = Context(list(PROMPT), None), Sampler(), torch.Generator()
    first = drafter.propose(ctx, 3, sampler, rng)
    assert read == [*PROMPT, *first.tokens[:2]]
    read.clear()
    ctx.commit([first.tokens[0], 9], None, ())
    drafter.propose(ctx, 1, sampler, rng)
    assert read == [9]


def test_a_draft_costs_one_pass_per_token_even_after_full_acceptance():
    target = tiny_target()
    drafter = DraftModel(target, target.model)
    passes: list[int] = []
    ctx, sampler, rng = Context(list(PROMPT), None), Sampler(), torch.Generator()
    hook = drafter.model.get_input_embeddings().register_forward_hook(
        lambda _, args, out: passes.append(args[0].numel())
    )
    for _ in range(3):
        passes.clear()
        draft = drafter.propose(ctx, 2, sampler, rng)
        assert len(passes) == 2
        ctx.commit([*draft.tokens, 7], None, ())
    assert passes == [2, 1], "what it lacks is read along with the first token"
    hook.remove()


def test_a_new_run_reads_its_prompt_anew():
    """Otherwise the second of two timed runs would be spared what the first one paid for."""
    drafter = DraftModel(tiny_target(), tiny_model(seed=1))
    read: list[int] = []
    drafter.model.get_input_embeddings().register_forward_hook(lambda _, args, out: read.extend(args[0][0].tolist()))
    for _ in range(2):
        read.clear()
        propose(drafter, PROMPT, 1)
        assert read == PROMPT


def test_an_error_in_the_middle_of_a_pass_leaves_the_cache_usable():
    drafter = DraftModel(tiny_target(), tiny_model(seed=1))
    propose(drafter, PROMPT, 2)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    broken = drafter.model.base_model.layers[2].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        propose(drafter, [*PROMPT, 9, 8], 3)
    broken.remove()
    draft = propose(drafter, [*PROMPT, 9, 8], 3)
    assert_read(drafter, [*PROMPT, 9, 8, *draft.tokens[:-1]])


def test_a_recurrent_draft_model_is_refused():
    with pytest.raises(UserError, match="my model has recurrent layers, which can't be rolled back; choose another"):
        DraftModel(tiny_target(), tiny_model("hybrid"), name="my model")


# --- its limits -----------------------------------------------------------------------------------------------------


def test_a_shorter_context_stops_drafting_and_says_so():
    target = tiny_target()
    drafter = DraftModel(target, tiny_model(seed=0, max_position_embeddings=12), name="shorty")
    positions: list[int] = []
    drafter.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.extend(kwargs["position_ids"].flatten().tolist()), with_kwargs=True
    )
    steps = run(target, drafter)
    assert tokens(steps) == reference_decode(target.model, PROMPT, 20)
    assert max(positions) == 11, "the last position it was made for is used, and none beyond"
    for step in steps:
        room = max(0, 12 - step.start + 1)
        assert step.gamma_used == min(3, room, len(PROMPT) + 20 - step.start - 1)
        assert step.note == (None if room else "shorty holds 12 tokens; beyond them nothing is drafted.")
    assert any(step.note for step in steps) and any(step.nodes for step in steps)
    assert Trace(RUN, tuple(steps)).warnings == ("shorty holds 12 tokens; beyond them nothing is drafted.",)


def nan_after(model, count: int) -> None:
    """Spoil the logits of every pass that reads a position from `count` on."""

    def spoil(module: object, args: object, kwargs: dict[str, torch.Tensor], output: object) -> None:
        if int(kwargs["position_ids"].max()) >= count:
            output.logits.fill_(torch.nan)

    model.register_forward_hook(spoil, with_kwargs=True)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("count", [0, 8, 11, 14])
def test_logits_of_the_drafter_that_are_not_numbers_end_drafting_and_not_the_run(count, temperature):
    target = tiny_target()
    settings = Settings(gamma=3, max_new_tokens=14, stop_tokens=frozenset(), sampler=Sampler(temperature=temperature))
    model = copy.deepcopy(target.model)
    drafter = DraftModel(target, model)
    nan_after(model, count)
    steps = run(target, drafter, settings)
    notes = {step.note for step in steps}
    assert len(tokens(steps)) == 14
    if temperature == 0:
        assert tokens(steps) == reference_decode(target.model, PROMPT, 14)
    assert "The drafter returned logits that are not numbers; nothing is drafted where it does." in notes
    assert any(step.nodes for step in steps) == (count > 0)
    for step in steps:
        assert bool(step.note) == (step.gamma_used < min(3, 14 + len(PROMPT) - step.start - 1))


def test_a_drafter_that_rules_every_token_out_ends_drafting():
    target = tiny_target()
    model = tiny_model(seed=1)
    drafter = DraftModel(target, model)
    model.lm_head.register_forward_hook(lambda module, args, out: torch.full_like(out, -torch.inf))
    steps = run(target, drafter)
    assert tokens(steps) == reference_decode(target.model, PROMPT, 20)
    assert not any(step.nodes for step in steps) and steps[0].note


# --- its vocabulary -----------------------------------------------------------------------------------------------


def tokenizer(swapped: tuple[int, int] | None = None, added: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """byte_tokenizer, with two of its tokens in each other's place, or with more special ones."""
    base = byte_tokenizer()
    if swapped is None:
        twin = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(base.backend_tokenizer.to_str()))
        twin.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    else:
        names = base.convert_ids_to_tokens(list(range(256)))
        first, second = swapped
        names[first], names[second] = names[second], names[first]
        backend = Tokenizer.from_str(base.backend_tokenizer.to_str())
        backend.model = type(backend.model)(vocab={name: index for index, name in enumerate(names)}, merges=[])
        twin = PreTrainedTokenizerFast(tokenizer_object=backend)
        twin.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    twin.add_special_tokens({"additional_special_tokens": list(added)})
    return twin


def test_the_same_vocabulary_needs_no_mask_and_no_note():
    assert compare_vocabularies(byte_tokenizer(), tokenizer()) == compare_vocabularies(None, byte_tokenizer())
    assert compare_vocabularies(byte_tokenizer(), tokenizer()).foreign == ()


def test_more_special_tokens_are_masked_and_named():
    agreement = compare_vocabularies(byte_tokenizer(), tokenizer(added=("<tool>", "<image>")))
    assert agreement.foreign == (259, 260)
    assert agreement.note is not None and "2 special tokens differ" in agreement.note and "<tool>" in agreement.note


@pytest.mark.parametrize("target_size", [259, 320])
def test_a_masked_token_is_never_drafted(target_size):
    """A target's vocabulary may end before the token that is to be masked."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=target_size)
    model = tiny_model(seed=1, vocab_size=320)
    model.lm_head.register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([259, 260]), 50.0))
    sampled = Settings(gamma=4, max_new_tokens=24, sampler=Sampler(temperature=1), stop_tokens=frozenset())
    prompt = list(byte_tokenizer().encode("so"))
    unmasked = run(target, DraftModel(target, model), sampled, prompt)
    masked = run(target, DraftModel(target, model, tokenizer(added=("<tool>", "<image>"))), sampled, prompt)
    drafted = [{node.token for step in steps for node in step.nodes} for steps in (unmasked, masked)]
    assert drafted[1] and not drafted[1] & {259, 260}
    assert (drafted[0] == {259, 260}) == (target_size == 320), "without the mask nothing else would be drafted"


def test_the_first_ordinary_token_that_differs_is_named():
    with pytest.raises(UserError, match=r"token 40 is 'I' to the target and 'R' to the drafter") as error:
        compare_vocabularies(byte_tokenizer(), tokenizer(swapped=(49, 40)))
    assert "choose a draft model of the target's family" in str(error.value)


def test_nothing_is_drafted_at_gamma_0():
    drafter = DraftModel(tiny_target(), tiny_model(seed=1))
    assert len(propose(drafter, PROMPT, 0)) == 0
    assert propose(drafter, PROMPT, 0).note is None


def test_a_token_beyond_the_drafters_vocabulary_ends_drafting_and_says_so():
    """A larger target may say a token for which the drafter has no embedding."""
    target = tiny_target()
    reference = reference_decode(target.model, PROMPT, 20)
    rows = max(reference)
    drafter = DraftModel(target, tiny_model(seed=1, vocab_size=rows), name="small")
    steps = run(target, drafter)
    assert tokens(steps) == reference
    heard = len(PROMPT) + reference.index(rows)
    for step in steps[:-1]:
        heard_it = step.start > heard
        assert bool(step.nodes) != heard_it
        assert step.note == (f"small does not know token {rows}; after it nothing is drafted." if heard_it else None)
    assert steps[0].nodes and steps[-1].start > heard


# --- with a reduced vocabulary ------------------------------------------------------------------------------------


def whole_twin(target, model):
    """The reduced model with all of the target's LM head."""
    twin = tiny_model(model.config.model_type, num_hidden_layers=model.config.num_hidden_layers)
    twin.base_model.load_state_dict(model.base_model.state_dict())
    twin.get_output_embeddings().load_state_dict(target.model.get_output_embeddings().state_dict())
    return twin


def written(target, folder, seed: int = 5):
    """A reduced model of two layers, as written to the folder."""
    model = reduced_model(target, 2, DRAFT_IDS)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.base_model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 4 / parameter.shape[-1] ** 0.5)
    write_reduced(model, DRAFT_IDS, folder, {"target": target.name})
    return model


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_reduced_vocabulary_is_the_whole_one_masked(tmp_path, temperature):
    target = tiny_target()
    twin = whole_twin(target, written(target, tmp_path))
    drafter = make_drafter("draft-model", target, {}, Weights(tmp_path, "ours", "sha256:1", ("a note",)))
    assert (drafter.name, drafter.weights, drafter.notes) == ("ours", "sha256:1", ("a note",))
    draft = propose(drafter, PROMPT, 5, temperature)
    expected = masked(reference_logits(twin, [*PROMPT, *draft.tokens])[len(PROMPT) - 1 : -1])
    torch.testing.assert_close(draft.logits, expected, rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(draft.q, Sampler(temperature=temperature).probs(draft.logits, PROMPT))
    assert draft.q.shape == (5, VOCAB) and set(draft.tokens) <= set(DRAFT_IDS.tolist())


def test_greedy_output_with_a_reduced_vocabulary_is_the_targets(tmp_path):
    target = tiny_target()
    written(target, tmp_path)
    steps = run(target, make_drafter("draft-model", target, {}, Weights(tmp_path, "ours")))
    assert tokens(steps) == reference_decode(target.model, PROMPT, 20)
    assert all(step.nodes for step in steps[:-1])


# --- itself, confidence, what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
@pytest.mark.parametrize("settings", [{}, {"source": "self"}])
def test_the_target_as_its_own_drafter_is_always_accepted(gamma, settings):
    target = tiny_target()
    drafter = make_drafter("draft-model", target, settings)
    steps = run(target, drafter, Settings(gamma=gamma, max_new_tokens=24, stop_tokens=frozenset()))
    assert tokens(steps) == reference_decode(target.model, PROMPT, 24)
    assert all(step.num_accepted == len(step.nodes) for step in steps)
    assert drafter.name == "tiny llama itself"


def test_drafting_ends_with_the_first_token_it_is_unsure_of():
    model = tiny_model(seed=1)
    whole = propose(DraftModel(tiny_target(), model), PROMPT, 6)
    chances = torch.softmax(whole.logits, -1).amax(-1)
    threshold = float(chances.sort().values[1])
    expected = next(i for i, chance in enumerate(chances, 1) if chance < threshold)
    sure = propose(DraftModel(tiny_target(), model, confidence=threshold), PROMPT, 6)
    assert sure.tokens == whole.tokens[:expected]


def test_trees_are_refused():
    with pytest.raises(UserError, match="draft-model drafts chains only; leave out 'nodes', or draft with ngram"):
        make_drafter("draft-model", tiny_target(), {"nodes": 8})
