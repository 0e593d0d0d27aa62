"""A suite's figures as text for a terminal. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specviz.workloads.results import Header, Result
from specviz.workloads.summary import Row, best, by_workload, rows

COLUMNS = (
    "drafter",
    "setting",
    "AL",
    "95 %",
    "AL by request",
    "AL drafted",
    "c",
    "v",
    "speed-up",
    "quartiles",
    "predicted",
    "of it",
    "outside",
    "",
)
LEGEND = """\
AL: acceptance length over all verify passes (step-weighted), with the bootstrap interval over the prompts; by request:
the mean of the prompts' own; drafted: over the passes with a draft, as golden lengths are. c: drafting a token, v: a
verify pass, both over a plain pass. speed-up: over plain decoding, median of the prompts. predicted: AL / (v + gamma
used * c); of it: measured over predicted. outside: share of a step outside models' forward passes. The best settings
are chosen on these same prompts."""


def render(header: Header, results: Sequence[Result]) -> str:
    """All that was found: every arm, the best of each drafter, and those on every workload."""
    measured = rows(results)
    chosen = best(measured)
    parts = [describe(header), _table([COLUMNS, *map(cells, measured)])]
    if len(measured) > len(chosen):
        parts.append(f"The best of each drafter:\n\n{_table([COLUMNS, *map(cells, chosen.values())])}")
    parts.append(f"By workload, acceptance length and speed-up:\n\n{_table(_by_workload(results, chosen))}")
    return "\n\n".join([*parts, *identity(measured), *outgrown(results), LEGEND])


def describe(header: Header) -> str:
    """What was measured where, in a sentence or two; the device's name tells its threads."""
    load = f" Load averages at the start: {', '.join(f'{value:.2f}' for value in header.load)}." if header.load else ""
    drawn = "greedy" if header.temperature == 0 else f"temperature {header.temperature:g}, seed {header.seed}"
    times = "once" if header.repeats == 1 else f"{header.repeats} times"
    how = f"every prompt timed {times} with plain decoding beside it" if header.timed else "acceptance alone, untimed"
    return (
        f"{header.target}, {header.dtype} on {header.device}; {drawn}, answers of at most {header.max_new_tokens} "
        f"tokens, {how}.{load}"
    )


def identity(measured: Sequence[Row]) -> list[str]:
    """How often outputs are plain decoding's own, over all arms; nothing where none was compared."""
    compared = sum(row.compared for row in measured)
    same, near = sum(row.identical for row in measured), sum(row.near_ties for row in measured)
    if not compared:
        return []
    if same == compared:
        return ["All outputs are plain decoding's, token by token."]
    return [
        f"{same} of {compared} outputs are plain decoding's, token by token; {near} part from it at a near tie in this "
        f"number format, {compared - same - near} elsewhere."
    ]


def outgrown(results: Sequence[Result]) -> list[str]:
    """Which conversations the target could not hold to their end."""
    cut = dict.fromkeys(result.prompt for result in results if len(result.answers) < result.turns)
    return [f"Cut short, as the target could hold no more turns: {', '.join(cut)}."] if cut else []


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.arm.name,
        row.arm.title,
        f"{row.acceptance_length:.2f}",
        span(row.acceptance_interval),
        f"{row.request_acceptance_length:.2f}",
        number(row.acceptance_length_drafted, ".2f"),
        number(row.cost_ratio, ".3f"),
        number(row.verify_cost, ".2f"),
        number(row.speedup, ".2f"),
        span(row.quartiles),
        number(row.predicted, ".2f"),
        number(row.of_predicted, ".2f"),
        number(row.outside, ".1%"),
        row.verdict or "",
    )


def _by_workload(results: Sequence[Result], chosen: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """A line for each workload, a column for each drafter at its best setting."""
    found = by_workload(results)
    suites = {place.suite for place in found}
    lines = [("workload", *chosen)]
    for place, measured in found.items():
        of_arm = [next((each for each in measured if each.arm == row.arm), None) for row in chosen.values()]
        name = place.workload if len(suites) == 1 else f"{place.suite}: {place.workload}"
        lines.append((name, *map(_brief, of_arm)))
    return lines


def _brief(row: Row | None) -> str:
    if row is None:
        return "n/a"
    return f"{row.acceptance_length:.2f}" + ("" if row.speedup is None else f" {row.speedup:.2f}x")


def number(value: float | None, form: str) -> str:
    return "n/a" if value is None else f"{value:{form}}"


def span(interval: tuple[float, float] | None) -> str:
    return "n/a" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}"


def _table(lines: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their longest entry."""
    listed = list(lines)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in listed)
    return "\n".join(line.rstrip() for line in padded)
