"""The rules other than the default one: block verification, exact and never worse, and typical acceptance, which is
neither exact nor drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from fakes import TopKTree, reference_decode, tiny_model, tiny_target
from torch import Tensor

from specviz.decoding import verify
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler, one_hot
from specviz.decoding.verify import LOSSLESS, RULES, Rule, accept, block, typical
from specviz.drafters import EarlyExit, NGram
from specviz.errors import UserError
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def draws(monkeypatch):
    """Prescribes the uniform draws; the target's own token is then the likeliest. Drawing too often fails."""

    def prescribe(*values: float) -> None:
        left = list(values)
        monkeypatch.setattr(verify, "uniform", lambda generator: left.pop(0))
        monkeypatch.setattr(verify, "draw", lambda p, generator: int(p.argmax()))

    return prescribe


def test_the_rules_by_name():
    assert list(RULES.items()) == [("token", accept), ("block", block), ("typical", typical)]
    assert sorted(LOSSLESS) == ["block", "token"]


# --- block, by value ------------------------------------------------------------------------------------------
# The example of the paper's section 2: two tokens, the target prefers the second one, the drafter the first one.

TARGET, DRAFTER = [1 / 3, 2 / 3], [2 / 3, 1 / 3]


@pytest.mark.parametrize(
    ("tokens", "chances"),
    [
        ((0, 0), [0, 1 / 4]),  # p_1 = 1/2 and 1/2 * (1/3, 2/3) nowhere exceeds q
        ((0, 1), [0, 1]),  # p_2 = 1/2 * 2: what the first token lacked, the second one has
        ((1, 0), [1, 1 / 2]),  # p_1 = 1
        ((1, 1), [1, 1]),
    ],
)
def test_the_chances_of_the_papers_example(tokens, chances, draws):
    draws(0.5, 0.5)
    verdict = block(Draft.chain(tokens, double(DRAFTER, DRAFTER)), double(*[TARGET] * 3), rng())
    assert [trial.chance for trial in verdict.trials] == pytest.approx(chances, abs=1e-12)


def test_the_expected_lengths_of_the_papers_example(every_outcome):
    def number_kept(rule: Rule) -> float:
        def step() -> int:
            tokens = [verify.draw(double(DRAFTER)[0], rng()) for _ in range(2)]
            return len(rule(Draft.chain(tokens, double(DRAFTER, DRAFTER)), double(*[TARGET] * 3), rng()).path)

        return sum(probability * kept for probability, kept in every_outcome(step))

    assert number_kept(accept) == pytest.approx(10 / 9, abs=1e-12)
    assert number_kept(block) == pytest.approx(11 / 9, abs=1e-12)


P_ROWS = double([0.3, 0.6, 0.1], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6])
Q_ROWS = double([0.6, 0.3, 0.1], [0.1, 0.05, 0.85])


def test_a_place_passes_with_what_it_has_to_make_up_for_and_the_correction_is_scaled(draws):
    """p_1 = 0.3/0.6; p_1 * p - q = (0.15, 0.2, -0.85), so h_1 = 0.35/(0.35 + 0.5); p_2 = 0.5 * 0.5/0.1, at most 1."""
    draft = Draft.chain([0, 2], Q_ROWS)
    draws(0.0, 0.0)
    kept = block(draft, P_ROWS, rng())
    assert [trial.chance for trial in kept.trials] == pytest.approx([0.35 / 0.85, 0.0])
    assert kept.path == (0,) and kept.kind == "correction" and kept.token == 1
    torch.testing.assert_close(kept.left[1], double([3 / 7, 4 / 7, 0.0])[0])
    torch.testing.assert_close(kept.left[0], P_ROWS[0])
    draws(0.42, 0.0)
    refused = block(draft, P_ROWS, rng())
    assert refused.path == () and refused.kind == "correction"
    torch.testing.assert_close(refused.left[0], double([0.0, 1.0, 0.0])[0])  # norm(max(0, p - q)), p_0 being 1


