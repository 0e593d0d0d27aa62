"""Runs a suite: every arm on every prompt, plain and speculative decoding in turns."""

from __future__ import annotations

import datetime
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from specviz import measure, runs
from specviz.decoding.engine import Settings, decode
from specviz.drafters import DRAFTERS, Drafter, Plain, settings_of
from specviz.loaded import Loaded
from specviz.models.devices import synchronise
from specviz.models.target import Target
from specviz.prompts import encode
from specviz.trace import Run, Step
from specviz.workloads.arms import Arm
from specviz.workloads.forwards import watched
from specviz.workloads.prompts import Prompt
from specviz.workloads.results import Header, Result, Results, digest, load_averages

WARM_UP = 16  # tokens of each that are decoded before anything of an arm is timed


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with every arm."""

    suite: str
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    repeats: int

    def settings(self, gamma: int) -> Settings:
        """Greedy, to exactly so many tokens."""
        return Settings(gamma=gamma, max_new_tokens=self.max_new_tokens, stop_tokens=frozenset())


def takes_trees(kind: str) -> bool:
    """Whether a drafter of that kind, or one of those that it combines, can be asked for trees."""
    return any("tree" in settings_of(part) for part in kind.split("+") if part in DRAFTERS)


def run(loaded: Loaded, arms: Sequence[Arm], plan: Plan, results: Results) -> Iterator[Result]:
    """Measure the arms on the plan's prompts; yields every result, those that `results` has already first.

    Each new one has been added to `results` by then. `arms` come without weights, as those are known once a drafter is
    built; `loaded` holds what they need. Raises UserError for an arm that does not work with the target.
    """
    target = loaded.target
    for arm in arms:
        prepared = runs.prepare(loaded, arm.kind, arm.settings, plan.prompts[0].text, plan.settings(arm.gamma))
        results.begin(_header(prepared.run, loaded, plan))
        arm = with_weights(arm, prepared.run)
        kept = results.of([arm], plan.prompts)
        yield from kept
        done = {result.prompt for result in kept}
        if len(done) < len(plan.prompts):
            with loaded.lock:
                _warm_up(target, prepared)
        for place, prompt in enumerate(plan.prompts):
            if prompt.id not in done:
                with loaded.lock:
                    result = measure_prompt(target, prepared.drafter, arm, prompt, plan, plain_first=place % 2 == 0)
                results.add(result)
                yield result


def _warm_up(target: Target, prepared: runs.Prepared) -> None:
    """Decode a little, untimed, speculatively and plainly."""
    gc.collect()
    gc.freeze()  # as for the target: no search through the drafter's objects while something is timed
    settings = replace(prepared.settings, max_new_tokens=min(WARM_UP, prepared.settings.max_new_tokens))
    for drafter in (prepared.drafter, Plain()):
        timed(target, drafter, prepared.prompt, settings)


def with_weights(arm: Arm, run: Run) -> Arm:
    """The arm with the weights that its drafter turned out to have."""
    return replace(arm, weights={name: hash for name, hash in run.weights.items() if name != run.target})


def measure_prompt(
    target: Target, drafter: Drafter, arm: Arm, prompt: Prompt, plan: Plan, *, plain_first: bool
) -> Result:
    """One arm on one prompt, both warm by then. Who goes first alternates with the repeats.

    After the timed runs, one more of each is synchronised and watched, for the costs and for what lies outside forward
    passes; nothing that is timed comes of those.
    """
    ids, settings = encode(target, prompt.text), plan.settings(arm.gamma)
    steps: dict[bool, list[Step]] = {}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(plan.repeats):
        first = plain_first == (repeat % 2 == 0)
        for is_plain in (first, not first):
            made, took = timed(target, Plain() if is_plain else drafter, ids, settings)
            steps.setdefault(is_plain, made)
            seconds[is_plain].append(took)
    plain, speculative = _tokens(steps[True]), _tokens(steps[False])
    phased, outside = watch(target, drafter, ids, settings)
    plain_phased, _ = watch(target, Plain(), ids, settings)
    return Result(
        arm=arm,
        prompt=prompt.id,
        text=digest(prompt.text),
        kind=prompt.kind,
        tokens=len(speculative),
        steps=len(steps[False]),
        accepted=sum(step.num_accepted for step in steps[False]),
        plain_s=tuple(seconds[True]),
        speculative_s=tuple(seconds[False]),
        phases=measure.where_time_goes(phased, plain_phased),
        outside=outside,
        divergence=measure.first_divergence(target, ids, plain, speculative, settings),
    )


def timed(target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings) -> tuple[list[Step], float]:
    """Decode without detail; the steps, and the seconds per token from the end of prefill to the last token."""
    synchronise(target.device)
    started = perf_counter()
    steps = list(decode(target, drafter, prompt, settings, detail=False))
    synchronise(target.device)
    seconds = perf_counter() - started - sum(step.prefill_s or 0.0 for step in steps)
    return steps, seconds / len(_tokens(steps))


def watch(
    target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings
) -> tuple[list[Step], float | None]:
    """Decode with phases; the steps, and the share of the time that was spent outside models' forward passes.

    The share is of all that happens from the end of the first step on, recording included: the first step holds
    prefills. None if there is no second step.
    """
    steps: list[Step] = []
    started = inside = 0.0
    with watched(target, drafter) as forwards:
        for step in decode(target, drafter, prompt, settings, detail=False, phases=True):
            if not steps:
                started, inside = perf_counter(), forwards.seconds
            steps.append(step)
        seconds, inside = perf_counter() - started, forwards.seconds - inside
    return steps, (seconds - inside) / seconds if len(steps) > 1 else None


def _tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def _header(run: Run, loaded: Loaded, plan: Plan) -> Header:
    return Header(
        suite=plan.suite,
        target=run.target,
        weights=loaded.target.weights,
        device=run.device,
        dtype=run.dtype,
        threads=run.threads,
        versions=run.versions,
        max_new_tokens=plan.max_new_tokens,
        repeats=plan.repeats,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        load=load_averages(),
    )
