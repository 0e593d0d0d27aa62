"""What a report is made of: plain values, which `html` and `markdown` each put down in their own way.

Texts are plain text. Whoever writes them down escapes them, names from files and the report's own words alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

NUMBER = re.compile(r"([▲▼≈?] )?[+-]?\d")
Interval = tuple[float, float]
Definitions = tuple[tuple[str, str], ...]  # names and what they mean


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with what they are."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A command, which may go over several lines."""

    lines: tuple[str, ...]


class Cell(NamedTuple):
    text: str
    tint: float | None = None  # -1 to 1: how far the number is from the neutral one, and to which side; None: no number


class Series(NamedTuple):
    """A line of a chart."""

    name: str
    values: tuple[float | None, ...]  # one per place; None: nothing was measured there


@dataclass(frozen=True, slots=True)
class Lines:
    """A chart over places that stand in a row."""

    places: tuple[str, ...]
    across: str  # what the places are
    upwards: str  # what the values are
    lowest: float  # of the axis
    highest: float
    is_share: bool  # values are shares of 1, written in percent
    series: tuple[Series, ...]


class Range(NamedTuple):
    name: str
    value: float
    interval: Interval | None
    said: str  # the number in words


@dataclass(frozen=True, slots=True)
class Ranges:
    """A chart of values with their intervals, one below the other, about one that they are compared with."""

    what: str
    neutral: float
    neutral_name: str
    rows: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts under names. `chart` draws what the rows say, and nothing that they do not say."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1  # columns, from the left, that say what a row is of
    definitions: Definitions = ()  # of columns
    chart: Lines | Ranges | None = None
    is_folded: bool = False  # until someone asks for it, where that can be done

    def is_text(self, column: int) -> bool:
        """Whether its cells are words, which are read from the left; numbers are read from the right."""
        return column < self.names or not any(NUMBER.match(row[column].text) for row in self.rows)


Block = Paragraph | Points | Facts | Code | Table


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    verdict: str  # one sentence
    setting: str  # where, when and on what that holds
    sections: tuple[Section, ...]

    @property
    def definitions(self) -> dict[str, Definitions]:
        """Of the columns of each table, by its caption; what an earlier table has said of a name is left out."""
        found: dict[str, Definitions] = {}
        said: set[tuple[str, str]] = set()
        for table in (block for section in self.sections for block in section.blocks if isinstance(block, Table)):
            if new := tuple(pair for pair in table.definitions if pair not in said):
                found[table.caption] = new
                said.update(new)
        return found


def cells(*texts: str) -> tuple[Cell, ...]:
    return tuple(map(Cell, texts))
