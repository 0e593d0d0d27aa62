"""The page as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from specviz import loaded
from specviz.presets import Pairing, load_pairings
from specviz.recordings import Recording, load_examples, load_recordings
from specviz.ui.api import add_endpoints
from specviz.ui.batch import batch_tab
from specviz.ui.controls import Controls
from specviz.ui.explore import explore_tab
from specviz.ui.golden import golden_tab
from specviz.ui.handlers import Explorer
from specviz.ui.javascript import STYLES, script, view
from specviz.ui.loading import Loader, Models
from specviz.ui.memory import memory_tab
from specviz.ui.serving import serving_tab
from specviz.ui.theme import theme
from specviz.ui.work import Worker, here
from specviz.ui.workloads import workloads_tab

HEADER = (
    '<header class="sv-header"><h1>spec<i>vi</i><b>z</b></h1>'
    "<p>Speculative decoding, with every decision in view</p></header>"
)


def build_demo(
    loader: Loader = loaded.load,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    pairings: Mapping[str, Pairing] | None = None,
    recordings: Mapping[str, Recording] | None = None,
    own_models: bool = False,
    worker: Worker = here,
) -> gr.Blocks:
    """The app as Gradio blocks. `loader` is called when the first visitor has come, never before.

    Pairings and recordings are those that are shipped, unless others are given. own_models: whether the user may name
    models of their own, folders of this machine among them; not for a server that others can reach. worker: who uses
    the model in a run.
    """
    models = Models(loader, device=device, dtype=dtype, offline=offline)
    recordings = load_recordings() if recordings is None else recordings
    explorer = Explorer(dict(load_pairings() if pairings is None else pairings), models, recordings, worker)
    controls = Controls(explorer, load_examples(), recordings, own_models)
    demo = gr.Blocks(title="specviz", analytics_enabled=False, delete_cache=(3600, 3600), fill_width=True)
    with demo:
        add_endpoints(explorer)  # first, so that no event of the page takes their names
        with gr.Row(elem_classes="sv-top"):
            gr.HTML(HEADER, apply_default_css=False, js_on_load=script("focus.js"))
            status = view("status_view.js", "", elem_id="status")
        with gr.Tabs():
            with gr.Tab("Explore"):
                explore_tab(controls, status)
            with gr.Tab("Workloads"):
                workloads_tab(controls)
            with gr.Tab("Golden"):
                golden_tab()
            with gr.Tab("Memory"):
                memory_tab(controls)
            with gr.Tab("Batch"):
                batch_tab(explorer)
            with gr.Tab("Production"):
                serving_tab(explorer.pairings)
        demo.unload(explorer.leave)
    demo.queue(max_size=96)
    return demo


def launch_options() -> dict[str, Any]:
    """Arguments of `launch` that belong to the page: looks, and nothing that phones, shares or remembers."""
    return {
        "theme": theme(),
        "css_paths": list(STYLES),
        "footer_links": ["settings"],
        "max_threads": 100,  # each waiting visitor holds one; they sleep
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": "5mb",
        "show_error": False,
        "share": False,
        "ssr_mode": False,
        "pwa": False,
        "quiet": True,
    }
