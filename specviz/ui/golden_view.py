"""What the Golden tab shows: plain functions from what was chosen and uploaded to figures and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import plotly.graph_objects as go

from specviz import golden, trace
from specviz.errors import UserError
from specviz.figures import golden_curve, implied_survival
from specviz.golden import OVERALL, Curve, Facts, Golden, Verdict
from specviz.ui import tables
from specviz.workloads import conditions, measured
from specviz.workloads.measured import Points

MOST_FILES = 8
LETTERS = "ABCD"
RUNS = "the uploaded runs"
NOTHING = "none"
MEASURED = ("measured", "95 %", "verdict")

Choices = dict[str, tuple[Golden, Curve]]  # curves by what the list calls them


class Taken(NamedTuple):
    """What was measured, and under which conditions."""

    points: Points
    facts: Facts


Groups = dict[str, Taken]  # by what the list calls it


class Shown(NamedTuple):
    """The outputs, in the order of the page's components."""

    lengths: go.Figure
    survival: go.Figure
    table: str
    facts: str


def choices(files: Sequence[Golden]) -> Choices:
    """All curves of the files, called by file and mode; a file of several models names them too."""
    found: Choices = {}
    for file in files:
        several = len({curve.model for curve in file.curves}) > 1
        for curve in file.curves:
            named = curve.name if several else curve.mode or curve.model
            found[f"{file.name} · {named}" if named else file.name] = (file, curve)
    return found


def take_golden(path: str | None, chosen: Sequence[str], shipped: Choices) -> tuple[Choices, Any, str]:
    """The curves of an uploaded file, the list with them in it and the first of them chosen, and what was wrong."""
    kept = [name for name in chosen if name in shipped]
    without = gr.update(choices=list(shipped), value=kept)
    if path is None:
        return {}, without, ""
    try:
        read = choices([golden.read(Path(path))])
    except UserError as error:
        return {}, without, tables.problem(_named(error, [path]))
    own = {f"your file: {name}": found for name, found in read.items()}
    value = [next(iter(own)), *kept][: golden_curve.MOST_CURVES]
    return own, gr.update(choices=[*own, *shipped], value=value), ""


def take_measured(paths: Sequence[str] | None) -> tuple[Groups, Any, str]:
    """What uploaded files hold: results of `bench`, or runs, which are taken together."""
    none = gr.update(choices=[NOTHING], value=NOTHING)
    try:
        found = _read(paths or [])
    except UserError as error:
        return {}, none, tables.problem(_named(error, paths or []))
    return found, gr.update(choices=[*found, NOTHING], value=next(iter(found), NOTHING)), ""


def show(chosen: Sequence[str], group: str, percent: float, known: Choices, groups: Groups) -> Shown:
    """Everything for these curves, of which the first is compared with what was measured."""
    picked = [known[name] for name in chosen if name in known][: golden_curve.MOST_CURVES]
    names = ["golden"] if len(picked) == 1 else LETTERS
    curves = {name: curve for name, (_, curve) in zip(names, picked, strict=False)}
    published = [name for name, (file, _) in zip(names, picked, strict=False) if file.status == "published"]
    points, facts = groups.get(group, Taken({}, {}))
    tolerance = percent / 100
    return Shown(
        golden_curve.plot(golden_curve.overlay(curves, points, tolerance, published)),
        implied_survival.plot(implied_survival.of_curves(curves, published)),
        _table(curves, points, tolerance) + (_differing(*picked[0], facts) if picked and points else ""),
        tables.facts((name, _origin(*found)) for name, found in zip(names, picked, strict=False)),
    )


def _read(paths: Sequence[str]) -> Groups:
    if len(paths) > MOST_FILES:
        raise UserError(f"There are {len(paths)} files; upload {MOST_FILES} at most.")
    files = [Path(path) for path in paths]
    runs = [file for file in files if measured.holds_trace(file)]
    found: Groups = {}
    if runs:
        traces = {file.name: trace.read(file) for file in runs}
        facts = conditions.of_runs({name: each.run for name, each in traces.items()})
        found[RUNS] = Taken(measured.of_traces(traces), facts)
    for file in files:
        if file not in runs:
            found |= {f"{group.drafter} · {group.mode}": Taken(group.points, group.facts) for group in _groups(file)}
    if paths and not any(taken.points for taken in found.values()):
        raise UserError("Nothing was drafted as chains of one length in these files; upload others.")
    return found


def _groups(file: Path) -> list[measured.Group]:
    return measured.groups(*measured.read_results(file))


def _named(error: UserError, paths: Sequence[str]) -> str:
    """The files as the visitor calls them, not where the server keeps them."""
    said = str(error)
    for path in paths:
        said = said.replace(path, Path(path).name)
    return said


def _origin(file: Golden, curve: Curve) -> str:
    """Where a curve comes from, in a line."""
    settings = {
        key: value for key, value in file.provenance.items() if key in ("dataset", "output_len", "read", "date")
    }
    said = [
        file.status or "",
        curve.name,
        *(f"{key} {value}" for key, value in settings.items()),
        f"source {file.source}" if file.source else "its file names no source",
    ]
    return " · ".join(filter(None, said))


def _table(curves: Mapping[str, Curve], points: Points, tolerance: float) -> str:
    """A row per draft length: the first curve with what it implies and what was measured, then the other curves."""
    if not curves:
        return tables.note("Choose a golden curve, or upload one.")
    (name, first), *others = curves.items()
    survival, predicted = golden.implied_survival(first), golden.from_first_position(first) or {}
    verdicts = golden.compare(first, points, tolerance)
    head = ["k", name, "survival", "independent"]
    head += [*MEASURED, *(other for other, _ in others)] if points else [other for other, _ in others]
    rows = [
        [
            str(verdict.k),
            _number(verdict.golden),
            _share(survival[verdict.k - 1] if verdict.k <= len(survival) else None),
            _number(predicted.get(verdict.k)),
            *(_measured(verdict) if points else []),
            *(_number(curve.lengths.get(verdict.k)) for _, curve in others),
        ]
        for verdict in verdicts
    ]
    shown = tables.table(head, rows, caption="Acceptance length, drafted, by draft length k")
    if not points:
        return shown + tables.note("Upload results or runs to compare them.")
    counted = ", ".join(f"{count} {status}" for status, count in golden.counts(verdicts).items())
    return shown + tables.note(f"{OVERALL[golden.worst(verdicts)]} Draft lengths: {counted}.")


def _differing(file: Golden, curve: Curve, facts: Facts) -> str:
    """Conditions that the first curve's file states otherwise than what was measured had them."""
    differ = golden.differences(file, curve, facts)
    return tables.note(f"Not under the same conditions: {'; '.join(map(str, differ))}.") if differ else ""


def _measured(verdict: Verdict) -> list[str]:
    """Its cells of the MEASURED columns."""
    point = verdict.measured
    if point is None:
        return ["n/a", "n/a", verdict.status]
    interval = "n/a" if point.low is None or point.high is None else f"{point.low:.2f} to {point.high:.2f}"
    off = "" if verdict.golden is None else f" ({verdict.off_by})"
    return [_number(point.length), interval, verdict.status + off]


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0%}"
