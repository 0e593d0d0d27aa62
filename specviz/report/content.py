"""What a report of a suite's results says, from the verdict to the commands that measure it anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from specviz.errors import UserError
from specviz.report import arms_tables, workload_tables
from specviz.report.again import again, shell
from specviz.report.blocks import Block, Code, Facts, Interval, Paragraph, Points, Report, Section
from specviz.report.caveats import caveats
from specviz.report.drift_tables import Against, drift
from specviz.report.method import facts, method
from specviz.report.names import plural
from specviz.workloads import charts, sheets
from specviz.workloads.arms import Arm
from specviz.workloads.choice import choose
from specviz.workloads.results import Header, Result
from specviz.workloads.summary import Row, by_workload, rows
from specviz.workloads.table import identity

CHOSEN = (
    ("speed-up", "The harmonic mean of the prompts' speed-ups: that of answers of equal length, one after the other."),
    (
        "gain",
        "Each prompt's drafter is the one that was best for the other prompts of its workload, against the one that "
        "was best for all other prompts: luck with a prompt is no gain.",
    ),
)


def report(
    header: Header,
    results: Sequence[Result],
    against: Against | None = None,
    *,
    name: str = "",
    title: str | None = None,
) -> Report:
    """name: what the results are called beside earlier ones. Raises UserError where there are no results."""
    if not results:
        raise UserError("There are no results yet; let the run measure a prompt first.")
    measured = rows(results)
    sections = [
        Section("Every way of drafting", _ways(measured)),
        Section("By workload", _workloads(header, results)),
        Section("Survival per draft position", _survival(results, measured)),
        Section("Along the output and by prompt length", _along(results)),
        Section("The best for each workload", _choice(results)),
        *([Section(f"Changes since {against.name}", drift(name, header, results, against))] if against else []),
        Section("Caveats", (Points(caveats(header, results, measured)),)),
        Section("What was measured", (Facts(facts(header, results)),)),
        Section("How it was measured", (Points(method(header, results)),)),
        Section("Measure it again", _again(header, results)),
    ]
    return Report(
        title=title or _title(header, results),
        verdict=verdict(measured),
        setting=_setting(header, results),
        sections=tuple(section for section in sections if section.blocks),
    )


def verdict(measured: Sequence[Row]) -> str:
    """The best way of drafting and whether it pays, in a sentence or two."""
    drafting = [row for row in measured if row.arm.kind != "plain"]
    if not drafting:
        return "Only plain decoding was measured, against itself."
    named = list(zip(drafting, arms_tables.called(row.arm for row in drafting), strict=True))
    timed = [(row.speedup, row, name) for row, name in named if row.speedup is not None]
    if not timed:
        row, name = max(named, key=lambda each: each[0].acceptance_length)
        return f"Nothing was timed. Most was accepted of {name}: {_accepted(row)}."
    speedup, row, name = max(timed, key=lambda each: each[0])
    speed = f"{speedup:.2f}x the speed of plain decoding ({_spread(row)})"
    if row.verdict == "faster":
        return f"Faster: {name}, decoded at {speed}, with {_accepted(row)}."
    best = f"{name}, the best here," if len(drafting) > 1 else f"{name},"
    if row.verdict == "slower":
        return f"Slower: {best} decoded at {speed}, with {_accepted(row)}."
    if row.verdict == "too few prompts":
        return f"Too few prompts to tell: {best} decoded at {speed}, with {_accepted(row)}."
    return f"No clear difference: {best} decoded at {speed}, with {_accepted(row)}."


def _spread(row: Row) -> str:
    """In brackets: how far the speed-up of a way of drafting that was timed may be off."""
    quartiles = f"quartiles of the prompts {_between(row.quartiles)}"
    if row.speedup_interval is None:
        return quartiles
    return f"95 % interval {_between(row.speedup_interval)}, {quartiles}"


def _between(interval: Interval | None) -> str:
    return "n/a" if interval is None else "{:.2f} to {:.2f}".format(*interval)


def _accepted(row: Row) -> str:
    interval = "" if row.acceptance_interval is None else f" ({_between(row.acceptance_interval)})"
    return f"an acceptance length of {row.acceptance_length:.2f}{interval}"


def _title(header: Header, results: Sequence[Result]) -> str:
    suites = ", ".join(dict.fromkeys(result.suite for result in results))
    return f"Speculative decoding with {header.target}: {suites}"


def _setting(header: Header, results: Sequence[Result]) -> str:
    prompts = plural(len({(result.suite, result.prompt) for result in results}), "prompt")
    workloads = plural(len(by_workload(results)), "workload")
    return f"{header.target} in {header.dtype} on {header.device}, {prompts} of {workloads}, {header.date[:10]}."


def _ways(measured: Sequence[Row]) -> tuple[Block, ...]:
    timed = [row for row in measured if row.speedup is not None]
    return (
        *([arms_tables.speed(measured)] if timed else []),
        arms_tables.acceptance(measured),
        *map(Paragraph, identity(measured)),
    )


def _workloads(header: Header, results: Sequence[Result]) -> tuple[Block, ...]:
    best = charts.best_arms(results)
    marks = " ▲ faster than plain decoding, ▼ slower, ≈ no clear difference, ? too few prompts."
    marked = marks if header.timed else ""
    return (
        Paragraph(f"Each drafter at its best setting.{marked}"),
        *([workload_tables.heat(results, best, "speed-up")] if header.timed else []),
        *([workload_tables.heat(results, _drafting(best), "acceptance length")] if _drafting(best) else []),
    )


def _survival(results: Sequence[Result], measured: Sequence[Row]) -> tuple[Block, ...]:
    """Each drafter at the setting that drafts furthest, which tells of the shorter ones too."""
    drafted = [row for row in measured if row.survival]
    furthest = [
        max((row for row in drafted if row.arm.name == name), key=lambda row: len(row.survival))
        for name in dict.fromkeys(row.arm.name for row in drafted)
    ]
    if not furthest:
        return (Paragraph("Nothing was drafted."),)
    arms = [row.arm for row in furthest]
    return (
        Paragraph("Each drafter at the setting with its longest drafts."),
        workload_tables.survival(furthest),
        *map(partial(workload_tables.survival_by_workload, results), arms, arms_tables.called(arms)),
    )


def _along(results: Sequence[Result]) -> tuple[Block, ...]:
    """Nothing where nothing was drafted: plain decoding commits one token per pass everywhere."""
    best = _drafting(charts.best_arms(results))
    return (workload_tables.over_output(results, best), workload_tables.over_prompt(results, best)) if best else ()


def _drafting(arms: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in arms if arm.kind != "plain"]


def _choice(results: Sequence[Result]) -> tuple[Block, ...]:
    chosen = choose(results)
    if chosen is None:
        return (Paragraph("There is no prompt that every way of drafting was measured on."),)
    arms = charts.all_arms(results)
    sentence = Paragraph(sheets.choice_sentence(chosen, arms))
    return sentence, workload_tables.of_sheet(
        sheets.choice(chosen, arms), definitions=CHOSEN if chosen.timed else CHOSEN[1:]
    )


def _again(header: Header, results: Sequence[Result]) -> tuple[Block, ...]:
    found = again(header, results)
    return (
        *(Code(shell(command)) for command in found.commands),
        *([Points(found.notes)] if found.notes else []),
    )
