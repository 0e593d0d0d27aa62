"""`report`: a suite's results as a page of their own, or as Markdown. Nothing here imports torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specviz.errors import UserError
from specviz.report.content import report
from specviz.report.drift_tables import Against
from specviz.report.html import to_html
from specviz.report.markdown import to_markdown
from specviz.workloads.result_file import parse
from specviz.workloads.results import Header, Result


def command(options: argparse.Namespace) -> None:
    read = [file for file in (options.results, options.against) if file is not None]
    outputs = [file for file in (options.html, options.markdown) if file is not None]
    for place, out in enumerate(outputs):
        if out.resolve() in [file.resolve() for file in (*read, *outputs[:place])]:
            raise UserError(f"{out} is named twice, as what is read or written; choose another file for the report.")
    header, results = read_results(options.results)
    against = None if options.against is None else Against(options.against.name, *read_results(options.against))
    made = report(header, results, against, name=options.results.name, title=options.title)
    if options.html is not None:
        write(options.html, to_html(made))
    if options.markdown is not None:
        write(options.markdown, to_markdown(made))
    if not outputs:
        print(to_markdown(made), end="")


def read_results(file: Path) -> tuple[Header, list[Result]]:
    """The results in the file, which stays as it is: a run may be writing to it, so that its last line is cut off.

    Raises UserError for a file that can't be read, or that holds something else.
    """
    try:
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read as results ({error}); choose another file.") from error
    if len(whole.encode()) < len(content):
        _say(f"the last line of {file} is cut off, and left out")
    return parse(whole, str(file))


def write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"The report can't be written to {file} ({error.strerror}); choose another file.") from error
    _say(f"{file} is written")


def _say(text: str) -> None:
    """Like `common.say`, which comes with torch."""
    print(f"specviz: {text}", file=sys.stderr, flush=True)
