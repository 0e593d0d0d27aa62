"""Bugs reported in other engines, one test each, named after what it guards; the docstring says where."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from fakes import (
    VOCAB,
    SampledTree,
    TopKTree,
    byte_tokenizer,
    reference_decode,
    reference_logits,
    tiny_model,
    tiny_target,
)
from scripted import Refrain, Replay, ScriptedTarget
from tokenizers import Tokenizer, processors
from traces import RUN
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler, one_hot
from specviz.decoding.stopping import Ending
from specviz.decoding.verify import accept
from specviz.drafters import Context, Drafter, DraftModel, EarlyExit, NGram, Plain
from specviz.errors import UserError
from specviz.measure import compare, first_divergence
from specviz.metrics import acceptance
from specviz.models import target as target_module
from specviz.models.cache import PrefixCache
from specviz.models.target import Target
from specviz.models.text import TextStream
from specviz.models.text import decode as decoded
from specviz.runs import encode
from specviz.trace import Step, Trace

PROMPT = [3, 4, 5, 3, 4, 5, 3]
SETTINGS = Settings(gamma=4, max_new_tokens=16, stop_tokens=frozenset())
SAMPLED = replace(SETTINGS, sampler=Sampler(temperature=1, top_p=0.95))


def run(target: Target, drafter: Drafter, settings: Settings = SETTINGS, prompt: list[int] = PROMPT) -> list[Step]:
    return list(decode(target, drafter, prompt, settings))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def timeless(steps: list[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


def accepted(steps: list[Step]) -> int:
    return sum(step.num_accepted for step in steps)


def relative(model: PreTrainedModel, noise: float = 0.3) -> PreTrainedModel:
    """A model that often, not always, has the same favourite."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        head = twin.get_output_embeddings().weight
        head.add_(noise * head.std() * torch.randn(head.shape, generator=generator))
    return twin


def every_drafter(target: Target) -> dict[str, Drafter]:
    return {
        "plain": Plain(),
        "ngram": NGram(target),
        "early-exit": EarlyExit(target, 3),
        "draft-model": DraftModel(target, relative(target.model)),
        "self-draft": DraftModel(target, target.model),
        "top-k tree": TopKTree(relative(target.model), (3, 2, 1)),
        "sampled tree": SampledTree(relative(target.model), (2, 2, 1)),
    }


DRAFTERS = ("plain", "ngram", "early-exit", "draft-model", "self-draft", "top-k tree", "sampled tree")
every_kind = pytest.mark.parametrize("kind", DRAFTERS)


# --- stopping and length ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(16))
def test_a_stop_token_accepted_inside_a_draft_ends_the_run(place):
    """transformers#47912, transformers#48981: generation went on after an end token in the middle of a block."""
    target = tiny_target("gpt2")
    reference = reference_decode(target.model, PROMPT, 16)
    stop = frozenset({reference[place]})
    expected = reference[: reference.index(reference[place]) + 1]
    steps = run(target, DraftModel(target, target.model), replace(SETTINGS, gamma=6, stop_tokens=stop))
    assert tokens(steps) == expected and steps[-1].cut == "stop_token"
    left_over = [node for node in steps[-1].nodes if node.depth > len(steps[-1].committed)]
    assert all(node.outcome == "cut" for node in left_over)


@pytest.mark.parametrize("budget", range(1, 4 + 3))
def test_the_budget_is_never_exceeded(budget):
    """transformers#47195: prompt lookup went beyond max_new_tokens. Budgets 1 to gamma + 2."""
    target = tiny_target("mixed")
    prompt = [3, 7, 7, 7, 7]
    steps = run(target, NGram(target), replace(SETTINGS, max_new_tokens=budget), prompt)
    assert tokens(steps) == reference_decode(target.model, prompt, budget)
    assert steps[-1].cut == "length"


@pytest.mark.parametrize("named", [None, 12, [12, 20], []])
def test_a_model_may_name_no_end_token_one_or_several(named):
    """transformers#46790: a crash where the model has no end token."""
    target = tiny_target()
    reference = reference_decode(target.model, PROMPT, 16)
    assert 12 in reference, "choose an end token that the target says"
    target.model.generation_config.eos_token_id = named
    steps = run(target, NGram(target), replace(SETTINGS, stop_tokens=None))
    assert tokens(steps) == (reference[: reference.index(12) + 1] if named else reference)
    assert steps[-1].cut == ("stop_token" if named else "length")


def test_a_stop_token_copied_from_the_prompt_ends_nothing_unless_the_target_says_it():
    """transformers#31301: lookup copied the end token from an earlier turn, and what followed it."""
    target = tiny_target()
    reference = reference_decode(target.model, [1, 2, 12, 1, 2], 16)
    unsaid = next(token for token in range(VOCAB) if token not in reference)
    for stop in (12, unsaid):
        prompt = [1, 2, stop, 1, 2, stop, 1, 2]
        expected = reference_decode(target.model, prompt, 16, frozenset({stop}))
        steps = run(target, NGram(target), replace(SETTINGS, stop_tokens=frozenset({stop})), prompt)
        assert steps[0].nodes[0].token == stop, "the end token should have been drafted"
        assert tokens(steps) == expected


