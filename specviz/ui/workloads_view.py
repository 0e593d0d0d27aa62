"""What the Workloads tab shows: plain functions from results and what was chosen to figures and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape
from typing import Any, NamedTuple

import gradio as gr

from specviz.figures import drift, heat_map, over_position, workload_survival
from specviz.figures.drift import DriftInfo
from specviz.figures.heat_map import HeatMapInfo, Measure
from specviz.figures.over_position import OverPositionInfo
from specviz.figures.workload_survival import WorkloadSurvivalInfo
from specviz.ui import tables
from specviz.ui.workloads_files import MOST_ARMS, File, Held, Set, known, read, reports, saved
from specviz.workloads import charts, sheets, summary
from specviz.workloads.arms import Arm
from specviz.workloads.choice import choose
from specviz.workloads.results import Result
from specviz.workloads.sheets import Sheet
from specviz.workloads.table import identity, outgrown

BEST, EVERY = "best", "every"  # settings of each drafter
NOTHING, FILE, SUITE = "", "file ", "suite "  # what is compared with; the latter two go before a name
NO_FILE = "No measurement comes with this page: load a results file of bench --suite, or measure here."
CHOSEN_ON_THESE = "The best settings are chosen on these same prompts, so they flatter a little."


class Look(NamedTuple):
    """What is chosen, in the order of the page; anything may be missing or out of date."""

    shown: Any = None  # name of a file
    compared: Any = NOTHING
    measure: Any = charts.MEASURES[0]
    settings: Any = BEST
    suites: Any = ()
    closer: Any = None  # name of a way of drafting


class View(NamedTuple):
    """The outputs: the controls that depend on what there is, then what is shown."""

    shown: Any
    compared: Any
    suites: Any
    closer: Any
    download: Any
    page: Any  # the report, to be downloaded
    markdown: Any
    about: Any
    heat_map: Any
    numbers: Any
    choice: Any
    survival: Any
    output: Any
    prompt: Any
    closer_numbers: Any
    drift: Any
    drift_numbers: Any


def look(held: Held, first: File | None, chosen: Look) -> View:
    """The page for what is chosen; first: the measurement that is shipped."""
    there = known(held, first)
    if not there:
        return nothing()
    suites = tuple(chosen.suites) if isinstance(chosen.suites, list | tuple) else ()
    name = chosen.shown if chosen.shown in there else next(iter(there))
    cached = _look(tuple(there.values()), chosen._replace(shown=name, suites=suites))
    # Copies, as Gradio takes updates apart while it sends them.
    view = View(*(dict(output) if isinstance(output, dict) else output for output in cached))
    other = next((file for file in there.values() if chosen.compared == FILE + file.name), None)
    page, markdown = reports(there[name], other)
    return view._replace(
        download=gr.update(value=saved(there[name]), interactive=True),
        page=gr.update(value=page, interactive=True),
        markdown=gr.update(value=markdown, interactive=True),
    )


def nothing() -> View:
    """The page without any results."""
    no_choice: Any = gr.update(choices=[], value=None)
    over = (OverPositionInfo(title, "", "", ()) for title in (charts.OVER_OUTPUT, charts.OVER_PROMPT))
    return View(
        shown=no_choice,
        compared=gr.update(choices=[("nothing", NOTHING)], value=NOTHING),
        suites=gr.update(choices=[], value=[], visible=False),
        closer=no_choice,
        download=gr.update(value=None, interactive=False),
        page=gr.update(value=None, interactive=False),
        markdown=gr.update(value=None, interactive=False),
        about=tables.note(NO_FILE),
        heat_map=heat_map.plot(HeatMapInfo(charts.MEASURES[0], (), (), ())),
        numbers="",
        choice="",
        survival=workload_survival.plot(WorkloadSurvivalInfo("", (), ())),
        output=over_position.plot(next(over)),
        prompt=over_position.plot(next(over)),
        closer_numbers="",
        drift=drift.plot(DriftInfo("", "", "", ())),
        drift_numbers="",
    )


@lru_cache(maxsize=8)  # what most visitors see first is the same for all
def _look(there: tuple[File, ...], chosen: Look) -> View:
    sets = {file.name: read(file) for file in there}
    shown = sets[chosen.shown]
    suites = list(dict.fromkeys(result.suite for result in shown.results))
    ticked = [suite for suite in suites if suite in chosen.suites] or suites
    results = [result for result in shown.results if result.suite in ticked]
    every = charts.all_arms(results)
    arms = charts.best_arms(results) if chosen.settings == BEST else every
    by_name = {charts.name_of(arm, every): arm for arm in every}
    closer = chosen.closer if chosen.closer in by_name else charts.name_of(arms[0], every)
    measure: Measure = chosen.measure if chosen.measure in charts.MEASURES else charts.MEASURES[0]
    comparable = _comparable(sets, chosen.shown, suites)
    compared = chosen.compared if chosen.compared in comparable.values() else NOTHING
    survival = charts.survival(results, by_name[closer])
    over = charts.over_output(results, by_name[closer]), charts.over_prompt(results, by_name[closer])
    change = _drift(sets, chosen.shown, results, arms, compared, measure)
    return View(
        shown=gr.update(choices=list(sets), value=chosen.shown),
        compared=gr.update(choices=list(comparable.items()), value=compared),
        suites=gr.update(choices=_counted(shown, suites), value=ticked, visible=len(suites) > 1),
        closer=gr.update(choices=list(by_name), value=closer),
        download=gr.skip(),
        page=gr.skip(),
        markdown=gr.skip(),
        about=_about(shown, results, arms, chosen.settings == BEST),
        heat_map=gr.update(
            value=heat_map.plot(charts.heat_map(results, arms, measure)), elem_classes=["sv-chart", _width(len(arms))]
        ),
        numbers=_fold("The numbers as a table", [sheets.numbers(results, arms)]),
        choice=_choice(results, arms),
        survival=workload_survival.plot(survival),
        output=over_position.plot(over[0]),
        prompt=over_position.plot(over[1]),
        closer_numbers=_fold("These charts as tables", [sheets.survival(survival), *map(sheets.over, over)]),
        drift=drift.plot(change),
        drift_numbers=_fold("The changes as a table", [sheets.drift(change)]) if change.changes else "",
    )


def _width(columns: int) -> str:
    """The class of a heat map with so many columns, which says from what width on it scrolls."""
    return f"sv-columns-{next(most for most in (3, 6, 12, 24, MOST_ARMS) if columns <= most)}"


def _counted(shown: Set, suites: Sequence[str]) -> list[tuple[str, str]]:
    """The suites with the number of their prompts."""
    prompts = {suite: {result.prompt for result in shown.results if result.suite == suite} for suite in suites}
    return [(f"{suite} ({len(found)})", suite) for suite, found in prompts.items()]


def _comparable(sets: dict[str, Set], shown: str, suites: Sequence[str]) -> dict[str, str]:
    """What the shown results can be compared with: other files, and one of their own suites with the others."""
    others = {f"all of {name}": FILE + name for name in sets if name != shown}
    of_suites = {f"suite {suite}, of the same file": SUITE + suite for suite in suites if len(suites) > 1}
    return {"nothing": NOTHING, **others, **of_suites}


def _drift(
    sets: dict[str, Set], shown: str, results: Sequence[Result], arms: Sequence[Arm], compared: str, measure: Measure
) -> DriftInfo:
    """From the results in view to those that are compared."""
    if compared.startswith(FILE):
        name = compared.removeprefix(FILE)
        return charts.drift(results, sets[name].results, arms, measure, (shown, name))
    if compared.startswith(SUITE):
        suite = compared.removeprefix(SUITE)
        before = [result for result in results if result.suite != suite]
        after = [result for result in sets[shown].results if result.suite == suite]
        names = ", ".join(dict.fromkeys(result.suite for result in before))
        return charts.drift(before, after, arms, measure, (names, suite))
    return DriftInfo(measure, shown, "", ())


def _choice(results: Sequence[Result], arms: Sequence[Arm]) -> str:
    chosen = choose(charts.of_arms(results, arms))
    if chosen is None:
        return tables.note("No prompt was measured with all of these drafters, so none can be called best.")
    saying = f'<p class="sv-saying">{escape(sheets.choice_sentence(chosen, arms))}</p>'
    return saying + _table(sheets.choice(chosen, arms))


def _about(shown: Set, results: Sequence[Result], arms: Sequence[Arm], is_chosen: bool) -> str:
    """What was measured where, and what to keep in mind."""
    rows = summary.rows(charts.of_arms(results, arms))
    remarks = [*identity(rows), *outgrown(results), *([CHOSEN_ON_THESE] if is_chosen else [])]
    return tables.facts(sheets.facts(shown.header, results)) + tables.note(" ".join(remarks))


def _fold(name: str, contents: Iterable[Sheet]) -> str:
    """Tables that open at a press."""
    inside = "".join(map(_table, contents))
    return f'<details class="sv-fold"><summary>{escape(name)}</summary>{inside}</details>'


def _table(sheet: Sheet) -> str:
    return tables.table(sheet.head, sheet.rows, caption=sheet.caption)
