"""A report as one HTML file that asks for nothing: no script, no font, no picture, no address.

The charts are small SVGs and tinted tables. The page's own charting library would add 4.6 MB to each report, need its
script to run where reports are often opened (mail, a viewer of a repository), and print badly; nothing here needs to be
turned or zoomed. So a report is some tens of kB, reads without scripts, and prints.

Every text is escaped, names from files and the report's own words alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from specviz.report import svg
from specviz.report.blocks import Block, Cell, Code, Facts, Lines, Paragraph, Points, Ranges, Report, Section, Table
from specviz.report.names import visible, visible_code

STYLE = Path(__file__).with_name("style.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # what a browser may fetch or run: nothing
DARKEST = 0.42  # opacity of the strongest tint, on which text still has a contrast of 7 in both themes


def to_html(report: Report) -> str:
    sections = "".join(_section(section, place) for place, section in enumerate(report.sections))
    links = "".join(
        f'<li><a href="#part-{place}">{_text(section.title)}</a></li>' for place, section in enumerate(report.sections)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(report.title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f'<main>\n<h1>{_text(report.title)}</h1>\n<p class="verdict">{_text(report.verdict)}</p>\n'
        f'<p class="setting">{_text(report.setting)}</p>\n<nav aria-label="Parts"><ul>{links}</ul></nav>\n'
        f"{sections}</main>\n</body>\n</html>\n"
    )


def _section(section: Section, place: int) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f'<section>\n<h2 id="part-{place}">{_text(section.title)}</h2>\n{blocks}\n</section>\n'


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"<p>{_text(block.text)}</p>"
        case Points():
            return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in block.items)}</ul>"
        case Facts():
            return _named(block.pairs)
        case Code():
            lines = "\n".join(map(visible_code, block.lines))
            return f"<pre><code>{escape(lines)}</code></pre>"
        case Table():
            return _figure(block)


def _figure(table: Table) -> str:
    """The table under its caption and its chart, and above what its columns mean."""
    caption = _text(table.caption)
    body = f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">{_table(table)}</div>'
    if isinstance(table.chart, Ranges):
        body = svg.ranges(table.chart) + body
    elif isinstance(table.chart, Lines):
        body = f'<div class="beside">{svg.lines(table.chart)}{body}</div>'
    meaning = ""
    if table.definitions:
        meaning = f"<details><summary>What the columns mean</summary>{_named(table.definitions)}</details>"
    if table.is_folded:
        return f'<details class="table"><summary>{caption}</summary><figure>{body}{meaning}</figure></details>'
    return f"<figure><figcaption>{caption}</figcaption>{body}{meaning}</figure>"


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class(table.is_text(column))}>{_text(name)}</th>' for column, name in enumerate(table.head)
    )
    rows = "".join(f"<tr>{''.join(_cells(row, table))}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(row: Iterable[Cell], table: Table) -> Iterable[str]:
    for column, cell in enumerate(row):
        if column < table.names:
            yield f'<th scope="row" class="text">{_text(cell.text)}</th>'
        elif cell.tint is None:
            yield f"<td{_class(table.is_text(column))}>{_text(cell.text)}</td>"
        else:
            side = "less" if cell.tint < 0 else "more"
            yield f'<td class="{side}" style="--tint:{DARKEST * abs(cell.tint):.3f}">{_text(cell.text)}</td>'


def _class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _named(pairs: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>" for name, text in pairs)
    return f"<dl>{lines}</dl>"


def _text(text: str) -> str:
    """As HTML, on one line; a number stays with its percent sign."""
    return escape(visible(text).replace(" %", "\N{NO-BREAK SPACE}%"))
