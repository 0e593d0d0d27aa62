"""Synthetic acceptance in the Golden tab: one acceptance length under the three laws that engines use."""

from __future__ import annotations

from typing import Any, NamedTuple

import gradio as gr
import plotly.graph_objects as go

from specviz import synthetic, theory, trace
from specviz.errors import UserError
from specviz.figures import laws, laws_survival
from specviz.synthetic import ABOUT, LAWS, LEAST_VERIFY, MOST_COST, Law
from specviz.ui import tables
from specviz.ui.chart import chart
from specviz.ui.checks import number, whole
from specviz.ui.explore import AT_ONCE

MOST_GAMMA = 16
MOST_STEPS = 500  # of a run that is downloaded: below a megabyte at the longest drafts that are usual
HEADING = "Synthetic acceptance"
INTRODUCTION = (
    "Benchmarks of engines often replay a golden acceptance length instead of drafting. The engines agree on the mean "
    "and not on how accepted tokens are spread over the steps, and what comes out is no model's text."
)
SHARES = (
    "Under each law, the share of steps that accept exactly so many draft tokens. Nothing was measured: "
    + " ".join(f"{law}: {about}" for law, about in ABOUT.items())
)
SURVIVAL = (
    "Under each law, the share of drafts whose tokens up to and including this position are all accepted. Summed, it "
    "is the acceptance length less 1. vLLM takes these values as synthetic_acceptance_rates."
)
# The browser makes a file of the text; nothing is kept on the server.
DOWNLOAD = """(text) => {
  if (!text) return;
  const url = URL.createObjectURL(new Blob([text], {type: "application/jsonl"}));
  const link = Object.assign(document.createElement("a"), {href: url, download: "synthetic.jsonl"});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}"""


class Shown(NamedTuple):
    """The outputs, in the order of the page's components."""

    shares: go.Figure
    survival: go.Figure
    table: str


def section() -> None:
    """A heading, the controls and the charts, with their events."""
    gr.HTML(f"<h2>{HEADING}</h2>{tables.note(INTRODUCTION)}", apply_default_css=False)
    with gr.Row(elem_classes="sv-explore"):
        with gr.Column(elem_classes="sv-ask", min_width=0):
            length = gr.Number(3.78, label="Acceptance length", info="Tokens per verify pass.", elem_id="told-length")
            gamma = gr.Slider(0, MOST_GAMMA, value=7, step=1, label="Draft length gamma", elem_id="told-gamma")
            cost = gr.Number(0.1, label="Cost ratio c", info="Drafting one token, in plain steps.", elem_id="told-c")
            verify = gr.Number(1.2, label="Verify cost v", info="A verify pass, in plain steps.", elem_id="told-v")
            law = gr.Radio(list(LAWS), value=LAWS[0], label="Law to tell engines, and to download", elem_id="told-law")
            steps = gr.Slider(10, MOST_STEPS, value=100, step=10, label="Steps of it", elem_id="told-steps")
            seed = gr.Number(0, label="Seed", precision=0, elem_id="told-seed")
            button = gr.Button("Download a synthetic run", elem_id="told-download")
            problem = gr.HTML(elem_id="told-problem", apply_default_css=False)
        with gr.Column(elem_classes="sv-run", min_width=0):
            first = show(3.78, 7, 0.1, 1.2, LAWS[0])
            with gr.Row(elem_classes="sv-charts"):
                shares = chart(first.shares, elem_id="told-shares", definition=SHARES)
                survival = chart(first.survival, elem_id="told-survival", definition=SURVIVAL)
            table = gr.HTML(first.table, elem_id="told-table", elem_classes="sv-card", apply_default_css=False)
    text = gr.Textbox(visible=False)
    told = [length, gamma, cost, verify, law]
    for event in (length.input, gamma.release, cost.input, verify.input, law.input):
        event(show, told, [shares, survival, table], **AT_ONCE)
    made = button.click(run, [length, gamma, law, steps, seed], [text, problem], **AT_ONCE)
    made.then(None, text, None, js=DOWNLOAD, **AT_ONCE)


def show(length: Any, gamma: Any, cost: Any, verify: Any, law: Law) -> Shown:
    """The three laws for this length, what they would come to at these costs, and how engines are told one of them."""
    try:
        told, tokens = _told(length, gamma)
        info = laws.side_by_side(told, tokens)
        costs = (
            number("The cost ratio c", cost, 0, MOST_COST),
            number("The verify cost v", verify, LEAST_VERIFY, MOST_COST),
        )
    except UserError as error:
        return Shown(laws.plot(None), laws_survival.plot(None), tables.problem(str(error)))
    rows = [
        [
            made.law,
            f"{made.length:.3f}",
            f"{made.variance:.3f}",
            f"{theory.speedup(made.length, tokens, *costs):.2f}x",
        ]
        for made in info.laws
    ]
    caption = (
        f"Synthetic, with a speed-up that is modelled: length / (v + gamma c) at c = {costs[0]:g}, v = {costs[1]:g}"
    )
    table = tables.table(["law", "acceptance length", "variance", "modelled speed-up"], rows, caption=caption)
    if tokens:
        table += _knobs(law, told, tokens)
    return Shown(laws.plot(info), laws_survival.plot(info), table)


def _knobs(law: Law, told: float, tokens: int) -> str:
    made = synthetic.distribution(law, told, tokens)
    shown = tables.note(f"As engines are told the law {law}:") + tables.facts(synthetic.knobs(made).items())
    return shown + (tables.note(synthetic.TOKEN_MODE) if law in synthetic.SGLANG_METHODS else "")


def run(length: Any, gamma: Any, law: Law, steps: Any, seed: Any) -> tuple[str, str]:
    """A synthetic run as the text of a file, and what was wrong."""
    try:
        made = synthetic.distribution(law, *_told(length, gamma))
        count, start = whole("The number of steps", steps, 1, MOST_STEPS), whole("The seed", seed, 0, 2**31 - 1)
    except UserError as error:
        return "", tables.problem(str(error))
    found = synthetic.synthetic_trace(made, count, start)
    return "\n".join([trace.header_line(found.run), *map(trace.step_line, found.steps)]) + "\n", ""


def _told(length: Any, gamma: Any) -> tuple[float, int]:
    tokens = whole("The draft length gamma", gamma, 0, MOST_GAMMA)
    return number("The acceptance length", length, 1, tokens + 1), tokens
