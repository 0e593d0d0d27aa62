"""Heads draft as if they had read everything in one pass, and leave the output as it is, whatever they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from decoding.test_losslessness import VOCAB, counted, exact_joint, logits_of
from fakes import reference_decode, tiny_target
from tiny_heads import COMBINES, Checked, check, drafter, markov_target, oracle, random_head
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters.autoregressive import Autoregressive
from specviz.drafters.base import Context
from specviz.errors import UserError
from specviz.models.target import PREFILL_CHUNK, Target
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
SHAPES = {"chain": {}, "tree": {"tree": True, "nodes": 7, "branches": 3}}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def run(target: Target, with_head: Autoregressive, gamma: int = 3, budget: int = 24, **asked: object) -> list[Step]:
    prompt = asked.pop("prompt", PROMPT)
    settings = Settings(gamma=gamma, max_new_tokens=budget, stop_tokens=frozenset(), **asked)
    return list(decode(target, with_head, prompt, settings))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def outcomes(steps: list[Step]) -> set[str]:
    return {node.outcome for step in steps for node in step.nodes}


def context(target: Target, with_head: Autoregressive, prompt: list[int] = PROMPT) -> Context:
    return Context(list(prompt), target.prefill(prompt[:-1], with_head.hidden_layers))


def propose(with_head: Autoregressive, ctx: Context, gamma: int, temperature: float = 0) -> Draft:
    return with_head.propose(ctx, gamma, Sampler(temperature), torch.Generator().manual_seed(0))


# --- one pass over everything is the reference --------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("combine", COMBINES)
def test_kept_rows_are_those_of_one_pass_over_all(combine, shape):
    target = markov_target(8)
    with_head = drafter(target, oracle(target, combine, noise=1.5), Checked, **SHAPES[shape])
    steps = run(target, with_head)
    assert {"accepted", "rejected"} <= outcomes(steps)
    assert len({step.num_accepted for step in steps}) > 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "changes",
    [
        {"feedback": "normed", "norm_before_residual": True, "norm_before_fc": True},
        {"combine": "concat", "fc_bias": True, "attention_bias": True, "qk_norm": True},
        {"combine": "mtp", "zero_first_embedding": True, "feedback": "output"},
        {"combine": "mtp", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"draft_ids": [0, 2, 3, 5, 7]},
    ],
)
def test_so_are_those_of_heads_with_other_settings(changes, shape):
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    with_head = drafter(target, random_head(target, **changes), Checked, **SHAPES[shape])
    steps = run(target, with_head, budget=24, sampler=Sampler(4.0))
    assert {"accepted", "rejected"} <= outcomes(steps)


def test_a_prompt_of_several_chunks_is_read_as_one():
    target = tiny_target(vocab_size=8, num_hidden_layers=2, max_position_embeddings=1024)
    prompt = torch.randint(8, (2 * PREFILL_CHUNK + 30,), generator=torch.Generator().manual_seed(0)).tolist()
    with_head = drafter(target, random_head(target), Checked)
    assert len(run(target, with_head, prompt=prompt, budget=6)) > 1


def test_true_states_are_read_once():
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target))
    read: list[int] = []
    fuse = with_head.head.fuse
    with_head.head.fuse = lambda states: read.append(len(states)) or fuse(states)
    steps = run(target, with_head)
    committed = [len(step.committed) for step in steps]
    assert read == [len(PROMPT) - 1, *committed[: len(read) - 1]] and len(read) > 8


def test_after_steps_that_others_drafted_it_catches_up():
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target))
    ctx = context(target, with_head)
    check(with_head, ctx, propose(with_head, ctx, 3))
    for following in ([1, 2], [7], [3, 3, 5]):
        states = torch.randn(len(following), ctx.hidden.shape[1], generator=torch.Generator().manual_seed(1))
        ctx.commit(following, states, tuple(range(len(following) - 1)))
    draft = propose(with_head, ctx, 3)
    assert len(draft) == 3
    check(with_head, ctx, draft)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("following", [[3, 4, 5, 3, 1, 1, 2, 0], [3, 4], [7, 4, 5, 3, 4, 5, 3], PROMPT])
def test_a_context_that_was_changed_keeps_the_rows_of_the_common_prefix(following, shape):
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target), **SHAPES[shape])
    ctx = context(target, with_head)
    propose(with_head, ctx, 3)
    read: list[int] = []
    fuse = with_head.head.fuse
    with_head.head.fuse = lambda states: read.append(len(states)) or fuse(states)
    changed = context(target, with_head, following)
    ctx.tokens, ctx.hidden = changed.tokens, changed.hidden
    draft = propose(with_head, ctx, 3)
    common = next((i for i, (a, b) in enumerate(zip(PROMPT, following, strict=False)) if a != b), len(following))
    assert read == [len(following) - 1 - min(max(0, common - 1), len(following) - 2)]
    with_head.head.fuse = fuse
    check(with_head, ctx, draft)


@pytest.mark.parametrize("following", [[*PROMPT, 1, 2, 6], [3, 4, 1, 1]])
def test_an_error_in_the_middle_of_a_pass_leaves_its_rows_usable(following):
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target))
    ctx = context(target, with_head)
    propose(with_head, ctx, 2)
    before = ctx.tokens, ctx.hidden
    after = context(target, with_head, following)
    ctx.tokens, ctx.hidden = after.tokens, after.hidden

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    broken = with_head.head.layers[0].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        propose(with_head, ctx, 3)
    broken.remove()
    ctx.tokens, ctx.hidden = before
    check(with_head, ctx, propose(with_head, ctx, 3))
    ctx.tokens, ctx.hidden = after.tokens, after.hidden
    check(with_head, ctx, propose(with_head, ctx, 3))


# --- the output is the target's -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("combine", COMBINES)
def test_greedy_output_is_that_of_the_target_alone(combine, shape, gamma):
    target = markov_target(8, memory=0.4)
    steps = run(target, drafter(target, oracle(target, combine, noise=0.5), **SHAPES[shape]), gamma)
    assert tokens(steps) == reference_decode(target.model, PROMPT, 24)
    assert {"accepted", "rejected"} <= outcomes(steps)
    assert max(node.depth for step in steps for node in step.nodes) == gamma


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("combine", ["wide", "mtp"])
def test_every_outcome_when_sampling_adds_up_to_the_target(combine, shape, every_outcome):
    target = tiny_target(num_hidden_layers=2, vocab_size=VOCAB, spread=2.5)
    sampler = Sampler(1.0, top_k=3)
    joint = counted(target, drafter(target, random_head(target, combine), **SHAPES[shape]), sampler, every_outcome)
    assert abs(joint - exact_joint(logits_of(target), sampler)).max() < 1e-5


class Softmax(Autoregressive):
    """Chooses the nodes of a tree and reports probabilities as if they had been drawn."""

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        ctx.detail = True  # it reads the logits itself
        draft = super().propose(ctx, gamma, sampler, rng)
        return replace(draft, q=torch.softmax(draft.logits, -1)) if len(draft) else draft


def test_a_tree_that_reports_its_probabilities_is_found(every_outcome):
    target = tiny_target(num_hidden_layers=2, vocab_size=VOCAB, spread=2.5)
    sampler = Sampler(1.0, top_k=3)
    wrong = drafter(target, random_head(target), Softmax, **SHAPES["tree"])
    joint = counted(target, wrong, sampler, every_outcome)
    assert abs(joint - exact_joint(logits_of(target), sampler)).max() > 0.01


def test_q_is_what_a_chain_was_drawn_from_and_one_hot_in_a_tree():
    target = tiny_target(vocab_size=8)
    chain, tree = (drafter(target, random_head(target, draft_ids=[1, 2, 4, 7]), **shape) for shape in SHAPES.values())
    ctx = context(target, chain)
    draft = propose(chain, ctx, 4, temperature=1.0)
    torch.testing.assert_close(draft.q, torch.softmax(draft.logits, -1))
    assert set(draft.tokens) <= {1, 2, 4, 7} and draft.q.shape == (4, 8)
    draft = propose(tree, ctx, 4, temperature=1.0)
    assert torch.equal(draft.q, torch.nn.functional.one_hot(torch.tensor(draft.tokens), 8).float())
    assert set(draft.tokens) <= {1, 2, 4, 7}


# --- how much is accepted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("combine", COMBINES)
def test_a_head_that_knows_the_target_is_always_right(combine, shape, gamma):
    target = markov_target()
    steps = run(target, drafter(target, oracle(target, combine), **SHAPES[shape]), gamma)
    assert tokens(steps) == reference_decode(target.model, PROMPT, 24)
    assert [len(step.committed) for step in steps[:-1]] == [gamma + 1] * (len(steps) - 1)


@pytest.mark.parametrize("combine", ["concat", "wide", "mtp"])
def test_a_head_that_knows_the_target_is_always_right_when_sampling(combine):
    """Its q are the target's p: those of a chain are drawn from it, and never rejected."""
    target = markov_target()
    steps = run(target, drafter(target, oracle(target, combine)), 4, budget=60, sampler=Sampler(1.0))
    assert {outcome for outcome in outcomes(steps) if outcome != "cut"} == {"accepted"}