@pytest.mark.parametrize(("draw", "path"), [((0.9, 0.9), (0, 1)), ((0.1, 0.9), (0, 1)), ((0.1, 0.1), (0, 1))])
def test_the_last_place_that_passes_brings_in_all_before_it(draws, draw, path):
    draft = Draft.chain([0, 0], double([0.6, 0.3, 0.1], [0.1, 0.05, 0.85]))  # p_2 = min(1, 0.5 * 5)
    draws(*draw)
    verdict = block(draft, P_ROWS, rng())
    assert verdict.path == path and verdict.kind == "bonus"
    assert [(trial.r, trial.accepted) for trial in verdict.trials] == [(draw[0], True), (draw[1], True)]
    assert [trial.p for trial in verdict.trials] == [0.3, 0.5] and [trial.q for trial in verdict.trials] == [0.6, 0.1]


def test_every_place_is_tested_and_those_after_the_last_that_passes_are_rejected(draws):
    draws(0.1, 0.99, 0.99)
    p = double(*[[0.5, 0.5]] * 4)
    q = double(*[[0.9, 0.1]] * 3)
    verdict = block(Draft.chain([1, 0, 0], q), p, rng())  # p_1 = 1, p_2 = 5/9, p_3 = 25/81
    assert verdict.path == (0,)
    assert [trial.accepted for trial in verdict.trials] == [True, False, False]
    # p_1 * p - q = (-0.4, 0.4), and p_2 * p - q = (-0.62, 8/45) with 1 - p_2 = 4/9
    assert [trial.chance for trial in verdict.trials] == pytest.approx([1.0, (8 / 45) / (28 / 45), 25 / 81])


def test_what_the_drafter_knows_is_all_kept(draws):
    p = torch.softmax(torch.randn(4, 50, generator=rng()), -1)
    draws(*[math.nextafter(1, 0)] * 3)
    verdict = block(Draft.chain([3, 4, 5], p[:3]), p, rng())
    assert verdict.path == (0, 1, 2) and verdict.kind == "bonus"
    assert [trial.chance for trial in verdict.trials] == [1.0] * 3


def test_one_token_is_verified_as_by_the_token_rule(draws):
    for r in (0.0, 0.4999, 0.5, 0.99):
        draft = Draft.chain([0], double([0.6, 0.4]))
        verdicts = []
        for rule in (accept, block):
            draws(r)
            verdicts.append(rule(draft, double([0.3, 0.7], [0.5, 0.5]), rng()))
        assert verdicts[0].path == verdicts[1].path == ((0,) if r < 0.5 else ())
        assert verdicts[0].trials == verdicts[1].trials
        torch.testing.assert_close(verdicts[0].left, verdicts[1].left)


@pytest.mark.parametrize("rule", [block, typical])
def test_an_empty_draft_is_plain_sampling(rule):
    p = double([0.2, 0.5, 0.3])
    verdict = rule(Draft.empty(), p, rng())
    assert (verdict.path, verdict.kind, verdict.trials) == ((), "bonus", ())
    assert torch.equal(verdict.left[0], p[0])


def test_a_tree_is_refused():
    tree = Draft((0, 1), (ROOT, ROOT), one_hot([0, 1], 3))
    with pytest.raises(UserError) as error:
        block(tree, torch.full((3, 3), 1 / 3), rng())
    assert str(error.value) == "The block rule verifies chains only; draft a chain, or choose the token rule."


# --- block, exactly: every draft, every draw --------------------------------------------------------------------

Model = Callable[[tuple[int, ...]], Tensor]


def model(vocab: int, length: int, seed: int) -> Model:
    """Probabilities after every path of up to `length` tokens; some tokens are impossible, as after top-k."""
    generator = torch.Generator().manual_seed(seed)
    rows = {}
    for path in (path for depth in range(length + 1) for path in product(range(vocab), repeat=depth)):
        row = torch.softmax(1.5 * torch.randn(vocab, generator=generator, dtype=torch.float64), -1)
        row = row * (torch.rand(vocab, generator=generator) > 0.1)
        rows[path] = row / row.sum() if row.sum() > 0 else torch.full_like(row, 1 / vocab)
    return rows.__getitem__


