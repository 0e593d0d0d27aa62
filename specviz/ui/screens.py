"""What the outputs of the page show at each moment of a run."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import gradio as gr

from specviz import runs
from specviz.figures import histogram
from specviz.metrics import acceptance
from specviz.models.text import TokenText
from specviz.ui import report
from specviz.ui.report import Pieces, Record, plural

Value = Any  # what a Gradio component takes
SKIP: Value = gr.skip()
WARM_UPS = 2  # speculative and plain, as `compare` does it


class Screen(NamedTuple):
    """The outputs, in the order of the page's components; what is left out stays as it is."""

    tokens: Value = SKIP
    verdict: Value = SKIP
    details: Value = SKIP
    chart: Value = SKIP
    run: Value = SKIP
    stop: Value = SKIP


def empty() -> str:
    """The verdict's card before the first run."""
    headline = [("Which words does the drafter guess, and does it pay?", "")]
    status = (
        "Press Run. A cheap drafter proposes the next tokens, the target checks them all in one pass, "
        "and only what the target would have said itself stays."
    )
    return _card(headline=headline, status=status, tiles=report.tiles(None))


def starting() -> Screen:
    return Screen(
        verdict=working("Starting"), run=gr.Button(interactive=False), stop=gr.Button("Stop", interactive=True)
    )


def ready(verdict: Value = SKIP, **outputs: Value) -> Screen:
    """Run works again."""
    off = gr.Button("Stop", interactive=False)  # it may have said "Stopping…"
    return Screen(verdict=verdict, run=gr.Button(interactive=True), stop=off, **outputs)


def message(sentence: str, tone: str = "error", begun: bool = False) -> str:
    """One sentence in place of a verdict. Unless the run had begun, the one before it stays in view."""
    headline, kept = [(sentence, tone)], "Below is the run before this one."
    if begun:
        return _card(headline=headline, status="", tiles=report.tiles(None), announce=sentence)
    return _card(headline=headline, status="", earlier=kept, announce=sentence)


def working(sentence: str) -> str:
    """What is done before there is a first token; the run before stays in view."""
    return _card(headline=[(sentence, "muted")], status="", earlier="", busy=True)


def waiting(ahead: int) -> str:
    turns = f", with {plural(ahead, 'other')} before you" if ahead else ""
    return working(f"Waiting: another run is using the model{turns}")


def progress(record: Record) -> str:
    """How far the run has come."""
    count = len(record.trace.tokens)
    per_pass = acceptance(record.trace).tokens_per_pass or 0
    headline = [(f"{per_pass:.1f} tokens per verify pass ", ""), ("so far", "muted")]
    status = f"decoding: {count} of at most {plural(record.run.max_new_tokens, 'token')}"
    return _card(headline=headline, status=status, busy=True, tiles=report.tiles(record))


def measuring(record: Record, warmed: int) -> str:
    """The figures are there, the speed-up is still to come. `warmed`: how many of the two untimed runs are over."""
    now = f"warming up ({warmed + 1} of {WARM_UPS})"
    if warmed >= WARM_UPS:
        now = f"repeat {record.comparison.repeats + 1 if record.comparison else 1} of {record.repeats}"
    headline = [(f"{acceptance(record.trace).tokens_per_pass or 0:.1f} tokens per verify pass", "")]
    status = f"measuring against plain decoding: {now}"
    return _card(headline=headline, status=status, busy=True, tiles=report.tiles(record))


def finished(record: Record, loaded: runs.Loaded) -> Screen:
    sentence = report.verdict(record)
    status, tone = report.equality(record, TokenText(loaded.target.tokenizer))
    spoken = f"{''.join(text for text, _ in sentence)}. {status}"
    return ready(
        _card(headline=sentence, status=status, tone=tone, tiles=report.tiles(record), announce=spoken),
        details=details(record),
        chart=chart(record),
    )


def details(record: Record) -> str:
    """The second card: how it ended, on what it ran, and what to know about it."""
    return _card(lines=report.lines(record), notes=list(record.trace.warnings), definitions=report.definitions())


def chart(record: Record) -> Value:
    if not acceptance(record.trace).drafted:
        return gr.Plot(visible=False)  # nothing was drafted, so there is nothing to draw
    return gr.Plot(histogram.plot(histogram.info(record.trace)), visible=True)


def _card(
    *,
    headline: Pieces | None = None,
    status: str | None = None,
    tone: str = "",
    busy: bool = False,
    tiles: list[dict[str, str]] | None = None,
    earlier: str | None = None,
    lines: report.Lines | None = None,
    notes: list[str] | None = None,
    definitions: list[tuple[str, str]] | None = None,
    announce: str = "",
) -> str:
    """JSON for assets/js/result_view.js, which writes it as text."""
    values = {
        "headline": headline,
        "status": status,
        "tone": tone or None,
        "busy": busy or None,
        "tiles": tiles,
        "earlier": earlier,
        "lines": lines,
        "notes": notes,
        "definitions": definitions,
        "announce": announce or None,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
