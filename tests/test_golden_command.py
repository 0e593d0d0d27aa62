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
    run("check", file, "--trace", within)  # of a run, which is of the same model, drafter and temperature
    said = capsys.readouterr().out
    assert ["2", "2.00", "2.00", "n/a", "n/a", "+0.0%", "within"] in map(str.split, said.splitlines())
    assert "within: All lengths" in said and "draft lengths: 1 within, 2 not measured" in said
    assert "differs" not in said
    with pytest.raises(SystemExit) as ended:
        run("check", file, "--trace", below, "--json")
    assert ended.value.code == golden_options.UNDECIDED == 4, "one run has no interval"
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "can't tell"
    statuses = [verdict["status"] for verdict in found["curves"][0]["verdicts"]]
    assert statuses == ["not measured", "can't tell", "not measured"]
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
    assert ["2", "2.50", "1.00", "n/a", "n/a", "-60.0%", "can't", "tell"] in map(str.split, said.splitlines())
    run("check", tmp_path / "own.yaml", "--results", results, "--curve", "Tiny + eagle/own")


def test_check_of_a_published_curve_wants_one_drafter(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = written(tmp_path / "r.jsonl", result([1, 1]), result([0], kind="ngram"))
    with pytest.raises(UserError, match="name one of those that they have: eagle, ngram"):
        run("check", file, "--results", results)
    run("check", file, "--results", results, "--drafter", "eagle")
    assert "within" in capsys.readouterr().out


def test_check_tells_what_cannot_be_told_apart_from_what_is_within(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of five prompts with 2, 2, 2, 2 and 0 accepted the mean is 2.6, and the interval reaches down to 1.8."""
    prompts = [result([accepted], prompt=str(number)) for number, accepted in enumerate((2, 2, 2, 2, 0))]
    results = written(tmp_path / "r.jsonl", *prompts)
    with pytest.raises(SystemExit) as ended:
        run("check", file, "--results", results)
    assert ended.value.code == golden_options.UNDECIDED == 4
    said = capsys.readouterr().out
    assert "draft lengths: 1 can't tell, 2 not measured\ncan't tell: A length lies outside" in said
    with pytest.raises(SystemExit):
        run("check", file, "--results", results, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["counts"]) == ("can't tell", {"can't tell": 1, "not measured": 2})


def test_check_names_the_conditions_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    own = result([2, 1], weights={"head": "12"})
    run("write", "--results", written(tmp_path / "r.jsonl", own), "--out", tmp_path / "own.yaml")
    sampler = {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.0}
    other = written(
        tmp_path / "other.jsonl",
        result([2, 1], weights={"head": "13"}),
        sampler=sampler,
        dtype="bfloat16",
        weights="other",
    )
    capsys.readouterr()
    run("check", tmp_path / "own.yaml", "--results", other)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("differs")] == [
        "differs: temperature: 0 in the golden file, 0.7 in what was measured",
        "differs: top_p: 1 in the golden file, 0.9 in what was measured",
        "differs: dtype: float32 in the golden file, bfloat16 in what was measured",
        "differs: weights: abc in the golden file, other in what was measured",
        "differs: weights of head: 12 in the golden file, 13 in what was measured",
    ]
    run("check", tmp_path / "own.yaml", "--results", other, "--json")
    (curve,) = json.loads(capsys.readouterr().out)["curves"]
    assert curve["differs"][0] == {"what": "temperature", "golden": "0", "measured": "0.7"}
    run("check", tmp_path / "own.yaml", "--results", tmp_path / "r.jsonl")
    assert "differs" not in capsys.readouterr().out
    two = written(tmp_path / "two.jsonl", own, result([1], kind="ngram", prompt="two", weights={"table": "5"}))
    run("write", "--results", two, "--out", tmp_path / "two.yaml")
    changed = result([1], kind="ngram", prompt="two", weights={"table": "6"})
    run("check", tmp_path / "two.yaml", "--results", written(tmp_path / "2.jsonl", own, changed, dtype="float64"))
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("differs")] == [
        "differs: dtype: float32 in the golden file, float64 in what was measured",
        "differs: weights of table: 5 in the golden file, 6 in what was measured (Tiny + ngram (table)/own)",
    ]
    large = written(tmp_path / "large.jsonl", own, target="Large")
    run("check", tmp_path / "own.yaml", "--results", large)
    assert "differs: model: Tiny in the golden file, Large in what was measured" in capsys.readouterr().out


def test_drafts_that_end_by_confidence_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sure = result([1, 0], [1, 1], settings={"confidence": 0.4})
    results = written(tmp_path / "r.jsonl", result([2, 1]), sure)
    run("write", "--results", results, "--out", tmp_path / "own.yaml")
    left_out = "left out: eagle (confidence 0.4), gamma 2: ends drafts by its gamma policy, confidence"
    assert capsys.readouterr().out.splitlines() == [f"Wrote 1 curves to {tmp_path / 'own.yaml'}.", left_out]
    run("check", tmp_path / "own.yaml", "--results", results)
    assert left_out in capsys.readouterr().out.splitlines()
    assert f"# {left_out}" in (tmp_path / "own.yaml").read_text().splitlines()
    with pytest.raises(UserError, match="no golden length"):
        run("write", "--results", written(tmp_path / "s.jsonl", sure), "--out", tmp_path / "none.yaml")


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
    absurd = written(tmp_path / "absurd.jsonl", result([2], costs=(0.1, 1e-9)))
    with pytest.raises(UserError, match=r"v from 0\.01 to 100"):
        run("simulate", "--length", 3, "--gamma", 2, "--results", absurd)
    run("simulate", "--length", 1, "--gamma", 0)
    assert "modelled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cost_ratio", "verify_cost", "why"),
    [
        (0.1, None, "Give both"),
        (None, 1.0, "Give both"),
        (-1, 1, "give c from 0 to 100 and v from 0.01 to 100"),
        (0, 1e-320, "give c from 0 to 100 and v from 0.01 to 100"),
        (101, 1, "give c from 0 to 100"),
        (0, 101, "give c from 0 to 100"),
        (float("nan"), 1, "give c from 0 to 100"),
    ],
)
def test_costs_come_in_pairs_and_within_reason(cost_ratio: float | None, verify_cost: float | None, why: str):
    costs = {"--cost-ratio": cost_ratio, "--verify-cost": verify_cost}
    given = [f"{name}={value}" for name, value in costs.items() if value is not None]
    with pytest.raises(UserError, match=why):
        run("simulate", "--length", 2, "--gamma", 2, "--json", *given)


def test_a_seed_is_one_that_a_trace_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told, file = ("simulate", "--length", 2, "--gamma", 2, "--steps", 3), tmp_path / "s.jsonl"
    for seed in (-1, 2**63, 10**400):
        with pytest.raises(UserError, match="give a whole number from 0 to 9223372036854775807"):
            run(*told, f"--seed={seed}", "--trace", file)
    run(*told, "--seed", 2**63 - 1, "--trace", file)
    assert traces.read(file).run.seed == 2**63 - 1


def test_export_gives_the_neutral_record_of_either_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    traces.write(trace("aa", "r"), tmp_path / "t.jsonl")
    run("export", tmp_path / "t.jsonl")
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert (record["num_spec_steps"], record["mean_acceptance_length"]) == (2, 2.0)
    run("export", written(tmp_path / "r.jsonl", result([2, 1]), result([0], prompt="two")))
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["acceptance_histogram"] for record in records] == [{"1": 1, "2": 1}, {"0": 1}]
    sure = result([1], settings={"eagle.confidence": 0.4})
    run("export", written(tmp_path / "sure.jsonl", result([1]), sure))
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["gamma_policy"] for record in records] == ["fixed", "confidence"]
    with pytest.raises(UserError, match="can't be read"):
        run("export", tmp_path / "none.jsonl")
