"""The options of `bench`, model and drafter apart. Nothing here imports torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import yaml

from specviz.errors import UserError
from specviz.presets import Setting, check_drafter
from specviz.workloads.prompts import WORKLOADS

PROMPT = (
    "Write a Python function that returns the sum of a list of numbers. Then write the same function again with type "
    "hints, and once more with a docstring."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that `bench` takes besides the options that name a model and a drafter, which `run` has too."""
    parser.add_argument("--against", choices=["transformers"], default="transformers")
    parser.add_argument("--prompt", help="the prompt to race on, one about code if none is given; a suite has its own")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of an answer; in the race so many exactly")
    parser.add_argument("--repeats", type=int, help="timed repeats; by default 7, in a suite 1 for each prompt")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else there")
    suite = parser.add_argument_group("suite", "measure drafters and their settings over many prompts")
    suite.add_argument(
        "--suite",
        nargs="+",
        metavar="NAME",
        help=f"own: the prompts that come with specviz; one workload of them: {', '.join(WORKLOADS)}; or a file: JSONL "
        "(Spec-Bench, MT-bench, SPEED-Bench, or with a prompt or turns in each row), CSV or text",
    )
    suite.add_argument("--prompts", type=int, metavar="N", help="of each suite a sample, spread over its workloads")
    suite.add_argument(
        "--drafters",
        nargs="+",
        type=drafter,
        default=(),
        metavar="KIND[:SETTING=VALUE,...]",
        help="by default those that the pairing offers, set as it sets them",
    )
    suite.add_argument("--gammas", type=numbers, default="1,2,3,5", metavar="N,...", help="draft lengths of chains")
    suite.add_argument("--trees", type=numbers, default=(), metavar="N,...", help="also trees, of so many nodes")
    suite.add_argument("--depths", type=numbers, default="3", metavar="N,...", help="depths of trees")
    suite.add_argument("--untimed", action="store_true", help="count what is accepted, and time nothing")
    suite.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    suite.add_argument("--top-k", type=int, default=0, help="0 is off")
    suite.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    suite.add_argument("--seed", type=int, default=0)
    suite.add_argument("--out", type=Path, metavar="F.jsonl", help="keep results there; what it holds is not redone")
    suite.add_argument("--traces", type=Path, metavar="FOLDER", help="also keep a trace of every answer there")


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter named on the command line, and its settings that are to differ from the usual ones."""

    kind: str
    settings: dict[str, Setting]


def drafter(text: str) -> Choice:
    """KIND or KIND:SETTING=VALUE,...; raises UserError for an unknown kind, or for what is not of this form."""
    kind, _, listed = text.partition(":")
    settings: dict[str, Setting] = {}
    for entry in listed.split(",") if listed else ():
        name, _, value = entry.partition("=")
        if not name or not value:
            raise UserError(f"--drafters {text}: {entry!r} is not SETTING=VALUE, such as ngram_max=4; correct it.")
        settings[name] = _setting(value, f"--drafters {text}")
    check_drafter(kind, settings, f"--drafters {text}")
    return Choice(kind, settings)


def _setting(value: str, where: str) -> Setting:
    """A setting's value, written as in a presets file."""
    try:
        read: Setting = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"{where}: {value!r} is no value; give a number, a text or true/false.") from None
    return read


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on with commas between them; each counts once, in ascending order."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1 on, such as 1,2,3")
    return tuple(found)
