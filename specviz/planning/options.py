"""The options of `plan`. Nothing here imports torch."""

from __future__ import annotations

import argparse
import re

from specviz.errors import UserError
from specviz.presets import DRAFTER_KINDS, load_pairings

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTISATIONS = ("none", "8bit", "4bit", "fp8")
KV_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}
UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30}
MOST_DEVICES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that `plan` takes."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairing", default="smollm2-135m", help=f"one of: {', '.join(load_pairings())}")
    what.add_argument("--target", metavar="MODEL", help="instead: a folder, a config.json or a Hub id")
    add = parser.add_argument
    add("--drafter", help=f"{', '.join(DRAFTER_KINDS)}; by default the pairing's first that brings a model, else ngram")
    add("--drafter-path", metavar="MODEL", help="what drafts: a folder, a config.json, a Hub id, or self")
    add("--dtype", default="auto", choices=["auto", *DTYPES], help="of weights, caches and states")
    add("--quantisation", "--quantization", default="none", choices=QUANTISATIONS, help="of the layers' weights")
    add("--kv-dtype", choices=list(KV_DTYPES), help="of the caches, if not that of the weights")
    add("--context", type=int, default=2048, help="tokens of prompt and answer together")
    add("--batch", type=int, default=1, help="sequences at a time")
    add("--gamma", type=int, help="draft length; by default as the preset of the drafter has it")
    add("--nodes", type=int, metavar="N", help="for draft trees: tokens in one")
    add("--engine-cache", action="store_true", help="count caches as engines keep them: exact rows, windows capped")
    add("--device", default="auto", help="auto, cpu, cuda, mps or xpu: whose memory is looked up here")
    add("--memory", type=amount, metavar="24GB", help="plan for so much instead of what is free here")
    add("--devices", type=devices, metavar="2x24GB", help="plan for several GPUs of that size")
    add("--measure", action="store_true", help="also decode once in a process of its own, and compare")
    add("--offline", action="store_true", help="use configurations that are on this machine only")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else there")


def amount(text: str) -> int:
    """Bytes, from a number with a unit, such as 24GB or 16 GiB; without one it is GB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]i?B)?", text.strip(), re.IGNORECASE)
    unit = (found[2] or "GB").upper() if found else ""
    if found is None or unit not in UNITS or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory such as 24GB, 16GiB or 900MB")
    return int(float(found[1]) * UNITS[unit])


def devices(text: str) -> tuple[int, int]:
    """How many GPUs and the bytes of each, from COUNTxSIZE."""
    count, times, size = text.lower().partition("x")
    if not times or not count.strip().isdigit() or not 1 <= int(count) <= MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not COUNTxSIZE, such as 2x24GB, with 1 to {MOST_DEVICES} GPUs")
    return int(count), amount(size)


def check(options: argparse.Namespace) -> None:
    """Raise UserError for numbers out of bounds, or options that go against each other."""
    bounds = {"context": (2, 10_000_000), "batch": (1, 100_000), "gamma": (0, 64), "nodes": (1, 1024)}
    for name, (low, high) in bounds.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"--{name} is {value}; give {low:,} to {high:,}.")
    if options.memory is not None and options.devices is not None:
        raise UserError("--memory and --devices both name a budget; leave one of them out.")
    if options.measure and (options.memory or options.devices or options.target or options.batch != 1):
        raise UserError(
            "--measure decodes a pairing here, one sequence at a time; leave out --target, --batch, --memory and "
            "--devices."
        )
    if options.measure and (options.quantisation != "none" or options.kv_dtype or options.engine_cache):
        raise UserError("--measure runs models as they are loaded here; leave out quantisation and cache formats.")
