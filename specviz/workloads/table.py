"""A suite's figures as text for a terminal. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specviz.workloads.results import Header, Result
from specviz.workloads.summary import OfKind, Row, best, by_prompt_kind, rows

COLUMNS = (
    "drafter",
    "setting",
    "AL",
    "tok/pass",
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
AL: acceptance length over all verify passes. tok/pass: tokens per pass. c: drafting a token, v: a verify pass, both
over a plain pass. speed-up: over plain decoding, median of the prompts. predicted: AL / (v + gamma used * c); of it:
measured over predicted. outside: share of a step outside models' forward passes. The best settings are chosen on these
same prompts."""


def render(header: Header, results: Sequence[Result]) -> str:
    """All that a suite found: every arm, the best of each drafter, and those on every kind of prompt."""
    measured = rows(results)
    chosen = best(measured)
    parts = [describe(header), _table([COLUMNS, *map(cells, measured)])]
    if len(measured) > len(chosen):
        parts.append(f"The best of each drafter:\n\n{_table([COLUMNS, *map(cells, chosen.values())])}")
    kinds = {name: by_prompt_kind(results, row.arm) for name, row in chosen.items()}
    parts.append(f"By kind of prompt, acceptance length and speed-up:\n\n{_table(_by_kind(kinds))}")
    return "\n\n".join([*parts, *identity(measured), LEGEND])


def describe(header: Header) -> str:
    """What was measured where, in a sentence or two; the device's name tells its threads."""
    load = f" Load averages at the start: {', '.join(f'{value:.2f}' for value in header.load)}." if header.load else ""
    times = "once" if header.repeats == 1 else f"{header.repeats} times"
    return (
        f"{header.target}, {header.dtype} on {header.device}; greedy, {header.max_new_tokens} tokens, every "
        f"prompt timed {times} with plain decoding beside it.{load}"
    )


def identity(measured: Sequence[Row]) -> list[str]:
    """How often outputs are plain decoding's own, over all arms; nothing where they all are."""
    prompts = sum(row.prompts for row in measured)
    same, near = sum(row.identical for row in measured), sum(row.near_ties for row in measured)
    if same == prompts:
        return ["All outputs are plain decoding's, token by token."]
    return [
        f"{same} of {prompts} outputs are plain decoding's, token by token; {near} part from it at a near tie in this "
        f"number format, {prompts - same - near} elsewhere."
    ]


def cells(row: Row) -> tuple[str, ...]:
    low, high = row.quartiles
    return (
        row.arm.name,
        row.arm.title,
        f"{row.acceptance_length:.2f}",
        f"{row.tokens_per_pass:.2f}",
        _number(row.cost_ratio, ".3f"),
        _number(row.verify_cost, ".2f"),
        f"{row.speedup:.2f}",
        f"{low:.2f}-{high:.2f}",
        _number(row.predicted, ".2f"),
        _number(row.of_predicted, ".2f"),
        _number(row.outside, ".1%"),
        row.verdict,
    )


def _by_kind(kinds: dict[str, list[OfKind]]) -> list[tuple[str, ...]]:
    """A line for each kind of prompt, a column for each drafter."""
    names = list(dict.fromkeys(entry.kind for entries in kinds.values() for entry in entries))
    lines = [("kind", *kinds)]
    for name in names:
        found = [next((entry for entry in entries if entry.kind == name), None) for entries in kinds.values()]
        lines.append((name, *(f"{e.acceptance_length:.2f} {e.speedup:.2f}x" if e else "n/a" for e in found)))
    return lines


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else f"{value:{form}}"


def _table(lines: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their longest entry."""
    listed = list(lines)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in listed)
    return "\n".join(line.rstrip() for line in padded)
