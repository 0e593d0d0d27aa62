"""What has changed since earlier results, and which of it is more than luck with the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

from specviz.figures.drift import LESS, MORE, Change, DriftInfo
from specviz.report.blocks import Block, Paragraph, Points, Table
from specviz.report.workload_tables import of_sheet
from specviz.workloads import charts, sheets
from specviz.workloads.results import CIRCUMSTANCES, Header, Result


class Against(NamedTuple):
    """Earlier results, and what they are called."""

    name: str
    header: Header
    results: Sequence[Result]


def drift(name: str, header: Header, results: Sequence[Result], against: Against) -> tuple[Block, ...]:
    """What the results, called `name`, have in common with the earlier ones: each drafter at its best setting now."""
    arms = charts.all_arms(against.results)
    best = charts.of_arms(results, charts.best_arms(results))
    infos = [charts.drift(against.results, best, arms, measure, (against.name, name)) for measure in charts.MEASURES]
    changes = [change for info in infos for change in info.changes]
    if not changes:
        return (Paragraph(f"{against.name} has no way of drafting in common with the best ones here."),)
    other = _differences(against.header, header)
    clear = [info._replace(changes=tuple(filter(_is_clear, info.changes))) for info in infos]
    return (
        Paragraph(_sentence(changes, against)),
        *([Points(other)] if other else []),
        *(_table(info, " beyond noise") for info in clear if info.changes),
        *(_table(info, ", all of them", is_folded=True) for info in infos if info.changes),
    )


def _table(info: DriftInfo, which: str, *, is_folded: bool = False) -> Table:
    sheet = sheets.drift(info)
    definitions = (("change", charts.DEFINITIONS["drift"]),)
    return of_sheet(
        sheet._replace(caption=f"{sheet.caption}{which}"), names=2, definitions=definitions, is_folded=is_folded
    )


def _is_clear(change: Change) -> bool:
    return change.mark in (MORE, LESS)


def _sentence(changes: Sequence[Change], against: Against) -> str:
    beyond = list(filter(_is_clear, changes))
    unknown = sum(change.interval is None for change in changes)
    more = sum(change.mark == MORE for change in beyond)
    clear = (
        f"{len(beyond)} of {len(changes)} differences from {against.name} ({against.header.date[:10]}) are beyond noise"
    )
    said = f"{clear}: {more} up, {len(beyond) - more} down." if beyond else f"{clear}."
    return said + (f" Of {unknown} there are too few prompts to tell." if unknown else "")


def _differences(before: Header, now: Header) -> tuple[str, ...]:
    """What else differs between the two, which may be the reason."""
    return tuple(
        f"{field.name.replace('_', ' ')}: {_said(getattr(before, field.name))} before, "
        f"{_said(getattr(now, field.name))} now"
        for field in fields(Header)
        if field.name not in CIRCUMSTANCES and getattr(before, field.name) != getattr(now, field.name)
    )


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return "n/a" if value is None else str(value)
