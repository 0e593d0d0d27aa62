"""The real command on the real target, killed in the middle: nothing is lost, nothing is done twice, and the figures
can be had again from the traces."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specviz import metrics, trace
from specviz.workloads.result_file import Results
from specviz.workloads.summary import by_workload, rows

ROOT = Path(__file__).parent.parent.parent
COMMAND = (
    "bench --suite code chat --prompts 1 --drafters ngram early-exit:exit_layer=15 --gammas 2 --max-new-tokens 8 "
    "--device cpu --dtype float32 --json"
)
RESULTS = 4  # two suites of one prompt, two drafters


def begin(out: Path, traces: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specviz", *COMMAND.split(), "--out", str(out), "--traces", str(traces)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_bench_that_is_killed_goes_on_without_losing_or_repeating_a_prompt(tmp_path):
    out, traces = tmp_path / "results.jsonl", tmp_path / "traces"
    killed = begin(out, traces)
    deadline = time.monotonic() + 240
    while len(lines(out)) < 1 + 2:  # the header and two results
        assert killed.poll() is None and time.monotonic() < deadline, killed.communicate()
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    before = [line for line in lines(out) if line.endswith("\n")]
    assert 3 <= len(before) < 1 + RESULTS, "it was killed in the middle"

    again = begin(out, traces)
    printed, said = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert lines(out)[: len(before)] == before and len(lines(out)) == 1 + RESULTS
    results = Results(out).all
    assert len({(result.suite, result.prompt, result.arm.kind) for result in results}) == RESULTS
    assert {place.suite for place in by_workload(results)} == {"code", "chat"}

    report = json.loads(printed)
    for row, said_row in zip(rows(results), report["rows"], strict=True):
        files = [file for file in traces.iterdir() if f"-{row.arm.kind}-" in file.name]
        counted = [metrics.acceptance(trace.read(file)) for file in files]
        assert len(files) == row.prompts == 2
        steps, accepted = sum(each.steps for each in counted), sum(each.accepted for each in counted)
        assert said_row["acceptance_length"] == row.acceptance_length == 1 + accepted / steps
        assert said_row["acceptance_rate"] == accepted / sum(each.drafted for each in counted)
        assert row.speedup and row.identical == row.compared == 2, "float32 is exact"
