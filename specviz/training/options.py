"""The options of `python -m specviz train`. Nothing here imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_PAIRING = "smollm2-135m"
KINDS = {
    "eagle3": "an EAGLE-3 head",
    "medusa": "Medusa heads",
    "mtp": "a multi-token prediction head",
    "draft-model": "a small draft model of a few of the target's layers",
    "early-exit": "an adapter for leaving the target early",
}
BEGIN_AS = {
    "eagle3": "an MTP head that train mtp wrote, as a --joined one",
    "medusa": "Medusa heads that train medusa wrote",
    "mtp": "an MTP head that train mtp wrote",
    "draft-model": "a draft model that train draft-model wrote",
}
MULTI_PASS = ("eagle3", "mtp")  # read their own output while they are trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be trained, each with its options; `options.what` is "data" or one of KINDS."""
    whats = parser.add_subparsers(required=True, metavar="what", dest="what")
    usual = argparse.ArgumentDefaultsHelpFormatter
    data = whats.add_parser("data", help="sample training data from the target", formatter_class=usual)
    _add_data(data)
    for kind, title in KINDS.items():
        trainer = whats.add_parser(kind, help=f"train {title}", formatter_class=usual)
        _add_common(trainer)
        _add_schedule(trainer)
        _add_kind(trainer, kind)
    parser.set_defaults(command="train")


def _add_common(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairing", default=DEFAULT_PAIRING, help="whose target it is for")
    what.add_argument("--target", metavar="MODEL", help="instead of a pairing: a folder or a Hub id")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="goes on with what is there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="CPU threads; by default as many as torch takes")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps or xpu")
    parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16")
    parser.add_argument("--offline", action="store_true", help="use cached weights only")


def _add_data(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="answer tokens to have of this seed in the end")
    parser.add_argument("--slots", type=int, default=96, help="conversations sampled at a time")
    parser.add_argument("--answer-tokens", type=int, default=160, help="the longest answer")
    parser.add_argument(
        "--layers",
        type=_layers,
        help="whose hidden states are kept; by default 2, the middle, the third last, the last",
    )
    parser.add_argument(
        "--ids",
        type=Path,
        metavar="FILE",
        help="read these sequences instead of sampling: .npz with ids, length and prompt_length, or .jsonl of "
        '{"ids": [...], "prompt_length": n}',
    )


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="written by train data")
    until = parser.add_mutually_exclusive_group(required=True)
    until.add_argument("--tokens", type=int, help="how many to train on, repeated ones counted again")
    until.add_argument("--epochs", type=float, help="how many times to go through the data")
    until.add_argument("--minutes", type=float, help="how long to train; the schedule is laid over the time")
    parser.add_argument("--batch-tokens", type=int, default=3000, help="tokens per step")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--draft-vocab", type=int, default=8192, help="tokens that can be drafted: the most frequent")
    parser.add_argument("--checkpoint-minutes", type=float, default=3.0, help="how often the state is saved")


def _add_kind(parser: argparse.ArgumentParser, kind: str) -> None:
    if (begin_as := BEGIN_AS.get(kind)) is not None:
        parser.add_argument("--begin-as", type=Path, metavar="FOLDER", help=f"go on from {begin_as}")
    if kind in MULTI_PASS:
        parser.add_argument("--passes", type=int, default=4, help="the deepest draft that is trained")
    if kind == "eagle3":
        parser.add_argument("--layers", type=_layers, help="target layers it reads; by default 2, the middle, the last")
        parser.add_argument(
            "--joined",
            action="store_true",
            help="let state and embedding meet in front of the layer, as in EAGLE-1 and MTP, not inside its attention: "
            "better for narrow targets, but no other engine reads such heads",
        )
    elif kind == "medusa":
        parser.add_argument("--heads", type=int, default=4, help="tokens drafted at once")
        parser.add_argument("--blocks", type=int, default=1, help="residual blocks per head")
    elif kind == "draft-model":
        parser.add_argument(
            "--layers-from", type=_layers, default=(0, 15), help="the target layers that it begins as, counted from 0"
        )
    elif kind == "early-exit":
        parser.add_argument("--exit-layer", type=int, required=True, help="target layers that draft; one of the data's")
        parser.add_argument("--width", type=int, help="inner width of the adapter; by default the hidden size")


def _layers(text: str) -> tuple[int, ...]:
    """ "2,15,27" as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers such as 2,15,27") from None