@pytest.mark.parametrize(
    ("cap", "kept", "reason"), [(5, 3, "stop_token"), (3, 3, "stop_token"), (2, 2, "length"), (6, 3, "stop_token")]
)
def test_the_earliest_end_within_the_budget_wins(cap, kept, reason):
    """sglang#31599, sglang#33758: the cap was checked before the stop, so tokens leaked and the reason was wrong."""
    stop = 30
    burst = [10, 11, stop, 20, 21, 22]
    cut = Ending(TextStream(None, []), cap, frozenset({stop}), ()).cut(burst)
    assert list(cut.committed) == burst[:kept] and cut.reason == reason
    target = ScriptedTarget(burst, 2)
    steps = run(target, Replay(burst, 2), replace(SETTINGS, max_new_tokens=cap, stop_tokens=frozenset({stop})), [1, 2])
    assert tokens(steps) == burst[:kept] and steps[-1].cut == reason


@pytest.mark.parametrize("offset", range(10))
def test_a_stop_string_early_in_a_long_accepted_run_is_found(offset):
    """sglang#23802: only the end of the new text was searched. Every offset, across the step boundary too."""
    text = "." * offset + "STOP" + "." * 10
    script = list(byte_tokenizer().encode(text))
    target = ScriptedTarget(script, 1, byte_tokenizer())
    steps = run(target, Replay(script, 1, target.vocab_size), replace(SETTINGS, gamma=6, stop_strings=("STOP",)), [65])
    assert steps[-1].cut == "stop_string" and len(steps) <= 3
    assert "".join(piece for step in steps for piece in step.text) == text[: offset + 4]


@every_kind
def test_ids_text_and_trace_end_at_the_same_place(kind):
    """vllm#47616: the text was trimmed at a stop string, token ids and log probabilities were not."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    prompt = list(byte_tokenizer().encode("abcabc"))
    full = tokens(run(target, Plain(), SETTINGS, prompt))
    for place in range(1, len(full) - 1):
        stop = decoded(byte_tokenizer(), full[place : place + 1])
        if "\ufffd" in stop:
            continue
        steps = run(target, every_drafter(target)[kind], replace(SETTINGS, stop_strings=(stop,)), prompt)
        assert "".join(piece for step in steps for piece in step.text) == decoded(byte_tokenizer(), tokens(steps))
        end, count = steps[-1], len(tokens(steps))
        assert end.cut == "stop_string" and count <= place + 1
        assert tokens(steps) == full[:count] and full[count - 1] == full[place]
        assert len(end.text) == len(end.committed)
        assert len(end.decisions) == len(end.committed), "a decision is shown for a token that was cut away"
        assert sum(node.outcome == "accepted" for node in end.nodes) + bool(end.last) == len(end.committed)


@every_kind
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_what_follows_a_stopped_run_equals_a_fresh_start(kind, settings):
    """onnxruntime-genai#2528: random state, cache and counters must go back to the token that was kept."""
    target = tiny_target()
    drafter = every_drafter(target)[kind]
    said = tokens(run(target, drafter, settings))
    stopped = run(target, drafter, replace(settings, stop_tokens=frozenset({said[5]})))
    turn = [*PROMPT, *tokens(stopped), 9, 8]
    going_on = timeless(run(target, drafter, settings, turn))
    afresh = tiny_target()
    fresh = timeless(run(afresh, every_drafter(afresh)[kind], settings, turn))
    assert [step.committed for step in going_on] == [step.committed for step in fresh]
    assert [[node.outcome for node in step.nodes] for step in going_on] == [
        [node.outcome for node in step.nodes] for step in fresh
    ]


# --- losslessness that needs no statistics ------------------------------------------------------------------


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


# --- greedy ties and precision ------------------------------------------------------------------------------


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


# --- processors ---------------------------------------------------------------------------------------------


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


# --- seeds --------------------------------------------------------------------------------------------------


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


# --- vocabularies and tokenizers ----------------------------------------------------------------------------


@pytest.mark.parametrize(("target_size", "drafter_size"), [(100, 128), (128, 100)])
@pytest.mark.parametrize("temperature", [0, 1])
def test_padded_vocabularies_of_different_size_draft_for_each_other(target_size, drafter_size, temperature):
    """vllm#10913, vllm#13849, transformers#45307: 151936 rows of weights against 152064."""
    target = tiny_target(vocab_size=target_size)
    model = tiny_model(seed=1, vocab_size=drafter_size)
    with torch.no_grad():  # the drafter's favourites lie in padding, which the target never says
        model.lm_head.weight[100:].mul_(3)
        target.model.lm_head.weight[100:].zero_()
    drafter = DraftModel(target, model)
    settings = replace(SETTINGS, sampler=Sampler(temperature=temperature))
    proposals = []
    original = drafter.propose
    drafter.propose = lambda *args: proposals.append(original(*args)) or proposals[-1]
    steps = run(target, drafter, settings)
    assert len(tokens(steps)) == 16
    if temperature == 0:
        assert tokens(steps) == reference_decode(target.model, PROMPT, 16)
    for draft in proposals:
        if not len(draft):
            continue
        assert draft.q.shape == (len(draft), target_size) and all(token < 100 for token in draft.tokens)
        torch.testing.assert_close(draft.q.sum(-1), torch.ones(len(draft)))
        assert not draft.q[:, 100:].any()
    assert sum(map(len, proposals)) > 10


