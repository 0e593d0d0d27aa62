"""Results files that the Workloads tab shows: the shipped one, those that visitors bring, and what is measured here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from specviz.errors import UserError
from specviz.figures.layout import shortened
from specviz.presets import PRESETS
from specviz.report.content import report
from specviz.report.drift_tables import Against
from specviz.report.html import to_html
from specviz.report.markdown import to_markdown
from specviz.workloads.result_file import parse
from specviz.workloads.results import Header, Result

SHIPPED = PRESETS / "measurements" / "smollm2-135m.jsonl"  # of the default pairing
HERE = "measured here"
MOST_FILES = 2
MAX_BYTES = 5_000_000  # of a file
MOST_RESULTS, MOST_WORKLOADS, MOST_ARMS = 3000, 40, 48  # in a file; more could not be read on a page
LONGEST_NAME = 40  # characters of a file's name


class File(NamedTuple):
    """A results file as it is."""

    name: str
    text: str


class Held(NamedTuple):
    """What a visitor has besides the measurement that is shipped."""

    uploaded: tuple[File, ...] = ()
    measured: File | None = None


class Set(NamedTuple):
    """What a file holds."""

    header: Header
    results: tuple[Result, ...]


def read_upload(paths: Sequence[str]) -> tuple[File, ...]:
    """The files, all of which hold results; raises UserError for others, and for what the page can't show."""
    if len(paths) > MOST_FILES:
        raise UserError(f"There are {len(paths)} files; give one, or two to compare.")
    found: list[File] = []
    for path in map(Path, paths):
        name = shortened(path.name, LONGEST_NAME)
        if any(file.name == name for file in found):
            name += " (2)"
        file = File(name, _text(path, name))
        read(file)
        found.append(file)
    return tuple(found)


@lru_cache(maxsize=8)
def read(file: File) -> Set:
    """Raises UserError for what is no results file, or holds more than the page can show."""
    header, results = parse(file.text, file.name)
    if not results:
        raise UserError(f"{file.name} holds no results yet; choose another file.")
    for what, count, most in (
        ("results", len(results), MOST_RESULTS),
        ("workloads", len({(result.suite, result.workload) for result in results}), MOST_WORKLOADS),
        ("ways of drafting", len({str(result.arm) for result in results}), MOST_ARMS),
    ):
        if count > most:
            raise UserError(f"{file.name} has {count:,} {what}; the page shows {most:,}, so measure fewer in one file.")
    return Set(header, tuple(results))


@lru_cache(maxsize=1)
def shipped(path: Path = SHIPPED) -> File | None:
    """The measurement that comes with the app, if there is one."""
    return File(f"{path.stem} (shipped)", _text(path, path.name)) if path.is_file() else None


def known(held: Held, first: File | None) -> dict[str, File]:
    """All that can be shown, by name: what the visitor brought or measured before what is shipped."""
    return {file.name: file for file in (*held.uploaded, held.measured, first) if file is not None}


def saved(file: File) -> str:
    """The path of a copy that the page may serve."""
    return _served(file, file.text, "jsonl")


def reports(file: File, other: File | None) -> tuple[str, str]:
    """The paths of its report as a page and as Markdown, with the changes since the other file if there is one."""
    page, text = _reports(file, other)
    return _served(file, page, "html"), _served(file, text, "md")


@lru_cache(maxsize=8)
def _reports(file: File, other: File | None) -> tuple[str, str]:
    header, results = read(file)
    against = None if other is None else Against(other.name, *read(other))
    made = report(header, results, against, name=file.name)
    return to_html(made), to_markdown(made)


def _served(file: File, content: str, ending: str) -> str:
    """The path of a file in Gradio's own folder, which is tidied up."""
    name = re.sub(r"[^\w.-]+", "-", file.name.removesuffix(".jsonl")).strip("-")
    path: str = save_bytes_to_cache(content.encode(), f"{name}.{ending}", cache_dir=get_upload_folder())
    return path


def _text(path: Path, name: str) -> str:
    """All whole lines; the last is none while a run still writes. Raises UserError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{name} has more than {MAX_BYTES // 10**6} MB; measure fewer prompts or settings in one.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} can't be read as text; choose a results file of bench --suite.") from error
    return text[: text.rfind("\n") + 1]
