"""Suites of prompts: the project's own, one workload of them, or those of a user's file. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import isfile  # Path's raises for names that are too long
from pathlib import Path

from specviz.errors import UserError
from specviz.workloads import loaders
from specviz.workloads.prompts import WORKLOADS, Prompt, load_prompts

OWN = "own"
SUITES = (OWN, *WORKLOADS)  # those that come with specviz


@dataclass(frozen=True, slots=True)
class Suite:
    """Prompts that are measured together, at least one, under the name that results are kept by."""

    name: str
    prompts: tuple[Prompt, ...]


def load_suite(name: str) -> Suite:
    """The suite of that name, one of SUITES, or else that of the file which `name` is a path to.

    A file's suite is called like the file. Raises UserError for neither, and for a file that holds something else.
    """
    if name in SUITES:
        return Suite(name, tuple(prompt for prompt in load_prompts().values() if name in (OWN, prompt.workload)))
    if not isfile(name):
        raise UserError(
            f"There is no suite and no file {name!r}; choose one of {', '.join(SUITES)}, or a file of prompts "
            f"({', '.join(loaders.SUFFIXES)})."
        )
    path = Path(name)
    return Suite(suite_name(path.name), loaders.read(path))


def suite_name(file: str) -> str:
    """A file's name without its suffix; with it where there is a suite of that name already."""
    stem = Path(file).stem
    return file if stem in SUITES else stem


def sample(suite: Suite, count: int) -> Suite:
    """So many of the suite's prompts, in its order: as many of each workload as of the others, as far as they go.

    Of each workload they lie evenly spaced. The same ones every time, and all if the suite has no more than `count`.
    """
    if count < 1:
        raise UserError(f"A sample has at least 1 prompt, not {count}.")
    groups: dict[str, list[int]] = {}  # places of the prompts of each workload
    for place, prompt in enumerate(suite.prompts):
        groups.setdefault(prompt.workload, []).append(place)
    chosen: set[int] = set()
    for places, share in zip(groups.values(), _shares([len(places) for places in groups.values()], count), strict=True):
        chosen |= {places[(2 * index + 1) * len(places) // (2 * share)] for index in range(share)}
    return replace(suite, prompts=tuple(suite.prompts[place] for place in sorted(chosen)))


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """How many to take of each size, in turns, until `count` are taken or none are left."""
    shares = [0] * len(sizes)
    left = min(count, sum(sizes))
    while left:
        for index, size in enumerate(sizes):
            if left and shares[index] < size:
                shares[index] += 1
                left -= 1
    return shares
