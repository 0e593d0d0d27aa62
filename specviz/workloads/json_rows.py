"""The rows of a JSON file: an object per line, one list, or one object. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specviz.errors import UserError
from specviz.trace import load

LISTS = ("data", "prompts", "questions", "rows")  # keys under which an object that is a whole file holds its rows

Row = tuple[str, Any]  # where it stands, such as "line 3", and what stands there: keys and values, if it is sound


def json_rows(text: str, name: str, asked: Sequence[str]) -> Iterator[Row]:
    """All rows, sound or not. asked: the keys of which a row has one, unlike an object that holds rows.

    Raises UserError for what is not JSON; `name` is what errors call the file.
    """
    if text.lstrip().startswith("["):
        yield from _entries(load(text, name))
    elif (whole := _whole(text, name, asked)) is not None:
        yield from _entries(_held(whole, name, asked))
    else:
        for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split at U+2028 within JSON texts
            if line.strip():
                yield f"line {number}", load(line, f"{name}, line {number}")


def _whole(text: str, name: str, asked: Sequence[str]) -> dict[str, Any] | None:
    """The object that the whole file is; None where it has an object per line, or a single row in a line."""
    filled = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not filled or not filled[0][1].lstrip().startswith("{"):
        return None
    number, line = filled[0]
    try:
        first: dict[str, Any] = load(line, f"{name}, line {number}")
    except UserError as error:
        if len(filled) == 1:
            raise
        return _over_lines(text, name, f"line {number} is no object ({error.__cause__})")
    return first if len(filled) == 1 and _lists(first, asked) else None


def _over_lines(text: str, name: str, why: str) -> dict[str, Any]:
    """An object that goes over several lines. `why`: what is wrong if the file has one per line instead."""
    try:
        whole: dict[str, Any] = load(text, name)
    except UserError as error:
        raise UserError(
            f"{name} is not JSON: {why}, and nor is the whole file ({error.__cause__}); the file may be cut off."
        ) from error
    return whole


def _held(whole: dict[str, Any], name: str, asked: Sequence[str]) -> list[Any]:
    """The rows that an object holds; itself, if it is none that holds any."""
    lists = _lists(whole, asked)
    if len(lists) > 1:
        raise UserError(f"{name} holds several lists of prompts; keep one of {either(LISTS)}.")
    return lists[0] if lists else [whole]


def _lists(value: dict[str, Any], asked: Sequence[str]) -> list[list[Any]]:
    is_row = any(value.get(key) is not None for key in asked)
    return [] if is_row else [value[key] for key in LISTS if isinstance(value.get(key), list)]


def _entries(rows: list[Any]) -> Iterator[Row]:
    yield from ((f"entry {number}", row) for number, row in enumerate(rows, 1))


def either(names: Sequence[str]) -> str:
    """The names as a choice, in words."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
