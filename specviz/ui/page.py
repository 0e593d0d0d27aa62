"""The page as a whole."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz import runs
from specviz.presets import load_pairings
from specviz.ui.explore import explore_tab
from specviz.ui.handlers import Explorer
from specviz.ui.javascript import CSS, script
from specviz.ui.loading import Loader, Models
from specviz.ui.theme import theme

HEADER = (
    '<header class="sv-header"><h1>spec<i>vi</i><b>z</b></h1>'
    "<p>Speculative decoding, with every decision in view</p></header>"
)


def build_demo(
    loader: Loader = runs.load, device: str = "auto", dtype: str = "auto", offline: bool = False
) -> gr.Blocks:
    """The app as Gradio blocks. `loader` is called at the first run of a pairing, never before."""
    explorer = Explorer(load_pairings(), Models(loader, device=device, dtype=dtype, offline=offline))
    demo = gr.Blocks(title="specviz", analytics_enabled=False, delete_cache=(3600, 3600))
    with demo:
        gr.HTML(HEADER, apply_default_css=False, js_on_load=script("focus.js"))
        with gr.Tabs(), gr.Tab("Explore"):
            explore_tab(explorer)
        demo.unload(explorer.leave)
    demo.queue(max_size=48)
    return demo


def launch_options() -> dict[str, Any]:
    """Arguments of `launch` that belong to the page: looks, and nothing that phones, shares or remembers."""
    return {
        "theme": theme(),
        "css_paths": [CSS],
        "footer_links": ["settings"],
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": "1mb",
        "show_error": False,
        "share": False,
        "ssr_mode": False,
        "pwa": False,
        "quiet": True,
    }
