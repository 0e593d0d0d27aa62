"""`golden` as it is called: what it prints, and its exit status."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from golden_results import result, written
from traces import trace

from specviz import golden, golden_options
from specviz import trace as traces
from specviz.commands.golden import command
from specviz.errors import UserError

GOLDEN = "# source: somewhere\ntiny:\n  on:\n    1: 1.50\n    2: 2.00\n    3: 1.90\n"


def run(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    golden_options.add_arguments(parser)
    command(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(GOLDEN)
    return path


def test_show_prints_lengths_and_what_they_imply(file: Path, capsys: pytest.CaptureFixture[str]):
    run("show", file)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: somewhere"
    assert lines[3:7] == [
        "k    AL  survival  independent",
        "1  1.50      0.50         1.50",
        "2  2.00      0.50         1.75",
        "3  1.90      0.00         1.88",
    ]
    run("show", file, "--json")
    (shown,) = json.loads(capsys.readouterr().out)["files"]
    (curve,) = shown["curves"]
    assert curve["lengths"] == {"1": 1.5, "2": 2.0, "3": 1.9}
    assert curve["implied_survival"] == pytest.approx([0.5, 0.5, 0.0])


def test_check_exits_with_0_only_if_all_are_within(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    within, below = tmp_path / "within.jsonl", tmp_path / "below.jsonl"
    traces.write(trace("aa", "r", "au", gamma=2), within)
    traces.write(trace("ru", "au", "ru", gamma=2), below)
    run("check", file, "--trace", within)
    said = capsys.readouterr().out
    assert ["2", "2.00", "2.00", "n/a", "n/a", "+0.0%", "within"] in map(str.split, said.splitlines())
    assert "within: All lengths" in said
    with pytest.raises(SystemExit) as ended:
        run("check", file, "--trace", below, "--json")
    assert ended.value.code == golden_options.MISMATCH == 3
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "below"
    statuses = [verdict["status"] for verdict in found["curves"][0]["verdicts"]]
    assert statuses == ["not measured", "below", "not measured"]
    run("check", file, "--trace", below, "--tolerance", 0.4)


def test_check_takes_the_curve_that_results_are_named_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = written(tmp_path / "r.jsonl", result([2, 1]), result([1], kind="ngram"))
    run("write", "--results", results, "--out", tmp_path / "own.yaml")
    assert "Wrote 2 curves" in capsys.readouterr().out
    run("check", tmp_path / "own.yaml", "--results", results, "--json")
    found = json.loads(capsys.readouterr().out)
    assert [curve["curve"] for curve in found["curves"]] == ["Tiny + eagle/own", "Tiny + ngram/own"]
    worse = written(tmp_path / "worse.jsonl", result([0, 0]))
    with pytest.raises(SystemExit):
        run("check", tmp_path / "own.yaml", "--results", worse)
    said = capsys.readouterr().out
    assert "not compared: Tiny + ngram/own" in said
    assert ["2", "2.50", "1.00", "n/a", "n/a", "-60.0%", "below"] in map(str.split, said.splitlines())
    run("check", tmp_path / "own.yaml", "--results", results, "--curve", "Tiny + eagle/own")


def test_check_of_a_published_curve_wants_one_drafter(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = written(tmp_path / "r.jsonl", result([1, 1]), result([0], kind="ngram"))
    with pytest.raises(UserError, match="name one of those that they have: eagle, ngram"):
        run("check", file, "--results", results)
    run("check", file, "--results", results, "--drafter", "eagle")
    assert "within" in capsys.readouterr().out


def test_check_of_other_draft_lengths_is_refused(file: Path, tmp_path: Path):
    run_of_five = tmp_path / "five.jsonl"
    traces.write(trace("aaaaa", gamma=5), run_of_five)
    with pytest.raises(UserError, match="None of the golden draft lengths was measured"):
        run("check", file, "--trace", run_of_five)


def test_write_makes_a_file_that_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = written(tmp_path / "r.jsonl", result([2, 1]))
    run("write", "--results", results, "--out", tmp_path / "own.yaml", "--json")
    assert json.loads(capsys.readouterr().out)["curves"] == ["Tiny + eagle/own"]
    assert golden.read(tmp_path / "own.yaml").curves[0].lengths == {2: 2.5}


def test_simulate_labels_all_as_synthetic_and_modelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = ("simulate", "--length", 2.6, "--gamma", 3)
    run(*told, "--cost-ratio", 0.1, "--verify-cost", 1.3)
    said = capsys.readouterr().out
    assert said.startswith("synthetic, minimum-variance:")
    assert "modelled speed-up at c = 0.100 and v = 1.300: 1.62x" in said and "ACCEPTED_TOKENS=1.6" in said
    run(*told, "--law", "geometric", "--json", "--steps", 50, "--seed", 2, "--trace", tmp_path / "t.jsonl")
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["law"], found["modelled"]) == ("synthetic", "geometric", None)
    assert found["length"] == pytest.approx(2.6)
    written_run = traces.read(tmp_path / "t.jsonl")
    assert written_run.run.mode == "synthetic"
    assert len(written_run.tokens) / 50 == pytest.approx(found["drawn"]["length"])


def test_simulate_takes_measured_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = written(tmp_path / "r.jsonl", result([2], costs=(0.1, 1.3)))
    run("simulate", "--length", 3, "--gamma", 2, "--results", results, "--json")
    modelled = json.loads(capsys.readouterr().out)["modelled"]
    assert modelled == {"speedup": pytest.approx(3 / 1.5), "cost_ratio": 0.1, "verify_cost": 1.3}
    with pytest.raises(UserError, match="not both"):
        run("simulate", "--length", 3, "--gamma", 2, "--results", results, "--cost-ratio", 0.1)
    run("simulate", "--length", 1, "--gamma", 0)
    assert "modelled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "costs", [("--cost-ratio", 0.1), ("--verify-cost", 1.0), ("--cost-ratio", -1, "--verify-cost", 1)]
)
def test_costs_come_in_pairs_and_within_reason(costs: tuple[object, ...]):
    with pytest.raises(UserError, match="Give both"):
        run("simulate", "--length", 2, "--gamma", 2, *costs)


def test_export_gives_the_neutral_record_of_either_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    traces.write(trace("aa", "r"), tmp_path / "t.jsonl")
    run("export", tmp_path / "t.jsonl")
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert (record["num_spec_steps"], record["mean_acceptance_length"]) == (2, 2.0)
    run("export", written(tmp_path / "r.jsonl", result([2, 1]), result([0])))
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["acceptance_histogram"] for record in records] == [{"1": 1, "2": 1}, {"0": 1}]
    with pytest.raises(UserError, match="can't be read"):
        run("export", tmp_path / "none.jsonl")
