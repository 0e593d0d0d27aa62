"""Fair timing: warm up, interleave, repeat, and say how far the repeats spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import mean, median
from time import perf_counter

import torch

from specviz.comparison import Comparison, Divergence, Lap, Phases
from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.policy import Reading
from specviz.drafters.base import Drafter
from specviz.drafters.plain import Plain
from specviz.errors import Cancelled
from specviz.models.devices import synchronise
from specviz.models.target import Target
from specviz.trace import Step


def compare(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    settings: Settings,
    *,
    repeats: int = 3,
    phases: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Time speculative against plain decoding; yields after each repeat, the last value being the result.

    One untimed run of each warms up, each followed by a yield without times; the two give the outputs that `identical`
    compares. The timed runs then decode exactly as many tokens as the speculative output has, stop tokens ignored, in
    alternating order. A draft model reads the prompt anew in each run, which counts as drafting. With `phases`, one
    more run of each kind is synchronised to tell where the time goes, and the result is yielded once more with that.
    Nothing is timed across a yield. Raises Cancelled within one step of `should_stop()` turning true.
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
        laps: dict[bool, Lap] = {}
        for is_plain in (True, False) if repeat % 2 == 0 else (False, True):
            _, laps[is_plain] = _run(target, Plain() if is_plain else drafter, prompt, timed, should_stop)
        result = replace(result, plain=(*result.plain, laps[True]), speculative=(*result.speculative, laps[False]))
        yield result
    if phases:
        phased = list(undetailed(target, drafter, prompt, timed, should_stop, phases=True))
        plain_phased = list(undetailed(target, Plain(), prompt, timed, should_stop, phases=True))
        yield replace(result, phases=where_time_goes(phased, plain_phased))


def _run(
    target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings, should_stop: Callable[[], bool]
) -> tuple[list[int], Lap]:
    """Decode without recording; the tokens, and when they came."""
    tokens: list[int] = []
    texts: list[tuple[str, ...]] = []
    seconds: list[float] = []
    prefill_s = 0.0
    synchronise(target.device)
    started = perf_counter()
    for step in undetailed(target, drafter, prompt, settings, should_stop):
        prefill_s += step.prefill_s or 0.0
        seconds.append(perf_counter() - started - prefill_s)
        tokens.extend(step.committed)
        texts.append(step.text)
    if seconds:
        synchronise(target.device)
        seconds[-1] = perf_counter() - started - prefill_s
    return tokens, Lap(tuple(seconds), tuple(texts))


def undetailed(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    settings: Settings,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    phases: bool = False,
) -> Iterator[Step]:
    """Decode without recording; raises Cancelled after the step in which `should_stop()` turned true."""
    for step in decode(target, drafter, prompt, settings, detail=False, phases=phases, should_stop=should_stop):
        if should_stop():
            raise Cancelled
        yield step


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


def where_time_goes(phased: Sequence[Step], plain: Sequence[Step]) -> Phases:
    """The phases of a speculative and of a plain run, both with phases and of at least one step."""

    def per_token(steps: Sequence[Step], phase: str) -> float:
        seconds: float = sum(getattr(step, phase) for step in steps)
        return seconds / sum(len(step.committed) for step in steps)

    return Phases(
        draft_s=per_token(phased, "draft_s"),
        verify_s=per_token(phased, "verify_s"),
        decide_s=per_token(phased, "decide_s"),
        plain_verify_s=per_token(plain, "verify_s"),
        plain_decide_s=per_token(plain, "decide_s"),
        cost_ratio=cost_ratio(phased, plain),
        verify_cost=_mean_verify_cost(phased, plain),
        gamma_used=mean(step.gamma_used for step in phased),
        acceptance_length=1 + mean(step.num_accepted for step in phased),
    )


def _mean_verify_cost(phased: Sequence[Step], plain: Sequence[Step]) -> float | None:
    """The mean over all steps, those without a draft included, as for the draft lengths that it stands beside."""
    singles = [step.verify_s for step in plain if step.verify_s is not None]
    passes = [step.verify_s for step in phased if step.verify_s is not None]
    return mean(passes) / median(singles) if passes and singles else None


def cost_ratio(phased: Sequence[Step], plain: Sequence[Step]) -> float | None:
    """c: seconds of drafting per draft token over the median plain verify pass; both runs with phases.

    Steps without a draft are left out, and those in which a drafter has read the prompt: the first one, and the first
    that is by another drafter. None if nothing was drafted besides.
    """
    reading = Reading()
    steps = [step for step in phased if not reading.is_in(step) and step.draft_s is not None and step.gamma_used]
    drafted = sum(step.gamma_used for step in steps)
    singles = [step.verify_s for step in plain if step.verify_s is not None]
    return sum(step.draft_s or 0 for step in steps) / drafted / median(singles) if drafted and singles else None


def verify_cost(phased: Sequence[Step], plain: Sequence[Step]) -> float | None:
    """v: median verify pass of the steps that drafted, over the median plain verify pass; both runs with phases."""
    passes = [step.verify_s for step in phased if step.gamma_used and step.verify_s is not None]
    singles = [step.verify_s for step in plain if step.verify_s is not None]
    return median(passes) / median(singles) if passes and singles else None
