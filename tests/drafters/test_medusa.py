"""Medusa: which head guesses which token, chains and trees of their guesses, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from fakes import VOCAB, reference_decode, tiny_target
from torch import Tensor
from torch.nn.functional import one_hot, silu
from trained import DRAFT_IDS, GIVEN, circle_heads, circle_target, context, masked, medusa_heads

from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, Medusa
from specviz.drafters.base import Weights
from specviz.drafters.heads.medusa import write_medusa
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
CIRCLE = [1, 2, 3]  # as the target that goes round would say it
SETTINGS = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset())


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def run(target: Target, drafter: Medusa, settings: Settings = SETTINGS, prompt: list[int] = PROMPT) -> list[Step]:
    return list(decode(target, drafter, prompt, settings))


def said(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def guesses(target: Target, heads, tokens: list[int]) -> Tensor:
    """[heads, V]: what each head says after these tokens, one matrix after the other."""
    state = context(target, tokens).hidden[-1]
    lm_head = target.model.get_output_embeddings().weight.detach()
    rows = [lm_head @ (state + silu(w @ state + b)) for w, b in zip(heads.weight[0], heads.bias[0], strict=True)]
    return masked(torch.stack(rows).detach())


# --- which head guesses what --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_heads_that_know_the_target_by_heart_are_always_accepted(gamma):
    """One head off, and nothing would be."""
    target = circle_target()
    steps = run(
        target, Medusa(target, GIVEN, heads=circle_heads()), Settings(gamma, 24, stop_tokens=frozenset()), CIRCLE
    )
    assert said(steps) == [(4 + i) % VOCAB for i in range(24)]
    assert all(step.num_accepted == len(step.nodes) for step in steps)
    assert all(len(step.nodes) == gamma for step in steps[:-1])


def test_a_tree_of_heads_that_know_the_target_holds_what_it_says():
    target = circle_target()
    drafter = Medusa(target, GIVEN, heads=circle_heads(), tree=True, nodes=6, branches=2)
    steps = run(target, drafter, Settings(4, 25, stop_tokens=frozenset()), CIRCLE)
    assert said(steps) == [(4 + i) % VOCAB for i in range(25)]
    assert [step.num_accepted for step in steps] == [4] * 5


def test_there_are_no_more_guesses_than_heads():
    target = circle_target()
    steps = run(target, Medusa(target, GIVEN, heads=circle_heads(2)), Settings(5, 24, stop_tokens=frozenset()), CIRCLE)
    assert {len(step.nodes) for step in steps} == {2}


def test_a_chain_is_the_best_guess_of_each_head(target):
    heads = medusa_heads()
    expected = guesses(target, heads, PROMPT)
    draft = Medusa(target, GIVEN, heads=heads).propose(context(target, PROMPT), 3, Sampler(), torch.Generator())
    assert draft.is_chain and list(draft.tokens) == expected[:3].argmax(-1).tolist()
    torch.testing.assert_close(draft.logits, expected[:3], rtol=1e-4, atol=1e-3)


def test_q_is_what_each_guess_was_drawn_from(target):
    heads, sampler = medusa_heads(), Sampler(temperature=1.5, top_k=5, repetition_penalty=1.3)
    drafter, drafts = Medusa(target, GIVEN, heads=heads), set()
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        draft = drafter.propose(context(target, PROMPT), 4, sampler, rng)
        for node in range(4):
            prefix = [*PROMPT, *draft.tokens[:node]]
            torch.testing.assert_close(draft.q[node], sampler.probs(draft.logits[node][None], prefix)[0])
        drafts.add(draft.tokens)
    assert len(drafts) > 1


def test_drafting_ends_with_the_first_guess_that_is_unsure(target):
    heads = medusa_heads()
    sure = torch.softmax(guesses(target, heads, PROMPT), -1).amax(-1)
    threshold = float(sure[1:3].max()) + 1e-3
    expected = next(i for i, value in enumerate(sure, 1) if value < threshold)
    drafter = Medusa(target, GIVEN, heads=heads, confidence=threshold)
    assert len(drafter.propose(context(target, PROMPT), 4, Sampler(), torch.Generator())) == expected < 4


@pytest.mark.parametrize(("nodes", "branches"), [(1, 4), (5, 2), (12, 3)])
def test_a_tree_holds_the_likeliest_paths(target, nodes, branches):
    heads = medusa_heads()
    chances = torch.softmax(guesses(target, heads, PROMPT)[:3], -1)
    top = [row.topk(branches) for row in chances]
    paths = {}
    for depth in range(1, 4):
        for ranks in itertools.product(range(branches), repeat=depth):
            tokens = tuple(int(top[i].indices[rank]) for i, rank in enumerate(ranks))
            paths[tokens] = float(torch.tensor([top[i].values[rank] for i, rank in enumerate(ranks)]).prod())
    expected = sorted(paths, key=lambda path: -paths[path])[:nodes]
    drafter = Medusa(target, GIVEN, heads=heads, tree=True, nodes=nodes, branches=branches)
    draft = drafter.propose(context(target, PROMPT), 3, Sampler(temperature=1), torch.Generator())
    found = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert sorted(found) == sorted(expected)
    assert torch.equal(draft.q, one_hot(torch.tensor(draft.tokens), VOCAB).float())  # chosen, not drawn


def test_a_tree_ends_where_its_best_path_is_unsure(target):
    heads = medusa_heads()
    sure = torch.softmax(guesses(target, heads, PROMPT), -1).amax(-1).cumprod(0)
    drafter = Medusa(target, GIVEN, heads=heads, tree=True, nodes=40, confidence=float(sure[1]) + 1e-4)
    assert drafter.propose(context(target, PROMPT), 4, Sampler(), torch.Generator()).depth == 2


# --- whole runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"tree": True}, {"tree": True, "nodes": 20, "branches": 3}])
@pytest.mark.parametrize("prompt", [[7], PROMPT])
def test_greedy_output_is_the_targets(target, settings, prompt):
    steps = run(target, Medusa(target, GIVEN, heads=medusa_heads(), **settings), prompt=prompt)
    assert said(steps) == reference_decode(target.model, prompt, 20)
    assert bool(steps[0].nodes) == (len(prompt) > 1), "of a prompt of one token the target has read nothing"
    assert all(step.nodes for step in steps[1:-1])
    drafted = {node.token for step in steps for node in step.nodes}
    assert drafted <= set(DRAFT_IDS.tolist())


def test_nothing_is_drafted_at_gamma_0(target):
    drafter = Medusa(target, GIVEN, heads=medusa_heads())
    assert len(drafter.propose(context(target, PROMPT), 0, Sampler(), torch.Generator())) == 0


@pytest.mark.parametrize("tree", [False, True])
def test_states_that_are_not_numbers_draft_nothing(target, tree):
    drafter = Medusa(target, GIVEN, heads=medusa_heads(), tree=tree)
    broken = Context(PROMPT, torch.full((len(PROMPT) - 1, 32), torch.nan))
    draft = drafter.propose(broken, 3, Sampler(), torch.Generator())
    assert len(draft) == 0 and "not numbers" in draft.note


# --- its weights --------------------------------------------------------------------------------------------------


def test_it_is_built_from_a_folder_and_says_for_which_weights_it_was_made(target, tmp_path):
    heads = medusa_heads()
    about = {"target": target.name, "target_weights": "sha256:other", "target_hidden_size": 32}
    write_medusa(heads, tmp_path, about)
    known = Target(target.model, None, target.name, "sha256:this")
    drafter = Medusa(known, Weights(tmp_path, "ours", "sha256:1", ("fetched anew",)))
    assert (drafter.name, drafter.weights) == ("ours", "sha256:1")
    assert drafter.notes[0] == "fetched anew" and "other weights of tiny llama" in drafter.notes[1]
    expected = Medusa(target, GIVEN, heads=heads)
    drafts = [d.propose(context(target, PROMPT), 4, Sampler(), torch.Generator()) for d in (drafter, expected)]
    assert drafts[0].tokens == drafts[1].tokens and torch.equal(drafts[0].logits, drafts[1].logits)


def test_heads_for_another_target_are_refused(target, tmp_path):
    write_medusa(medusa_heads(), tmp_path, {"target": "Other-1B", "target_hidden_size": 2048})
    with pytest.raises(UserError, match=r"made for Other-1B, whose hidden size is another"):
        Medusa(target, Weights(tmp_path, "ours"))
    with pytest.raises(UserError, match="made for another target: its hidden size is 32"):
        Medusa(tiny_target(hidden_size=64), GIVEN, heads=medusa_heads())