def renamed(change: Callable[[dict[str, int]], None], specials: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """byte_tokenizer with a changed vocabulary, and more special tokens."""
    data = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    change(data["model"]["vocab"])
    twin = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)))
    twin.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    twin.add_special_tokens({"additional_special_tokens": list(specials)})
    return twin


def test_a_tokenizer_of_the_same_size_with_other_ids_is_refused():
    """sglang#24051, llama.cpp#3812: a mismatched vocabulary corrupted drafts without a word."""

    def permute(vocab: dict[str, int]) -> None:
        vocab["a"], vocab["b"], vocab["c"] = vocab["b"], vocab["c"], vocab["a"]

    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    first = byte_tokenizer().get_vocab()["a"]
    with pytest.raises(UserError, match=f"token {first} is 'a' to the target and 'c' to the drafter"):
        DraftModel(target, tiny_model(seed=1, vocab_size=259), renamed(permute))
    DraftModel(target, tiny_model(seed=1, vocab_size=259), renamed(lambda vocab: None))


def test_a_tokenizer_that_differs_in_special_tokens_only_is_noted_and_masked():
    """koboldcpp#2325: a harmless difference was refused."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=272)
    model = tiny_model(seed=1, vocab_size=272)
    with torch.no_grad():
        model.lm_head.weight[259:261].mul_(20)
    drafter = DraftModel(target, model, renamed(lambda vocab: None, ("<tool>", "<image>")))
    assert drafter.agreement.note is not None and "2 special tokens differ" in drafter.agreement.note
    steps = run(target, drafter, replace(SAMPLED, max_new_tokens=40))
    drafted = {node.token for step in steps for node in step.nodes}
    assert drafted and not drafted & {259, 260}
    unmasked = run(target, DraftModel(target, model), replace(SAMPLED, max_new_tokens=40))
    assert {node.token for step in unmasked for node in step.nodes} & {259, 260}


def test_encoding_a_prompt_adds_no_second_bos():
    """transformers#46124: the beginning token was added again at each encoding of a finished prompt."""
    tokenizer = renamed(lambda vocab: None)
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    assert tokenizer.encode("hi")[0] == bos, "this tokenizer adds one when asked to"
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m['content'] }}{% endfor %}</s>"
    target = tiny_target(tokenizer=tokenizer, vocab_size=259)
    h, i = byte_tokenizer().encode("hi")
    assert encode(target, "hi") == [bos, h, i, tokenizer.eos_token_id]
    assert encode(target, "hi", raw=True) == [h, i]
    assert encode(target, "<s>hi", raw=True) == [bos, h, i]


# --- caches -------------------------------------------------------------------------------------------------


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

    def _rewind(self, tokens: list[int]) -> None:
        super()._rewind(tokens)
        assert len(self.cache) == len(self._read) == len(tokens) - 1
        assert self._read == tokens[:-1]


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


# --- context, state and devices -----------------------------------------------------------------------------


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


# --- text and prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("shift", range(5))
def test_characters_split_by_an_accept_boundary_or_a_rollback_are_never_shown_broken(gamma, shift):
    """dynamo#12630: replacement characters from decoding token by token."""
    text = "안녕 👩‍💻 é한글 😀"
    script = list(byte_tokenizer().encode(text))
    target = ScriptedTarget(script, 2, byte_tokenizer())
    wrong = frozenset(range(shift, len(script), 5))  # rejections inside characters
    settings = replace(SETTINGS, gamma=gamma, max_new_tokens=len(script))
    steps = run(target, Replay(script, 2, target.vocab_size, wrong), settings, [65, 66])
    pieces = [piece for step in steps for piece in step.text]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text == decoded(byte_tokenizer(), tokens(steps))
    assert Trace(RUN, tuple(steps)).text == text
    assert "" in pieces, "no character was split, so nothing was shown"


def test_an_empty_prompt_is_refused():
    """No public report: prompt lookup needs two tokens, a page may send none."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    with pytest.raises(UserError, match="The prompt is empty; give it at least one token"):
        run(target, NGram(target), SETTINGS, [])
    for nothing in ("", "  \n\t"):
        for raw in (True, False):
            with pytest.raises(UserError, match="The prompt is empty; type something"):
                encode(target, nothing, raw=raw)


@every_kind
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mixed"])
def test_a_prompt_of_one_token_works(architecture, kind):
    """No public report: there is nothing to prefill, and nothing to look up."""
    target = tiny_target(architecture)
    steps = run(target, every_drafter(target)[kind], SETTINGS, [7])
    assert tokens(steps) == reference_decode(target.model, [7], 16)


# --- early exit ---------------------------------------------------------------------------------------------


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
