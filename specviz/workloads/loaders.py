"""Reads prompts from a user's file: JSON, CSV or text, within limits. Nothing here imports torch.

A JSON file has an object per line, or is one list of objects, or one object: a prompt, or what holds such a list under
`data`, `prompts`, `questions` or `rows`. What is asked stands under the first of these that an object has:

- `turns`: the user's turns as a list of texts, as in Spec-Bench, MT-bench and SPEED-Bench, or of messages;
- `messages`: role and content of each. What a system message says comes before the user turn that follows it, as a
  chat has no system role here; assistants' messages are left out, as the target gives its own answers. A content may
  be a list of parts of type `text`, whose texts go below one another;
- `prompt`, `instruction` (`input`, if there is one, goes below it), `question` or `text`: a single turn.

`question_id` or `id` names a prompt, `category` or `workload` says what kind of work it is; other keys are ignored.
A CSV file has a column for each of these but the lists. A text file has a prompt per line, or several lines per prompt
with lines of `---` between prompts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from specviz.errors import UserError
from specviz.workloads.json_rows import Row, either, json_rows
from specviz.workloads.prompts import Prompt

MAX_BYTES = 20_000_000  # of a file
MAX_PROMPTS = 20_000
MAX_CHARACTERS = 200_000  # of a prompt's turns; as many as are tokenised, so that no suite fails half-way
MAX_NAME = 100  # characters of an id or a workload

JSON, TABLES, TEXTS = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".txt", ".md")
SUFFIXES = (*JSON, *TABLES, *TEXTS)
SINGLE = ("prompt", "instruction", "question", "text")  # keys of a single turn, the first that is there counts
ASKED = ("turns", "messages", *SINGLE)
IDS, KINDS_OF_WORK = ("question_id", "id"), ("category", "workload")
NO_WORKLOAD = "prompts"  # the workload of prompts that name none
SEPARATOR = "---"
# What SPEED-Bench is published with, in place of texts that others own.
LEFT_OUT = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


def read(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file, at least one. Raises UserError saying what is wrong and in which line."""
    _suffix(path.name)  # what will be refused anyway is not read first
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror}); name a file of prompts.") from error
    return parse(content, path.name)


def parse(content: str | bytes, name: str) -> tuple[Prompt, ...]:
    """The prompts in a file's content, at least one; `name` is the file's, whose suffix says how to read it.

    Ids that are missing are made of where the prompt stands ("line-3"). Raises UserError, as for an id that two have.
    """
    suffix, text = _suffix(name), _decoded(content, name)
    rows = json_rows(text, name, ASKED) if suffix in JSON else _table(text, name) if suffix in TABLES else _plain(text)
    found: dict[str, Prompt] = {}
    places: dict[str, str] = {}
    for place, row in rows:
        if len(found) == MAX_PROMPTS:
            raise UserError(f"{name} has more than {MAX_PROMPTS:,} prompts; give fewer.")
        prompt = _prompt(row, place, f"{name}, {place}")
        if prompt.id in found:
            raise UserError(f"{name}, {place}: {places[prompt.id]} has the id {prompt.id!r} too; rename one.")
        found[prompt.id], places[prompt.id] = prompt, place
    if not found:
        raise UserError(f"{name} has no prompts; give at least one.")
    return tuple(found.values())


