"""The options of `python -m specviz golden`. Nothing here imports torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.golden.curves import TOLERANCE
from specviz.synthetic import LAWS

# Exit statuses of `golden check` other than 0, which means that every length that was compared is within.
MISMATCH = 3  # a length is above or below what is golden
UNDECIDED = 4  # none is, but of one it can't be told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be done with golden acceptance lengths, each with its options; `options.what` is which."""
    whats = parser.add_subparsers(required=True, metavar="what", dest="what")

    show = whats.add_parser("show", help="a file's lengths and what they imply about each draft position")
    show.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a golden YAML file")

    check = whats.add_parser(
        "check",
        help="hold a measurement against golden lengths",
        description=f"Exits with 0 if all lengths that were compared are within the tolerance, with {MISMATCH} if one "
        f"is above or below it with its whole interval, else with {UNDECIDED} if it can't be told of one, because it "
        "is outside and its interval reaches in. Conditions that differ from those of the golden file are named and "
        "change nothing of that.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="a golden YAML file")
    measured = check.add_mutually_exclusive_group(required=True)
    measured.add_argument("--results", type=Path, metavar="R.jsonl", help="what bench --out wrote")
    measured.add_argument("--trace", nargs="+", type=Path, metavar="T.jsonl", help="what run --trace wrote")
    check.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help="share by which a length may be off; %(default)s"
    )
    check.add_argument("--curve", metavar="NAME", help="MODEL/MODE of the golden curve; needed if there are several")
    check.add_argument("--drafter", metavar="NAME", help="the results of this drafter alone, by its kind or its name")

    write = whats.add_parser("write", help="make a golden file of results")
    write.add_argument("--results", type=Path, metavar="R.jsonl", required=True, help="what bench --out wrote")
    write.add_argument("--out", type=Path, metavar="F.yaml", required=True, help="write it there")

    simulate = whats.add_parser("simulate", help="synthetic acceptance: what a told length looks like under a law")
    simulate.add_argument("--length", type=float, required=True, help="acceptance length, the last token counted")
    simulate.add_argument("--gamma", type=int, required=True, help="draft length")
    simulate.add_argument(
        "--law",
        choices=LAWS,
        default=LAWS[0],
        help="how accepted tokens are spread over the steps; %(default)s unless given",
    )
    simulate.add_argument("--steps", type=int, default=200, help="steps to draw; %(default)s")
    simulate.add_argument("--seed", type=int, default=0, help="of the draws; %(default)s")
    simulate.add_argument("--cost-ratio", type=float, help="c: drafting one token over a plain step, 0 to 100")
    simulate.add_argument("--verify-cost", type=float, help="v: a verify pass over a plain step, 0.01 to 100")
    simulate.add_argument("--results", type=Path, metavar="R.jsonl", help="take c and v from what bench --out wrote")
    simulate.add_argument("--drafter", metavar="NAME", help="of these results this drafter, by its kind or its name")
    simulate.add_argument("--trace", type=Path, metavar="OUT.jsonl", help="write the steps there, as a synthetic run")

    export = whats.add_parser("export", help="acceptance in the engine-neutral form of AIPerf, always as JSON")
    export.add_argument("file", type=Path, metavar="FILE", help="a trace, or what bench --out wrote")

    for each in (show, check, write, simulate, export):
        each.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else there")
    parser.set_defaults(command="golden")
