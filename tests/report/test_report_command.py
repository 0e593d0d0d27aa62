"""The command: files written, files refused, and results left as they are."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from reported import KNOWN, results

from specviz import trace
from specviz.commands.report import command
from specviz.errors import UserError
from specviz.report.options import add_arguments
from specviz.workloads.result_file import SCHEMA

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path):
    """Results as `bench` writes them."""
    lines = [{"schema": SCHEMA, "header": trace.plain(KNOWN)}, *({"result": trace.plain(each)} for each in results())]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command(parser.parse_args([str(each) for each in arguments]))


def test_without_an_output_it_prints_markdown(file, capsys):
    run(file, "--title", "My <run>")
    printed = capsys.readouterr()
    assert printed.out.startswith("# My \\<run\\>\n\n**Faster: eagle, gamma 2,") and printed.err == ""


def test_both_outputs_and_a_comparison(file, tmp_path, capsys):
    html, markdown, other = tmp_path / "o.html", tmp_path / "o.md", tmp_path / "before.jsonl"
    other.write_bytes(file.read_bytes())
    run(file, "--against", other, "--html", html, "--markdown", markdown)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == f"specviz: {html} is written\nspecviz: {markdown} is written\n"
    assert "0 of 12 differences from before.jsonl" in html.read_text() and "before.jsonl" in markdown.read_text()


def test_a_line_that_a_run_is_writing_stays_in_its_file(file, capsys):
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"result": {"arm"')
    run(file)
    printed = capsys.readouterr()
    assert "36 prompts" not in printed.out and "12 prompts" in printed.out
    assert printed.err == f"specviz: the last line of {file} is cut off, and left out\n"
    assert file.read_bytes() == whole + b'{"result": {"arm"'


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_results_are_not_written_over(file, option):
    before = file.read_bytes()
    with pytest.raises(UserError, match="is named twice"):
        run(file, option, file.parent / "." / file.name)
    assert file.read_bytes() == before


def test_two_outputs_are_two_files(file, tmp_path):
    with pytest.raises(UserError, match="is named twice"):
        run(file, "--html", tmp_path / "o", "--markdown", tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read as results"),
        (b"\xff\n", "can't be read as results"),
        (b"", "is not JSON"),
        (b'{"schema": 1}\n', "holds no results of schema"),
        (json.dumps({"schema": SCHEMA, "header": trace.plain(KNOWN)}).encode() + b"\n", "There are no results yet"),
    ],
)
def test_what_is_no_results_is_refused(tmp_path, content, said):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        run(path)


def test_what_cannot_be_written_is_said(file, tmp_path):
    with pytest.raises(UserError, match="can't be written"):
        run(file, "--html", tmp_path / "no" / "o.html")


def test_reports_are_made_where_torch_cannot_be_imported(file):
    """Results travel to machines without it."""
    script = (
        "import sys, argparse\n"
        "sys.modules.update(dict.fromkeys(('torch', 'transformers')))  # None: importing it fails\n"
        "from specviz.commands.report import command\n"
        "from specviz.report.options import add_arguments\n"
        "parser = argparse.ArgumentParser(); add_arguments(parser); command(parser.parse_args())\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", script, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("# Speculative decoding with Tiny: own")
