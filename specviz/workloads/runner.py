"""Runs suites: every arm on every prompt, plain and speculative decoding in turns."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter
from typing import Any

from specviz import measure, runs
from specviz.comparison import Divergence, Phases
from specviz.decoding.engine import Settings, check_prompt
from specviz.decoding.sampling import Sampler
from specviz.drafters import DRAFTERS, Drafter, Plain, settings_of
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.models.devices import synchronise
from specviz.models.target import Target
from specviz.prompts import Turn, encode
from specviz.trace import Run, Step, Trace
from specviz.workloads.arms import Arm
from specviz.workloads.forwards import watched
from specviz.workloads.prompts import Prompt
from specviz.workloads.result_file import Results
from specviz.workloads.results import Answer, Header, Result, digest, load_averages
from specviz.workloads.suites import Suite

WARM_UP = 16  # tokens of each that are decoded before anything of an arm is timed

Keep = Callable[[Result, Sequence[Trace]], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with every arm."""

    suites: tuple[Suite, ...]
    max_new_tokens: int
    repeats: int  # of the timed runs; 0: acceptance alone is counted
    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0

    @property
    def prompts(self) -> list[tuple[Suite, Prompt]]:
        return [(suite, prompt) for suite in self.suites for prompt in suite.prompts]

    def settings(self, gamma: int) -> Settings:
        return Settings(gamma=gamma, max_new_tokens=self.max_new_tokens, sampler=self.sampler, seed=self.seed)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A user turn as it was answered, and the settings with which it is decoded again."""

    trace: Trace
    again: Settings

    @property
    def ids(self) -> tuple[int, ...]:
        return self.trace.run.prompt


def takes_trees(kind: str) -> bool:
    """Whether a drafter of that kind, or one of those that it combines, can be asked for trees."""
    return any("tree" in settings_of(part) for part in kind.split("+") if part in DRAFTERS)


def run(
    loaded: Loaded,
    arms: Sequence[Arm],
    plan: Plan,
    results: Results,
    *,
    keep: Keep = lambda result, traces: None,
    lock: AbstractContextManager[Any] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Result]:
    """Measure the arms on the plan's prompts; yields every result, those that `results` has already first.

    Each new one has been added to `results` by then, and its traces, one for each turn, were given to `keep`. `lock` is
    held while anything is decoded, by default that of `loaded`. `arms` come without weights, as those are known once a
    drafter is built; `loaded` holds what they need. Targets that read no chats get the bare text of each prompt, and of
    the turns before it. Raises UserError for an arm or a prompt that does not work with the target, Cancelled within a
    step of `should_stop()` turning true.
    """
    held = loaded.lock if lock is None else lock
    for arm in arms:
        first = plan.prompts[0][1].turns[0]
        prepared = runs.prepare(
            loaded, arm.kind, arm.settings, first, plan.settings(arm.gamma), raw_prompt=not loaded.pairing.chat
        )
        results.begin(_header(prepared.run, loaded, plan))
        arm = with_weights(arm, prepared.run)
        kept = results.of(arm, plan.suites)
        yield from kept.values()
        if len(kept) < len(plan.prompts):
            with held:
                _warm_up(prepared, should_stop)
        for place, (suite, prompt) in enumerate(plan.prompts):
            if (suite.name, prompt.id) not in kept:
                with held:
                    result, traces = _measure(
                        prepared, arm, suite, prompt, plan, plain_first=place % 2 == 0, should_stop=should_stop
                    )
                keep(result, traces)
                results.add(result)
                yield result


def unfit(loaded: Loaded, plan: Plan) -> dict[tuple[str, str], str]:
    """Why prompts can't be decoded with this target, one that it can't hold above all, by suite and prompt."""
    found = {}
    for suite, prompt in plan.prompts:
        try:
            check_prompt(loaded.target, encode(loaded.target, prompt.turns[0], raw=not loaded.pairing.chat))
        except UserError as error:
            found[suite.name, prompt.id] = str(error)
    return found


def _warm_up(prepared: runs.Prepared, should_stop: Callable[[], bool]) -> None:
    """Decode a little, untimed, speculatively and plainly."""
    gc.collect()
    gc.freeze()  # as for the target: no search through the drafter's objects while something is timed
    settings = replace(prepared.settings, max_new_tokens=min(WARM_UP, prepared.settings.max_new_tokens))
    for drafter in (prepared.drafter, Plain()):
        _timed(prepared.loaded.target, drafter, prepared.prompt, settings, should_stop)


def with_weights(arm: Arm, run: Run) -> Arm:
    """The arm with the weights that its drafter turned out to have."""
    return replace(arm, weights={name: hash for name, hash in run.weights.items() if name != run.target})


def _measure(
    prepared: runs.Prepared,
    arm: Arm,
    suite: Suite,
    prompt: Prompt,
    plan: Plan,
    *,
    plain_first: bool,
    should_stop: Callable[[], bool],
) -> tuple[Result, list[Trace]]:
    """One arm on one prompt, both warm by then; the result, and a trace without detail of every turn.

    The conversation is held once, to its own end, which counts what is accepted. Each turn is then decoded again to as
    many tokens, stop tokens ignored, for the times; who goes first alternates with the repeats. One more run of each is
    synchronised and watched, for the costs and for what lies outside forward passes; nothing that is timed comes of it.
    """
    target, drafter = prepared.loaded.target, prepared.drafter
    asked = _converse(prepared, prompt, should_stop)
    is_compared = plan.repeats > 0 and plan.sampler.temperature == 0
    plain, seconds = _times(target, drafter, asked, plan.repeats, plain_first, should_stop)
    divergence = _first_divergence(target, asked, plain) if is_compared else None
    phases, outside = _watched(target, drafter, asked, should_stop) if plan.repeats > 0 else (None, None)
    result = Result(
        arm=arm,
        suite=suite.name,
        prompt=prompt.id,
        text=digest(prompt),
        workload=prompt.workload,
        length=prompt.length,
        turns=len(prompt.turns),
        answers=tuple(answer_of(turn.trace) for turn in asked),
        plain_s=tuple(seconds[True]),
        speculative_s=tuple(seconds[False]),
        phases=phases,
        outside=outside,
        identical=divergence is None if is_compared else None,
        divergence=divergence,
    )
    return result, [turn.trace for turn in asked]


def _converse(prepared: runs.Prepared, prompt: Prompt, should_stop: Callable[[], bool]) -> list[_Asked]:
    """Ask turn after turn, with the target's own answers between them, until the target can hold no more."""
    asked: list[_Asked] = []
    history: list[Turn] = []
    for text in prompt.turns:
        try:
            turn = prepared.asking(text, history)
        except UserError:
            if not asked:
                raise
            break
        steps = measure.undetailed(turn.loaded.target, turn.drafter, turn.prompt, turn.settings, should_stop)
        trace = Trace(turn.run, tuple(steps))
        again = replace(turn.settings, max_new_tokens=len(trace.tokens), stop_tokens=frozenset())
        asked.append(_Asked(trace, again))
        history.append(Turn(text, trace.text))
    return asked


