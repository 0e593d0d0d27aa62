"""Runs and comparisons to draw, by draft length."""

from random import Random

from traces import trace

from specviz.comparison import Comparison, Phases
from specviz.trace import Trace


def drafted(gamma: int, steps: int = 60, undrafted: int = 0) -> Trace:
    """A run in which three of four tested draft tokens are accepted."""
    rng = Random(gamma)
    letters = []
    for _ in range(steps):
        accepted = next((depth for depth in range(gamma) if rng.random() > 0.75), gamma)
        letters.append("a" * accepted + ("r" + "u" * gamma)[: gamma - accepted])
    return trace(*letters, *[""] * undrafted, gamma=gamma)


def compared(
    cost_ratio: float | None = 0.97,
    acceptance_length: float = 2.44,
    draft_s: float = 0.0162,
    verify_s: float = 0.0074,
    gamma_used: float = 4.0,
) -> Comparison:
    """A comparison with phases; break-even at (acceptance length - 1.2) / gamma_used."""
    phases = Phases(
        draft_s=draft_s,
        verify_s=verify_s,
        decide_s=0.0011,
        plain_verify_s=0.0126,
        plain_decide_s=0.0004,
        cost_ratio=cost_ratio,
        verify_cost=1.2,
        gamma_used=gamma_used,
        acceptance_length=acceptance_length,
    )
    return Comparison(40, (), (), None, None, phases)