def test_a_random_head_is_hardly_ever_right():
    target = tiny_target()
    nodes = [
        node
        for seed in range(3)
        for step in run(target, drafter(target, random_head(target, seed=seed)), 1, 40)
        for node in step.nodes
    ]
    assert sum(node.outcome == "accepted" for node in nodes) < 0.1 * len(nodes)


def test_trees_are_accepted_further_than_chains_of_the_same_depth():
    target = markov_target()
    lengths = {}
    for name, shape in SHAPES.items():
        with_head = drafter(target, oracle(target, "mtp", noise=1.5), **shape)
        steps = [step for first in range(10) for step in run(target, with_head, prompt=[first, 3 * first])]
        lengths[name] = sum(step.num_accepted for step in steps) / len(steps)
    assert 0 < lengths["chain"] < lengths["tree"] < 3


# --- state and limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_context_is_only_read(shape):
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target), **SHAPES[shape])
    ctx = context(target, with_head)
    read, states = list(ctx.tokens), ctx.hidden.clone()
    propose(with_head, ctx, 4)
    assert ctx.tokens == read and torch.equal(ctx.hidden, states)


def untimed(steps: list[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_repeat_whatever_ran_before(shape):
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target), **SHAPES[shape])
    first = untimed(run(target, with_head, sampler=Sampler(1.0)))
    run(target, with_head, prompt=[3, 4, 5, 1])
    next(decode(target, with_head, PROMPT, Settings(gamma=4)))
    assert untimed(run(target, with_head, sampler=Sampler(1.0))) == first


