"""The golden acceptance lengths of the default pairing, measured again: this code and these weights still give them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specviz.cli import main
from specviz.golden import read, write
from specviz.golden_options import MISMATCH, UNDECIDED

GOLDEN = Path(__file__).parent.parent / "presets" / "golden" / "smollm2-135m.yaml"
AGAIN = "bench --suite chat --untimed --drafters eagle --gammas 3 --max-new-tokens 128 --dtype float32 --device cpu"
CURVE = "SmolLM2-135M-Instruct + eagle (smollm2-135m/eagle)/chat"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("golden") / "results.jsonl"
    assert main([*AGAIN.split(), "--out", str(file)]) == 0
    return file


def check(golden: Path, results: Path) -> int:
    options = ["--results", str(results), "--curve", CURVE, "--tolerance", "0.01"]
    try:
        return main(["golden", "check", str(golden), *options])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_the_default_pairing_has_kept_its_golden_lengths(results, tmp_path, capsys):
    """One hundredth is left for other processors, where a near tie may fall otherwise."""
    assert check(GOLDEN, results) == 0
    assert "within" in capsys.readouterr().out
    golden = read(GOLDEN)
    higher = [
        replace(curve, lengths={k: 1.1 * length for k, length in curve.lengths.items()}) for curve in golden.curves
    ]
    raised = tmp_path / "raised.yaml"
    write(replace(golden, curves=tuple(higher)), raised)
    assert check(raised, results) in (MISMATCH, UNDECIDED)
