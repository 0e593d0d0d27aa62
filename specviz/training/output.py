"""Writing what training made: whole or not at all, and with one sentence where it can't be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from specviz.errors import UserError
from specviz.refusals import brief


def prepare(folder: Path) -> None:
    """Make the folder, and find out before the work begins whether files can be written there. Raises UserError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside `path`: what is written there takes its place in the end. Raises UserError where that fails."""
    part = path.with_name(f"{path.name}.part")
    with writing(path):
        try:
            yield part
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails inside is `path` not being written, which becomes a UserError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch raises RuntimeError when a disk is full
        reason = (isinstance(error, OSError) and error.strerror) or brief(str(error).split(". ")[-1])
        raise UserError(
            f"{path} can't be written ({reason}); give --out a folder that can be, or make room for it and give the "
            "same command again, which goes on with what is there."
        ) from error
