"""How sure a figure is that was found on a few prompts: bootstrap intervals. Nothing here imports torch.

Prompts are drawn anew, with replacement, from those that were measured; the passes of one prompt resemble each other,
so whole prompts are drawn and never single passes. An interval holds the middle 95 % of what the draws give (Efron's
percentile interval). It says how much the figure depends on which prompts were asked, and nothing of other workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
SEED = 0
FEWEST = 3  # prompts; of fewer, draws tell nothing

Interval = tuple[float, float]
Values = NDArray[np.float64]


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """Of sum(parts) / sum(wholes), both one per prompt; None of fewer than three prompts."""
    return _interval(len(parts), lambda drawn: _sums(parts, drawn) / _sums(wholes, drawn))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Of the mean of one value per prompt."""
    return ratio_interval(values, [1.0] * len(values))


def median_interval(values: Sequence[float]) -> Interval | None:
    """Of the median of one value per prompt."""
    return _interval(len(values), lambda drawn: np.median(np.asarray(values, dtype=float)[drawn], axis=1))


def difference_interval(
    one: tuple[Sequence[float], Sequence[float]],
    other: tuple[Sequence[float], Sequence[float]],
    *,
    paired: bool,
    comparisons: int = 1,
) -> Interval | None:
    """Of the ratio of sums of `other` less that of `one`, both given as parts and wholes, one each per prompt.

    paired: the prompts are the same in the same order, so that each draw takes the same from both. comparisons: how
    many such intervals are looked at together; they grow so that all of them at once are right 95 times in 100
    (Bonferroni).
    """
    sizes = len(one[0]), len(other[0])
    if min(sizes) < FEWEST:
        return None
    first = _drawn(sizes[0], SEED)
    second = first if paired else _drawn(sizes[1], SEED + 1)
    ratios = [_sums(parts, drawn) / _sums(wholes, drawn) for (parts, wholes), drawn in ((one, first), (other, second))]
    return _middle(ratios[1] - ratios[0], comparisons)


def _interval(count: int, statistic: Callable[[NDArray[np.intp]], Values]) -> Interval | None:
    return _middle(statistic(_drawn(count, SEED)), 1) if count >= FEWEST else None


@lru_cache(maxsize=64)
def _drawn(count: int, seed: int) -> NDArray[np.intp]:
    """Numbers of the prompts in each draw: [DRAWS, count]. Always the same, so that the same results give the same."""
    return np.random.default_rng(seed).integers(count, size=(DRAWS, count))


def _sums(values: Sequence[float], drawn: NDArray[np.intp]) -> Values:
    sums: Values = np.asarray(values, dtype=float)[drawn].sum(axis=1)
    return sums


def _middle(values: Values, comparisons: int) -> Interval:
    tail = 2.5 / comparisons
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
