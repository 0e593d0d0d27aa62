"""What a run did, step by step: plain values, written as JSON lines. Standard library only.

The first line is the header (`Run`), every further line one `Step`. Recorded, live, imported and exported
runs all have this one form. Reading is strict: an unknown schema, key or type is refused with a sentence; only what
has a default may be left out.
"""

from __future__ import annotations

import json
import math
import reprlib
import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from specviz.errors import UserError

SCHEMA = 1
LARGEST = 2**63  # no count or seed is larger

Outcome = Literal["accepted", "rejected", "untested", "cut"]
LastKind = Literal["correction", "bonus"]
CutReason = Literal["stop_token", "stop_string", "length"]
FinishReason = Literal["stop_token", "stop_string", "length", "cancelled"]
Mode = Literal["live", "recorded", "imported", "synthetic"]


class Candidate(NamedTuple):
    """One entry of a top list."""

    token: int
    text: str
    prob: float  # as sampled from: after bias, penalty, temperature and filters
    raw: float | None  # at temperature 1, nothing applied; None where there were no logits


@dataclass(frozen=True, slots=True)
class Node:
    """One draft token.

    How it was decided depends on the run's rule:
    - token: each token is tested where the path has led to it, siblings one after another. It is accepted if r is below
      `accept_prob` = min(1, p_trial / q); all that follows a rejected one is untested.
    - block: every token is tested. It is accepted if r is below `accept_prob` for itself or for any later one, and the
      rest is rejected. `accept_prob` = h_i, which depends on the whole chain up to the token and on what q holds after
      it; p_trial = p.
    - typical: nothing is drawn, so r is None. At the places of the accepted path, `accept_prob` is 1 for the token that
      was accepted and 0 for those that are not likely enough; p_trial = p. All others are untested, those that are
      likely enough but begin a shorter path among them.
    """

    token: int
    text: str
    parent: int  # index of the parent node, -1: the last committed token
    depth: int  # 1 for a child of the last committed token
    outcome: Outcome
    p: float | None  # target's probability, as sampled from
    q: float | None  # drafter's probability, as drawn from
    p_trial: float | None  # what was left of p when this node was tried; None if it was not
    accept_prob: float | None  # the chance of passing its test; None if it was not tested
    r: float | None  # the uniform draw of its test; None where nothing is drawn
    p_raw: float | None  # at temperature 1
    q_raw: float | None
    rank_p: int | None  # 1 = the target's favourite
    rank_q: int | None
    by: str | None = None  # the kind of drafter it is from, where several draft together


@dataclass(frozen=True, slots=True)
class Decision:
    """What target and drafter thought at one place of the accepted path."""

    node: int  # the place is after this node; -1: after the last committed token
    p: tuple[Candidate, ...]  # the target's first candidates
    q: tuple[Candidate, ...]  # the drafter's, where it proposed something here
    residual: tuple[Candidate, ...]  # norm(max(0, p - q)), p scaled under the block rule; where a draw rejected a token
    margin: float | None  # between the target's two largest logits
    entropy: float | None  # of the target at temperature 1, in nats
    overlap: float | None  # sum(min(p, q)): the exact chance that the token rule accepts a sampled draft token here


@dataclass(frozen=True, slots=True)
class LastToken:
    """The token of the target's own that ends a step."""

    token: int
    text: str
    kind: LastKind
    p: float | None  # its probability in the distribution it was drawn from


@dataclass(frozen=True, slots=True)
class Step:
    """One draft, one verify pass and the decision."""

    index: int  # from 0; shown from 1
    start: int  # tokens before this step, prompt included
    gamma_asked: int  # what the gamma policy wanted; near the budget the drafter is asked for less
    gamma_used: int  # depth of the draft
    nodes: tuple[Node, ...]
    path: tuple[int, ...]  # accepted nodes from the root down, cut ones not included
    last: LastToken | None  # None if the step was cut before it
    committed: tuple[int, ...]
    text: tuple[str, ...]  # per committed token; "" while a character is incomplete
    cut: CutReason | None  # why the run ended here
    seconds: float | None  # wall time of the step, recording not included
    draft_s: float | None = None  # phases: only in runs that synchronise for them
    verify_s: float | None = None
    decide_s: float | None = None
    prefill_s: float | None = None  # in the first step: the prompt's forward pass, not part of `seconds`
    rerun: int = 0  # committed tokens that went through a recurrent target a second time
    note: str | None = None  # what the drafter had to say, such as why it stopped drafting
    decisions: tuple[Decision, ...] = ()

    @property
    def num_accepted(self) -> int:
        """Draft tokens kept; the correction or bonus is not counted."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class Run:
    """The header: all that is needed to do the run again."""

    target: str
    drafter: str
    drafter_settings: dict[str, Any]
    gamma: int
    sampler: dict[str, Any]
    seed: int
    max_new_tokens: int
    prompt: tuple[int, ...]
    prompt_text: str
    chat_template: bool
    device: str
    dtype: str
    threads: int | None
    synchronised: bool  # phases were timed, so the step times are not a benchmark
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    gamma_policy: str = "fixed"  # "fixed", "confidence" or "adaptive"; gamma is then the longest draft
    rule: str = "token"  # "token", "block" or "typical"
    lossless: bool = True
    batch: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # hashes or revisions
    mode: Mode = "live"
    date: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()  # warnings that belong to the run


@dataclass(frozen=True, slots=True)
class Trace:
    """A run and its steps."""

    run: Run
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """All committed token ids, a final stop token included."""
        return tuple(token for step in self.steps for token in step.committed)

    @property
    def text(self) -> str:
        """The output as text; the stop token that ended the run is not part of it."""
        pieces = [piece for step in self.steps for piece in step.text]
        if self.finish_reason == "stop_token" and pieces:
            end = self.steps[-1]
            name = end.last.text if end.last else end.nodes[end.path[-1]].text if end.path else pieces[-1]
            # The piece may begin with half a character that waited for its other half.
            pieces[-1] = pieces[-1].removesuffix(name) if pieces[-1].endswith(name) else ""
        return "".join(pieces)

    @property
    def finish_reason(self) -> FinishReason:
        if self.steps:
            return self.steps[-1].cut or "cancelled"
        return "length" if self.run.max_new_tokens == 0 else "cancelled"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The run's notes and the steps' notes, each once, in order."""
        notes = [*self.run.notes, *(step.note for step in self.steps if step.note)]
        return tuple(dict.fromkeys(notes))


