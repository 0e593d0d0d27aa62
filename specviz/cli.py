"""The command line, `python -m specviz COMMAND`: what there is, and which options it takes. Results go to stdout."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from specviz import golden_options, replay, trace
from specviz.batch import options as batch
from specviz.drafter_settings import TREES
from specviz.errors import UserError
from specviz.planning import options as planning
from specviz.presets import DRAFTER_KINDS, load_pairings
from specviz.recordings import RECORDINGS
from specviz.report import options as report
from specviz.serving import options as serving
from specviz.training import options as training
from specviz.workloads import options as workloads

DEFAULT_PAIRING = "smollm2-135m"


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


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that there are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    parser = OneLine(prog="python -m specviz", description="Real speculative decoding, seen.")
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser("run", help="decode a prompt", formatter_class=Defaults)
    _add_model(run)
    _add_drafter(run)
    run.add_argument(
        "--rule",
        choices=["token", "block", "typical"],
        default="token",
        help="acceptance rule; block is for chains, typical is lossy: its output need not be the target's own",
    )
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
        help="time our loop against transformers' assisted generation, or drafters over a suite of prompts",
        formatter_class=Defaults,
    )
    _add_model(speed)
    _add_drafter(speed)
    workloads.add_arguments(speed)
    speed.set_defaults(command="bench")

    said = commands.add_parser("report", help="turn results of bench into a page or a text", formatter_class=Defaults)
    report.add_arguments(said)
    said.set_defaults(command="report")

    lengths = commands.add_parser("golden", help="golden acceptance lengths, and acceptance that is made up from them")
    golden_options.add_arguments(lengths)
    lengths.set_defaults(command="golden")

    need = commands.add_parser("plan", help="what a pairing needs of memory, before anything is downloaded")
    planning.add_arguments(need)
    need.set_defaults(command="plan")

    crowd = commands.add_parser(
        "batch",
        help="what verify passes over several sequences cost here, and what that leaves of a speed-up",
        formatter_class=Defaults,
    )
    _add_model(crowd)
    batch.add_arguments(crowd)
    crowd.set_defaults(command="batch")

    launch = commands.add_parser("launch", help="how to start the same in vLLM, SGLang, llama.cpp, TensorRT-LLM, ...")
    _add_drafter(launch)
    serving.add_arguments(launch)
    launch.set_defaults(command="launch")

    record = commands.add_parser(
        "record",
        help="make the examples' recorded runs anew",
        formatter_class=Defaults,
    )
    _add_model(record, dtype="float32", own=False)  # so that they decode again to the same ids anywhere
    record.add_argument("--only", metavar="ID", help="this example and no other")
    record.add_argument("--repeats", type=int, default=5, help="timed repeats of each")
    record.add_argument("--out", type=Path, default=RECORDINGS, metavar="FOLDER", help="write them there")
    record.set_defaults(command="record")

    train = commands.add_parser("train", help="make a drafter for a target, or the data for it")
    training.add_arguments(train)

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
    """What is left out follows the pairing's preset of that kind, so no option has a default of its own."""
    add = parser.add_argument
    add(
        "--drafter",
        help=f"{', '.join(DRAFTER_KINDS)}, or several in turn, as ngram+eagle; by default ngram, or draft-model with "
        "--drafter-path; settings that are left out are as the pairing's preset of that kind has them",
    )
    add("--gamma", type=int, help="longest draft asked for; where no preset names one, what is usual for the kind")
    add(
        "--gamma-policy",
        choices=["fixed", "confidence", "adaptive"],
        help="how the draft length is chosen: always gamma, until the drafter is unsure, or by measured cost",
    )
    add("--confidence", type=float, help="draft no further below it; 0.4 with that policy")
    add("--tree", action=argparse.BooleanOptionalAction, help=f"draft a tree, or a chain; of {', '.join(TREES)}")
    add("--nodes", type=int, metavar="N", help="tree: draft tokens in it, at most")
    add("--branches", type=int, metavar="N", help="tree: children looked at per token")
    add("--second-gamma", type=int, help="combinations: longest draft of the later parts")
    add("--ngram-min", type=int, help="ngram: shortest match, in tokens")
    add("--ngram-max", type=int, help="ngram: longest match")
    add("--ngram-pick", choices=["recent", "frequent"], help="ngram: which match")
    add("--exit-layer", type=int, help="early-exit: layers that draft")
    add(
        "--drafter-path",
        metavar="MODEL",
        help="a folder or a Hub id: of a model for draft-model and library, or self for the target itself; of trained "
        "weights for eagle, medusa, mtp, early-exit and draft-model",
    )
    add(
        "--aux-convention",
        choices=["input", "output"],
        help="eagle: whether states enter or leave the target's layers that the head's file names; needed where the "
        "file does not say",
    )
    add(
        "--norm-before-residual",
        action=argparse.BooleanOptionalAction,
        help="eagle: whether the head's residual branch starts after its norm; needed where the file does not say",
    )
    add("--method", choices=["universal", "mtp", "dflash"], help="library: which drafter")


def replay_command(options: argparse.Namespace) -> None:
    if not (math.isfinite(options.delay) and 0 <= options.delay <= 60):
        raise UserError(f"--delay is {options.delay}; give a number of seconds from 0 to 60.")
    recorded = trace.read(options.file)
    colour = replay.wants_colour(sys.stdout) if options.colour == "auto" else options.colour == "always"
    replay.play(recorded, sys.stdout, colour=colour, delay=options.delay)
