"""Starts the page: python app.py, then open the address that it prints."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from specviz.errors import UserError
from specviz.models.devices import pick_device, pick_dtype
from specviz.ui import build_demo, launch_options

if TYPE_CHECKING:  # specviz.ui prepares the ground before gradio is imported
    import gradio as gr


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch speculative decoding work, and find out whether it pays.")
    # Hosting services, Spaces among them, say by these variables where to listen.
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser.add_argument("--host", default=host, help="address to listen on; 0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, xpu or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--offline", action="store_true", help="never fetch weights; use those in the cache")
    args = parser.parse_args()
    try:
        pick_dtype(args.dtype, pick_device(args.device))  # refused now rather than at the first run
        serve(build_demo(device=args.device, dtype=args.dtype, offline=args.offline), args.host, args.port)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def serve(demo: gr.Blocks, host: str, port: int) -> None:
    """Serve until interrupted; raises UserError if the address can't be had."""
    try:
        _, url, _ = demo.launch(server_name=host, server_port=port, prevent_thread_lock=True, **launch_options())
    except OSError as error:
        raise UserError(f"Port {port} on {host} can't be had, so free it or choose another with --port.") from error
    print(f"specviz is at {url} (Ctrl+C ends it)")
    demo.block_thread()


if __name__ == "__main__":
    main()
