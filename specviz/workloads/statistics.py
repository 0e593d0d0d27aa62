"""How sure a figure is that was found on a few prompts. Nothing here imports torch.

The passes of one prompt resemble each other, so prompts and never passes are what is drawn or compared. An interval
says how much a figure depends on which prompts were asked, and nothing of other workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import atan, cos, isclose, pi, sin, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

DRAWS = 5000
SEED = 0
FEWEST = 5  # prompts; of fewer, intervals that hold what they should would say next to nothing

Interval = tuple[float, float]
Values = NDArray[np.float64]


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """Of sum(parts) / sum(wholes), both one per prompt, by the bootstrap; None of fewer than five prompts.

    Prompts are drawn anew with replacement. Of few prompts the middle 95 % of what the draws give is too narrow, so the
    tails are cut where Student's distribution would have them (the expanded percentile interval, Hesterberg 2015).
    """
    return _interval(len(parts), lambda drawn: _sums(parts, drawn) / _sums(wholes, drawn))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The same of the mean of one value per prompt."""
    return ratio_interval(values, [1.0] * len(values))


def median_interval(values: Sequence[float]) -> Interval | None:
    """The same of the median of one value per prompt."""
    return _interval(len(values), lambda drawn: np.median(np.asarray(values, dtype=float)[drawn], axis=1))


def difference_interval(
    one: tuple[Sequence[float], Sequence[float]],
    other: tuple[Sequence[float], Sequence[float]],
    *,
    paired: bool,
    comparisons: int = 1,
) -> Interval | None:
    """Of the ratio of sums of `other` less that of `one`, both given as parts and wholes, one each per prompt.

    paired: the prompts are the same in the same order. comparisons: how many such intervals are looked at together;
    they grow so that all of them at once are right 95 times in 100 (Bonferroni). Draws cannot tell tails that thin
    apart, so this is Student's interval of what each prompt adds to the difference (the delta method; Welch's degrees
    of freedom where prompts are no pairs). None of fewer than five prompts.
    """
    if min(len(one[0]), len(other[0])) < FEWEST:
        return None
    (first, shares), (second, other_shares) = _influence(*one), _influence(*other)
    if paired:
        variance, freedom = _variance_of_mean(other_shares - shares), len(shares) - 1.0
    else:
        variances = [_variance_of_mean(each) for each in (shares, other_shares)]
        variance = sum(variances)
        spent = sum(v**2 / (len(each) - 1) for v, each in zip(variances, (shares, other_shares), strict=True))
        freedom = variance**2 / spent if spent else 1.0
    reach = student_quantile(1 - 0.025 / comparisons, int(freedom)) * sqrt(variance)
    return second - first - reach, second - first + reach


def _influence(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, Values]:
    """The ratio of the sums, and what each prompt adds to it: values whose mean is 0."""
    above, below = np.asarray(parts, dtype=float), np.asarray(wholes, dtype=float)
    ratio = float(above.sum() / below.sum())
    return ratio, (above - ratio * below) / below.mean()


def _variance_of_mean(values: Values) -> float:
    return float(values.var(ddof=1) / len(values))


def student_quantile(probability: float, freedom: int) -> float:
    """Where Student's distribution reaches a probability above one half, for whole degrees of freedom from 1 on."""
    low, high = 0.0, 1.0
    while _student(high, freedom) < probability:
        high *= 2
    while not isclose(low, high, rel_tol=1e-12):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < probability else (low, middle)
    return high


def _student(t: float, freedom: int) -> float:
    """The distribution function for t above 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    term = total = cos(angle) if freedom % 2 else 1.0
    if freedom == 1:
        total = 0.0
    for power in range(2 + freedom % 2, freedom - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    inside = (angle + sin(angle) * total) * 2 / pi if freedom % 2 else sin(angle) * total
    return 0.5 + inside / 2


def _interval(count: int, statistic: Callable[[NDArray[np.intp]], Values]) -> Interval | None:
    if count < FEWEST:
        return None
    tail = 100 * NormalDist().cdf(-sqrt(count / (count - 1)) * student_quantile(0.975, count - 1))
    low, high = np.percentile(statistic(_drawn(count)), [tail, 100 - tail])
    return float(low), float(high)


@lru_cache(maxsize=8)
def _drawn(count: int) -> NDArray[np.intp]:
    """Numbers of the prompts in each draw: [DRAWS, count]. Always the same, so that the same results give the same."""
    return np.random.default_rng(SEED).integers(count, size=(DRAWS, count))


def _sums(values: Sequence[float], drawn: NDArray[np.intp]) -> Values:
    sums: Values = np.asarray(values, dtype=float)[drawn].sum(axis=1)
    return sums
