"""A report as Markdown with GitHub's tables, and no HTML. The charts are left out: the tables say the same.

Every text is escaped, so that a name from a file can be no markup. Words that GitHub would make a link of are set as
code, in which it makes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from specviz.report.blocks import Block, Code, Facts, Paragraph, Points, Report, Table
from specviz.report.names import visible, visible_code

MARKUP = re.compile(r"([\\`*\[\]<>&~#$|]|(?<![^\W_])_|_(?![^\W_]))")  # within a word, _ is a letter like others
BETWEEN = re.compile(r"([\s\\`|]+)")  # words; no code can hold the last three everywhere
LINKED = re.compile(r"@|://|www\.", re.IGNORECASE)
OPENING = re.compile(r"^(?:[-+=]+|\d+(?=[.)]))(?=[.)]?(?:\s|$))")  # of a list or an underline, where a line begins


def to_markdown(report: Report) -> str:
    parts = [f"# {escaped(report.title)}", f"**{escaped(report.verdict)}**", escaped(report.setting)]
    for section in report.sections:
        parts += [f"## {escaped(section.title)}", *map(_block, section.blocks)]
    parts.append("## What the columns mean")
    for caption, definitions in report.definitions.items():
        parts += [f"### {escaped(caption)}", _named(definitions)]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """The text as Markdown shows it letter by letter, on one line."""
    words = BETWEEN.split(visible(text))
    return OPENING.sub(_harmless, "".join(f"`{word}`" if LINKED.search(word) else _letters(word) for word in words))


def _letters(text: str) -> str:
    return MARKUP.sub(r"\\\1", text)


def _harmless(opening: re.Match[str]) -> str:
    found = opening.group()
    return f"{found}\\" if found.isdigit() else f"\\{found}"


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return escaped(block.text)
        case Points():
            return _points(map(escaped, block.items))
        case Facts():
            return _named(block.pairs)
        case Code():
            return "\n".join(["```sh", *map(visible_code, block.lines), "```"])  # no line of ours begins with a fence
        case Table():
            return _table(block)


def _points(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    return _points(f"**{escaped(name)}**: {escaped(text)}" for name, text in pairs)


def _table(table: Table) -> str:
    lines = [
        list(map(escaped, table.head)),
        [":--" if table.is_text(column) else "--:" for column in range(len(table.head))],
        *([escaped(cell.text) for cell in row] for row in table.rows),
    ]
    return "\n".join([f"**{escaped(table.caption)}**", "", *map(_line, lines)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