def drawn_chain(q: Model, length: int, unsure: float = 0.0) -> Draft:
    """unsure: the chain ends after a token of which q gives less."""
    tokens: list[int] = []
    rows: list[Tensor] = []
    while len(tokens) < length and not (tokens and rows[-1][tokens[-1]] < unsure):
        rows.append(q(tuple(tokens)))
        tokens.append(verify.draw(rows[-1], rng()))
    return Draft.chain(tokens, torch.stack(rows))


def chosen_chain(q: Model, length: int) -> Draft:
    """Takes what q finds likeliest, which is no draw: q is one-hot."""
    tokens: list[int] = []
    while len(tokens) < length:
        tokens.append(int(q(tuple(tokens)).argmax()))
    return Draft.chain(tokens, one_hot(tokens, len(q(()))).double())


def outcomes_of(rule: Rule, propose: Callable[[], Draft], p: Model, every_outcome) -> Iterator:
    """Probability, tokens said and number kept of every way a step can go."""

    def step() -> tuple[tuple[int, ...], int]:
        draft = propose()
        rows = torch.stack([p(draft.tokens[:length]) for length in range(len(draft) + 1)])
        verdict = rule(draft, rows, rng())
        return (*draft.take(verdict.path), verdict.token), len(verdict.path)

    for probability, (tokens, kept) in every_outcome(step):
        yield probability, tokens, kept


def probability_of(p: Model, tokens: tuple[int, ...], start: int = 0) -> float:
    return math.prod(float(p(tokens[:place])[tokens[place]]) for place in range(start, len(tokens)))


def largest_error(rule: Rule, propose: Callable[[], Draft], p: Model, vocab: int, length: int, every_outcome) -> float:
    """How far the step's output, completed by p to `length` + 1 tokens, is from p's own."""
    joint = dict.fromkeys(product(range(vocab), repeat=length + 1), 0.0)
    for probability, tokens, _ in outcomes_of(rule, propose, p, every_outcome):
        for rest in product(range(vocab), repeat=length + 1 - len(tokens)):
            whole = (*tokens, *rest)
            joint[whole] += probability * probability_of(p, whole, len(tokens))
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    return max(abs(found - probability_of(p, tokens)) for tokens, found in joint.items())


SIZES = [(4, 1), (3, 2), (3, 3), (2, 4), (2, 5)]  # vocabulary, length of the chain


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("vocab", "length"), SIZES)
def test_block_output_is_distributed_exactly_as_p(vocab, length, seed, every_outcome):
    p, q = model(vocab, length, seed), model(vocab, length, seed + 100)
    for propose in (
        lambda: drawn_chain(q, length),
        lambda: drawn_chain(q, length, unsure=0.5),
        lambda: chosen_chain(q, length),
        lambda: drawn_chain(p, length),
    ):
        assert largest_error(block, propose, p, vocab, length, every_outcome) < 1e-9


def test_ending_before_the_token_it_was_not_sure_of_would_show(every_outcome):
    p, q = model(2, 3, 0), model(2, 3, 100)

    def dropped() -> Draft:
        draft = drawn_chain(q, 3, unsure=0.5)
        unsure = draft.q[-1, draft.tokens[-1]] < 0.5
        return Draft.chain(draft.tokens[:-1], draft.q[:-1]) if unsure else draft

    assert largest_error(block, dropped, p, 2, 3, every_outcome) > 1e-2


def last_chance_everywhere(draft: Draft, p: Tensor, reach: list[float]) -> list[float]:
    return reach[1:]


def unscaled(p: Tensor, q: Tensor) -> Tensor:
    left = (p / p.sum() - q).clamp(min=0)
    return left / left.sum()


