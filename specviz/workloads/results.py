"""What a suite found out, prompt by prompt: plain values, kept as JSON lines. Nothing here imports torch.

The first line is the header, every further line one result. A file that was cut off in the middle of a line loses that
line only. Acceptance is kept step by step, so that every figure can be computed anew.
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
from specviz.workloads.prompts import LENGTHS, Prompt
from specviz.workloads.suites import Suite

SCHEMA = 2
BEGINNING = b'{"schema": %d, "header": {' % SCHEMA  # of every file
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # numbers that every sampler has
CIRCUMSTANCES = ("date", "load")  # what may differ between a file's header and a run that goes on with it


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for every result of a file."""

    pairing: str  # its id
    target: str
    weights: str  # hash or revision of the target's
    device: str
    dtype: str
    threads: int | None
    versions: dict[str, str]
    sampler: dict[str, Any]  # as in a trace's header
    seed: int
    max_new_tokens: int  # of an answer, which ends earlier where the target ends it
    timed: bool  # otherwise acceptance alone was counted
    repeats: int
    date: str
    load: tuple[float, ...]  # the machine's load averages at the start, over 1, 5 and 15 minutes; () where unknown
    chat_template: bool = True
    batch: int = 1
    rule: str = "token"

    @property
    def temperature(self) -> float:
        return float(self.sampler["temperature"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a user turn, step by step: one entry per verify pass."""

    prompt_tokens: int  # the conversation before it included
    depths: tuple[int, ...]  # of the drafts; of a chain its tokens
    drafted: tuple[int, ...]  # draft tokens, in a tree all its nodes
    accepted: tuple[int, ...]
    committed: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.committed)


@dataclass(frozen=True, slots=True)
class Result:
    """One arm on one prompt.

    Acceptance is counted in a run of its own, which ends where the target ends its answer. Times are of further runs to
    as many tokens, without detail, plain and speculative in turns; `phases` and `outside` are of synchronised ones.
    """

    arm: Arm
    suite: str
    prompt: str  # its id within the suite
    text: str  # hash of the prompt's text
    workload: str
    length: str  # of the prompt, one of LENGTHS
    turns: int  # of the prompt
    answers: tuple[Answer, ...]  # one per turn, fewer where the conversation outgrew the target
    plain_s: tuple[float, ...]  # seconds per token, prefill left out; one per repeat, none if nothing was timed
    speculative_s: tuple[float, ...]
    phases: Phases | None
    outside: float | None  # share of the time, from the second step on, that no model's forward pass took
    identical: bool | None  # greedy output is plain decoding's; None where they were not or can't be compared
    divergence: Divergence | None  # where they part

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def steps(self) -> int:
        return sum(len(answer.accepted) for answer in self.answers)

    @property
    def accepted(self) -> int:
        return sum(sum(answer.accepted) for answer in self.answers)

    @property
    def drafted(self) -> int:
        return sum(sum(answer.drafted) for answer in self.answers)

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.steps

    @property
    def speedup(self) -> float | None:
        """Plain over speculative time per token: the median of the repeats' ratios; None if nothing was timed."""
        ratios = [plain / fast for plain, fast in zip(self.plain_s, self.speculative_s, strict=True)]
        return median(ratios) if ratios else None


def digest(prompt: Prompt) -> str:
    """What identifies a prompt's turns."""
    return sha256(json.dumps(prompt.turns).encode()).hexdigest()[:16]


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


def _read(file: Path) -> tuple[Header | None, list[Result]]:
    """The header and the results; a last line that was cut off is taken off the file, once all before it is ours."""
    try:
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        found = parse(whole.decode(), str(file)) if whole else (None, [])
        if not whole and not content.startswith(BEGINNING):
            raise UserError(f"{file} holds no results of a suite; choose another file.")
        if len(whole) < len(content):
            os.truncate(file, len(whole))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read as results ({error}); choose another file.") from error
    return found


def parse(text: str, name: str) -> tuple[Header, list[Result]]:
    """Whole lines; `name` is what errors call the file. Raises UserError for a line that is none of ours."""
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
    if min((1, *result.plain_s, *result.speculative_s)) <= 0:
        raise UserError(f"{where}: its times are not all above 0; choose another file.")
    if result.length not in LENGTHS:
        raise UserError(f"{where}: no prompt is {result.length!r}; choose another file.")
    if not result.answers or not all(map(_is_sound, result.answers)):
        raise UserError(f"{where}: its steps and tokens do not fit together; choose another file.")
    check_drafter(result.arm.kind, result.arm.settings, where)
    return result


def _is_sound(answer: Answer) -> bool:
    """A step at least, each with as many drafts as it accepts, and tokens to show for it."""
    columns = answer.depths, answer.drafted, answer.accepted, answer.committed
    return (
        len({len(column) for column in columns}) == 1
        and all(0 <= accepted <= depth <= drafted for depth, drafted, accepted, _ in zip(*columns, strict=True))
        and all(accepted <= committed for accepted, committed in zip(answer.accepted, answer.committed, strict=True))
        and answer.tokens > 0
        and answer.prompt_tokens > 0
    )