# --- JSON lines ---------------------------------------------------------------------------------------------


def header_line(run: Run) -> str:
    return dump({"schema": SCHEMA, "run": plain(run)})


def step_line(step: Step) -> str:
    return dump(plain(step))


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def write(trace: Trace, file: Path) -> None:
    lines = [header_line(trace.run), *map(step_line, trace.steps)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path) -> Trace:
    """Read a trace; raises UserError with the line number for anything this version does not know."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read as a trace ({error}); give a file written by --trace.") from error
    return parse(text.split("\n"), str(file))  # splitlines would also split at U+2028, which JSON text may hold


def parse(lines: Iterable[str], name: str = "the trace") -> Trace:
    """Read a trace from its lines; `name` is what errors call it."""
    rows = _rows(lines, name)
    first, header = next(rows, (0, None))
    if not isinstance(header, dict) or "schema" not in header:
        raise UserError(f"{name} does not start with a trace header; give a file written by --trace.")
    if type(header["schema"]) is not int or header["schema"] != SCHEMA:
        raise UserError(f"{name} has trace schema {_shown(header['schema'])}; this version reads schema {SCHEMA} only.")
    check_keys(header, {"schema", "run"}, f"{name}, line {first}")
    run = build(Run, header["run"], f"{name}, line {first}")
    return Trace(run, tuple(_step(row, f"{name}, line {number}") for number, row in rows))


def _step(row: Any, where: str) -> Step:
    """One step, its references checked as well, so that readers can follow them blindly."""
    step: Step = build(Step, row, where)
    nodes = range(len(step.nodes))
    sound = (
        len(step.text) == len(step.committed)
        and all(-1 <= node.parent < index for index, node in enumerate(step.nodes))
        and all(node in nodes for node in step.path)
        and all(decision.node == -1 or decision.node in nodes for decision in step.decisions)
    )
    if not sound:
        raise UserError(f"{where}: its nodes, path, tokens and text do not fit together.")
    return step


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield number, load(line, f"{name}, line {number}")


def load(text: str, where: str) -> Any:
    """The JSON value in a text; raises UserError for anything else, numbers that are not finite included."""
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if "\\ud" in text.lower():  # half a surrogate pair is no text: it could be neither written nor sent
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); the file may be cut off.") from error
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{_shown(text)} is not a finite number")
    return value


def plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _optional(cls: type) -> frozenset[str]:
    """Fields with a default: a file may leave them out, as those written before there was such a field do."""
    return frozenset(f.name for f in fields(cls) if f.default is not MISSING or f.default_factory is not MISSING)


def build(kind: Any, value: Any, where: str) -> Any:
    """The value as the annotated type `kind`, checked all the way down."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return build(next(arg for arg in args if arg is not type(None)), value, where)
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{where}: {_shown(value)} is none of {', '.join(map(str, args))}.")
    if origin is tuple and isinstance(value, list):
        return tuple(build(args[0], item, where) for item in value)
    if kind is Candidate and isinstance(value, list) and len(value) == len(Candidate._fields):
        hints = _hints(Candidate)
        pairs = zip(Candidate._fields, value, strict=True)
        return Candidate(*(build(hints[name], item, where) for name, item in pairs))
    if is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)  # type: ignore[arg-type]
        check_keys(value, set(hints), where, _optional(kind))  # type: ignore[arg-type]
        given = {name: build(hint, value[name], f"{where}, {name}") for name, hint in hints.items() if name in value}
        return kind(**given)  # type: ignore[operator]
    if origin is dict and isinstance(value, dict):
        return {key: build(args[1], item, f"{where}, {_shown(key)}") for key, item in value.items()}
    if kind is Any or (kind is float and type(value) is float):
        return value
    if kind is float and type(value) is int and abs(value) < LARGEST:
        return float(value)
    if kind is int and type(value) is int and not -LARGEST <= value < LARGEST:
        raise UserError(f"{where}: {_shown(value)} is too large.")
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise UserError(f"{where}: {_shown(value)} is not what belongs there.")


def check_keys(value: dict[str, Any], known: set[str], where: str, optional: frozenset[str] = frozenset()) -> None:
    unknown, missing = sorted(set(value) - known), sorted(known - optional - set(value))
    if unknown or missing:
        raise UserError(f"{where}: unknown keys {_shown(unknown)}, missing keys {_shown(missing)}.")


def _shown(value: Any) -> str:
    """A value for an error message: never longer than a line, whatever the file holds."""
    return reprlib.repr(value)
