"""The acceptance rule by value, and its exactness by running through every outcome it can have."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specviz.decoding import verify
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import one_hot
from specviz.decoding.verify import accept

ALMOST_1 = math.nextafter(1, 0)


@pytest.fixture
def draws(monkeypatch):
    """Prescribes the uniform draws; the target's own token is then the likeliest."""

    def prescribe(*values: float) -> None:
        left = list(values)
        monkeypatch.setattr(verify, "uniform", lambda generator: left.pop(0))
        monkeypatch.setattr(verify, "draw", lambda p, generator: int(p.argmax()))

    return prescribe


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def certain(*tokens: int) -> Tensor:
    """Rows of a greedy target that says these tokens."""
    return one_hot(tokens, 10)


def chosen(tokens: tuple[int, ...], parents: tuple[int, ...]) -> Draft:
    """A tree whose tokens were chosen and not drawn."""
    return Draft(tokens, parents, one_hot(tokens, 10))


# --- by value -----------------------------------------------------------------------------------------------


def test_only_the_prefix_counts():
    draft = Draft.chain([1, 2, 3, 4], one_hot([1, 2, 3, 4], 10))
    verdict = accept(draft, certain(1, 9, 3, 4, 5), rng())  # right, wrong, right, right
    assert verdict.path == (0,)
    assert (verdict.token, verdict.kind) == (9, "correction")
    assert [(trial.node, trial.accepted) for trial in verdict.trials] == [(0, True), (1, False)]


@pytest.mark.parametrize("right", range(5))
def test_a_greedy_chain_is_kept_up_to_the_first_difference(right):
    says = [1, 2, 3, 4, 5]
    draft = Draft.chain([*says[:right], *[8] * (4 - right)], one_hot([*says[:right], *[8] * (4 - right)], 10))
    verdict = accept(draft, certain(*says), rng())
    assert verdict.path == tuple(range(right))
    assert verdict.token == says[right]
    assert verdict.kind == ("bonus" if right == 4 else "correction")
    assert len(verdict.left) == right + 1


def test_a_greedy_chain_is_kept_whatever_q_it_was_drawn_from():
    q = torch.full((2, 10), 0.1)
    for says, path in (((1, 2, 3), (0, 1)), ((1, 7, 3), (0,)), ((7, 2, 3), ())):
        assert accept(Draft.chain([1, 2], q), certain(*says), rng()).path == path


def test_a_greedy_tree_is_walked_along_the_right_children():
    #        ROOT
    #      0:8   1:1
    #     2:2   3:9  4:2
    #                5:3
    draft = chosen((8, 1, 2, 9, 2, 3), (ROOT, ROOT, 0, 1, 1, 4))
    verdict = accept(draft, certain(1, 0, 2, 0, 0, 3, 4), rng())  # row i+1 follows node i
    assert verdict.path == (1, 4, 5)
    assert draft.take(verdict.path) == [1, 2, 3]
    assert (verdict.token, verdict.kind) == (4, "bonus")
    assert [(trial.node, trial.accepted) for trial in verdict.trials] == [
        (0, False),
        (1, True),
        (3, False),
        (4, True),
        (5, True),
    ]


def test_a_greedy_tree_ends_with_a_correction_where_no_child_is_right():
    verdict = accept(chosen((8, 1, 7, 9), (ROOT, ROOT, 1, 1)), certain(1, 0, 2, 0, 0), rng())
    assert verdict.path == (1,)
    assert (verdict.token, verdict.kind) == (2, "correction")


def test_an_empty_draft_is_plain_sampling():
    p = torch.tensor([[0.2, 0.5, 0.3]])
    verdict = accept(Draft.empty(), p, rng())
    assert (verdict.path, verdict.kind, verdict.trials) == ((), "bonus", ())
    assert torch.equal(verdict.left[0], p[0])


@pytest.mark.parametrize(("p_x", "q_x"), [(0.3, 0.6), (0.1, 0.9), (0.05, 1.0)])
def test_acceptance_has_probability_p_over_q(draws, p_x, q_x):
    p = torch.tensor([[p_x, 1 - p_x], [0.5, 0.5]], dtype=torch.float64)
    draft = Draft.chain([0], torch.tensor([[q_x, 1 - q_x]], dtype=torch.float64))
    for r, kept in ((0.0, True), (p_x / q_x - 1e-9, True), (p_x / q_x + 1e-9, False), (ALMOST_1, False)):
        draws(r)
        verdict = accept(draft, p, rng())
        assert verdict.path == ((0,) if kept else ())
        [trial] = verdict.trials
        assert (trial.p, trial.q, trial.r, trial.accepted) == (p_x, q_x, r, kept)


def test_a_chosen_token_is_accepted_with_probability_p(draws):
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    for r, kept in ((0.2499, True), (0.25, False)):
        draws(r)
        assert bool(accept(Draft.chain([0], one_hot([0], 2)), p, rng()).path) == kept


