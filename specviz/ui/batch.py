"""The Batch tab: what is left of the speed-up when several sequences are decoded side by side."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import gradio as gr

from specviz.batch import drawn, results
from specviz.batch.published import load_published
from specviz.batch.results import Measurement
from specviz.drafter_settings import asks_for_tree
from specviz.errors import UserError
from specviz.metrics import acceptance
from specviz.presets import PRESETS
from specviz.recordings import Recording
from specviz.ui.batch_run import NOT_HERE, BatchRun, State
from specviz.ui.batch_view import LARGEST_BATCH, LONGEST_GAMMA, MOST_COST, Asked, Shown, references, show
from specviz.ui.chart import chart
from specviz.ui.explore import AT_ONCE, ON_MODEL, PRIVATE, STOPPING
from specviz.ui.handlers import Explorer
from specviz.ui.screens import SKIP
from specviz.ui.tables import note, problem

MEASUREMENTS = PRESETS / "measurements"
USUAL = Asked(length=2.0, gamma=2, cost_ratio=0.1, as_measured=False, batch=4, unit=drawn.SAME_BATCH)
VERIFY_COST = (
    "The time of one forward pass of the target over so many rows, that is tokens, of each of B sequences, each after "
    "a context of the same length. One row is plain decoding; gamma + 1 rows are a verify pass. Points are medians, "
    "bars the first and third quartile, over a plain step's median. Dotted is the roofline, in plain steps of its own: "
    "modelled from the bandwidth and arithmetic that this device was measured to reach."
)
LOAD = (
    "Plain over speculative time per token at a batch size: acceptance length * T(B, 1) / (gamma * T_D(B) + T(B, gamma "
    "+ 1)), where T(B, k) is a pass over k rows of each of B sequences and T_D(B) a drafter's step. Filled points come "
    "of measured passes, open ones of passes between or beyond them. Below the line at 1 speculation is slower. "
    "Published points are of other models, engines and data, which each of them names; nothing joins them."
)


def batch_tab(explorer: Explorer, measurements: Path = MEASUREMENTS) -> None:
    """`measurements`: a folder of those that are shipped."""
    shipped, published, recorded = load_measurements(measurements), load_published(), starts(explorer.recordings)
    first, asked = next(iter(shipped.values()), None), next(iter(recorded.values()), USUAL)
    shown = show(first, published.values(), asked)
    run = BatchRun(explorer)
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            measurement = gr.State(first)
            chosen = gr.Dropdown(
                list(shipped), value=next(iter(shipped), None), label="Measurement", elem_id="batch-measurement"
            )
            upload = gr.UploadButton("Upload a measurement", file_types=[".json"], size="sm", elem_id="batch-upload")
            start = gr.Dropdown(
                list(recorded),
                value=next(iter(recorded), None),
                label="Run",
                info="Sets the next three to what this recorded run had, gamma to its mean draft length, rounded.",
                visible=bool(recorded),
                elem_id="batch-run",
            )
            controls = _controls(asked, first)
        with gr.Column(elem_classes="sv-settings", min_width=0):
            measure, stop, words = _measuring(run)
        with gr.Column(elem_classes="sv-run", min_width=0):
            numbers = gr.HTML(shown.numbers, apply_default_css=False, elem_classes="sv-card", elem_id="batch-numbers")
            load = chart(shown.load, elem_id="batch-load", definition=LOAD)
            verify_cost = chart(shown.verify_cost, elem_id="batch-verify-cost", definition=VERIFY_COST)
            about = gr.HTML(shown.about, apply_default_css=False, elem_classes="sv-card", elem_id="batch-about")
            with gr.Accordion("Published reference points", open=False):
                gr.HTML(references(published.values()), apply_default_css=False, elem_id="batch-published")

    def redraw(measurement: Measurement | None, *values: Any) -> Shown:
        return show(measurement, published.values(), Asked(*values))

    drawing: dict[str, Any] = {
        "fn": redraw,
        "inputs": [measurement, *controls],
        "outputs": [*Shown(verify_cost, load, numbers, about)],
        **AT_ONCE,
    }
    for control in controls:
        control.input(**drawing, trigger_mode="always_last")
    started = start.input(lambda title: [*recorded[title][:3]], start, controls[:3], **AT_ONCE)
    picked = chosen.input(shipped.get, chosen, measurement, **AT_ONCE)
    uploaded = upload.upload(read_upload, upload, [measurement, words], show_progress="hidden", **PRIVATE)
    states = [*State(words, measurement, measure, stop)]
    pressed = measure.click(run.arrive, None, states, **AT_ONCE)
    measured = pressed.then(run.run, None, states, **ON_MODEL)
    measured.failure(run.failed, None, states, **AT_ONCE)
    started.then(**drawing)
    for changed in (picked, uploaded, measured):
        followed = changed.then(lambda each: follow(each, shipped), measurement, [controls[3], chosen], **AT_ONCE)
        followed.then(**drawing)
    said = stop.click(None, None, stop, js=STOPPING, **PRIVATE)
    said.then(run.stop, None, states, **AT_ONCE)
    page = gr.context.Context.root_block
    assert isinstance(page, gr.Blocks)
    page.unload(run.leave)


def _controls(asked: Asked, first: Measurement | None) -> list[Any]:
    """In the order of `Asked`."""
    length = gr.Slider(
        1,
        LONGEST_GAMMA + 1,
        asked.length,
        step=0.01,
        label="Acceptance length",
        info="1 + accepted draft tokens per verify pass.",
        elem_id="batch-length",
    )
    gamma = gr.Slider(
        1, LONGEST_GAMMA, asked.gamma, step=1, label="Gamma", info="Draft length, of chains.", elem_id="batch-gamma"
    )
    ratio = gr.Slider(
        0,
        MOST_COST,
        asked.cost_ratio,
        step=0.001,
        label="Cost ratio c",
        info="A drafter's step over a plain step at batch size 1.",
        elem_id="batch-cost",
    )
    as_measured = gr.Checkbox(
        asked.as_measured,
        label="Drafter's steps as measured",
        visible=_has_drafting(first),
        elem_id="batch-as-measured",
    )
    batch = gr.Slider(
        1, LARGEST_BATCH, asked.batch, step=1, label="Batch size", info="Sequences side by side.", elem_id="batch-size"
    )
    unit = gr.Radio(list(drawn.UNITS), value=asked.unit, label="Cost of a pass in", elem_id="batch-unit")
    return [length, gamma, ratio, as_measured, batch, unit]


def _measuring(run: BatchRun) -> tuple[gr.Button, gr.Button, gr.HTML]:
    """The buttons, and where it is said how far measuring is."""
    with gr.Row(elem_classes="sv-buttons"):
        measure = gr.Button("Measure here", size="md", interactive=run.is_offered, min_width=0, elem_id="batch-measure")
        stop = gr.Button("Stop", size="md", interactive=False, min_width=0, elem_id="batch-stop")
    offered = f"Times passes of {run.pairing.target.name} on this server's device, within two minutes."
    about = offered if run.is_offered else NOT_HERE
    words = gr.HTML(note(about), apply_default_css=False, elem_id="batch-state")
    return measure, stop, words


def load_measurements(folder: Path) -> dict[str, Measurement]:
    """Those that are shipped, by what the list calls them. Raises UserError for a file that is none."""
    found = [results.read(file) for file in sorted(folder.glob("*.json"))]
    return {name(each): each for each in found}


def name(measurement: Measurement) -> str:
    header = measurement.header
    return f"{header.target} on {header.device}, {header.dtype}"


def starts(recordings: Mapping[str, Recording]) -> dict[str, Asked]:
    """Where the sliders may start, by what the list calls it: the recorded runs that drafted chains.

    Of trees a verify pass has more rows than the draft is deep, which the sliders can't say.
    """
    found = {}
    for recording in recordings.values():
        phases, run = recording.comparison.phases, recording.trace.run
        if phases is None or asks_for_tree(run.drafter_settings):
            continue
        length, ratio, used = acceptance(recording.trace).acceptance_length, phases.cost_ratio, phases.gamma_used
        if length is None or ratio is None or not used:
            continue
        gamma = max(round(used), ceil(length - 1))
        found[f"{recording.example.title}, {run.drafter}"] = USUAL._replace(
            length=round(length, 2), gamma=gamma, cost_ratio=round(ratio, 3)
        )
    return found


def read_upload(file: str | None) -> list[Any]:
    """The measurement in an uploaded file, and a word on it; or why it is none."""
    if file is None:
        return [SKIP, SKIP]
    try:
        measurement = results.read(Path(file), "The file")
    except UserError as error:
        return [SKIP, problem(str(error))]
    return [measurement, note(f"Shown is what was uploaded: {name(measurement)}.")]


def follow(measurement: Measurement | None, shipped: Mapping[str, Measurement]) -> list[Any]:
    """Whether the drafter's steps can be had as they were measured, and which of the shipped ones it is, if any."""
    which = next((name for name, each in shipped.items() if each == measurement), None)
    return [gr.update(visible=_has_drafting(measurement)), which]


def _has_drafting(measurement: Measurement | None) -> bool:
    return measurement is not None and bool(measurement.drafting)
