"""`batch` on the command line: its options, what it prints, and what it refuses before anything is loaded."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import chat_target, tiny_model
from measurements import measurement

from specviz.batch import measure, options, results, table
from specviz.batch.model import Drafting
from specviz.commands import batch
from specviz.drafters import Assistant
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.presets import pairing
from specviz.theory import Machine

SMALL = ("--batches", "1,2", "--rows", "1,3", "--context", "8", "--repeats", "2")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny pairing in place of what the options name, and a device that reaches round numbers."""
    target = chat_target()
    draft_model = tiny_model(vocab_size=target.vocab_size, num_hidden_layers=1)
    assistant = Assistant(draft_model, target.tokenizer, "tiny drafter", "")
    loaded = Loaded(pairing("smollm2-135m"), target, assistant=assistant)
    monkeypatch.setattr(batch, "load", lambda options: loaded)
    monkeypatch.setattr(measure, "attainable", lambda device, dtype: Machine(1e10, 1e11))


def test_the_defaults():
    options = parsed()
    assert options.batches == (1, 2, 4, 8, 16, 32) and options.rows == (1, 2, 3, 4, 6, 8)
    assert (options.context, options.repeats, options.drafter, options.out) == (256, 5, "plain", None)


def test_options_come_without_torch():
    code = "import sys, specviz.batch.options, specviz.batch.model, specviz.batch.table; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_json_and_the_file_hold_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    speed = ("--acceptance-length", "2.5", "--gamma", "2")
    batch.command(parsed(*SMALL, *speed, "--drafter", "draft-model", "--json", "--out", str(tmp_path / "m.json")))
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert set(found) == {"schema", "measurement", "roofline", "speedup"}
    written = results.read(tmp_path / "m.json")
    assert json.loads(results.to_json(written))["measurement"] == found["measurement"]
    assert [(cell.batch, cell.rows, len(cell.seconds)) for cell in written.cells] == [
        (1, 1, 2), (1, 3, 2), (2, 1, 2), (2, 3, 2)
    ]  # fmt: skip
    assert [cell.batch for cell in written.drafting] == [1, 2] and written.header.drafter == "tiny drafter"
    assert [row["batch"] for row in found["speedup"]["by_batch"]] == [1, 2]
    assert {row["draft"] for row in found["speedup"]["by_batch"]} == {"measured"}
    for said in ("warming up passes of every size", "timed 12 of 12 passes", "wrote"):
        assert said in shown.err


def test_without_a_run_there_is_no_speedup(capsys: pytest.CaptureFixture[str]):
    batch.command(parsed(*SMALL, "--json"))
    assert json.loads(capsys.readouterr().out)["speedup"] is None
    batch.command(parsed(*SMALL))
    assert "speed-up" not in capsys.readouterr().out


def test_the_tables():
    text = table.costs(measurement(drafting={1: 0.1, 2: 0.2}, notes=("a note",)))
    assert "100.0 GB/s" not in text and "0.0 GB/s and 0.00 TFLOP/s measured" in text
    row = next(line for line in text.splitlines() if line.split()[0:1] == ["8"])
    assert "2000.0 [1900.0 2100.0] ~3700.0" in row and row.count("~") == 3
    assert "one step of tiny draft model: batch 1: 100.0 ms, batch 2: 200.0 ms" in text and text.endswith("a note")
    speeds = table.speedups(measurement(), Drafting(2.5, 3, 0.1)).splitlines()
    assert speeds[0] == "speed-up with acceptance length 2.5, gamma 3, c 0.1 (modelled: the same for all)"
    assert speeds[2].split() == ["1", "1.61x", "measured", "1.92x"]
    assert speeds[-1] == "falls to 1 at batch 3.0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--acceptance-length", "4", "--gamma", "2", "--cost-ratio", "0.1"), "from 1 to 3, not 4"),
        (("--acceptance-length", "2"), "give --cost-ratio, or --drafter draft-model"),
        (("--acceptance-length", "2", "--cost-ratio", "-1"), "--cost-ratio is -1"),
        (("--acceptance-length", "2", "--cost-ratio", "nan"), "--cost-ratio is nan"),
        (("--cost-ratio", "0.1"), "needs --acceptance-length too"),
        (("--drafter-path", "somewhere"), "add --drafter draft-model"),
    ],
)
def test_what_can_not_be_is_refused_before_loading(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch, "load", lambda options: pytest.fail("it was loaded"))
    with pytest.raises(UserError, match=words):
        batch.command(parsed(*arguments))
