"""Intervals against those of a bootstrap written out in plain Python, and how often they hold what they should."""

import random
from statistics import NormalDist, mean, median, quantiles

import numpy as np
import pytest
from scipy import stats

from specviz.workloads.statistics import (
    FEWEST,
    difference_interval,
    mean_interval,
    median_interval,
    ratio_interval,
    student_quantile,
)

PARTS = [12.0, 3.0, 40.0, 9.0, 22.0, 15.0, 31.0, 6.0, 18.0]
WHOLES = [10.0, 2.0, 20.0, 9.0, 11.0, 12.0, 20.0, 5.0, 10.0]
ONES = [1.0] * 9


def drawn_by_hand(statistic, count, draws=20000):
    """What a statistic of indices that are drawn one by one comes to between the tails of Student's distribution."""
    rng = random.Random(7)
    found = sorted(statistic([rng.randrange(count) for _ in range(count)]) for _ in range(draws))
    tail = NormalDist().cdf(-((count / (count - 1)) ** 0.5) * stats.t.ppf(0.975, count - 1))
    assert tail < 0.025, "wider than the middle 95 %"
    return found[int(tail * draws)], found[-1 - int(tail * draws)]


@pytest.mark.parametrize(
    ("interval", "statistic"),
    [
        (
            ratio_interval(PARTS, WHOLES),
            lambda drawn: sum(PARTS[i] for i in drawn) / sum(WHOLES[i] for i in drawn),
        ),
        (mean_interval(PARTS), lambda drawn: mean(PARTS[i] for i in drawn)),
        (median_interval(PARTS), lambda drawn: median(PARTS[i] for i in drawn)),
    ],
    ids=["ratio", "mean", "median"],
)
def test_intervals_are_those_of_draws_by_hand(interval, statistic):
    assert interval == pytest.approx(drawn_by_hand(statistic, 9), rel=0.06)


def test_of_too_few_prompts_there_is_none_and_of_equal_ones_it_has_no_width():
    few = [1.0, 2.0, 3.0, 4.0]
    assert len(few) < FEWEST
    assert mean_interval(few) is median_interval(few) is ratio_interval(few, few) is ratio_interval([], []) is None
    assert mean_interval([2.0] * 5) == median_interval([2.0] * 5) == (2.0, 2.0)
    assert difference_interval((few, few), (PARTS, WHOLES), paired=False) is None
    assert difference_interval((PARTS, WHOLES), (PARTS, WHOLES), paired=True) == (0.0, 0.0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 29, 84])
def test_students_quantiles_are_those_of_scipy(freedom):
    for probability in (0.6, 0.975, 0.9995, 1 - 0.025 / 200):
        assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-6)


def prompts(rng, count, runs=1):
    """Steps and tokens of prompts that differ in how much of a draft of 3 they let pass, in several runs of each."""
    rates = rng.beta(4, 4, size=count)
    found = []
    for _ in range(runs):
        steps = rng.integers(10, 70, size=count)
        accepted = [
            np.minimum(rng.geometric(1 - rate, size=n) - 1, 3).sum() for rate, n in zip(rates, steps, strict=True)
        ]
        found.append(([float(a + n) for a, n in zip(accepted, steps, strict=True)], [float(n) for n in steps]))
    return found


@pytest.mark.parametrize("count", [5, 6, 12])
def test_about_nineteen_in_twenty_hold_the_true_length_and_intervals_half_as_wide_do_not(count):
    rng = np.random.default_rng(3)
    [(parts, wholes)] = prompts(rng, 20000)
    true = sum(parts) / sum(wholes)
    intervals = [ratio_interval(*prompts(rng, count)[0]) for _ in range(300)]
    assert 0.88 <= mean(bool(low <= true <= high) for low, high in intervals) <= 0.99
    middles = [((low + high) / 2, (high - low) / 4) for low, high in intervals]
    assert mean(bool(abs(true - middle) <= reach) for middle, reach in middles) < 0.85


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("comparisons", [1, 14])
def test_where_nothing_has_changed_hardly_any_comparison_says_so(comparisons, paired):
    """On six prompts a workload, the usual number: once in twenty at most, of all comparisons together."""

    def alarms(told):
        rng, found = np.random.default_rng(4), 0
        for _ in range(80):
            pairs = [prompts(rng, 6, 2) if paired else prompts(rng, 6) + prompts(rng, 6) for _ in range(comparisons)]
            intervals = [difference_interval(*pair, paired=paired, comparisons=told) for pair in pairs]
            found += any(not low <= 0 <= high for low, high in intervals)
        return found

    assert alarms(comparisons) <= 11, "5 % of 80 are 4"
    if comparisons > 1:
        assert alarms(1) > 25, "each on its own, some of fourteen go wrong half of the time"


def test_a_difference_of_pairs_is_surer_than_one_of_strangers():
    rng = np.random.default_rng(5)
    hard = rng.uniform(1, 4, size=40)  # prompts differ far more than what is compared on them
    before, after = (list(hard), [1.0] * 40), (list(hard + 0.1), [1.0] * 40)
    low, high = difference_interval(before, after, paired=True)
    assert low == pytest.approx(0.1) and high == pytest.approx(0.1)
    low, high = difference_interval(before, after, paired=False)
    assert low < 0 < high


def test_the_interval_of_a_difference_is_students_and_welchs():
    other = [value + step for value, step in zip(PARTS, (1, 2, 0, 3, 1, 2, 2, 1, 0), strict=True)]
    low, high = difference_interval((PARTS, ONES), (other, ONES), paired=True)
    expected = stats.ttest_rel(other, PARTS).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-6)
    low, high = difference_interval((PARTS, ONES), (other, ONES), paired=False)
    welch = stats.ttest_ind(other, PARTS, equal_var=False)
    reach = stats.t.ppf(0.975, int(welch.df)) * (mean(other) - mean(PARTS)) / welch.statistic
    assert (low, high) == pytest.approx(
        (mean(other) - mean(PARTS) - reach, mean(other) - mean(PARTS) + reach), rel=1e-6
    )
    assert quantiles(PARTS, n=4)[0] < low + mean(PARTS) + reach < quantiles(other, n=4)[2] + reach
