"""Reads the project's own prompts, `presets/prompts.yaml`: what a suite decodes. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.errors import UserError
from specviz.presets import PRESETS, read_entry, read_file

KINDS = (
    "chat",
    "question",
    "code",
    "mathematics",
    "translation",
    "summary",
    "editing",
    "grounded",
    "json",
    "list",
    "letter",
    "story",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user turn that is answered in a suite."""

    id: str
    kind: str  # one of KINDS
    text: str


def load_prompts(path: Path = PRESETS / "prompts.yaml") -> dict[str, Prompt]:
    """Every prompt in file order, by id.

    Raises UserError naming the file, the entry and the key if anything is missing, unknown or of the wrong type.
    """
    return read_file(path, "prompts", _prompt)


def _prompt(raw: object, where: str) -> Prompt:
    entry = read_entry(raw, where, {"id": str, "kind": str, "text": str})
    where = f"{where} ({entry['id']})"
    if entry["kind"] not in KINDS:
        raise UserError(f"{where}: unknown kind {entry['kind']!r}, so make it one of: {', '.join(KINDS)}.")
    if not entry["text"].strip():
        raise UserError(f"{where}: its text is empty, so write one.")
    return Prompt(**entry)
