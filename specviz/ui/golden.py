"""The Golden tab: published acceptance lengths, what was measured beside them, and synthetic acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from specviz import golden
from specviz.figures.golden_curve import MOST_CURVES
from specviz.golden import Golden
from specviz.ui import golden_view, synthetic
from specviz.ui.chart import chart
from specviz.ui.explore import AT_ONCE, PRIVATE
from specviz.ui.golden_view import NOTHING, Choices, Groups, Shown

READING: dict[str, Any] = {"show_progress": "hidden", "concurrency_id": "golden", "concurrency_limit": 2, **PRIVATE}
LENGTHS = (
    "The mean number of tokens that a verify pass brings, by draft length: 1 + accepted / verify passes with a draft, "
    "over all of them together. The band is the tolerance around the first curve; bars at measured points are 95 % "
    "bootstrap intervals over prompts. Of a point outside the band whose bar reaches into it nothing can be told. The "
    "dotted line, independent, is what the first curve's first position would give if every position were accepted as "
    "often: real acceptance falls with the position, so it promises too much."
)
SURVIVAL = (
    "The share of drafts whose tokens up to and including this position are all accepted. A golden file has means "
    "only, so it is implied: drafting one token more raises the acceptance length by that token's survival. Where "
    "noise makes a rise greater than the one before it, the two take their mean; below 0 it is cut to 0. A file that "
    "leaves draft lengths out tells nothing about positions in the gap."
)


def golden_tab(files: Sequence[Golden] | None = None) -> None:
    """files: those to choose from, what comes with specviz unless others are given."""
    shipped = golden_view.choices(golden.shipped() if files is None else files)
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            controls = _controls(shipped)
        with gr.Column(elem_classes="sv-run", min_width=0):
            outputs = _outputs(golden_view.show(list(shipped)[:1], NOTHING, 5, shipped, {}))
    _wire(shipped, *controls, outputs)
    synthetic.section()


def _controls(shipped: Choices) -> tuple[gr.Dropdown, gr.File, gr.File, gr.Dropdown, gr.Slider, gr.HTML]:
    curves = gr.Dropdown(
        list(shipped),
        value=list(shipped)[:1],
        multiselect=True,
        max_choices=MOST_CURVES,
        label="Golden curves",
        info="The first is compared with what was measured; the others lie over it.",
        elem_id="golden-curves",
    )
    own = gr.File(
        label="A golden file of your own (YAML)", file_types=[".yaml", ".yml"], height=150, elem_id="golden-file"
    )
    runs = gr.File(
        label="What was measured: results of bench, or runs (JSONL)",
        file_types=[".jsonl"],
        file_count="multiple",
        height=150,
        elem_id="golden-measured",
    )
    group = gr.Dropdown([NOTHING], value=NOTHING, label="Measured", elem_id="golden-group")
    tolerance = gr.Slider(0, 20, value=5, step=1, label="Tolerance, %", elem_id="golden-tolerance")
    return curves, own, runs, group, tolerance, gr.HTML(elem_id="golden-problem", apply_default_css=False)


def _outputs(first: Shown) -> list[gr.Component]:
    with gr.Row(elem_classes="sv-charts"):
        lengths = chart(first.lengths, elem_id="golden-lengths", definition=LENGTHS)
        survival = chart(first.survival, elem_id="golden-survival", definition=SURVIVAL)
    table = gr.HTML(first.table, elem_id="golden-table", elem_classes="sv-card", apply_default_css=False)
    facts = gr.HTML(first.facts, elem_id="golden-facts", elem_classes="sv-card", apply_default_css=False)
    return [lengths, survival, table, facts]


def _wire(
    shipped: Choices,
    curves: gr.Dropdown,
    own: gr.File,
    runs: gr.File,
    group: gr.Dropdown,
    tolerance: gr.Slider,
    problem: gr.HTML,
    outputs: list[gr.Component],
) -> None:
    """An upload changes what can be chosen, and what is chosen is shown."""
    brought: gr.State = gr.State({})
    found: gr.State = gr.State({})

    def take(path: str | None, chosen: list[str]) -> tuple[Choices, Any, str]:
        return golden_view.take_golden(path, chosen, shipped)

    def show(chosen: list[str], picked: str, percent: float, mine: Choices, groups: Groups) -> Shown:
        return golden_view.show(chosen, picked, percent, {**mine, **shipped}, groups)

    inputs = [curves, group, tolerance, brought, found]
    own.change(take, [own, curves], [brought, curves, problem], **READING).then(show, inputs, outputs, **AT_ONCE)
    runs.change(golden_view.take_measured, runs, [found, group, problem], **READING).then(
        show, inputs, outputs, **AT_ONCE
    )
    for event in (curves.input, group.input, tolerance.release):
        event(show, inputs, outputs, **AT_ONCE)