def test_a_token_the_target_likes_better_is_always_accepted_and_an_impossible_one_never(draws):
    q = torch.tensor([[0.5, 0.5, 0.0]])
    p = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    draws(ALMOST_1)
    assert accept(Draft.chain([0], q), p, rng()).path == (0,)
    draws(0.0)
    assert accept(Draft.chain([1], q), p, rng()).path == ()


def test_after_a_chosen_sibling_is_rejected_the_others_share_its_probability(draws):
    p = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    draws(0.9, 0.59)
    verdict = accept(Draft((0, 1), (ROOT, ROOT), one_hot([0, 1], 3)), p, rng())
    assert verdict.path == (1,)
    assert [trial.p for trial in verdict.trials] == pytest.approx([0.5, 0.6])
    torch.testing.assert_close(verdict.left[0], torch.tensor([0.0, 0.6, 0.4]))  # what its acceptance was measured by
    torch.testing.assert_close(verdict.left[1], p[2])


def test_after_two_sampled_siblings_are_rejected_the_correction_has_what_is_left(draws):
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(3, 1)
    q = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.0, 0.5, 1 / 3, 1 / 6]])  # the second renormalised without token 0
    draws(0.3, 0.5)  # 0.1/0.4 and 0/0.5
    verdict = accept(Draft((0, 1), (ROOT, ROOT), q), p, rng())
    assert verdict.path == ()
    assert verdict.kind == "correction"
    assert [trial.p for trial in verdict.trials] == pytest.approx([0.1, 0.0])
    # (0, 0, 0.1, 0.3)/0.4 = (0, 0, 1/4, 3/4), less q: (0, 0, 0, 7/12)
    torch.testing.assert_close(verdict.left[0], torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert verdict.token == 3


def test_siblings_are_tried_in_their_order(draws):
    p = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    for tokens in ((0, 1), (1, 0)):
        draws(0.1)
        verdict = accept(Draft(tokens, (ROOT, ROOT), one_hot(tokens, 3)), p, rng())
        assert verdict.path == (0,) and len(verdict.trials) == 1


def test_children_of_a_rejected_node_are_not_tried(draws):
    p = torch.full((4, 4), 0.25)
    draws(0.9, 0.9)
    verdict = accept(Draft((0, 1, 2), (ROOT, 0, ROOT), one_hot([0, 1, 2], 4)), p, rng())
    assert [trial.node for trial in verdict.trials] == [0, 2]


def test_a_rejection_by_rounding_alone_falls_back_to_p(draws):
    p = torch.tensor([[1 - 2**-24, 0.0]]).repeat(2, 1)  # a float32 row need not sum to 1
    draws(ALMOST_1)
    verdict = accept(Draft.chain([0], one_hot([0], 2)), p, rng())
    assert (verdict.path, verdict.token, verdict.kind) == ((), 0, "correction")
    assert torch.equal(verdict.left[0], p[0])


def test_what_the_drafter_knows_is_all_accepted(draws):
    p = torch.softmax(torch.randn(4, 50, generator=rng()), -1)
    draws(*[ALMOST_1] * 3)
    verdict = accept(Draft.chain([3, 4, 5], p[:3]), p, rng())
    assert verdict.path == (0, 1, 2) and verdict.kind == "bonus"


@pytest.mark.parametrize("q", [[[0.0, 1.0]], [[math.nan, 1.0]]])
def test_a_token_its_q_could_not_have_drawn_is_an_error(q):
    with pytest.raises(ValueError, match="gives no probability"):
        accept(Draft.chain([0], torch.tensor(q)), torch.full((2, 2), 0.5), rng())


# --- exactness, by enumeration ------------------------------------------------------------------------------
# All in double precision, so that equal means equal. `P` gives p after any path; a draft's outcome fixes the first one
# to three tokens, and p itself is the distribution of the rest.

P = Callable[[tuple[int, ...]], Tensor]
GAMMA = 2


def some_p(vocab: int, seed: int, sharpness: float = 1.5) -> P:
    generator = torch.Generator().manual_seed(seed)
    size = (1 + vocab + vocab**2, vocab)
    rows = torch.softmax(sharpness * torch.randn(size, generator=generator, dtype=torch.float64), -1)
    rows[torch.rand(size, generator=generator) < 0.15] = 0  # some tokens are impossible, as after top-k
    rows[rows.sum(-1) == 0] = 1
    rows /= rows.sum(-1, keepdim=True)

    def after(path: tuple[int, ...]) -> Tensor:
        index = 0 if not path else 1 + path[0] if len(path) == 1 else 1 + vocab + vocab * path[0] + path[1]
        return rows[index]

    return after


def exact_joint(p: P, vocab: int) -> Tensor:
    return torch.stack([completed(p, vocab, (token,)) * p(())[token] for token in range(vocab)])


def completed(p: P, vocab: int, tokens: tuple[int, ...]) -> Tensor:
    """The distribution of what follows these tokens, up to three in all."""
    if len(tokens) == GAMMA + 1:
        return torch.ones((), dtype=torch.float64)
    return torch.stack([p(tokens)[token] * completed(p, vocab, (*tokens, token)) for token in range(vocab)])


def joint_of(propose: Callable[[], Draft], p: P, vocab: int, every_outcome) -> Tensor:
    """The distribution [V, V, V] of the first three tokens of speculative decoding."""

    def step() -> tuple[int, ...]:
        draft = propose()
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append((*(() if parent == ROOT else paths[parent]), token))
        verdict = accept(draft, torch.stack([p(()), *map(p, paths)]), rng())
        return (*draft.take(verdict.path), verdict.token)

    joint = torch.zeros((vocab,) * (GAMMA + 1), dtype=torch.float64)
    for probability, tokens in every_outcome(step):
        joint[tokens] += probability * completed(p, vocab, tokens)
    return joint


Children = Callable[[Tensor], list[tuple[int, Tensor]]]


def tree(q: P, children: Children) -> Callable[[], Draft]:
    """A drafter of depth 2 that asks `children` for the tokens at each place, and the q to report for them."""

    def propose() -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Tensor] = []
        level: list[tuple[int, tuple[int, ...]]] = [(ROOT, ())]
        for _ in range(GAMMA):
            below = []
            for parent, path in level:
                for token, row in children(q(path)):
                    below.append((len(tokens), (*path, token)))
                    tokens.append(token)
                    parents.append(parent)
                    rows.append(row)
            level = below
        return Draft(tuple(tokens), tuple(parents), torch.stack(rows))

    return propose


