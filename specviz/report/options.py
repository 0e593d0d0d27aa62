"""The options of `report`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, metavar="RESULTS.jsonl", help="written by bench --suite ... --out")
    add("--against", type=Path, metavar="OTHER.jsonl", help="earlier results: what has changed since, beyond noise")
    add("--html", type=Path, metavar="OUT.html", help="write a page that needs no other file and no network")
    add("--markdown", type=Path, metavar="OUT.md", help="write Markdown; without any output it is printed")
    add("--title", metavar="TEXT", help="instead of the target's name and the suites'")
