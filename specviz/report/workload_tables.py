"""What every drafter, at its best setting, brought on every workload, at every draft position and along the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from specviz.figures.heat_map import Cell as HeatCell
from specviz.figures.heat_map import HeatMapInfo, Measure
from specviz.figures.over_position import Bin, OverPositionInfo
from specviz.report.arms_tables import called, defined
from specviz.report.blocks import Cell, Definitions, Lines, Series, Table, cells
from specviz.report.names import plural
from specviz.workloads import charts, sheets
from specviz.workloads.arms import Arm
from specviz.workloads.results import Result
from specviz.workloads.summary import Row
from specviz.workloads.table import span

_MEASURED: dict[Measure, Definitions] = {
    "acceptance length": defined({"acceptance length": "acceptance_length", "95 % interval": "acceptance_interval"}),
    "speed-up": defined({"speed-up": "speedup", "95 % interval": "speedup_interval", "▲ ▼ ≈ ?": "quartiles"}),
}
_SURVIVAL = defined({"position": "survival"})
_OUTPUT = (
    "over the output",
    "The acceptance length of the verify passes that began after so many tokens of an answer, in brackets its 95 % "
    "interval and of how many prompts it is: long answers alone reach the later places.",
)
_PROMPT = (
    "by prompt length",
    "The acceptance length of answers to prompts of so many tokens, the conversation before them included. Lengths "
    "come with workloads: long prompts are often summaries.",
)


def heat(results: Sequence[Result], arms: Sequence[Arm], measure: Measure) -> Table:
    """A line for all prompts and for each workload, a column for each of the arms."""
    info = charts.heat_map(results, arms, measure)
    return Table(
        f"{measure.capitalize()} by workload, with 95 % intervals",
        ("workload", *called(arms)),
        tuple(
            (Cell(workload), *(_heat_cell(cell, info) for cell in line))
            for workload, line in zip(info.workloads, info.cells, strict=True)
        ),
        definitions=_MEASURED[measure],
    )


def _heat_cell(cell: HeatCell | None, info: HeatMapInfo) -> Cell:
    if cell is None:
        return Cell("n/a")
    interval = "" if cell.interval is None else f" ({span(cell.interval)})"
    if info.measure == "speed-up":
        tint = max(-1.0, min(1.0, log2(cell.value)))  # darkest at twice and at half the speed
        return Cell(f"{cell.mark} {cell.value:.2f}x{interval}".strip(), tint)
    longest = max(other.value for line in info.cells for other in line if other)
    return Cell(f"{cell.value:.2f}{interval}", (cell.value - 1) / max(1.0, longest - 1))


def survival(rows: Sequence[Row]) -> Table:
    """All prompts together, a row for each of the arms, which all drafted something."""
    names, deepest = charts.names_of(row.arm for row in rows), max(len(row.survival) for row in rows)
    return Table(
        "Survival per draft position, all prompts",
        ("drafter", "setting", *_positions(deepest)),
        tuple(cells(*name) + _shares(row.survival, deepest) for name, row in zip(names, rows, strict=True)),
        names=2,
        definitions=_SURVIVAL,
        chart=Lines(
            places=tuple(str(position) for position in range(1, deepest + 1)),
            across="draft position",
            upwards="survival",
            lowest=0.0,
            highest=1.0,
            is_share=True,
            series=tuple(
                Series(name, row.survival + (None,) * (deepest - len(row.survival)))
                for name, row in zip(called(row.arm for row in rows), rows, strict=True)
            ),
        ),
    )


def survival_by_workload(results: Sequence[Result], arm: Arm, name: str) -> Table:
    """Of one arm, which is called `name`."""
    panels = charts.survival(results, arm).panels
    deepest = max(len(panel.survival) for panel in panels)
    return Table(
        f"Survival by workload: {name}",
        ("workload", "passes with a draft", *_positions(deepest)),
        tuple(cells(panel.workload, str(panel.drafts)) + _shares(panel.survival, deepest) for panel in panels),
        definitions=_SURVIVAL,
        is_folded=True,
    )


def _positions(deepest: int) -> list[str]:
    return [f"position {position}" for position in range(1, deepest + 1)]


def _shares(survival: Sequence[float], deepest: int) -> tuple[Cell, ...]:
    """A cell for each position; drafts that are never as long have nothing to say of the later ones."""
    known = tuple(Cell(f"{share:.1%}", share) for share in survival)
    return known + cells("n/a") * (deepest - len(known))


def over_output(results: Sequence[Result], arms: Sequence[Arm]) -> Table:
    return _over([charts.over_output(results, arm) for arm in arms], arms, _OUTPUT)


def over_prompt(results: Sequence[Result], arms: Sequence[Arm]) -> Table:
    return _over([charts.over_prompt(results, arm) for arm in arms], arms, _PROMPT)


def _over(infos: Sequence[OverPositionInfo], arms: Sequence[Arm], definition: tuple[str, str]) -> Table:
    """A row for each of the bins, a column for each of the arms."""
    bounds = sorted({(part.start, part.end) for info in infos for part in info.bins}, key=lambda each: each[0])
    names = called(arms)
    columns = [{(part.start, part.end): part for part in info.bins} for info in infos]
    rows = [(_bounds(*each), [column.get(each) for column in columns]) for each in bounds]
    tops = [part.length for info in infos for part in info.bins]
    title, counted = infos[0].title, infos[0].counted
    return Table(
        f"{title}, with 95 % intervals",
        (counted, *names),
        tuple(cells(name, *map(_over_cell, line)) for name, line in rows),
        definitions=(definition,),
        chart=Lines(
            places=tuple(str(start) for start, _ in bounds),
            across=f"{counted}, from",
            upwards="acceptance length",
            lowest=1.0,
            highest=max(2.0, *tops),
            is_share=False,
            series=tuple(
                Series(name, tuple(part and part.length for part in (line[index] for _, line in rows)))
                for index, name in enumerate(names)
            ),
        ),
    )


def _bounds(start: int, end: int | None) -> str:
    return f"{start} or more" if end is None else f"{start} to {end - 1}"


def _over_cell(part: Bin | None) -> str:
    if part is None:
        return "n/a"
    interval = "" if part.interval is None else f"{span(part.interval)}, "
    return f"{part.length:.2f} ({interval}{plural(part.prompts, 'prompt')})"


def of_sheet(sheet: sheets.Sheet, *, names: int = 1, definitions: Definitions = (), is_folded: bool = False) -> Table:
    rows = tuple(cells(*row) for row in sheet.rows)
    return Table(sheet.caption, sheet.head, rows, names, definitions, is_folded=is_folded)
