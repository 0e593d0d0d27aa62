"""Reads presets/published.yaml: speed-ups that others have published, each with the settings it holds for.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.errors import UserError
from specviz.presets import PRESETS, read_entry, read_file

TEXTS = ("id", "title", "source", "date", "engine", "hardware", "target", "method", "settings")


@dataclass(frozen=True, slots=True)
class Point:
    """A published speed-up, at a batch size or under a load that its source puts otherwise."""

    speedup: float
    batch: int | None = None
    load: str | None = None

    @property
    def where(self) -> str:
        return f"batch {self.batch}" if self.load is None else self.load


@dataclass(frozen=True, slots=True)
class Published:
    """Speed-ups of one method under the same settings. `warning`: what to keep in mind of the source, "" if nothing."""

    id: str
    title: str
    source: str
    date: str
    engine: str
    hardware: str
    target: str
    method: str
    settings: str
    points: tuple[Point, ...]
    warning: str = ""

    @property
    def lines(self) -> list[str]:
        """All that the points hold for."""
        rest = [f"{self.method} · {self.target}", f"{self.engine} · {self.hardware}", self.settings]
        return [*rest, f"{self.source}, {self.date}", *([self.warning] if self.warning else [])]


def load_published(path: Path = PRESETS / "published.yaml") -> dict[str, Published]:
    """Every entry in file order, by id.

    Raises UserError naming the file, the entry and the key if anything is missing, unknown or of the wrong type.
    """
    return read_file(path, "published", _published)


def _published(raw: object, where: str) -> Published:
    entry = read_entry(raw, where, {**dict.fromkeys(TEXTS, str), "points": list}, optional={"warning": str})
    where = f"{where} ({entry['id']})"
    entry["points"] = tuple(_point(each, f"{where}, point {i}") for i, each in enumerate(entry["points"], start=1))
    if not entry["points"]:
        raise UserError(f"{where} has no points, so add one.")
    return Published(**entry)


def _point(raw: object, where: str) -> Point:
    entry: dict[str, Any] = read_entry(raw, where, {"speedup": float}, optional={"batch": int, "load": str})
    if ("batch" in entry) == ("load" in entry):
        raise UserError(f"{where} needs either 'batch' or, where the source has no batch size, 'load', so correct it.")
    if entry.get("batch", 1) < 1 or entry["speedup"] <= 0:
        raise UserError(f"{where}: batch size and speed-up must be above 0, so correct them.")
    return Point(**entry)
