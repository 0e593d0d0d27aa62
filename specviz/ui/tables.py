"""Tables and short texts as HTML, every word of them escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

_NUMBER = re.compile(r"[▲▼≈?~+-]? ?[\d.,]+ ?(x|%|s|ms|B|kB|MB|GB|TB|tok/s)?( \(.*\)| (to|of) [\d.,]+.*)?|n/a")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A table with a line of names. Numbers stand at the right, as do the names of columns that hold nothing else.

    It scrolls sideways where it must.
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    rows = list(rows)
    numbers = [bool(rows) and all(_NUMBER.fullmatch(row[place]) for row in rows) for place in range(len(head))]
    names = "".join(
        f'<th scope="col"{_look(is_number)}>{escape(name)}</th>' for name, is_number in zip(head, numbers, strict=True)
    )
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    label = escape(caption or "table", quote=True)
    return (
        f'<div class="sv-table" tabindex="0" role="region" aria-label="{label}"><table>{title}<thead><tr>{names}</tr>'
        f"</thead><tbody>{lines}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with what they are."""
    lines = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="sv-facts">{lines}</dl>'


def saying(text: str) -> str:
    """What it comes to, in one sentence in large type; read out by screen readers."""
    return f'<p class="sv-saying" role="status">{escape(text)}</p>'


def note(text: str) -> str:
    """A remark in small print."""
    return f'<p class="sv-remark">{escape(text)}</p>'


def problem(text: str) -> str:
    """What went wrong, in a sentence that says what to do; read out by screen readers."""
    return f'<p class="sv-problem" role="alert">{escape(text)}</p>'


def _cell(text: str) -> str:
    return f"<td{_look(bool(_NUMBER.fullmatch(text)))}>{escape(text)}</td>"


def _look(is_number: object) -> str:
    return ' class="sv-number"' if is_number else ""
