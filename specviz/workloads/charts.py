"""From results to the values of figures, and what the figures show. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specviz.figures.drift import Change, DriftInfo
from specviz.figures.heat_map import Cell, HeatMapInfo, Measure
from specviz.figures.over_position import Bin, OverPositionInfo
from specviz.figures.workload_survival import Panel, WorkloadSurvivalInfo
from specviz.workloads import breakdown, summary
from specviz.workloads.arms import Arm
from specviz.workloads.drift import ALL, compare
from specviz.workloads.results import Result
from specviz.workloads.statistics import FEWEST
from specviz.workloads.summary import Place, Row

MEASURES: tuple[Measure, ...] = ("acceptance length", "speed-up")
ALL_PROMPTS = "all prompts"
OVER_OUTPUT, OVER_PROMPT = "Acceptance over the output", "Acceptance by prompt length"
MARKS = {"faster": "▲", "slower": "▼", "no clear difference": "≈", "too few prompts": "?", None: ""}

DEFINITIONS: dict[str, str] = {
    "acceptance length": "Acceptance length = 1 + accepted draft tokens / verify passes, over all passes of the "
    "prompts together (step-weighted), passes without a draft included. The small numbers are its 95 % bootstrap "
    "interval: what it comes to when prompts are drawn anew, with replacement, its tails widened for few prompts; "
    f"fewer than {FEWEST} prompts have none. The mean of the prompts' own acceptance lengths (request-weighted) stands "
    "in the hover and in the table.",
    "speed-up": "Speed-up = plain over speculative time per token, prefill left out, each prompt with its own plain "
    "run beside it; the median over the prompts, with its 95 % bootstrap interval. Faster or slower is said where both "
    "that interval, if there is one, and the quartiles of the prompts (of fewer than 4, all of them) lie on one side "
    "of 1. Colours follow the logarithm, so that twice as slow is as dark as twice as fast.",
    "survival": "Survival at a draft position = the share of verify passes with a draft whose draft tokens were all "
    "accepted up to and including it. Σ is the sum: the accepted draft tokens per pass with a draft. Workloads come "
    "in the order of that sum; the line is the same drafter over all prompts together.",
    "output": "The acceptance length of the verify passes that began after so many tokens of an answer, with the 95 % "
    "bootstrap interval over the prompts. Long answers alone reach the later places, so the prompts are not the same "
    "ones everywhere; how many there are stands in the hover and in the table.",
    "prompt": "The acceptance length of answers to prompts of so many tokens, the conversation before them included, "
    "with the 95 % bootstrap interval over the prompts. Lengths come with workloads: long prompts are often summaries.",
    "drift": "The second set's figure less the first's: acceptance lengths step-weighted, speed-ups from the sums of "
    "all times. The intervals are Student's, of what each prompt adds to the difference (in pairs where both sets have "
    "the same prompts), and widened so that all of them together are right 95 times in 100 (Bonferroni). An interval "
    f"on one side of 0 is beyond noise; fewer than {FEWEST} prompts have none.",
}


def names_of(arms: Iterable[Arm]) -> list[tuple[str, str]]:
    """Name and setting of each: its kind where that says which drafter it is, else with what sets it apart."""
    listed = list(arms)
    kinds = [kind for kind, _ in dict.fromkeys((arm.kind, arm.name) for arm in listed)]
    return [(arm.kind if kinds.count(arm.kind) == 1 else arm.name, arm.title) for arm in listed]


def name_of(arm: Arm, arms: Iterable[Arm]) -> str:
    """One of them, on one line."""
    listed = list(arms)
    return ", ".join(names_of(listed)[listed.index(arm)])


def place_names(places: Iterable[Place]) -> dict[Place, str]:
    """The workload; with its suite where there are several and the suite is not that workload alone."""
    listed = list(dict.fromkeys(places))
    is_one = len({place.suite for place in listed}) == 1
    return {
        place: place.workload if is_one or place.suite == place.workload else f"{place.suite}: {place.workload}"
        for place in listed
    }


def of_arms(results: Iterable[Result], arms: Sequence[Arm]) -> list[Result]:
    return [result for result in results if result.arm in arms]


def all_arms(results: Sequence[Result]) -> list[Arm]:
    """Every drafter at every setting, in the order in which they first come."""
    return [group[0].arm for group in summary.by_arm(results)]


def best_arms(results: Sequence[Result]) -> list[Arm]:
    """Each drafter at its best setting: the fastest, or where nothing was timed the one with the most accepted."""
    return [row.arm for row in summary.best(summary.rows(results)).values()]


def lines(results: Sequence[Result], arms: Sequence[Arm]) -> dict[str, list[Row | None]]:
    """All prompts, then each workload: a row for each of the arms, None where it was not measured."""
    chosen = of_arms(results, arms)
    by_workload = summary.by_workload(chosen)
    names = place_names(by_workload)
    found = {names[place]: rows for place, rows in by_workload.items()}
    if len(found) > 1:
        found = {ALL_PROMPTS: summary.rows(chosen), **found}
    return {name: [_of(rows, arm) for arm in arms] for name, rows in found.items()}


def heat_map(results: Sequence[Result], arms: Sequence[Arm], measure: Measure) -> HeatMapInfo:
    """A line for all prompts together and one for each workload; a column for each of the arms."""
    table = lines(results, arms)
    return HeatMapInfo(
        measure=measure,
        workloads=tuple(table),
        drafters=tuple(names_of(arms)),
        cells=tuple(tuple(_cell(row, measure) for row in line) for line in table.values()),
    )


def survival(results: Sequence[Result], arm: Arm) -> WorkloadSurvivalInfo:
    """Of one arm on every workload."""
    own = of_arms(results, [arm])
    groups: dict[Place, list[Result]] = {}
    for result in own:
        groups.setdefault(Place(result.suite, result.workload), []).append(result)
    names = place_names(groups)
    return WorkloadSurvivalInfo(
        drafter=f"{arm.kind}, {arm.title}",
        overall=summary.survival(own),
        panels=tuple(Panel(names[at], summary.survival(group), _drafts(group)) for at, group in groups.items()),
    )


def over_output(results: Sequence[Result], arm: Arm) -> OverPositionInfo:
    """One arm's acceptance length by the tokens of the answer before a pass."""
    parts = breakdown.by_output_position(of_arms(results, [arm]))
    return _over(OVER_OUTPUT, "tokens of the answer", arm, parts)