@pytest.mark.parametrize(("name", "wrong"), [("_block_chances", last_chance_everywhere), ("residual", unscaled)])
def test_mistakes_in_it_show(name, wrong, every_outcome, monkeypatch):
    monkeypatch.setattr(verify, name, wrong)
    errors = []
    for seed in range(3):
        p, q = model(3, 3, seed), model(3, 3, seed + 100)
        errors.append(largest_error(block, lambda q=q: drawn_chain(q, 3), p, 3, 3, every_outcome))
    assert max(errors) > 1e-3  # in so small a vocabulary a mistake can be harmless by chance


@pytest.mark.parametrize(("vocab", "length"), SIZES)
def test_block_keeps_at_least_as_many_as_token(vocab, length, every_outcome):
    gains = []
    for seed in range(3):
        p, q = model(vocab, length, seed), model(vocab, length, seed + 100)
        kept = {}
        for rule in (accept, block):
            every = outcomes_of(rule, lambda q=q: drawn_chain(q, length), p, every_outcome)
            kept[rule] = sum(probability * number for probability, _, number in every)
        gains.append(kept[block] - kept[accept])
    assert all(gain > -1e-12 for gain in gains)
    if length == 1:
        assert gains == pytest.approx([0.0] * 3, abs=1e-12)
    else:
        assert max(gains) > 1e-3


def test_typical_output_is_not_distributed_as_p(every_outcome):
    p, q = model(3, 2, 0), model(3, 2, 100)
    assert largest_error(typical, lambda: drawn_chain(q, 2), p, 3, 2, every_outcome) > 1e-2


# --- typical ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "token", "kept"),
    [
        ([0.90, 0.10, 0.0, 0.0], 1, True),  # entropy 0.33: 0.3 * exp(-0.33) is above 0.09, so 0.09 counts
        ([0.92, 0.08, 0.0, 0.0], 1, False),
        ([0.25, 0.25, 0.25, 0.25], 1, True),
        ([1.0, 0.0, 0.0, 0.0], 0, True),
        ([1.0, 0.0, 0.0, 0.0], 1, False),
    ],
)
def test_a_token_is_kept_where_it_is_not_unlikely(row, token, kept, draws):
    draws()  # nothing may be drawn
    verdict = typical(Draft.chain([token], one_hot([token], 4)), double(row, row), rng())
    assert verdict.path == ((0,) if kept else ())
    assert verdict.kind == ("bonus" if kept else "correction")
    (trial,) = verdict.trials
    assert (trial.p, trial.q, trial.chance, trial.r, trial.accepted) == (row[token], 1.0, float(kept), None, kept)
    assert all(torch.equal(left, double(row)[0]) for left in verdict.left)  # the last token is drawn from p itself


def test_the_more_open_the_target_the_less_likely_a_token_may_be():
    """Of 20 equal tokens each has 0.05, and the limit is 0.3/20; of 2 and a rest of the same 0.05 it is 0.09."""
    open_row = double([0.05] * 20)
    sure_row = double([0.95, 0.05] + [0.0] * 18)
    draft = Draft.chain([1], one_hot([1], 20))
    assert typical(draft, open_row.repeat(2, 1), rng()).path == (0,)
    assert typical(draft, sure_row.repeat(2, 1), rng()).path == ()


def test_of_a_tree_the_longest_way_is_kept_then_the_likeliest(draws):
    #        ROOT
    #   0:a    1:b    2:d
    #          3:a  4:b
    p = double([0.5, 0.3, 0.2, 0.0], [0.5, 0.3, 0.2, 0.0], [0.3, 0.6, 0.1, 0.0], *[[0.5, 0.3, 0.2, 0.0]] * 3)
    tree = Draft((0, 1, 3, 0, 1), (ROOT, ROOT, ROOT, 1, 1), one_hot([0, 1, 3, 0, 1], 4))
    draws()
    verdict = typical(tree, p, rng())
    assert verdict.path == (1, 4) and verdict.kind == "bonus" and verdict.token == 0
    # node 0 would have passed, as would node 3: their way was not taken; node 2 was refused
    assert [(trial.node, trial.chance, trial.accepted) for trial in verdict.trials] == [
        (1, 1.0, True),
        (2, 0.0, False),
        (4, 1.0, True),
    ]


