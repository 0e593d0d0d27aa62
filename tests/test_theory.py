"""Every formula against what it stands for: all ways a draft can go, all draft lengths, figures worked out apart."""

from collections.abc import Callable
from itertools import combinations, product
from math import prod

import pytest

from specviz import theory
from specviz.theory import Load, Machine

H200, H100, A100 = Machine(4.8e12, 989e12), Machine(3.35e12, 989e12), Machine(2.0e12, 312e12)
SPARK = Machine(273e9, 62e12)  # its floating-point figure plays no part below
LLAMA_8B = Load(weight_bytes=2 * 8.03e9, parameters=8.03e9, kv_bytes_per_token=2 * 32 * 8 * 128 * 2)  # bfloat16


def enumerated(alpha: float, gamma: int) -> float:
    """The mean length of a step over all ways that testing gamma independent draft tokens can go."""
    total = 0.0
    for passed in product((True, False), repeat=gamma):
        chance = prod(alpha if each else 1 - alpha for each in passed)
        accepted = next((place for place, each in enumerate(passed) if not each), gamma)
        total += chance * (accepted + 1)  # the correction or bonus ends the step
    return total


@pytest.mark.parametrize("gamma", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.7, 0.99, 1.0])
def test_the_expected_length_is_the_mean_over_all_outcomes(alpha: float, gamma: int):
    assert theory.expected_length(alpha, gamma) == pytest.approx(enumerated(alpha, gamma), rel=1e-12)


def test_the_ends_of_the_expected_length():
    assert theory.expected_length(0, 7) == 1  # nothing is ever accepted
    assert theory.expected_length(1, 7) == 8  # everything is
    assert theory.expected_length(0.3, 0) == theory.expected_length(1, 0) == 1  # plain decoding
    assert theory.expected_length(1 - 1e-13, 7) == pytest.approx(8)  # where the quotient is nearly 0 / 0


@pytest.mark.parametrize(("alpha", "gamma"), [(-0.01, 3), (1.01, 3), (0.5, -1)])
def test_no_length_of_what_is_no_chance(alpha: float, gamma: int):
    with pytest.raises(ValueError, match="alpha"):
        theory.expected_length(alpha, gamma)


def test_the_length_that_survival_gives():
    """Independent tokens survive to position i with the chance alpha**i; real survival needs no alpha at all."""
    assert theory.length_of([0.7**i for i in range(1, 6)]) == pytest.approx(theory.expected_length(0.7, 5))
    assert theory.length_of([0.93, 0.80, 0.66]) == pytest.approx(3.39)
    assert theory.length_of([]) == 1


def test_the_share_of_drafted_tokens_that_are_accepted():
    """With alpha 0.7 and gamma 5 only 0.39 of what is drafted is accepted."""
    assert (theory.expected_length(0.7, 5) - 1) / 5 == pytest.approx(0.388, abs=5e-4)


@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.3, 0.7, 0.95, 1.0])
def test_alpha_of_undoes_expected_length(alpha: float, gamma: int):
    assert theory.alpha_of(theory.expected_length(alpha, gamma), gamma) == pytest.approx(alpha, abs=1e-9)


@pytest.mark.parametrize(("length", "gamma"), [(0.99, 3), (4.01, 3), (1.0, 0)])
def test_lengths_that_no_alpha_gives(length: float, gamma: int):
    with pytest.raises(ValueError, match="can't have an acceptance length"):
        theory.alpha_of(length, gamma)


@pytest.mark.parametrize("cost_ratio", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 3), (0.7, 0), (0.7, 5), (1.0, 4)])
def test_the_speedup_is_the_time_of_plain_steps_over_that_of_a_speculative_one(
    alpha: float, gamma: int, cost_ratio: float
):
    """Counted in plain steps: what a step brings would have taken so many of them."""
    step = sum([cost_ratio] * gamma) + 1
    length = enumerated(alpha, gamma)
    assert theory.speedup(length, gamma, cost_ratio) == pytest.approx(length / step)
    assert theory.speedup(length, gamma, cost_ratio, 1.5) == pytest.approx(length / (step + 0.5))


