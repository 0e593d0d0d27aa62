"""From measurements to points on a golden curve: of a suite's results and of traces. Nothing here imports torch.

An acceptance length here is the one of golden files and of vLLM, over the verify passes that had a draft. Trees are
left out: their draft length is a depth, and siblings make it another measure. So are drafts whose length goes by
confidence or by costs, and those of a combination that asks its parts for different lengths: none has one draft length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from specviz import acceptance_record
from specviz.errors import UserError
from specviz.golden import Facts, Measured
from specviz.metrics import acceptance
from specviz.trace import Trace
from specviz.workloads import conditions
from specviz.workloads.arms import Arm
from specviz.workloads.result_file import parse
from specviz.workloads.results import Header, Result
from specviz.workloads.statistics import ratio_interval

Points = dict[int, Measured]  # by draft length
ALL = "all suites"
HEAD = 100  # characters of a file that tell what it holds


class Counts(NamedTuple):
    """What one prompt brought at one draft length."""

    accepted: int
    drafts: int  # verify passes that had one


class Group(NamedTuple):
    """A drafter on a suite, or on one of its workloads; named as its curve in a golden file is."""

    model: str
    mode: str
    drafter: str
    points: Points
    facts: Facts  # the conditions under which these were measured


def holds_trace(path: Path) -> bool:
    """Whether a file begins as a trace does; otherwise it may hold results. Raises UserError if it can't be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return '"run"' in file.readline(HEAD)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} can't be read ({error}); give a trace or results.") from error


def read_results(path: Path) -> tuple[Header, list[Result]]:
    """What `bench` has written so far, the file left as it is: a line that is still being written is not read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} can't be read ({error}); give a file that bench --out wrote.") from error
    return parse(text[: text.rfind("\n") + 1], path.name)


def of_traces(traces: Mapping[str, Trace]) -> Points:
    """The runs' acceptance by draft length, those of one length together; of `statistics.FEWEST` on with an interval.

    traces: by what errors call them. Raises UserError for a synthetic run, for one whose drafts are trees or of a
    length chosen step by step, and for runs of different targets, drafters or settings.
    """
    found: dict[int, list[Counts]] = {}
    for name, run in traces.items():
        if run.run.mode == "synthetic":
            raise UserError(f"{name} is synthetic: its acceptance was told and not measured; give a real run.")
        arm = Arm(run.run.drafter, run.run.drafter_settings, run.run.gamma)
        is_tree = any(len(step.nodes) > step.gamma_used for step in run.steps)
        if run.run.gamma_policy != "fixed" or is_tree or _why_left_out(arm) is not None:
            raise UserError(
                f"{name} drafts trees or lengths that vary by policy, and golden lengths are of chains of one length; "
                "give a run with a fixed gamma and no tree."
            )
        numbers = acceptance(run)
        counts = Counts(numbers.accepted, numbers.steps - numbers.undrafted_steps)
        found.setdefault(run.run.gamma, []).append(counts)
    conditions.of_runs({name: run.run for name, run in traces.items()})
    return _points(found)


def of_results(results: Iterable[Result]) -> Points:
    """The results' acceptance by draft length: chains only, every prompt's passes together."""
    found: dict[int, list[Counts]] = {}
    for result in _chains(results):
        found.setdefault(result.arm.gamma, []).append(_counts(result))
    return _points(found)


def of_one_drafter(results: Sequence[Result], name: str | None = None) -> list[Result]:
    """Those of the drafter with that kind or name; where none is named there must be one alone."""
    fitting = [result for result in _chains(results) if name in (None, result.arm.kind, result.arm.name)]
    names = list(dict.fromkeys(result.arm.name for result in fitting))
    if len(names) == 1:
        return fitting
    known = ", ".join(dict.fromkeys(result.arm.name for result in _chains(results))) or "none that drafts chains"
    raise UserError(f"The results fit {len(names)} drafters; name one of those that they have: {known}.")


class Costs(NamedTuple):
    """What drafting and verifying cost, in plain steps."""

    cost_ratio: float
    verify_cost: float


def costs(results: Sequence[Result], gamma: int) -> Costs:
    """The medians over the prompts at this draft length; raises UserError where none was timed."""
    phases = [result.phases for result in _chains(results) if result.arm.gamma == gamma and result.phases]
    ratios = [phase.cost_ratio for phase in phases if phase.cost_ratio is not None]
    passes = [phase.verify_cost for phase in phases if phase.verify_cost is not None]
    if not ratios or not passes:
        raise UserError(f"The results have no costs of drafts of {gamma} tokens; give others, or c and v themselves.")
    return Costs(median(ratios), median(passes))


def groups(header: Header, results: Iterable[Result]) -> list[Group]:
    """Every drafter on all suites, on each suite and on each of its workloads, as far as something was drafted there.

    What would hold the same results as the group above it is left out.
    """
    made = [
        Group(f"{header.target} + {drafter}", mode, drafter, of_results(some), conditions.of_results(header, some))
        for drafter, own in _by(lambda result: result.arm.name, _chains(results)).items()
        for mode, some in _parts(own)
    ]
    return [group for group in made if group.points]


def _parts(own: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Of one drafter's results those of all suites, of each suite, and of each of its workloads."""
    suites = _by(lambda result: result.suite, own)
    if len(suites) > 1:
        yield ALL, list(own)
    for suite, some in suites.items():
        yield suite, some
        workloads = _by(lambda result: result.workload, some)
        if len(workloads) > 1:
            yield from ((f"{suite}/{workload}", found) for workload, found in workloads.items())


