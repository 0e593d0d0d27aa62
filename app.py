"""Starts the page: python app.py, then open the address that it prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi.middleware import Middleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware

from specviz.errors import UserError
from specviz.models.devices import pick_device, pick_dtype
from specviz.presets import Pairing, load_pairings, pairing
from specviz.ui import build_demo, launch_options, zero

THIS_MACHINE = ("127.0.0.1", "localhost")

if TYPE_CHECKING:  # specviz.ui prepares the ground before gradio is imported
    import gradio as gr


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch speculative decoding work, and find out whether it pays.")
    # Hosting services, Spaces among them, say by variables where to listen, and take no arguments.
    host, port = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser.add_argument("--host", default=host, help="address to listen on; 0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, xpu or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--offline", action="store_true", help="never fetch weights; use those in the cache")
    pairings = os.environ.get("SPECVIZ_PAIRINGS") or None
    parser.add_argument("--pairings", metavar="ID,...", default=pairings, help="offer these and no others")
    parser.add_argument(
        "--own-models",
        action="store_true",
        help="let the user name models by folder or Hub id; only on an address that other machines can't reach",
    )
    args = parser.parse_args()
    try:
        pick_dtype(args.dtype, pick_device(args.device))  # refused now rather than at the first run
        if args.own_models:
            check_private(args.host)
        if zero.IS_ON:
            loaded = zero.load(chosen(args.pairings or zero.DEFAULT), offline=args.offline)
            demo = build_demo(zero.there, pairings=loaded, worker=zero.Lent)
        else:
            demo = build_demo(
                device=args.device,
                dtype=args.dtype,
                offline=args.offline,
                pairings=chosen(args.pairings),
                own_models=args.own_models,
            )
        # A page elsewhere can give this machine a name of its own, and then reach what listens here.
        serve(demo, args.host, args.port, THIS_MACHINE if args.own_models else ("*",))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def chosen(ids: str | None) -> dict[str, Pairing]:
    """The pairings with these ids, in this order, or all that are shipped; raises UserError for unknown ones."""
    named = [id.strip() for id in (ids or "").split(",") if id.strip()]
    return {id: pairing(id) for id in named} or load_pairings()


def check_private(host: str) -> None:
    """Raises UserError unless only this machine reaches the address: own models are folders of it, among others."""
    if host not in THIS_MACHINE or zero.IS_ON:
        raise UserError(
            f"--own-models lets whoever opens the page read folders of this machine, so {host} is refused; listen on "
            "127.0.0.1."
        )


def serve(demo: gr.Blocks, host: str, port: int, hosts: Sequence[str] = ("*",)) -> None:
    """Serve until interrupted; raises UserError if the address can't be had. hosts: names it is asked for by."""
    named = {"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]}
    try:
        _, url, _ = demo.launch(
            server_name=host, server_port=port, prevent_thread_lock=True, app_kwargs=named, **launch_options()
        )
    except OSError as error:
        raise UserError(f"Port {port} on {host} can't be had, so free it or choose another with --port.") from error
    print(f"specviz is at {url} (Ctrl+C ends it)")
    demo.block_thread()


if __name__ == "__main__":
    main()
