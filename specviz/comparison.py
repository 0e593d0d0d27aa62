"""What a comparison with plain decoding found: plain values, written as JSON. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from specviz import theory, trace
from specviz.errors import UserError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where greedy speculative output first parts from plain output."""

    index: int  # of the output token, from 0
    plain: int | None  # the tokens there; None past the end of the shorter output
    speculative: int | None
    margin: float | None  # target's logit of the plain token minus that of the other, in a one-token pass
    near_tie: bool  # the margin is within what rounding in this number format can flip


@dataclass(frozen=True, slots=True)
class Lap:
    """One timed run: when each of its steps was done, and what the step said."""

    seconds: tuple[float, ...]  # per step, since the end of prefill
    texts: tuple[tuple[str, ...], ...]  # per step, per committed token; "" while a character is incomplete

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def total(self) -> float:
        """Seconds from the end of prefill to the last token."""
        return self.seconds[-1] if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time goes: seconds per token of two runs that were synchronised for it, so no speed-up comes of them.

    A draft model's reading of the prompt counts as drafting here, as it does in a timed run, but not in `cost_ratio`.
    """

    draft_s: float  # of the speculative run
    verify_s: float
    decide_s: float
    plain_verify_s: float
    plain_decide_s: float
    cost_ratio: float | None  # c: drafting one token over a plain verify pass
    verify_cost: float | None  # v: the mean verify pass, with a draft or without, over a plain one
    gamma_used: float | None  # mean draft length over all steps
    acceptance_length: float | None  # 1 + accepted / steps

    @property
    def promised(self) -> float | None:
        """The speed-up that acceptance and costs promise: acceptance length / (v + gamma_used * c)."""
        length, v, c, gamma = self.acceptance_length, self.verify_cost, self.cost_ratio, self.gamma_used
        if length is None or v is None or c is None or gamma is None or v + gamma * c <= 0:
            return None
        return theory.speedup(length, gamma, c, v)

    @property
    def break_even(self) -> float | None:
        """The cost ratio at which `promised` would be 1; at 0 or below, no drafter is cheap enough."""
        if self.acceptance_length is None or self.verify_cost is None or not self.gamma_used:
            return None
        return (self.acceptance_length - self.verify_cost) / self.gamma_used


@dataclass(frozen=True, slots=True)
class Comparison:
    """Speculative against plain decoding of the same prompt to the same number of tokens."""

    tokens: int
    plain: tuple[Lap, ...]  # one per repeat
    speculative: tuple[Lap, ...]
    identical: bool | None  # greedy outputs agree; None when sampling, where they need not
    divergence: Divergence | None
    phases: Phases | None = None

    @property
    def plain_s(self) -> tuple[float, ...]:
        """Seconds per token, prefill excluded, one per repeat."""
        return tuple(lap.total / lap.tokens for lap in self.plain)

    @property
    def speculative_s(self) -> tuple[float, ...]:
        return tuple(lap.total / lap.tokens for lap in self.speculative)

    @property
    def repeats(self) -> int:
        return len(self.plain)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Plain over speculative time per token, repeat by repeat: above 1 is faster."""
        return tuple(plain / fast for plain, fast in zip(self.plain_s, self.speculative_s, strict=True))

    @property
    def speedup(self) -> float | None:
        return median(self.ratios) if self.repeats else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Smallest and largest ratio."""
        return (min(self.ratios), max(self.ratios)) if self.repeats else None

    @property
    def typical(self) -> int | None:
        """The repeat whose ratio is nearest to the speed-up, the first of equals."""
        if self.speedup is None:
            return None
        distances = [abs(ratio - self.speedup) for ratio in self.ratios]
        return distances.index(min(distances))

    @property
    def plain_tokens_per_s(self) -> float | None:
        return 1 / median(self.plain_s) if self.repeats else None

    @property
    def speculative_tokens_per_s(self) -> float | None:
        return 1 / median(self.speculative_s) if self.repeats else None


def to_json(comparison: Comparison) -> str:
    return trace.dump({"schema": SCHEMA, "comparison": trace.plain(comparison)})


def from_json(text: str, name: str) -> Comparison:
    """Read a comparison; `name` is what errors call it. Raises UserError for anything this version does not know."""
    content = trace.load(text, name)
    if not isinstance(content, dict) or type(content.get("schema")) is not int or content["schema"] != SCHEMA:
        raise UserError(f"{name} is no comparison of schema {SCHEMA}, the only one that this version reads.")
    trace.check_keys(content, {"schema", "comparison"}, name)
    comparison: Comparison = trace.build(Comparison, content["comparison"], name)
    laps = (*comparison.plain, *comparison.speculative)
    if len(comparison.plain) != len(comparison.speculative) or not all(
        _is_sound(lap, comparison.tokens) for lap in laps
    ):
        raise UserError(f"{name}: its laps, times and tokens do not fit together.")
    return comparison


def _is_sound(lap: Lap, tokens: int) -> bool:
    """A step per time, in order, to as many tokens as were compared."""
    in_order = all(earlier <= later for earlier, later in pairwise((0.0, *lap.seconds)))
    return in_order and lap.total > 0 and lap.tokens == tokens > 0 and len(lap.seconds) == len(lap.texts)
