"""The options of `batch`, model apart. Nothing here imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.workloads.options import numbers

BATCHES, ROWS, CONTEXT, REPEATS = "1,2,4,8,16,32", "1,2,3,4,6,8", 256, 5
CELL_SECONDS = 60.0  # the longest that all passes of one batch size and length may take together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that `batch` takes besides the options that name a model."""
    add = parser.add_argument
    add("--batches", type=numbers, default=BATCHES, metavar="N,...", help="sequences side by side")
    add("--rows", type=numbers, default=ROWS, metavar="N,...", help="tokens per sequence and pass: gamma + 1, and 1")
    add("--context", type=int, default=CONTEXT, help="tokens that every sequence's cache holds before the pass")
    add("--repeats", type=int, default=REPEATS, help="timed passes of each")
    add("--cell-seconds", type=float, default=CELL_SECONDS, help="leave out what is expected to take longer in all")
    add("--drafter", choices=["plain", "draft-model"], default="plain", help="draft-model: time its steps as well")
    add("--drafter-path", metavar="MODEL", help="another draft model than the pairing's: a folder or a Hub id")
    add("--out", type=Path, metavar="F.json", help="write the measurement there")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else there")
    gain = parser.add_argument_group("speed-up", "what the costs leave of it, batch size by batch size")
    gain.add_argument("--acceptance-length", type=float, metavar="L", help="of a run with drafts of --gamma tokens")
    gain.add_argument("--gamma", type=int, default=2, help="draft length")
    gain.add_argument("--cost-ratio", type=float, metavar="C", help="a drafter's step over a plain one, at batch 1")