def drawn(width: int, *, replace: bool = False, renormalise: bool = True) -> Children:
    def children(q: Tensor) -> list[tuple[int, Tensor]]:
        picked, left = [], q
        while len(picked) < width and left.sum() > 0:
            left = left / left.sum()
            token = verify.draw(left, rng())
            picked.append((token, left if renormalise else q))
            if not replace:
                left = left.clone()
                left[token] = 0
        return picked

    return children


def likeliest(width: int, *, honest: bool = True) -> Children:
    def children(q: Tensor) -> list[tuple[int, Tensor]]:
        tokens = [token for token in q.topk(width).indices.tolist() if honest or q[token] > 0]
        return [(token, one_hot([token], len(q))[0].double() if honest else q) for token in tokens]

    return children


def sorted_by_q(children: Children) -> Children:
    return lambda q: sorted(children(q), key=lambda child: -float(q[child[0]]))


RULES = {
    "chain": (4, drawn(1)),
    "tree without replacement": (3, drawn(2)),
    "tree over the whole vocabulary": (3, drawn(3)),
    "tree with replacement": (3, drawn(2, replace=True)),
    "chosen chain": (4, likeliest(1)),
    "chosen tree": (4, likeliest(2)),
    "chosen tree over the whole vocabulary": (3, likeliest(3)),
}
CASES = [(name, seed) for name in RULES for seed in range(1 if name == "tree over the whole vocabulary" else 3)]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_the_output_is_distributed_exactly_as_p(name, seed, every_outcome):
    vocab, children = RULES[name]
    p, q = some_p(vocab, seed), some_p(vocab, seed + 100)
    joint = joint_of(tree(q, children), p, vocab, every_outcome)
    torch.testing.assert_close(joint, exact_joint(p, vocab), atol=1e-9, rtol=0)


def test_the_output_is_exact_when_drafter_and_target_agree_or_are_sure(every_outcome):
    p, sure = some_p(3, 7), some_p(3, 7, sharpness=1000)
    for target, drafter in ((p, p), (sure, p), (p, sure)):
        joint = joint_of(tree(drafter, drawn(2)), target, 3, every_outcome)
        torch.testing.assert_close(joint, exact_joint(target, 3), atol=1e-9, rtol=0)


WRONG = {
    "the second sibling's q not renormalised": drawn(2, renormalise=False),
    "chosen tokens reported with their softmax": likeliest(2, honest=False),
    "sampled siblings sorted by their probability": sorted_by_q(drawn(2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_q_that_is_not_what_the_token_was_drawn_from_shows(name, every_outcome):
    errors = []
    for seed in range(3):
        p, q = some_p(3, seed), some_p(3, seed + 100)
        errors.append(float((joint_of(tree(q, WRONG[name]), p, 3, every_outcome) - exact_joint(p, 3)).abs().sum()))
    assert max(errors) > 1e-2  # in so small a vocabulary a wrong q can be harmless by chance


def test_a_correction_drawn_from_p_shows(every_outcome, monkeypatch):
    monkeypatch.setattr(verify, "residual", lambda p, q: p)
    p, q = some_p(3, 0), some_p(3, 100)
    assert (joint_of(tree(q, drawn(1)), p, 3, every_outcome) - exact_joint(p, 3)).abs().sum() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_token_is_accepted_with_the_overlap_of_p_and_q(seed, every_outcome):
    p, q = some_p(4, seed), some_p(4, seed + 100)

    def first_is_accepted() -> bool:
        token = verify.draw(q(()), rng())
        draft = Draft.chain([token], q(())[None])
        return accept(draft, torch.stack([p(()), p((token,))]), rng()).path == (0,)

    accepted = sum(probability for probability, kept in every_outcome(first_is_accepted) if kept)
    assert accepted == pytest.approx(float(torch.minimum(p(()), q(())).sum()), abs=1e-9)
