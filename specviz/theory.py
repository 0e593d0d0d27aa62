"""What acceptance and costs promise: the formulas of speculative decoding, and of the roofline that bounds it.

Standard library only. Sources: Leviathan et al. 2023 (alpha, c and the best gamma), Sadhukhan et al. 2024, MagicDec
(verify passes that cost more than a plain step), Austin et al. 2025, "How to Scale Your Model" (the roofline).
Acceptance lengths include the token that ends a step, as vLLM, SGLang and Spec-Bench count them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import expm1, log

LONGEST_GAMMA = 64  # no search for the best draft length goes on beyond it


def expected_length(alpha: float, gamma: float) -> float:
    """The acceptance length when each of `gamma` draft tokens is accepted with the chance `alpha`, independently.

    1 + alpha + ... + alpha**gamma. Real acceptance falls with the position, so from the first position's rate this
    promises too much; see `length_of` for what survival gives.
    """
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"alpha {alpha} is no chance, or gamma {gamma} is below 0")
    if alpha in (0, 1) or gamma == 0:
        return 1.0 + gamma * alpha
    # (1 - alpha**(gamma + 1)) / (1 - alpha), without the cancellation where alpha is nearly 1
    return -expm1((gamma + 1) * log(alpha)) / (1 - alpha)


def length_of(survival: Sequence[float]) -> float:
    """The acceptance length of drafts whose first i tokens all survive with the chance `survival[i - 1]`."""
    return 1 + sum(survival)


def alpha_of(length: float, gamma: int) -> float:
    """The alpha with which `expected_length(alpha, gamma)` is `length`; raises ValueError where none can be."""
    if gamma < 1 or not 1 <= length <= gamma + 1:
        raise ValueError(f"drafts of {gamma} tokens can't have an acceptance length of {length}")
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if expected_length(middle, gamma) < length else (low, middle)
    return low if abs(expected_length(low, gamma) - length) < abs(expected_length(high, gamma) - length) else high


def speedup(length: float, gamma: float, cost_ratio: float, verify_cost: float = 1.0) -> float:
    """Plain over speculative time per token: length / (v + gamma * c).

    `cost_ratio` c: drafting one token over a plain step. `verify_cost` v: a verify pass over a plain step; at 1 this is
    Leviathan's formula. Raises ValueError where a step would cost nothing.
    """
    cost = verify_cost + gamma * cost_ratio
    if cost <= 0:
        raise ValueError(f"a step of {gamma} draft tokens at cost {cost_ratio} with a verify pass of {verify_cost}")
    return length / cost


def best_gamma(alpha: float, cost_ratio: float, verify_cost: Callable[[int], float] = lambda gamma: 1.0) -> int:
    """The draft length with the greatest speed-up for this alpha, 0 where none pays; the shortest of equals.

    `verify_cost(gamma)`: what a verify pass over gamma + 1 tokens costs, in plain steps.
    """
    return max(
        range(LONGEST_GAMMA + 1),
        key=lambda gamma: speedup(expected_length(alpha, gamma), gamma, cost_ratio, verify_cost(gamma)),
    )


def arithmetic_inflation(alpha: float, gamma: int, operations_ratio: float) -> float:
    """Arithmetic of speculative over plain decoding per token; `operations_ratio`: a drafter's step over the target's.

    Leviathan et al., theorem 3.11: (gamma * c' + gamma + 1) / expected_length.
    """
    return (gamma * operations_ratio + gamma + 1) / expected_length(alpha, gamma)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device can do: bytes read per second, and multiply-add operations per second counted as two each."""

    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class Load:
    """What one decode step has to move and to compute."""

    weight_bytes: float  # read once per step
    parameters: float  # that take part in a token's arithmetic
    kv_bytes_per_token: float  # read for every token of every sequence's context


def step_seconds(machine: Machine, load: Load, batch: int, rows: int, context: int) -> float:
    """The roofline's least time of a pass over `rows` tokens of each of `batch` sequences after `context` tokens each.

    The caches are read once per sequence; weights are read while they are computed with, so the slower of both counts.
    rows: 1 in plain decoding, gamma + 1 in a verify pass.
    """
    caches = batch * context * load.kv_bytes_per_token / machine.bandwidth
    arithmetic = 2 * batch * rows * load.parameters / machine.flops
    return caches + max(arithmetic, load.weight_bytes / machine.bandwidth)


def experts_hit(experts: int, per_token: int, tokens: float) -> float:
    """How many of a layer's experts a pass over so many tokens is expected to read, if routing were even and random.

    A mixture reads more of its weights the more tokens there are, so verifying is never free for it.
    """
    missed: float = (1 - per_token / experts) ** tokens
    return experts * (1 - missed)


def ridge_tokens(machine: Machine, load: Load) -> float:
    """How many tokens a pass may hold until arithmetic takes longer than reading the weights: verifying is free."""
    return machine.flops * load.weight_bytes / (2 * machine.bandwidth * load.parameters)


def crossover(batches: Sequence[float], speedups: Sequence[float]) -> float | None:
    """The batch size at which the speed-up first falls to 1, between its neighbours in a straight line.

    None if it never falls from above 1 to 1 or below.
    """
    pairs = list(zip(batches, speedups, strict=True))
    for (batch, before), (following, after) in pairwise(pairs):
        if before > 1 >= after:
            return batch + (following - batch) * (before - 1) / (before - after)
    return None
