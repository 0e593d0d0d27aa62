"""The settings that drafters take: of which type each is, and within which bounds. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specviz.errors import UserError

MOST_NGRAM, MOST_NODES, MOST_BRANCHES = 16, 64, 16
LONGEST_DRAFT = 64  # tokens
TREES = ("ngram", "eagle", "medusa", "mtp")  # kinds that can draft trees


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int
    most: int

    def holds(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most  # True is an int as well

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number; NaN is none."""

    least: float
    most: float

    def holds(self, value: object) -> bool:
        return type(value) in (int, float) and self.least <= value <= self.most  # type: ignore[operator]

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts, or of these switches."""

    values: tuple[str | bool, ...]

    def holds(self, value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in self.values)  # 1 == True

    def __str__(self) -> str:
        names = [known if isinstance(known, str) else str(known).lower() for known in self.values]
        return f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(frozen=True, slots=True)
class Text:
    """Any text: a name."""

    def holds(self, value: object) -> bool:
        return isinstance(value, str)

    def __str__(self) -> str:
        return "a text"


SWITCH = OneOf((True, False))
# By name; for a part of a combination, "ngram.nodes", as without the part. The target may know a narrower bound.
SETTINGS: dict[str, Whole | Number | OneOf | Text] = {
    "gamma": Whole(0, LONGEST_DRAFT),
    "gamma_policy": OneOf(("fixed", "confidence", "adaptive")),
    "second_gamma": Whole(1, LONGEST_DRAFT),
    "ngram_min": Whole(1, MOST_NGRAM),
    "ngram_max": Whole(1, MOST_NGRAM),
    "pick": OneOf(("recent", "frequent")),
    "exit_layer": Whole(1, 1_000),
    "adapter": SWITCH,
    "tree": SWITCH,
    "nodes": Whole(1, MOST_NODES),
    "branches": Whole(1, MOST_BRANCHES),
    "confidence": Number(0, 1),
    "aux_convention": OneOf(("input", "output")),
    "norm_before_residual": SWITCH,
    "method": OneOf(("universal", "mtp", "dflash")),
    "source": Text(),
}


def bare(name: str) -> str:
    """A setting's own name, without the part of a combination that it is for."""
    return name.rpartition(".")[2]


def asks_for_tree(settings: Mapping[str, object]) -> bool:
    """Whether the drafter, or a part of it, is to draft trees."""
    return any(value is True for name, value in settings.items() if bare(name) == "tree")


def check_setting(name: str, value: object, called: str | None = None) -> None:
    """Raise UserError, one sentence, if that can't be the setting's value. Names that are not in SETTINGS pass.

    called: how the sentence calls the setting, by default by its name.
    """
    takes = SETTINGS.get(bare(name))
    if takes is not None and not takes.holds(value):
        raise UserError(f"{called or name} is {value!r:.60}; give {takes}.")
