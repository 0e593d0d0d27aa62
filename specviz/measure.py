"""Fair timing: warm up, interleave, repeat, and say how far the repeats spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.drafters.base import Drafter
from specviz.drafters.plain import Plain
from specviz.errors import Cancelled
from specviz.models.devices import synchronise
from specviz.models.target import Target
from specviz.trace import Step


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where greedy speculative output first parts from plain output."""

    index: int  # of the output token, from 0
    plain: int | None  # the tokens there; None past the end of the shorter output
    speculative: int | None
    margin: float | None  # target's logit of the plain token minus that of the other, in a one-token pass
    near_tie: bool  # the margin is within what rounding in this number format can flip


@dataclass(frozen=True, slots=True)
class Comparison:
    """Speculative against plain decoding of the same prompt to the same number of tokens."""

    tokens: int
    plain_s: tuple[float, ...]  # seconds per token, prefill excluded, one per repeat
    speculative_s: tuple[float, ...]
    identical: bool | None  # greedy outputs agree; None when sampling, where they need not
    divergence: Divergence | None

    @property
    def repeats(self) -> int:
        return len(self.ratios)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Plain over speculative time per token, repeat by repeat: above 1 is faster."""
        return tuple(plain / fast for plain, fast in zip(self.plain_s, self.speculative_s, strict=False))

    @property
    def speedup(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Smallest and largest ratio."""
        return (min(self.ratios), max(self.ratios)) if self.ratios else None

    @property
    def plain_tokens_per_s(self) -> float | None:
        return 1 / median(self.plain_s) if self.plain_s else None


def compare(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    settings: Settings,
    *,
    repeats: int = 3,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Time speculative against plain decoding; yields after each repeat, the last value being the result.

    One untimed run of each warms up, each followed by a yield without times; the two give the outputs that `identical`
    compares. The timed runs then decode exactly as many tokens as the speculative output has, stop tokens ignored, in
    alternating order. A draft model reads the prompt anew in each run, which counts as drafting. Nothing is timed
    across a yield. Raises Cancelled within one step of `should_stop()` turning true.
    """
    speculative, _ = _run(target, drafter, prompt, settings, should_stop)
    yield Comparison(len(speculative), (), (), None, None)
    plain, _ = _run(target, Plain(), prompt, settings, should_stop)
    greedy = settings.sampler.temperature == 0
    divergence = first_divergence(target, prompt, plain, speculative, settings) if greedy else None
    result = Comparison(len(speculative), (), (), divergence is None if greedy else None, divergence)
    yield result
    if len(speculative) == 0:
        return
    timed = replace(settings, max_new_tokens=len(speculative), stop_tokens=frozenset(), stop_strings=())
    for repeat in range(repeats):
        times: dict[bool, float] = {}
        for is_plain in (True, False) if repeat % 2 == 0 else (False, True):
            tokens, seconds = _run(target, Plain() if is_plain else drafter, prompt, timed, should_stop)
            times[is_plain] = seconds / len(tokens)
        result = replace(
            result, plain_s=(*result.plain_s, times[True]), speculative_s=(*result.speculative_s, times[False])
        )
        yield result


def _run(
    target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings, should_stop: Callable[[], bool]
) -> tuple[list[int], float]:
    """Decode without recording; the tokens, and the seconds from the end of prefill to the last token."""
    tokens: list[int] = []
    prefill_s = 0.0
    synchronise(target.device)
    started = perf_counter()
    for step in decode(target, drafter, prompt, settings, detail=False, should_stop=should_stop):
        if should_stop():
            raise Cancelled
        tokens.extend(step.committed)
        prefill_s += step.prefill_s or 0.0
    synchronise(target.device)
    return tokens, perf_counter() - started - prefill_s


def first_divergence(
    target: Target, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int], settings: Settings
) -> Divergence | None:
    """Where two greedy outputs part, with the target's own logits there; None if they are the same."""
    length = max(len(plain), len(speculative))
    padded = [[*tokens, *[None] * (length - len(tokens))] for tokens in (plain, speculative)]
    index = next((i for i, (a, b) in enumerate(zip(*padded, strict=True)) if a != b), None)
    if index is None:
        return None
    a, b = padded[0][index], padded[1][index]
    if a is None or b is None:
        return Divergence(index, a, b, None, False)
    prefix = [*prompt, *plain[:index]]
    with torch.inference_mode():
        target.prefill(prefix[:-1])
        logits, _ = target.verify(prefix[-1], Draft.empty())
        target.keep(())
        scores = settings.sampler.scores(logits, prefix)[0]
        margin = float(scores[a] - scores[b])
        largest = float(logits.abs().max())
    return Divergence(index, a, b, margin, abs(margin) <= 4 * torch.finfo(target.dtype).eps * largest)


def cost_ratio(phased: Sequence[Step], plain: Sequence[Step]) -> float | None:
    """c: seconds of drafting per draft token over the median plain verify pass; both runs with phases.

    The first step, which holds the drafter's prefill, is left out. None if nothing was drafted after it.
    """
    steps = [step for step in phased[1:] if step.draft_s is not None and step.gamma_used]
    drafted = sum(step.gamma_used for step in steps)
    singles = [step.verify_s for step in plain if step.verify_s is not None]
    return sum(step.draft_s or 0 for step in steps) / drafted / median(singles) if drafted and singles else None


def verify_cost(phased: Sequence[Step], plain: Sequence[Step]) -> float | None:
    """v: median verify pass of the steps that drafted, over the median plain verify pass; both runs with phases."""
    passes = [step.verify_s for step in phased if step.gamma_used and step.verify_s is not None]
    singles = [step.verify_s for step in plain if step.verify_s is not None]
    return median(passes) / median(singles) if passes and singles else None
