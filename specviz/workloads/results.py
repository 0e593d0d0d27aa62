"""What a suite found out, prompt by prompt: plain values, kept as JSON lines. Nothing here imports torch.

The first line is the header, every further line one result. A file that was cut off in the middle of a line loses that
line only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from specviz import trace
from specviz.comparison import Divergence, Phases
from specviz.errors import UserError
from specviz.presets import check_drafter
from specviz.workloads.arms import Arm
from specviz.workloads.prompts import KINDS, Prompt

SCHEMA = 1
BEGINNING = b'{"schema": %d, "header": {' % SCHEMA  # of every file
CIRCUMSTANCES = ("date", "load")  # what may differ between a file's header and a run that goes on with it


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for every result of a file."""

    suite: str
    target: str
    weights: str  # hash or revision of the target's
    device: str
    dtype: str
    threads: int | None
    versions: dict[str, str]
    max_new_tokens: int
    repeats: int
    date: str
    load: tuple[float, ...]  # the machine's load averages at the start, over 1, 5 and 15 minutes; () where unknown


@dataclass(frozen=True, slots=True)
class Result:
    """One arm on one prompt.

    Acceptance is counted in the first timed run. Times are of runs without detail, stop tokens ignored, plain and
    speculative in turns; `phases` and `outside` are of further, synchronised runs.
    """

    arm: Arm
    prompt: str  # its id
    text: str  # hash of the prompt's text
    kind: str  # the prompt's
    tokens: int  # decoded by either
    steps: int
    accepted: int
    plain_s: tuple[float, ...]  # seconds per token, prefill left out; one per repeat
    speculative_s: tuple[float, ...]
    phases: Phases
    outside: float | None  # share of the time, from the second step on, that no model's forward pass took
    divergence: Divergence | None  # where the output parts from plain decoding's; None if it is the same

    @property
    def speedup(self) -> float:
        """Plain over speculative time per token: the median of the repeats' ratios."""
        return median(plain / fast for plain, fast in zip(self.plain_s, self.speculative_s, strict=True))

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.steps


def digest(text: str) -> str:
    """What identifies a prompt's text."""
    return sha256(text.encode()).hexdigest()[:16]


def load_averages() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except (AttributeError, OSError):  # Windows has none
        return ()


class Results:
    """The results so far. With a file, those that it holds already, and every further one is written to it at once."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises UserError for a file that holds something else."""
        self.file = file
        self.header: Header | None = None
        self.all: list[Result] = []
        if file is not None and file.exists() and file.stat().st_size:
            self.header, self.all = _read(file)

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
                    f"The results have another {what} ({there}) than this run ({here}); choose another --out file."
                )

    def add(self, result: Result) -> None:
        self.all.append(result)
        self._write({"result": trace.plain(result)})

    def of(self, arms: Sequence[Arm], prompts: Sequence[Prompt]) -> list[Result]:
        """The results of these arms on these prompts, as their texts are now."""
        texts = {prompt.id: digest(prompt.text) for prompt in prompts}
        return [result for result in self.all if result.arm in arms and texts.get(result.prompt) == result.text]

    def _write(self, line: dict[str, Any]) -> None:
        if self.file is None:
            return
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"The results can't be written to {self.file} ({error.strerror}).") from error


def _read(file: Path) -> tuple[Header | None, list[Result]]:
    """The header and the results; a last line that was cut off is taken off the file, once all before it is ours."""
    try:
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        found = _parse(whole.decode(), file) if whole else (None, [])
        if not whole and not content.startswith(BEGINNING):
            raise UserError(f"{file} holds no results of a suite; choose another --out file.")
        if len(whole) < len(content):
            os.truncate(file, len(whole))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read as results ({error}); choose another --out file.") from error
    return found


def _parse(text: str, file: Path) -> tuple[Header, list[Result]]:
    """Whole lines, at least one. Raises UserError for one that is none of ours."""
    lines = enumerate(text.splitlines(), 1)
    first, *others = [trace.load(line, f"{file}, line {number}") for number, line in lines]
    if not isinstance(first, dict) or first.get("schema") != SCHEMA or "header" not in first:
        raise UserError(
            f"{file} holds no results of schema {SCHEMA}, the only one read here; choose another --out file."
        )
    header: Header = trace.build(Header, first["header"], f"{file}, line 1")
    return header, [_result(row, f"{file}, line {number}") for number, row in enumerate(others, 2)]


def _result(row: Any, where: str) -> Result:
    if not isinstance(row, dict):
        raise UserError(f"{where} is no result; choose another --out file.")
    trace.check_keys(row, {"result"}, where)
    result: Result = trace.build(Result, row["result"], where)
    if not result.plain_s or len(result.plain_s) != len(result.speculative_s):
        raise UserError(f"{where}: its times are not as many of one kind as of the other; choose another --out file.")
    if min(result.tokens, result.steps, *result.plain_s, *result.speculative_s) <= 0 or result.accepted < 0:
        raise UserError(f"{where}: its tokens, steps and times are not all above 0; choose another --out file.")
    if result.kind not in KINDS:
        raise UserError(f"{where}: no prompt is of the kind {result.kind!r}; choose another --out file.")
    check_drafter(result.arm.kind, result.arm.settings, where)
    return result
