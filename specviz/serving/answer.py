"""What an engine is told, and what it does otherwise than the run here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specviz.serving.deployment import Deployment

Language = Literal["shell", "json", "yaml", "python"]
UNVERIFIED = "Unverified: "  # begins a sentence about what was not found in the engine's sources or documentation
BATCH = "Here one request runs alone; in a batch, verify passes grow dearer and the speed-up smaller."


@dataclass(frozen=True, slots=True)
class Request:
    """An example of what a client sends to the server; on servers, sampling belongs to the request."""

    route: str
    body: str  # JSON


@dataclass(frozen=True, slots=True)
class Launch:
    """How to launch the target and its drafter in one engine.

    command: in `language`; None where that drafter can't be launched there, and then `unsupported` is the sentence that
    says why. differs: sentences; one that begins with "Unverified: " is about what was not found in the engine's
    sources or documentation. checked: the version that every option was looked up in, and where.
    """

    engine: str
    title: str
    checked: str
    command: str | None
    language: Language = "shell"
    differs: tuple[str, ...] = ()
    request: Request | None = None
    unsupported: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine's module makes of a deployment; `launches` adds the engine's name to it."""

    command: str
    differs: list[str]
    language: Language = "shell"
    request: Request | None = None


class Unsupported(Exception):
    """The engine can't launch that drafter; `str()` is one sentence that says why."""


def only_part(plan: Deployment, engine: str) -> str | None:
    """The kind that drafts, None if nothing does; raises Unsupported for a combination."""
    if len(plan.parts) > 1:
        raise Unsupported(f"{engine} drafts with one method at a time, and {plan.kind} takes turns between two.")
    return plan.parts[0] if plan.parts else None


def shell(program: Sequence[str], options: Sequence[tuple[str, ...]]) -> str:
    """A shell command, quoted, with an option and its values to a line."""
    lines = [" ".join(map(shlex.quote, words)) for words in (program, *options)]
    return " \\\n  ".join(lines)
