"""The page: `build_demo` makes it, `launch_options` says how to serve it."""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it once, on import; with it, the server phones no one

from specviz.ui.page import build_demo, launch_options

__all__ = ["build_demo", "launch_options"]