def _by(key: Callable[[Result], str], results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results in groups, in the order in which these first come."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def records(header: Header, results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """The engine-neutral record of every answer, with the prompt and the turn that it answers."""
    for result in results:
        settings = _settings(header, result)
        for turn, answer in enumerate(result.answers, start=1):
            made = acceptance_record.of_counts(answer.accepted, answer.drafted, answer.tokens, settings)
            whose = {"suite": result.suite, "workload": result.workload, "prompt": result.prompt, "turn": turn}
            yield {**made, **whose}


def _settings(header: Header, result: Result) -> acceptance_record.Settings:
    arm = result.arm
    return acceptance_record.Settings(
        mode="live",
        target=header.target,
        method=arm.kind,
        method_settings=arm.settings,
        gamma=arm.gamma,
        gamma_policy=conditions.policy_of(arm.settings),
        temperature=header.temperature,
        rule=header.rule,
        lossless=header.rule != "typical",
        dtype=header.dtype,
        device=header.device,
        seed=header.seed,
        batch=header.batch,
        chat_template=header.chat_template,
        weights={header.target: header.weights, **arm.weights},
        date=header.date,
    )


def left_out(results: Iterable[Result]) -> list[str]:
    """The ways of drafting that are not counted here, each with the reason. Plain decoding is none."""
    others = ((result.arm, _why_left_out(result.arm)) for result in results if result.arm.kind != "plain")
    return list(dict.fromkeys(f"{arm.name}, {arm.title}: {why}" for arm, why in others if why))


def _chains(results: Iterable[Result]) -> Iterator[Result]:
    return (result for result in results if result.arm.kind != "plain" and _why_left_out(result.arm) is None)


def _why_left_out(arm: Arm) -> str | None:
    """None for chains of the length that was asked for."""
    if arm.is_tree:
        return "drafts trees"
    if (arm.settings.get("second_gamma") or arm.gamma) < arm.gamma:
        return "asks its parts for drafts of two lengths"
    policy = conditions.policy_of(arm.settings)
    return None if policy == "fixed" else f"ends drafts by its gamma policy, {policy}"


def _counts(result: Result) -> Counts:
    return Counts(result.accepted, sum(tokens > 0 for answer in result.answers for tokens in answer.drafted))


def _points(found: dict[int, list[Counts]]) -> Points:
    """Draft lengths at which something was drafted."""
    return {k: _measured(counts) for k, counts in sorted(found.items()) if sum(count.drafts for count in counts)}


def _measured(counts: Sequence[Counts]) -> Measured:
    """Over all drafts together; the interval is a bootstrap over prompts, so that of few there is none.

    Prompts without a draft say nothing about drafts and are left out.
    """
    drafting = [count for count in counts if count.drafts]
    accepted, drafts = [count.accepted for count in drafting], [count.drafts for count in drafting]
    interval = ratio_interval(accepted, drafts)
    low, high = (1 + bound for bound in interval) if interval else (None, None)
    return Measured(1 + sum(accepted) / sum(drafts), low, high, sum(drafts))