def test_a_long_way_counts_for_nothing_after_a_token_that_does_not_pass(draws):
    p = double(*[[0.97, 0.03]] * 4)
    tree = Draft((1, 0, 0), (ROOT, 0, ROOT), one_hot([1, 0, 0], 2))
    draws()
    verdict = typical(tree, p, rng())
    assert verdict.path == (2,)
    assert [trial.node for trial in verdict.trials] == [0, 2]


# --- in whole runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", RULES)
def test_with_a_greedy_target_every_rule_keeps_the_same(rule, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(30):
        says = torch.randint(3, (5,), generator=generator)
        q = torch.softmax(torch.randn(4, 3, generator=generator), -1)
        draft = Draft.chain(torch.randint(3, (4,), generator=generator).tolist(), q)
        verdict, expected = RULES[rule](draft, one_hot(says, 3), rng()), accept(draft, one_hot(says, 3), rng())
        assert (verdict.path, verdict.token, verdict.kind) == (expected.path, expected.token, expected.kind)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_runs_say_what_the_target_says(rule):
    target = tiny_target()
    reference = reference_decode(target.model, PROMPT, 16)
    drafters = [NGram(target), EarlyExit(target, 3), *([] if rule == "block" else [TopKTree(tiny_model(), (2, 2))])]
    for drafter in drafters:
        steps = run(target, drafter, rule, Sampler())
        assert [token for step in steps for token in step.committed] == reference


def run(target, drafter, rule: str, sampler: Sampler, seed: int = 0) -> list[Step]:
    asked = Settings(
        gamma=4, max_new_tokens=16, sampler=sampler, seed=seed, stop_tokens=frozenset(), rule=rule, gamma_policy="fixed"
    )
    return list(decode(target, drafter, PROMPT, asked))


def sampled_steps(rule: str) -> list[Step]:
    target = tiny_target()
    return [
        step
        for seed in range(8)
        for step in run(target, EarlyExit(target, 3), rule, Sampler(temperature=1.5), seed)
        if step.nodes and not step.cut
    ]


def test_what_a_step_shows_of_block_verification():
    steps = sampled_steps("block")
    overtaken = 0
    for step in steps:
        passed = [node.r < node.accept_prob for node in step.nodes]
        assert step.num_accepted == max((i for i, passes in enumerate(passed, 1) if passes), default=0)
        assert [node.outcome for node in step.nodes] == ["accepted"] * step.num_accepted + ["rejected"] * (
            len(step.nodes) - step.num_accepted
        )
        assert all(node.p_trial == pytest.approx(node.p, abs=1e-6) for node in step.nodes)
        shown = [decision.node for decision in step.decisions if decision.residual]
        assert shown == ([step.path[-1] if step.path else -1] if step.last.kind == "correction" else [])
        overtaken += not all(passed[: step.num_accepted])
    assert overtaken and any(step.last.kind == "bonus" for step in steps)
    assert any(step.path and step.last.kind == "correction" for step in steps)


def test_what_a_step_shows_of_typical_acceptance():
    steps = sampled_steps("typical")
    nodes = [node for step in steps for node in step.nodes]
    assert {node.outcome for node in nodes} == {"accepted", "rejected", "untested"}
    for node in nodes:
        assert node.r is None
        assert node.accept_prob == {"accepted": 1.0, "rejected": 0.0, "untested": None}[node.outcome]
        assert node.outcome == "untested" or node.p_trial == pytest.approx(node.p, abs=1e-6)
    assert not any(decision.residual for step in steps for decision in step.decisions)
    assert all((step.last.kind == "bonus") == (step.num_accepted == len(step.nodes)) for step in steps)
