"""An engine's card: its name, the command or why there is none, an example request, and what differs."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

import gradio as gr

from specviz.serving import Launch
from specviz.serving.answer import UNVERIFIED
from specviz.ui.tables import note

POINTS = "ul { margin: 0; padding-left: 18px; list-style: disc; } li + li { margin-top: 5px; }"
# Code in one colour: in the light theme, Gradio's colours for shell and Python are too pale to read.
CODE: dict[str, Any] = {
    "language": None,
    "interactive": False,
    "show_label": False,
    "show_line_numbers": False,
    "lines": 1,
    "buttons": ["copy"],
}


class Card(NamedTuple):
    """The components of a card, or what they are to show."""

    verdict: Any
    command: Any
    request_fold: Any
    request: Any
    differs: Any


def card(launch: Launch) -> Card:
    """Build it where it is called, showing that launch."""
    look, id = looks(launch), f"launch-{launch.engine.replace('.', '')}"
    with gr.Column(elem_classes="sv-defined", min_width=0):
        verdict = gr.HTML(apply_default_css=False, elem_id=id, **look.verdict)
        command = gr.Code(wrap_lines=True, elem_id=f"{id}-command", **CODE, **look.command)
        with gr.Accordion(open=False, **look.request_fold) as fold:
            request = gr.Code(elem_id=f"{id}-request", **CODE, **look.request)
        differs = gr.HTML(apply_default_css=False, css_template=POINTS, elem_id=f"{id}-differs", **look.differs)
    return Card(verdict, command, fold, request, differs)


def looks(launch: Launch) -> Card:
    """What a card's components show: arguments to build them with, or to update them by."""
    request = launch.request
    said = f"{launch.checked[:1].upper()}{launch.checked[1:]}."
    if launch.unsupported is not None:
        said = f"Can't be launched there: {launch.unsupported}"
    return Card(
        {"value": f'<p class="sv-saying">{escape(launch.title)}</p>{note(said)}'},
        {"value": launch.command or "", "visible": launch.command is not None},
        {
            "label": "" if request is None else f"Example request, POST {request.route}",
            "visible": request is not None,
        },
        {"value": "" if request is None else request.body},
        {"value": _points(launch), "visible": bool(launch.differs)},
    )


def _points(launch: Launch) -> str:
    """What differs, a sentence to a point; what is unverified says so in bold."""
    lines = []
    for sentence in launch.differs:
        said = sentence.removeprefix(UNVERIFIED)
        mark = f"<b>{UNVERIFIED}</b>" if said != sentence else ""
        lines.append(f"<li>{mark}{escape(said)}</li>")
    return f'<ul class="sv-remark">{"".join(lines)}</ul>' if lines else ""