def test_the_ends_of_the_speedup():
    assert theory.speedup(1, 0, 0.3) == 1  # gamma 0 is plain decoding, whatever a draft would cost
    assert theory.speedup(1, 4, 0) == 1  # nothing accepted, but nothing spent
    assert theory.speedup(1, 4, 0.1) == pytest.approx(1 / 1.4)
    with pytest.raises(ValueError, match="a step of 2 draft tokens"):
        theory.speedup(3, 2, 0, 0)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.6, 0.9])
def test_drafting_pays_if_and_only_if_alpha_is_above_the_cost_ratio(alpha: float):
    """Leviathan et al., corollary 3.9; where it does, one token already brings (1 + alpha) / (1 + c)."""
    for cost_ratio in (alpha / 2, alpha, min(1, 1.2 * alpha)):
        gains = [theory.speedup(enumerated(alpha, gamma), gamma, cost_ratio) for gamma in range(1, 12)]
        assert (max(gains) > 1 + 1e-12) == (cost_ratio < alpha)
        assert gains[0] == pytest.approx((1 + alpha) / (1 + cost_ratio))


def by_hand(alpha: float, cost_ratio: float, verify_cost: Callable[[int], float] = lambda gamma: 1) -> int:
    """The first draft length of the best, with each length's tokens enumerated or, if long, summed."""
    best, most = 0, 0.0
    for gamma in range(theory.LONGEST_GAMMA + 1):
        length = enumerated(alpha, gamma) if gamma < 10 else sum(alpha**i for i in range(gamma + 1))
        if (gain := length / (gamma * cost_ratio + verify_cost(gamma))) > most + 1e-12:
            best, most = gamma, gain
    return best


@pytest.mark.parametrize(
    ("alpha", "cost_ratio", "gamma"), [(0.7, 0.02, 8), (0.7, 0.05, 6), (0.7, 0.1, 4), (0.7, 0.2, 3), (0.9, 0.05, 13)]
)
def test_the_best_draft_lengths_that_are_known(alpha: float, cost_ratio: float, gamma: int):
    assert theory.best_gamma(alpha, cost_ratio) == by_hand(alpha, cost_ratio) == gamma


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost_ratio", [0.03, 0.3, 0.9])
def test_the_best_draft_length_where_verifying_costs_more_with_every_token(alpha: float, cost_ratio: float):
    def verify_cost(gamma: int) -> float:
        return 1 + 0.07 * gamma

    assert theory.best_gamma(alpha, cost_ratio, verify_cost) == by_hand(alpha, cost_ratio, verify_cost)


def test_the_best_draft_length_at_the_ends():
    assert theory.best_gamma(0, 0.1) == 0  # no draft pays
    assert theory.best_gamma(0, 0) == 0  # every length is as good, so the shortest
    assert theory.best_gamma(0.3, 0.3) == 0  # alpha is not above c
    assert theory.best_gamma(1, 0.5) == theory.LONGEST_GAMMA  # every further token pays
    assert theory.best_gamma(0.5, 0) > 20  # free tokens pay until rounding hides what they bring


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations"), [(0.7, 5, 0.1), (0.0, 3, 0.0), (1.0, 4, 0.05), (0.6, 0, 1.0)]
)
def test_arithmetic_grows_by_what_is_drafted_and_verified_in_vain(alpha: float, gamma: int, operations: float):
    """Per step: gamma drafter steps, and gamma + 1 tokens through the target; per token: over what a step brings."""
    per_step = gamma * operations + (gamma + 1) * 1
    inflation = theory.arithmetic_inflation(alpha, gamma, operations)
    assert inflation == pytest.approx(per_step / enumerated(alpha, gamma))


@pytest.mark.parametrize(
    ("machine", "milliseconds"),
    [(H200, 3.35), (H100, 4.79), (A100, 8.0), (SPARK, 58.8)],
    ids=["H200", "H100", "A100", "Spark"],
)
def test_the_floor_of_a_plain_step_of_an_8b_model(machine: Machine, milliseconds: float):
    """Reading 16 GB of weights; one token's cache is nothing beside it."""
    assert 1e3 * theory.step_seconds(machine, LLAMA_8B, 1, 1, 0) == pytest.approx(milliseconds, rel=0.005)


