"""Puts the plain ES modules of assets/js/, unchanged, to work in gr.HTML components."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"
STYLES = sorted((ASSETS / "css").glob("*.css"))
_IMPORT = re.compile(r'^import .* from "\./(\w+\.js)";$', re.MULTILINE)

# A module inlined in the page can't be imported by name, but one in a Blob can: each comes after those that it
# imports, whose names become their Blobs' addresses. The value may have changed while the modules loaded, so it is
# drawn once at the end; `watch`, or what feeds the view, then tells of every change.
_ON_LOAD = """
const urls = {};
let url;
for (const [name, source] of SOURCES) {
  const linked = source.replace(/from "\\.\\/(\\w+\\.js)";/g, (_, file) => `from "${urls[file]}";`);
  url = urls[name] = URL.createObjectURL(new Blob([linked], {type: "text/javascript"}));
}
import(url).then((module) => {
  const view = module.mount(element.querySelector("div"));
  const block = element.closest(".block");
  const draw = () => view.update(block.fed ?? props.value ?? "");
  watch("value", draw);
  block.addEventListener("fed", draw);
  draw();
}).finally(() => Object.values(urls).forEach((each) => URL.revokeObjectURL(each)));
"""

_FEED = """(text) => {
  const block = document.querySelector("#ID");
  block.fed = text;
  block.dispatchEvent(new Event("fed"));
}"""


def view(module: str, value: str, **settings: Any) -> gr.HTML:
    """A component whose value is drawn by `mount` of assets/js/`module`.

    The template is constant: whatever the value holds, it never becomes HTML.
    """
    sources = json.dumps([(name, script(name)) for name in _with_imports(module)])
    return gr.HTML(
        value,
        html_template="<div></div>",
        js_on_load=_ON_LOAD.replace("SOURCES", sources.replace("</", "<\\/")),
        apply_default_css=False,
        **settings,
    )


def feed(elem_id: str) -> gr.Textbox:
    """An output whose text goes straight to the view with that id, in place of the view's own value.

    For a text that grows for long: Gradio's page turns the whole value of a gr.HTML into JSON six times at every
    change, but it only compares, and passes on, the value of what is not in view.
    """
    text = gr.Textbox(visible=False)
    text.change(None, text, None, js=_FEED.replace("ID", elem_id), api_visibility="private")
    return text


@cache
def script(name: str) -> str:
    """The source of assets/js/`name`."""
    return (ASSETS / "js" / name).read_text(encoding="utf-8")


def _with_imports(module: str) -> list[str]:
    """The module after all that it imports, each once."""
    order: list[str] = []
    for name in _IMPORT.findall(script(module)):
        order += [other for other in _with_imports(name) if other not in order]
    return [*order, module]
