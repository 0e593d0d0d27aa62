"""The command line: `python -m specviz run | fetch | replay | bench | record | space`. Results go to stdout."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from specviz import replay, trace
from specviz.errors import UserError
from specviz.presets import load_pairings
from specviz.recordings import RECORDINGS

DEFAULT_PAIRING = "smollm2-135m"
BENCH_PROMPT = (
    "Write a Python function that returns the sum of a list of numbers. Then write the same function again with type "
    "hints, and once more with a docstring."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 an internal error, 2 something the user can mend."""
    try:
        options = make_parser().parse_args(arguments)
        if options.command == "replay":
            replay_command(options)
        else:  # the others need torch, which takes seconds to load and which a replay can do without
            importlib.import_module(f"specviz.commands.{options.command}").command(options)
    except UserError as error:
        print(f"specviz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("specviz: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout, such as `head`, has what it wanted
        sys.stderr.close()
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


class OneLine(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, as every other mistake is said."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` lists what can be given.")


def make_parser() -> argparse.ArgumentParser:
    parser = OneLine(prog="python -m specviz", description="Real speculative decoding, seen.")
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser("run", help="decode a prompt", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    _add_model(run)
    _add_drafter(run)
    run.add_argument("--gamma-policy", choices=["fixed"], default="fixed", help="how the draft length is chosen")
    run.add_argument("--rule", choices=["token"], default="token", help="acceptance rule")
    run.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    run.add_argument("--top-k", type=int, default=0, help="0 is off")
    run.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    run.add_argument("--min-p", type=float, default=0.0, help="0 is off")
    run.add_argument("--repetition-penalty", type=float, default=1.0, help="1 is off")
    run.add_argument("--logit-bias", action="append", default=[], metavar="ID:BIAS", help="repeatable")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--max-new-tokens", type=int, default=128)
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string, repeatable")
    run.add_argument("--raw-prompt", action="store_true", help="no chat template")
    prompt = run.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt")
    prompt.add_argument("--prompt-file", type=Path, help="a UTF-8 text file; - reads standard input")
    run.add_argument("--baseline", action="store_true", help="also time plain decoding, interleaved")
    run.add_argument("--repeats", type=int, default=3, help="timed repeats of each for --baseline")
    run.add_argument("--phases", action="store_true", help="time draft, verify and decide (synchronises the device)")
    run.add_argument("--trace", type=Path, metavar="F.jsonl", help="write the trace there")
    run.add_argument("--no-trace", action="store_true", help="record tokens and outcomes only, no probabilities")
    run.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else there")
    run.set_defaults(command="run")

    fetch = commands.add_parser("fetch", help="get a pairing's weights ahead of time")
    fetch.add_argument("--pairing", default=DEFAULT_PAIRING)
    fetch.add_argument("--offline", action="store_true", help="only check what is cached")
    fetch.set_defaults(command="fetch")

    again = commands.add_parser("replay", help="print a recorded run step by step")
    again.add_argument("file", type=Path, help="written by run --trace")
    again.add_argument("--delay", type=float, default=0.0, help="seconds between steps")
    again.add_argument("--colour", "--color", choices=["auto", "always", "never"], default="auto")
    again.set_defaults(command="replay")

    speed = commands.add_parser(
        "bench",
        help="time our loop against transformers' assisted generation",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model(speed)
    _add_drafter(speed)
    speed.add_argument("--against", choices=["transformers"], default="transformers")
    speed.add_argument("--prompt", default=BENCH_PROMPT)
    speed.add_argument("--max-new-tokens", type=int, default=128)
    speed.add_argument("--repeats", type=int, default=7)
    speed.add_argument("--json", action="store_true")
    speed.set_defaults(command="bench")

    record = commands.add_parser(
        "record",
        help="make the examples' recorded runs anew",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_model(record, dtype="float32", own=False)  # so that they decode again to the same ids anywhere
    record.add_argument("--only", metavar="ID", help="this example and no other")
    record.add_argument("--repeats", type=int, default=5, help="timed repeats of each")
    record.add_argument("--out", type=Path, default=RECORDINGS, metavar="FOLDER", help="write them there")
    record.set_defaults(command="record")

    space = commands.add_parser("space", help="write a folder that is this app as a Hugging Face Space")
    space.add_argument("--hardware", choices=["cpu", "gpu", "zerogpu"], default="cpu", help="what it will run on")
    space.add_argument("out", type=Path, metavar="OUT", help="a folder that is empty or does not exist")
    space.set_defaults(command="space")
    return parser


def _add_model(parser: argparse.ArgumentParser, dtype: str = "auto", own: bool = True) -> None:
    """own: whether a target of the user's own may be named."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairing", default=DEFAULT_PAIRING, help=f"one of: {', '.join(load_pairings())}")
    if own:
        what.add_argument("--target", metavar="MODEL", help="instead of a pairing: a folder or a Hub id")
    parser.add_argument("--dtype", default=dtype, help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps or xpu")
    parser.add_argument("--offline", action="store_true", help="use cached weights only")


def _add_drafter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drafter",
        help="plain, ngram, early-exit, draft-model or library; by default ngram, or draft-model with --drafter-path",
    )
    parser.add_argument("--gamma", type=int, default=5, help="draft length asked for")
    parser.add_argument("--ngram-min", type=int, default=1, help="ngram: shortest match, in tokens")
    parser.add_argument("--ngram-max", type=int, default=3, help="ngram: longest match")
    parser.add_argument("--ngram-pick", choices=["recent", "frequent"], default="recent", help="ngram: which match")
    parser.add_argument("--exit-layer", type=int, help="early-exit: layers that draft; by default the pairing's own")
    parser.add_argument(
        "--drafter-path",
        metavar="MODEL",
        help="draft-model, library: a folder or a Hub id, or self for the target itself; by default the pairing's own",
    )
    parser.add_argument(
        "--method",
        choices=["universal", "mtp", "dflash"],
        help="library: which of its drafters; by default the pairing's own",
    )


def replay_command(options: argparse.Namespace) -> None:
    if not (math.isfinite(options.delay) and 0 <= options.delay <= 60):
        raise UserError(f"--delay is {options.delay}; give a number of seconds from 0 to 60.")
    recorded = trace.read(options.file)
    colour = replay.wants_colour(sys.stdout) if options.colour == "auto" else options.colour == "always"
    replay.play(recorded, sys.stdout, colour=colour, delay=options.delay)