@pytest.mark.parametrize("shape", SHAPES)
def test_beyond_its_positions_nothing_is_drafted_and_it_says_so(shape):
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    with_head = drafter(target, random_head(target, max_position_embeddings=12), **SHAPES[shape])
    positions: list[int] = []
    with_head.head.register_forward_pre_hook(lambda _, args: positions.extend(args[2].flatten().tolist()))
    steps = run(target, with_head, budget=20)
    assert tokens(steps) == reference_decode(target.model, PROMPT, 20)
    assert max(positions) == 11, "the last position it was made for is used, and none beyond"
    for step in steps:
        room = max(0, 12 - step.start + 2)
        assert max((node.depth for node in step.nodes), default=0) == min(3, room, len(PROMPT) + 20 - step.start - 1)
        assert step.note == (None if room else "tiny head holds 12 tokens; beyond them nothing is drafted.")
    assert any(step.note for step in steps)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_that_are_not_numbers_end_the_draft_and_not_the_run(shape, rows, temperature):
    """From one true row on, or one or two rows of guesses."""
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    with_head = drafter(target, random_head(target), **SHAPES[shape])
    lm = with_head.head.lm
    passes = 0

    def spoil(_: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return output if passes <= rows else torch.full_like(output, torch.nan)

    hook = lm.register_forward_hook(spoil)
    draft = propose(with_head, context(target, with_head), 4, temperature)
    hook.remove()
    assert max(draft.depths, default=0) == rows
    assert draft.note == "The drafter returned logits that are not numbers; nothing is drafted where it does."
    assert draft.logits is None if rows == 0 else torch.isfinite(draft.logits).all()
    propose(with_head, context(target, with_head), 4, temperature)


def test_nothing_is_drafted_after_a_single_token_or_for_no_token():
    target = tiny_target(vocab_size=8)
    with_head = drafter(target, random_head(target))
    assert len(propose(with_head, context(target, with_head, [5]), 4)) == 0
    assert len(propose(with_head, context(target, with_head), 0)) == 0
    assert tokens(run(target, with_head, prompt=[5], budget=6)) == reference_decode(target.model, [5], 6)


def test_an_unsure_token_ends_a_chain_and_has_no_children_in_a_tree():
    target = tiny_target(vocab_size=8)
    chain, sure = (drafter(target, random_head(target), confidence=confidence) for confidence in (0.0, 0.999))
    ctx = context(target, chain)
    whole, short = propose(chain, ctx, 4), propose(sure, ctx, 4)
    chances = torch.softmax(whole.logits, -1)[range(4), list(whole.tokens)]
    unsure = next(index for index, chance in enumerate(chances) if chance < 0.999)
    assert short.tokens == whole.tokens[: unsure + 1] and len(short) < 4
    tree = propose(drafter(target, random_head(target), confidence=0.999, **SHAPES["tree"]), ctx, 4)
    assert set(tree.parents) == {ROOT}


def test_a_tree_of_an_impossible_size_is_refused():
    target = tiny_target()
    for wrong in ({"nodes": 0}, {"nodes": 65}, {"branches": 0}, {"branches": 17}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))} is .*; give a whole number from 1 to"):
            drafter(target, random_head(target), tree=True, **wrong)
