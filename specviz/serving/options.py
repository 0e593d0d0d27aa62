"""The options of `launch`, those of a drafter apart. Nothing here imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.presets import load_pairings
from specviz.serving import ENGINES

ASKED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_new_tokens")
ABOUT = ("rule", "context", "tensor_parallel", "dtype")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that `launch` takes besides the options of a drafter, which `run` has too.

    What is left out follows the recorded run, or is off, so no option has a default of its own.
    """
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairing", help=f"one of: {', '.join(load_pairings())}; by default the first")
    what.add_argument("--target", metavar="MODEL", help="instead of a pairing: a folder or a Hub id")
    what.add_argument("--trace", type=Path, metavar="F.jsonl", help="take models and settings from this recorded run")
    add = parser.add_argument
    add("--engine", action="append", choices=[*ENGINES], help="this engine alone; repeatable; by default all")
    add("--rule", choices=["token", "block", "typical"], help="acceptance rule, token by default")
    add("--temperature", type=float, help="0, which is greedy, by default")
    add("--top-k", type=int, help="0 is off")
    add("--top-p", type=float, help="1 is off")
    add("--min-p", type=float, help="0 is off")
    add("--repetition-penalty", type=float, help="1 is off")
    add("--seed", type=int)
    add("--max-new-tokens", type=int)
    add("--dtype", help="auto, which is the checkpoint's own, by default; float32, bfloat16 or float16")
    add("--context", type=int, metavar="TOKENS", help="of prompt and answer together, that must fit")
    add("--tensor-parallel", type=int, metavar="GPUS", help="GPUs over which each layer is split")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else there")