def _times(
    target: Target,
    drafter: Drafter,
    asked: Sequence[_Asked],
    repeats: int,
    plain_first: bool,
    should_stop: Callable[[], bool],
) -> tuple[list[list[int]], dict[bool, list[float]]]:
    """Plain decoding's tokens for each turn, of the first repeat, and the seconds per token of plain and speculative
    decoding, by whether it is plain."""
    tokens: list[list[int]] = []
    seconds: dict[bool, list[float]] = {True: [], False: []}
    count = sum(len(turn.trace.tokens) for turn in asked)
    for repeat in range(repeats):
        first = plain_first == (repeat % 2 == 0)
        for is_plain in (first, not first):
            way = Plain() if is_plain else drafter
            laps = [_timed(target, way, turn.ids, turn.again, should_stop) for turn in asked]
            seconds[is_plain].append(sum(took for _, took in laps) / count)
            if is_plain and repeat == 0:
                tokens = [_tokens(steps) for steps, _ in laps]
    return tokens, seconds


def _first_divergence(target: Target, asked: Sequence[_Asked], plain: Sequence[list[int]]) -> Divergence | None:
    """In the first turn where the outputs part."""
    parts = (
        measure.first_divergence(target, turn.ids, tokens, turn.trace.tokens, turn.again)
        for turn, tokens in zip(asked, plain, strict=True)
    )
    return next((parted for parted in parts if parted), None)


def _watched(
    target: Target, drafter: Drafter, asked: Sequence[_Asked], should_stop: Callable[[], bool]
) -> tuple[Phases, float | None]:
    """Where the time goes, over all turns together, and the mean of their shares outside models' forward passes."""
    both = [[watch(target, way, turn.ids, turn.again, should_stop) for turn in asked] for way in (drafter, Plain())]
    speculative, plain = ([step for steps, _ in each for step in steps] for each in both)
    shares = [share for _, share in both[0] if share is not None]
    return measure.where_time_goes(speculative, plain), fmean(shares) if shares else None


def _timed(
    target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings, should_stop: Callable[[], bool]
) -> tuple[list[Step], float]:
    """Decode without detail; the steps, and the seconds from the end of prefill to the last token."""
    synchronise(target.device)
    started = perf_counter()
    steps = list(measure.undetailed(target, drafter, prompt, settings, should_stop))
    synchronise(target.device)
    return steps, perf_counter() - started - sum(step.prefill_s or 0.0 for step in steps)


def watch(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    settings: Settings,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[list[Step], float | None]:
    """Decode with phases; the steps, and the share of the time that was spent outside models' forward passes.

    The share is of all that happens from the end of the first step on, recording included: the first step holds
    prefills. None if there is no second step.
    """
    steps: list[Step] = []
    started = inside = 0.0
    with watched(target, drafter) as forwards:
        for step in measure.undetailed(target, drafter, prompt, settings, should_stop, phases=True):
            if not steps:
                started, inside = perf_counter(), forwards.seconds
            steps.append(step)
        seconds, inside = perf_counter() - started, forwards.seconds - inside
    return steps, (seconds - inside) / seconds if len(steps) > 1 else None


def answer_of(trace: Trace) -> Answer:
    """What a result keeps of a run."""
    steps = trace.steps
    return Answer(
        prompt_tokens=len(trace.run.prompt),
        depths=tuple(step.gamma_used for step in steps),
        drafted=tuple(len(step.nodes) for step in steps),
        accepted=tuple(step.num_accepted for step in steps),
        committed=tuple(len(step.committed) for step in steps),
    )


def _tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def _header(run: Run, loaded: Loaded, plan: Plan) -> Header:
    return Header(
        pairing=loaded.pairing.id,
        target=run.target,
        weights=loaded.target.weights,
        device=run.device,
        dtype=run.dtype,
        threads=run.threads,
        versions=run.versions,
        sampler=run.sampler,
        seed=run.seed,
        max_new_tokens=plan.max_new_tokens,
        timed=plan.repeats > 0,
        repeats=plan.repeats,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        load=load_averages(),
        chat_template=run.chat_template,
    )
