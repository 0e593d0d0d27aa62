"""The Workloads tab: how much is accepted, and what it brings, by kind of work; measured before, elsewhere, or here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from specviz.ui.chart import chart
from specviz.ui.controls import Controls
from specviz.ui.explore import AT_ONCE, ON_MODEL, PRIVATE
from specviz.ui.tables import note
from specviz.ui.workloads_files import SHIPPED, shipped
from specviz.ui.workloads_handlers import ON_ZERO, Screen, Taken, Workloads, choices, offered, usual
from specviz.ui.workloads_order import (
    LEAST_TOKENS,
    MOST_DRAFTERS,
    MOST_PROMPTS,
    MOST_TOKENS,
    TIMED,
    UNTIMED,
    Asked,
)
from specviz.ui.workloads_view import BEST, EVERY, NOTHING, Look, View, nothing
from specviz.workloads.charts import DEFINITIONS, MEASURES
from specviz.workloads.statistics import FEWEST
from specviz.workloads.suites import OWN, Suite, load_suite

# Few at a time, so that those who decode are left their processor.
LOOKING: dict[str, Any] = {"show_progress": "hidden", "concurrency_id": "workloads", "concurrency_limit": 2, **PRIVATE}


class States(NamedTuple):
    """What a visitor has besides the shipped measurement, as `Held`."""

    uploaded: gr.State
    measured: gr.State


class Showing(NamedTuple):
    """The first card: what is shown."""

    look: Look
    upload: gr.File
    problem: gr.HTML
    download: gr.DownloadButton
    page: gr.DownloadButton
    markdown: gr.DownloadButton


def workloads_tab(controls: Controls, measured: Path = SHIPPED) -> None:
    """measured: results that the tab opens with; where there are none it says so. To be called within a gr.Tab."""
    handlers = Workloads(controls.explorer, shipped(measured))
    held = States(uploaded=gr.State(()), measured=gr.State(None))
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            showing = _choose()
        with gr.Column(elem_classes="sv-settings", min_width=0):
            form = _measure(handlers)
        with gr.Column(elem_classes="sv-run", min_width=0):
            view = _show(showing)
    version = gr.Textbox(visible=False)
    tab = _enclosing_tab()
    _wire_look(handlers, held, showing, view, version, tab)
    if form is not None:
        screen, asked = form
        screen = screen._replace(measured=held.measured, version=version, shown=showing.look.shown)
        _wire_measure(handlers, held, screen, asked, tab)


def _choose() -> Showing:
    shown = gr.Dropdown([], label="Results", elem_id="workloads-shown")
    compared = gr.Dropdown(
        [("nothing", NOTHING)],
        value=NOTHING,
        label="Compare with",
        info="Shows which differences are beyond noise.",
        elem_id="workloads-compared",
    )
    measure = gr.Radio(list(MEASURES), value=MEASURES[0], label="Shown by workload", elem_id="workloads-measure")
    settings = gr.Radio(
        [("each at its best setting", BEST), ("at every setting", EVERY)],
        value=BEST,
        label="Drafters",
        info="Best is fastest, or accepted most where nothing was timed.",
        elem_id="workloads-settings",
    )
    suites = gr.CheckboxGroup([], label="Suites", visible=False, elem_id="workloads-suites")
    closer = gr.Dropdown(
        [], label="Look closer at", info="For survival, place and prompt length.", elem_id="workloads-closer"
    )
    upload = gr.File(
        label="Your results: one or two JSONL files of bench",
        file_count="multiple",
        file_types=[".jsonl"],
        height=130,
        elem_id="workloads-upload",
    )
    problem = gr.HTML(apply_default_css=False, elem_id="workloads-problem")
    with gr.Row(elem_classes="sv-chips"):
        page, markdown, download = (
            gr.DownloadButton(text, size="sm", interactive=False, min_width=0, elem_classes="sv-chip", elem_id=id)
            for text, id in (
                ("Report", "workloads-report"),
                ("Report as Markdown", "workloads-markdown"),
                ("Results", "workloads-download"),
            )
        )
    look = Look(shown, compared, measure, settings, suites, closer)
    return Showing(look, upload, problem, download, page, markdown)


def _measure(handlers: Workloads) -> tuple[Screen, Asked] | None:
    """The card to measure with; without controls where that is not offered."""
    gr.HTML('<h2 class="sv-card-title">Measure here</h2>')
    pairings = handlers.pairings if handlers.measures_here else {}
    if not pairings:
        gr.HTML(note(ON_ZERO if not handlers.measures_here else "No pairing can run here, so nothing can be measured."))
        return None
    first = next(iter(pairings.values()))
    asked = Asked(
        pairing=gr.Dropdown(choices(pairings), value=first.id, label="Pairing", elem_id="suite-pairing"),
        drafters=gr.CheckboxGroup(
            offered(first),
            value=usual(first),
            label="Drafters",
            info=f"One to {MOST_DRAFTERS}, each with the settings of its preset.",
            elem_id="suite-drafters",
        ),
        workloads=gr.CheckboxGroup(
            _counted(load_suite(OWN)), value=["code", "translation"], label="Workloads", elem_id="suite-workloads"
        ),
        prompts=gr.Slider(
            1,
            MOST_PROMPTS,
            3,
            step=1,
            label="Prompts of each",
            info=f"Intervals take at least {FEWEST}, over all workloads or of each.",
            buttons=[],
            elem_id="suite-prompts",
        ),
        tokens=gr.Slider(
            LEAST_TOKENS, MOST_TOKENS, 48, step=16, label="New tokens at most", buttons=[], elem_id="suite-tokens"
        ),
        timed=gr.Radio(
            [("acceptance and speed-up", TIMED), ("acceptance alone: quicker", UNTIMED)],
            value=TIMED,
            label="What is measured",
            info="Timing decodes each answer four more times, plain and speculative in turns.",
            elem_id="suite-timed",
        ),
    )
    with gr.Row(elem_classes="sv-buttons"):
        run = gr.Button("Measure", variant="primary", min_width=0, elem_id="suite-run")
        stop = gr.Button("Stop", interactive=False, min_width=0, elem_id="suite-stop")
    return Screen(said=gr.HTML(apply_default_css=False, elem_id="suite-said"), run=run, stop=stop), asked


def _counted(suite: Suite) -> list[tuple[str, str]]:
    """Its workloads with the number of their prompts."""
    prompts = Counter(prompt.workload for prompt in suite.prompts)
    return [(f"{workload} ({count})", workload) for workload, count in prompts.items()]


def _show(showing: Showing) -> View:
    """The right column, empty: what there is to see is worked out when the tab is opened for the first time."""
    first = nothing()
    look = showing.look
    about = gr.HTML(apply_default_css=False, elem_id="workloads-about", elem_classes="sv-card")
    by_workload = chart(
        first.heat_map,
        elem_id="workloads-map",
        definition=f"{DEFINITIONS['acceptance length']} {DEFINITIONS['speed-up']}",
    )
    numbers = gr.HTML(apply_default_css=False, elem_id="workloads-numbers")
    choice = gr.HTML(apply_default_css=False, elem_id="workloads-choice", elem_classes="sv-card")
    survival = chart(first.survival, elem_id="workloads-survival", definition=DEFINITIONS["survival"])
    with gr.Row(elem_classes="sv-charts"):
        output = chart(first.output, elem_id="workloads-output", definition=DEFINITIONS["output"])
        prompt = chart(first.prompt, elem_id="workloads-prompt", definition=DEFINITIONS["prompt"])
    closer_numbers = gr.HTML(apply_default_css=False, elem_id="workloads-closer-numbers")
    drift = chart(first.drift, elem_id="workloads-drift", definition=DEFINITIONS["drift"])
    drift_numbers = gr.HTML(apply_default_css=False, elem_id="workloads-drift-numbers")
    return View(
        shown=look.shown,
        compared=look.compared,
        suites=look.suites,
        closer=look.closer,
        download=showing.download,
        page=showing.page,
        markdown=showing.markdown,
        about=about,
        heat_map=by_workload,
        numbers=numbers,
        choice=choice,
        survival=survival,
        output=output,
        prompt=prompt,
        closer_numbers=closer_numbers,
        drift=drift,
        drift_numbers=drift_numbers,
    )


def _wire_look(
    handlers: Workloads,
    held: States,
    showing: Showing,
    view: View,
    version: gr.Textbox,
    tab: gr.Tab,
) -> None:
    """The page is drawn when the tab is opened, when something else is chosen, and when there are new results."""
    inputs, outputs = [*held, *showing.look], [*view]
    for event in (tab.select, *(control.input for control in showing.look)):
        event(handlers.look, inputs, outputs, **LOOKING)
    version.change(handlers.look_at_new, [version, *inputs], outputs, **LOOKING)
    taken = Taken(held.uploaded, showing.problem, showing.look.shown, showing.look.compared)
    brought = showing.upload.change(handlers.take, [showing.upload, held.measured], [*taken], **LOOKING)
    brought.then(handlers.look, inputs, outputs, **LOOKING)


def _wire_measure(handlers: Workloads, held: States, screen: Screen, asked: Asked, tab: gr.Tab) -> None:
    """Measure: note it at once, then do it. Stop only says so; it ends by itself, within a step."""
    outputs = [*screen]
    tab.select(handlers.offered, None, asked.pairing, **AT_ONCE)
    asked.pairing.change(handlers.choose_pairing, asked.pairing, asked.drafters, **AT_ONCE)
    begun = screen.run.click(handlers.arrive, None, outputs, **AT_ONCE)
    done = begun.then(handlers.run, [held.uploaded, *asked], outputs, **ON_MODEL)
    done.failure(handlers.failed, None, outputs, **AT_ONCE)
    screen.stop.click(handlers.stop, None, outputs, **AT_ONCE)
    page = gr.context.Context.root_block
    assert isinstance(page, gr.Blocks)
    page.unload(handlers.leave)


def _enclosing_tab() -> gr.Tab:
    block = gr.context.Context.block
    while not isinstance(block, gr.Tab):
        assert block is not None, "the tab's contents are made within a gr.Tab"
        block = block.parent
    return block