@pytest.mark.parametrize(("machine", "tokens"), [(H200, 206), (H100, 295), (A100, 156)], ids=["H200", "H100", "A100"])
def test_how_many_tokens_a_pass_verifies_for_nothing(machine: Machine, tokens: float):
    ridge = theory.ridge_tokens(machine, LLAMA_8B)
    assert ridge == pytest.approx(tokens, abs=0.6)
    halved = Load(LLAMA_8B.weight_bytes / 2, LLAMA_8B.parameters, LLAMA_8B.kv_bytes_per_token)
    assert theory.ridge_tokens(machine, halved) == pytest.approx(ridge / 2)  # 8-bit weights, 16-bit arithmetic
    below, above = (theory.step_seconds(machine, LLAMA_8B, 1, rows, 0) for rows in (int(ridge), int(ridge) + 1))
    assert below == theory.step_seconds(machine, LLAMA_8B, 1, 1, 0) < above


def test_what_a_pass_moves_and_computes():
    """10 bytes a second and 100 operations a second: every part comes out in whole seconds."""
    machine, load = Machine(10, 100), Load(weight_bytes=50, parameters=25, kv_bytes_per_token=2)
    assert theory.step_seconds(machine, load, batch=1, rows=1, context=0) == 5  # weights; arithmetic would take 0.5
    assert theory.step_seconds(machine, load, batch=1, rows=1, context=20) == 5 + 4
    assert theory.step_seconds(machine, load, batch=3, rows=1, context=20) == 5 + 12  # one cache per sequence
    assert theory.step_seconds(machine, load, batch=3, rows=4, context=20) == 6 + 12  # read once for all rows


@pytest.mark.parametrize(("batch", "gain"), [(1, 1.96), (16, 1.96), (32, 1.96), (64, 1.43), (128, 1.04), (256, 0.88)])
def test_where_the_gain_of_an_8b_model_on_an_h200_goes(batch: int, gain: float):
    """bfloat16, 1,024 tokens of context, gamma 5, alpha 0.7; drafting a token costs a tenth of a plain step at any
    batch size, and verifying reads the caches once and computes 6 tokens per sequence."""
    plain, verify = (theory.step_seconds(H200, LLAMA_8B, batch, rows, 1024) for rows in (1, 6))
    found = theory.speedup(theory.expected_length(0.7, 5), 5, 0.1, verify / plain)
    assert found == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize(("experts", "per_token", "tokens"), [(4, 1, 3), (4, 2, 3), (5, 2, 2), (3, 3, 2)])
def test_how_many_experts_are_read(experts: int, per_token: int, tokens: int):
    """The mean number of different ones over all ways that the tokens can be routed."""
    routes = list(product(combinations(range(experts), per_token), repeat=tokens))
    mean = sum(len(set().union(*route)) for route in routes) / len(routes)
    assert theory.experts_hit(experts, per_token, tokens) == pytest.approx(mean)


def test_the_crossover_lies_on_the_line_between_its_neighbours():
    assert theory.crossover([1, 2, 4, 8], [1.8, 1.4, 1.2, 0.8]) == pytest.approx(6)
    assert theory.crossover([1, 2, 4], [1.5, 1.0, 0.9]) == 2  # exactly at a batch size
    assert theory.crossover([1, 2, 4, 8], [1.2, 0.9, 1.1, 0.7]) == pytest.approx(1 + 2 / 3)  # the first of two


@pytest.mark.parametrize("gains", [[1.9, 1.5, 1.2], [0.9, 0.8, 0.7], [0.9, 1.1, 1.3], [1.0, 0.9, 0.8], [1.5], []])
def test_no_crossover_where_a_gain_is_never_lost(gains: list[float]):
    assert theory.crossover([1, 2, 4][: len(gains)], gains) is None


def test_a_batch_size_without_a_gain_is_a_mistake():
    with pytest.raises(ValueError, match="shorter"):
        theory.crossover([1, 2, 4], [1.5, 0.9])