def over_prompt(results: Sequence[Result], arm: Arm) -> OverPositionInfo:
    """One arm's acceptance length by the prompt's tokens."""
    parts = breakdown.by_prompt_tokens(of_arms(results, [arm]))
    return _over(OVER_PROMPT, "tokens of the prompt", arm, parts)


def drift(
    one: Sequence[Result], other: Sequence[Result], arms: Sequence[Arm], measure: Measure, names: tuple[str, str]
) -> DriftInfo:
    """What differs between two sets of results, of which the first has the arms; names: what the sets are called."""
    found = [each for each in compare(of_arms(one, arms), other) if each.measure == measure]
    changes = tuple(
        Change(
            drafter=name_of(each.arm, arms),
            workload=ALL_PROMPTS if each.workload == ALL else each.workload,
            before=each.before,
            after=each.after,
            interval=each.interval,
            prompts=each.prompts,
            paired=each.paired,
        )
        for each in found
    )
    return DriftInfo(measure, *names, changes)


def _of(rows: Sequence[Row], arm: Arm) -> Row | None:
    return next((row for row in rows if row.arm == arm), None)


def _cell(row: Row | None, measure: Measure) -> Cell | None:
    if row is None:
        return None
    if measure == "acceptance length":
        return Cell(row.acceptance_length, row.acceptance_interval, "", _hover(row))
    return None if row.speedup is None else Cell(row.speedup, row.speedup_interval, MARKS[row.verdict], _hover(row))


def _hover(row: Row) -> tuple[str, ...]:
    """Both means, the speed-up and how many prompts they are of."""
    by_step, by_request = row.acceptance_interval, row.request_interval
    said = [
        "acceptance length",
        f"{row.acceptance_length:.2f}{_within(by_step)} step-weighted",
        f"{row.request_acceptance_length:.2f}{_within(by_request)} request-weighted",
    ]
    if row.speedup is None:
        said.append("not timed")
    else:
        said.append(f"speed-up {row.speedup:.2f}x{_within(row.speedup_interval)}: {row.verdict}")
    return *said, f"{row.prompts} prompt{'' if row.prompts == 1 else 's'}"


def _within(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else " ({:.2f}–{:.2f})".format(*interval)


def _drafts(results: Sequence[Result]) -> int:
    """Verify passes with a draft."""
    return sum(depth > 0 for result in results for answer in result.answers for depth in answer.depths)


def _over(title: str, counted: str, arm: Arm, parts: Sequence[breakdown.Part]) -> OverPositionInfo:
    bins = (
        Bin(part.start, part.end, part.acceptance_length, part.interval, part.prompts, part.steps) for part in parts
    )
    return OverPositionInfo(title, counted, f"{arm.kind}, {arm.title}", tuple(bins))
