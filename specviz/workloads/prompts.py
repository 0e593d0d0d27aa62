"""Reads the project's own prompts, `presets/prompts.yaml`: what a suite decodes. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.errors import UserError
from specviz.presets import PRESETS, read_entry, read_file

WORKLOADS = (
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
    "multi-turn",
)
LENGTHS = ("short", "medium", "long")
MEDIUM, LONG = 200, 800  # characters from which on a prompt is of medium length, or long


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked in a suite: the user's turns, of which each is answered before the next is asked.

    `workload`: what kind of work it is, one of WORKLOADS for the project's own prompts; users' files have others.
    """

    id: str
    workload: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """All turns, with a blank line between them."""
        return "\n\n".join(self.turns)

    @property
    def length(self) -> str:
        """One of LENGTHS, by the characters of all turns together: below 200, below 800, or more.

        Characters need no tokenizer, so the same prompt is as long for every target. English text has about four to a
        token, so that the bounds lie near 50 and 200 tokens.
        """
        characters = sum(map(len, self.turns))
        return LENGTHS[(characters >= MEDIUM) + (characters >= LONG)]


def load_prompts(path: Path = PRESETS / "prompts.yaml") -> dict[str, Prompt]:
    """Every prompt in file order, by id.

    Raises UserError naming the file, the entry and the key if anything is missing, unknown or of the wrong type.
    """
    return read_file(path, "prompts", _prompt)


def _prompt(raw: object, where: str) -> Prompt:
    entry = read_entry(raw, where, {"id": str, "workload": str}, optional={"text": str, "turns": list})
    id, workload = entry["id"], entry["workload"]
    where = f"{where} ({id})"
    if workload not in WORKLOADS:
        raise UserError(f"{where}: unknown workload {workload!r}, so make it one of: {', '.join(WORKLOADS)}.")
    if ("text" in entry) == ("turns" in entry):
        raise UserError(f"{where} needs either 'text' (one turn) or 'turns' (several), so give one of them.")
    turns = tuple(entry["turns"] if "turns" in entry else [entry["text"]])
    if "turns" in entry and len(turns) < 2:
        raise UserError(f"{where}: 'turns' must list at least two, so add one or write 'text'.")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UserError(f"{where}: a turn is empty or no text, so write it.")
    return Prompt(id, workload, turns)
