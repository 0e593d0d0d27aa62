"""Every way of drafting that was measured, in two tables: what was accepted, and what that was worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from specviz.report.blocks import Definitions, Range, Ranges, Table, cells
from specviz.workloads.arms import Arm
from specviz.workloads.charts import names_of
from specviz.workloads.summary import DEFINITIONS, Row
from specviz.workloads.table import number, span

SPEEDUP = "speed-up over plain decoding"


class Column(NamedTuple):
    name: str
    field: str | None  # of a row, whose definition the column has; None: an earlier column's tells
    text: Callable[[Row], str]


ACCEPTANCE = (
    Column("acceptance length", "acceptance_length", lambda row: f"{row.acceptance_length:.2f}"),
    Column("95 % interval", "acceptance_interval", lambda row: span(row.acceptance_interval)),
    Column("by request", "request_acceptance_length", lambda row: f"{row.request_acceptance_length:.2f}"),
    Column("by request, 95 % interval", "request_interval", lambda row: span(row.request_interval)),
    Column(
        "over drafted passes",
        "acceptance_length_drafted",
        lambda row: number(row.acceptance_length_drafted, ".2f"),
    ),
    Column("tokens per pass", "tokens_per_pass", lambda row: f"{row.tokens_per_pass:.2f}"),
    Column("acceptance rate", "acceptance_rate", lambda row: number(row.acceptance_rate, ".1%")),
    Column("same output", "identical", lambda row: f"{row.identical} of {row.compared}" if row.compared else "n/a"),
    Column("near ties", "near_ties", lambda row: str(row.near_ties) if row.compared else "n/a"),
)
SPEED = (
    Column("speed-up", "speedup", lambda row: times(row.speedup)),
    Column("95 % interval", "speedup_interval", lambda row: span(row.speedup_interval)),
    Column("quartiles", "quartiles", lambda row: span(row.quartiles)),
    Column("of all time", "total_speedup", lambda row: times(row.total_speedup)),
    Column("c", "cost_ratio", lambda row: number(row.cost_ratio, ".3f")),
    Column("v", "verify_cost", lambda row: number(row.verify_cost, ".2f")),
    Column("gamma used", "gamma_used", lambda row: number(row.gamma_used, ".2f")),
    Column("predicted", "predicted", lambda row: times(row.predicted)),
    Column("of predicted", "of_predicted", lambda row: number(row.of_predicted, ".2f")),
    Column("outside", "outside", lambda row: number(row.outside, ".1%")),
    Column("verdict", None, lambda row: row.verdict or "n/a"),
)


def acceptance(rows: Sequence[Row]) -> Table:
    return _table("Acceptance", rows, ACCEPTANCE)


def speed(rows: Sequence[Row]) -> Table:
    return _table("Time per token, against plain decoding", rows, SPEED, _ranges(rows))


def times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def called(arms: Iterable[Arm]) -> list[str]:
    """Each on one line: the drafter, and the setting if there is one."""
    listed = list(arms)
    return [
        name if arm.kind == "plain" else f"{name}, {setting}"
        for arm, (name, setting) in zip(listed, names_of(listed), strict=True)
    ]


def defined(fields: Mapping[str, str]) -> Definitions:
    """What columns are by what their names say; fields: of a row, by the column's name."""
    return tuple((name, DEFINITIONS[field].removeprefix(f"{name}: ")) for name, field in fields.items())


def _table(caption: str, rows: Sequence[Row], columns: Sequence[Column], chart: Ranges | None = None) -> Table:
    names = names_of(row.arm for row in rows)
    return Table(
        caption,
        ("drafter", "setting", "prompts", *(column.name for column in columns)),
        tuple(
            cells(*name, str(row.prompts), *(column.text(row) for column in columns))
            for name, row in zip(names, rows, strict=True)
        ),
        names=2,
        definitions=defined({column.name: column.field for column in columns if column.field}),
        chart=chart,
    )


def _ranges(rows: Sequence[Row]) -> Ranges:
    names = called(row.arm for row in rows)
    return Ranges(
        SPEEDUP,
        neutral=1.0,
        neutral_name="plain decoding",
        rows=tuple(
            Range(name, row.speedup, row.speedup_interval, times(row.speedup))
            for name, row in zip(names, rows, strict=True)
            if row.speedup is not None
        ),
    )