def _suffix(name: str) -> str:
    suffix = PurePath(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{name} can't be read; give prompts as one of: {', '.join(SUFFIXES)}.")
    return suffix


def _decoded(content: str | bytes, name: str) -> str:
    """The text, without a byte order mark."""
    try:
        data = content.encode() if isinstance(content, str) else content
        if len(data) > MAX_BYTES:
            raise UserError(f"{name} has more than {MAX_BYTES // 10**6} MB; give fewer prompts.")
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        raise UserError(f"{name} holds bytes that are not UTF-8; save it as UTF-8.") from error


def _table(text: str, name: str) -> Iterator[Row]:
    """Rows by the columns of the header, empty cells left out; what separates cells is seen from the header."""
    separator = max(",;\t", key=text.split("\n", 1)[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    columns: list[str] = []
    start = 1
    while (cells := _cells(reader, f"{name}, line {start}")) is not None:
        place, start = f"line {start}", reader.line_num + 1
        if not columns:
            columns = _columns(cells, f"{name}, {place}") if cells else []
        elif cells and len(cells) != len(columns):
            raise UserError(
                f"{name}, {place}: the header has {len(columns)} columns and this row {len(cells)}; put cells that "
                f"hold {separator!r} in double quotes."
            )
        elif cells:
            yield place, {column: cell for column, cell in zip(columns, cells, strict=True) if cell.strip()}


def _cells(reader: Iterator[list[str]], where: str) -> list[str] | None:
    """The next row, [] for a blank line; None after the last."""
    try:
        return next(reader, None)
    except csv.Error as error:
        raise UserError(f"{where} is no CSV ({error}); correct its quotes.") from error


def _columns(cells: list[str], where: str) -> list[str]:
    columns = [cell.strip().lower() for cell in cells]
    if not set(SINGLE) & set(columns):
        raise UserError(f"{where} is no header with a column of prompts; call one of them {either(SINGLE)}.")
    if len(set(columns)) < len(columns):
        raise UserError(f"{where} has two columns of one name; rename one.")
    return columns


def _plain(text: str) -> Iterator[Row]:
    """A prompt per line, or per part between separators; lines and parts with nothing in them are passed over."""
    lines = text.replace("\r\n", "\n").split("\n")
    breaks = [number for number, line in enumerate(lines) if line.strip() == SEPARATOR]
    parts = [[number] for number in range(len(lines))]
    if breaks:
        ends = [*breaks, len(lines)]
        parts = [list(range(start + 1, end)) for start, end in zip([-1, *breaks], ends, strict=True)]
    for part in parts:
        filled = [number for number in part if lines[number].strip()]
        if filled:
            yield f"line {filled[0] + 1}", {"text": "\n".join(lines[filled[0] : filled[-1] + 1])}


def _prompt(row: Any, place: str, where: str) -> Prompt:
    if not isinstance(row, dict):
        raise UserError(f'{where} is no prompt; write it as an object such as {{"prompt": "Why is the sky blue?"}}.')
    given = {key: value for key, value in row.items() if value is not None}
    turns = _turns(given, where)
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UserError(f"{where}: a turn is empty or no text; write what is asked.")
    if any(turn.startswith(LEFT_OUT) for turn in turns):
        raise UserError(f"{where}: its text is left out; fill the file in with SPEED-Bench's own preparation first.")
    if sum(map(len, turns)) > MAX_CHARACTERS:
        raise UserError(f"{where} has more than {MAX_CHARACTERS:,} characters; shorten it.")
    id = _name(given, IDS, where) or place.replace(" ", "-")
    return Prompt(id, _name(given, KINDS_OF_WORK, where) or NO_WORKLOAD, tuple(turns))


def _name(given: dict[str, Any], keys: tuple[str, ...], where: str) -> str | None:
    """What stands under the first of the keys that is there, as text; None without any."""
    key = next((key for key in keys if key in given), None)
    if key is None:
        return None
    value = str(given[key]).strip() if type(given[key]) in (str, int) else ""
    if not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise UserError(f"{where}: {key!r} must be a line of text or a whole number, up to {MAX_NAME} characters long.")
    return value


def _turns(given: dict[str, Any], where: str) -> list[Any]:
    """What stands where turns belong, at least one, whatever it is."""
    key = next((key for key in ASKED if key in given), None)
    if key is None:
        raise UserError(f"{where} has no prompt; give one as {either(ASKED)}.")
    value = given[key]
    if key in SINGLE:
        more = given.get("input") if key == "instruction" else None
        return [f"{value}\n\n{more}" if isinstance(value, str) and isinstance(more, str) and more.strip() else value]
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: {key!r} must be a list with at least one entry.")
    if key == "messages" or all(isinstance(turn, dict) for turn in value):
        return _asked(value, where)
    return value


def _asked(messages: list[Any], where: str) -> list[str]:
    """The user's turns of a conversation."""
    turns: list[str] = []
    before: list[str] = []  # what the system said since the last of them
    for number, message in enumerate(messages, 1):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in ("system", "developer", "user", "assistant"):
            raise UserError(f"{where}: message {number} is none of a system, a user or an assistant; leave it out.")
        if role == "assistant":
            continue
        if isinstance(content, list):
            content = _joined(content, f"{where}: the content of message {number}")
        if not isinstance(content, str) or not content.strip():
            raise UserError(f"{where}: the content of message {number} is empty or no text; write what is said.")
        before.append(content)
        if role == "user":
            turns.append("\n\n".join(before))
            before = []
    if before or not turns:
        raise UserError(f"{where}: its messages end before a user asks something; add what is asked.")
    return turns


def _joined(parts: list[Any], where: str) -> str:
    """The texts of a content's parts."""
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{where} has a part that is no {{"type": "text", "text": "..."}}; leave it out.')
    return "\n".join(map(str, texts))
