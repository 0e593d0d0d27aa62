"""Results as JSON lines: the first is the header, every further one a result. Nothing here imports torch.

A file that was cut off in the middle of a line loses that line only, and one process at a time writes to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from filelock import FileLock, Timeout

from specviz import trace
from specviz.drafter_settings import LONGEST_DRAFT
from specviz.errors import UserError
from specviz.presets import check_drafter
from specviz.workloads.arms import Arm
from specviz.workloads.prompts import LENGTHS
from specviz.workloads.results import CIRCUMSTANCES, Answer, Header, Result, digest
from specviz.workloads.suites import Suite

SCHEMA = 2
BEGINNING = b'{"schema": %d, "header": {' % SCHEMA  # of every file
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # numbers that every sampler has
MOST_NODES = 64 * LONGEST_DRAFT  # of a draft tree
MOST_STEPS = 1_000_000  # of a prompt
SHORTEST, LONGEST = 1e-9, 1e6  # seconds that a token takes


class Results:
    """The results so far. With a file, those that it holds already, and every further one is written to it at once.

    As long as it is open no other process can write to the file. To be closed, or used as a context manager.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Raises UserError for a file that holds something else, or that another process writes to."""
        self.file = file
        self.header: Header | None = None
        self.all: list[Result] = []
        self._lock: FileLock | None = None
        if file is None:
            return
        self._lock = _locked(file)
        try:
            if file.exists() and file.stat().st_size:
                self.header, self.all = _read(file)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write to the file."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def begin(self, header: Header) -> None:
        """To be called before results are added. Raises UserError if the file's were found under another header."""
        if self.header is None:
            self.header = header
            self._write({"schema": SCHEMA, "header": trace.plain(header)})
            return
        for field in fields(Header):
            there, here = getattr(self.header, field.name), getattr(header, field.name)
            if field.name not in CIRCUMSTANCES and there != here:
                what = field.name.replace("_", " ")
                raise UserError(
                    f"The results have another {what} ({there}) than this run ({here}); choose another file."
                )

    def add(self, result: Result) -> None:
        self.all.append(result)
        self._write({"result": trace.plain(result)})

    def of(self, arm: Arm, suites: Sequence[Suite]) -> dict[tuple[str, str], Result]:
        """The arm's results on these suites' prompts, as their texts are now, by suite and prompt."""
        texts = {(suite.name, prompt.id): digest(prompt) for suite in suites for prompt in suite.prompts}
        own = [(result.suite, result.prompt, result) for result in self.all if result.arm == arm]
        return {(suite, prompt): result for suite, prompt, result in own if texts.get((suite, prompt)) == result.text}

    def _write(self, line: dict[str, Any]) -> None:
        if self.file is None:
            return
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"The results can't be written to {self.file} ({error.strerror}).") from error


def _locked(file: Path) -> FileLock:
    """Held from here on. Raises UserError where another process holds it.

    It lies among temporary files, under a name of this user's and this file's, for it stays when it is let go.
    """
    name = sha256(f"{Path.home()}\n{file.resolve()}".encode()).hexdigest()[:24]
    lock = FileLock(Path(gettempdir()) / f"specviz-{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another process writes to {file}; wait for it, or choose another file.") from None
    return lock


def _read(file: Path) -> tuple[Header | None, list[Result]]:
    """The header and the results; a last line that was cut off is taken off the file, once all before it is ours."""
    try:
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        found = _parse(whole.decode(), str(file)) if whole else (None, [])
        if not whole and content[: len(BEGINNING)] != BEGINNING[: len(content)]:
            raise UserError(f"{file} holds no results of a suite; choose another file.")
        if len(whole) < len(content):
            os.truncate(file, len(whole))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read as results ({error}); choose another file.") from error
    return found


def parse(text: str, name: str) -> tuple[Header, list[Result]]:
    """The header and the results of whole lines; `name` is what errors call the file.

    Of several results of one arm on one prompt, whose text was changed between them, the last one counts. Raises
    UserError for a line that is none of ours.
    """
    header, results = _parse(text, name)
    last = {(result.suite, result.prompt, trace.dump(trace.plain(result.arm))): result for result in results}
    return header, list(last.values())


def _parse(text: str, name: str) -> tuple[Header, list[Result]]:
    lines = enumerate(text.splitlines() or [""], 1)
    first, *others = [trace.load(line, f"{name}, line {number}") for number, line in lines]
    if not isinstance(first, dict) or first.get("schema") != SCHEMA or "header" not in first:
        raise UserError(f"{name} holds no results of schema {SCHEMA}, the only one read here; choose another file.")
    header: Header = trace.build(Header, first["header"], f"{name}, line 1")
    for setting in SAMPLING:
        if type(header.sampler.get(setting)) not in (int, float):
            raise UserError(f"{name}, line 1: its sampler has no number as {setting}; choose another file.")
    return header, [_result(row, f"{name}, line {number}") for number, row in enumerate(others, 2)]


def _result(row: Any, where: str) -> Result:
    if not isinstance(row, dict):
        raise UserError(f"{where} is no result; choose another file.")
    trace.check_keys(row, {"result"}, where)
    result: Result = trace.build(Result, row["result"], where)
    if len(result.plain_s) != len(result.speculative_s):
        raise UserError(f"{where}: its times are not as many of one kind as of the other; choose another file.")
    if not all(SHORTEST <= seconds <= LONGEST for seconds in (*result.plain_s, *result.speculative_s)):
        raise UserError(f"{where}: its times are no seconds that a token could take; choose another file.")
    if result.length not in LENGTHS:
        raise UserError(f"{where}: no prompt is {result.length!r}; choose another file.")
    if not 1 <= result.arm.gamma <= LONGEST_DRAFT:
        raise UserError(f"{where}: its gamma is not from 1 to {LONGEST_DRAFT}; choose another file.")
    if not 1 <= len(result.answers) <= result.turns or result.steps > MOST_STEPS:
        raise UserError(f"{where}: its turns, answers and steps do not fit together; choose another file.")
    if not all(map(_is_sound, result.answers)):
        raise UserError(f"{where}: its steps and tokens do not fit together; choose another file.")
    check_drafter(result.arm.kind, result.arm.settings, where)
    return result


def _is_sound(answer: Answer) -> bool:
    """A step at least, each with as many drafts as it accepts, and tokens to show for it."""
    columns = answer.depths, answer.drafted, answer.accepted, answer.committed
    return (
        len({len(column) for column in columns}) == 1
        and all(
            0 <= accepted <= depth <= min(drafted, LONGEST_DRAFT) and drafted <= MOST_NODES
            for depth, drafted, accepted, _ in zip(*columns, strict=True)
        )
        and all(
            accepted <= committed <= accepted + 1
            for accepted, committed in zip(answer.accepted, answer.committed, strict=True)
        )
        and answer.tokens > 0
        and answer.prompt_tokens > 0
    )
