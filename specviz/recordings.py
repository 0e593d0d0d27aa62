"""Reads and writes the examples' recorded runs: real ones, which the page shows before any model is loaded.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specviz import comparison, trace
from specviz.comparison import Comparison
from specviz.errors import UserError
from specviz.presets import PRESETS, Setting, check_drafter, read_entry, read_file
from specviz.trace import Run, Trace

RECORDINGS = PRESETS / "recordings"
# What an example may say of the sampler, and what holds where it does not: nothing applied, greedy.
SAMPLER: dict[str, Setting] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class Example:
    """A run to begin with. Its fields are named as in the trace's header."""

    id: str
    title: str  # one word
    prompt: str  # the user turn of a chat
    drafter: str  # its kind
    drafter_settings: dict[str, Setting]
    gamma: int
    sampler: dict[str, Setting]  # all of SAMPLER's names
    seed: int
    max_new_tokens: int


class Recording(NamedTuple):
    """An example's run, and how fast it was next to plain decoding on the machine that recorded it."""

    example: Example
    trace: Trace
    comparison: Comparison


def load_examples(path: Path = PRESETS / "examples.yaml") -> dict[str, Example]:
    """Every example in file order, by id.

    Raises UserError naming the file, the entry and the key if anything is missing, unknown or of the wrong type.
    """
    return read_file(path, "examples", _example)


def _example(raw: object, where: str) -> Example:
    keys = {"id": str, "title": str, "prompt": str, "drafter": str, "drafter_settings": dict}
    numbers = {"gamma": int, "seed": int, "max_new_tokens": int}
    entry = read_entry(raw, where, {**keys, **numbers}, optional={"sampler": dict})
    where = f"{where} ({entry['id']})"
    check_drafter(entry["drafter"], entry["drafter_settings"], where)
    types = {name: type(value) for name, value in SAMPLER.items()}
    sampler = read_entry(entry.get("sampler", {}), f"{where}, sampler", {}, optional=types)
    return Example(**{**entry, "sampler": {**SAMPLER, **sampler}})


def load_recordings(folder: Path = RECORDINGS, examples: Mapping[str, Example] | None = None) -> dict[str, Recording]:
    """The recordings that the folder holds, by id, in the examples' order (those that are shipped, if none are given).

    Raises UserError for a recording that can't be read, or that is not of its example.
    """
    examples = load_examples() if examples is None else examples
    return {id: _read(example, folder) for id, example in examples.items() if _files(id, folder)[0].exists()}


def write(recording: Recording, folder: Path = RECORDINGS) -> None:
    """Write `<id>.jsonl`, the trace, and `<id>.comparison.json`. Raises UserError if the folder can't be written."""
    run, speed = _files(recording.example.id, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trace.write(recording.trace, run)
        speed.write_text(comparison.to_json(recording.comparison) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"The recording can't be written to {folder} ({error.strerror}).") from error


def _files(id: str, folder: Path) -> tuple[Path, Path]:
    return folder / f"{id}.jsonl", folder / f"{id}.comparison.json"


def _read(example: Example, folder: Path) -> Recording:
    run, speed = _files(example.id, folder)
    try:
        text = speed.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{speed} can't be read ({error}), so record {example.id!r} again.") from error
    recording = Recording(example, trace.read(run), comparison.from_json(text, str(speed)))
    if different := _differences(example, recording.trace.run):
        raise UserError(f"{run} has another {different[0]} than the example, so record {example.id!r} again.")
    if len(recording.trace.tokens) != recording.comparison.tokens:
        raise UserError(f"{speed} times other tokens than the run has, so record {example.id!r} again.")
    return recording


def _differences(example: Example, run: Run) -> list[str]:
    """The names of what the header says otherwise."""
    asked: dict[str, Any] = {
        "mode": "recorded",
        "title": example.title,
        "prompt_text": example.prompt,
        "chat_template": True,
        "drafter": example.drafter,
        "drafter_settings": example.drafter_settings,
        "gamma": example.gamma,
        "sampler": {**example.sampler, "logit_bias": {}},
        "seed": example.seed,
        "max_new_tokens": example.max_new_tokens,
        "stop_strings": (),
    }
    return [name for name, value in asked.items() if getattr(run, name) != value]
