"""Intervals against those of a bootstrap written out in plain Python, and how often they hold what they should."""

import random
from statistics import mean, median, quantiles

import numpy as np
import pytest

from specviz.workloads.statistics import difference_interval, mean_interval, median_interval, ratio_interval

PARTS, WHOLES = [12.0, 3.0, 40.0, 9.0, 22.0, 15.0], [10.0, 2.0, 20.0, 9.0, 11.0, 12.0]


def drawn_by_hand(statistic, count, draws=20000):
    """The middle 95 % of a statistic of indices that are drawn one by one."""
    rng = random.Random(7)
    found = [statistic([rng.randrange(count) for _ in range(count)]) for _ in range(draws)]
    cuts = quantiles(found, n=40)
    return cuts[0], cuts[-1]


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
    assert interval == pytest.approx(drawn_by_hand(statistic, 6), rel=0.06)


def test_of_too_few_prompts_there_is_none_and_of_equal_ones_it_has_no_width():
    assert mean_interval([1.0, 2.0]) is median_interval([1.0, 2.0]) is ratio_interval([], []) is None
    assert mean_interval([2.0] * 5) == median_interval([2.0] * 5) == (2.0, 2.0)
    assert difference_interval(([1.0] * 2, [1.0] * 2), ([1.0] * 9, [1.0] * 9), paired=False) is None


def test_nineteen_in_twenty_hold_the_true_mean_and_a_wrong_interval_does_not():
    rng = np.random.default_rng(3)
    samples = rng.gamma(2.0, 1.0, size=(300, 30))  # its mean is 2, and it is skewed, as acceptance lengths are
    held = [bool(low <= 2.0 <= high) for low, high in (mean_interval(list(sample)) for sample in samples)]
    assert 0.89 <= mean(held) <= 0.98
    halved = [
        bool(abs(2.0 - mean(sample)) <= (high - low) / 4) for sample in samples for low, high in [mean_interval(list(sample))]
    ]
    assert mean(halved) < 0.85


def test_a_difference_of_pairs_is_surer_than_one_of_strangers():
    rng = np.random.default_rng(5)
    hard = rng.uniform(1, 4, size=40)  # prompts differ far more than what is compared on them
    ones = [1.0] * 40
    before, after = (list(hard), ones), (list(hard + 0.1), ones)
    low, high = difference_interval(before, after, paired=True)
    assert low == pytest.approx(0.1) and high == pytest.approx(0.1)
    low, high = difference_interval(before, after, paired=False)
    assert low < 0 < high


def test_many_comparisons_at_once_widen_each():
    values = (list(np.random.default_rng(2).normal(0, 1, 50)), [1.0] * 50)
    narrow = difference_interval(values, values, paired=False)
    wide = difference_interval(values, values, paired=False, comparisons=20)
    assert wide[0] < narrow[0] < 0 < narrow[1] < wide[1]
    rng, false_alarms = np.random.default_rng(9), 0
    for _ in range(40):  # ten comparisons of the same with the same, all to be right at once
        pairs = [[(list(rng.normal(0, 1, 25)), [1.0] * 25) for _ in range(2)] for _ in range(10)]
        found = [difference_interval(*pair, paired=False, comparisons=10) for pair in pairs]
        false_alarms += any(not low <= 0 <= high for low, high in found)
    assert false_alarms <= 8, "5 % of 40 are 2; without widening, about 40 % of them would be"
