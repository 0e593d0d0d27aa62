"""Puts the plain ES modules of assets/js/, unchanged, to work in gr.HTML components."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"
CSS = ASSETS / "css" / "specviz.css"

# A module inlined in the page can't be imported by name, but one in a Blob can. The value may have changed while the
# module loaded, so it is drawn once at the end; `watch` then tells of every change.
_ON_LOAD = """
const url = URL.createObjectURL(new Blob([SOURCE], {type: "text/javascript"}));
import(url).then((module) => {
  const view = module.mount(element.querySelector("div"));
  const draw = () => view.update(props.value || "");
  watch("value", draw);
  draw();
}).finally(() => URL.revokeObjectURL(url));
"""


def view(module: str, value: str, **settings: Any) -> gr.HTML:
    """A component whose value is drawn by `mount` of assets/js/`module`.

    The template is constant: whatever the value holds, it never becomes HTML.
    """
    source = (ASSETS / "js" / module).read_text(encoding="utf-8")
    return gr.HTML(
        value,
        html_template="<div></div>",
        js_on_load=_ON_LOAD.replace("SOURCE", json.dumps(source).replace("</", "<\\/")),
        apply_default_css=False,
        **settings,
    )


def script(name: str) -> str:
    """assets/js/`name`, to run once when its component is there."""
    return (ASSETS / "js" / name).read_text(encoding="utf-8")
