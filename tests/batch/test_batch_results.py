"""Measurements as files: what comes back, what is refused, and in which words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measurements import cell, measurement

from specviz.batch import results
from specviz.batch.results import Cell, Experts, Skipped
from specviz.errors import UserError
from specviz.presets import PRESETS
from specviz.theory import Machine

WHOLE = replace(
    measurement(drafting={1: 0.1, 2: 0.125}, experts=Experts(8, 2, 400.0), notes=("a note",)),
    skipped=(Skipped(64, 8, 31.5),),
)


def test_a_measurement_comes_back_as_it_was_written(tmp_path: Path):
    results.write(WHOLE, tmp_path / "m.json")
    assert results.read(tmp_path / "m.json") == WHOLE


def test_medians_and_quartiles():
    five = Cell(1, 1, (5.0, 1.0, 2.0, 4.0, 3.0))
    assert (five.median, five.quartiles) == (3, (2, 4))
    assert Cell(1, 1, (1.0, 2.0)).quartiles == (1.25, 1.75)
    assert Cell(1, 1, (2.0,)).quartiles is None


def test_what_was_measured():
    lopsided = replace(WHOLE, cells=(cell(4, 2, 1.0), cell(1, 1, 1.0), cell(2, 1, 1.0)))
    assert lopsided.batches == (1, 2)  # batch 4 has no plain step to compare with
    assert lopsided.rows == (1, 2)
    assert lopsided.cell(4, 2) == cell(4, 2, 1.0) and lopsided.cell(4, 1) is None


def changed(**fields: Any) -> str:
    """The file of a measurement with these parts in place of its own."""
    content = json.loads(results.to_json(WHOLE))
    content["measurement"] |= fields
    return json.dumps(content)


def header(**fields: Any) -> str:
    return changed(header={**json.loads(results.to_json(WHOLE))["measurement"]["header"], **fields})


def listed(*cells: tuple[int, int, list[float]]) -> list[dict[str, Any]]:
    return [{"batch": batch, "rows": rows, "seconds": seconds} for batch, rows, seconds in cells]


FINE = [1.0, 1.0, 1.0]
REFUSED = {
    "another schema": ('{"schema": 2, "measurement": {}}', "no measurement of schema 1"),
    "no schema": ("[]", "no measurement of schema 1"),
    "no JSON": ("{", "is not JSON"),
    "not finite": (changed(machine={"bandwidth": 1, "flops": 1}).replace('"flops": 1', '"flops": NaN'), "is not JSON"),
    "unknown key": (changed(more=1), "unknown keys"),
    "wrong type": (header(context="20"), "not what belongs there"),
    "no plain step": (changed(cells=listed((1, 2, FINE))), "no pass over one token"),
    "twice": (changed(cells=listed((1, 1, FINE), (1, 1, FINE))), "two cells of the same"),
    "batch 0": (changed(cells=listed((1, 1, FINE), (0, 1, FINE))), "not all from 1"),
    "repeats": (changed(cells=listed((1, 1, [1.0]))), "as many as it says"),
    "no repeats": (header(repeats=0), "as many as it says"),
    "no time": (changed(cells=listed((1, 1, [1.0, 0.0, 1.0]))), "not all above 0"),
    "draft rows": (changed(drafting=listed((1, 2, FINE))), "no step of one token"),
    "machine": (changed(machine={"bandwidth": 0, "flops": 1}), "not above 0"),
    "long text": (header(target="x" * 2001), "more than 2,000 characters"),
    "many cells": (changed(cells=listed(*((b, 1, FINE) for b in range(1, 1002)))), "more than 1,000 cells"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_measurement_is_refused(case: str):
    text, words = REFUSED[case]
    with pytest.raises(UserError, match=words):
        results.from_json(text, "the file")


def test_experts_must_be_enough_for_a_token():
    experts = {"count": 2, "per_token": 3, "weight_bytes": 1.0}
    load = {"weight_bytes": 1, "parameters": 1, "kv_bytes_per_token": 1}
    with pytest.raises(UserError, match="not above 0"):
        results.from_json(changed(work={"load": load, "experts": experts}), "the file")


def test_files_that_can_not_be_read_or_written(tmp_path: Path):
    with pytest.raises(UserError, match="can't be read as a measurement"):
        results.read(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="The file can't be read as a measurement"):
        results.read(tmp_path / "binary.json", "The file")
    with pytest.raises(UserError, match="can't be written"):
        results.write(WHOLE, tmp_path / "no folder" / "m.json")


def test_what_is_shipped_can_be_read():
    shipped = [results.read(file) for file in sorted((PRESETS / "measurements").glob("*.json"))]
    assert shipped and all(isinstance(each.machine, Machine) for each in shipped)
    assert {each.header.target for each in shipped} == {"SmolLM2-135M-Instruct"}
