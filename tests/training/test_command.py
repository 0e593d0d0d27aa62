"""`train`, from sampling to a drafter that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from fakes import tiny_target
from safetensors.torch import load_file

from specviz import cli
from specviz.commands import train


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_target", lambda options: tiny.target())


def test_from_data_to_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "data", tmp_path / "made"
    sampling = ["train", "data", "--out", str(folder), "--tokens", "100", "--slots", "8", "--answer-tokens", "8"]
    assert cli.main(sampling) == 0
    common = ["--data", str(folder), "--out", str(out), "--tokens", "500", "--batch-tokens", "200", "--seed", "4"]
    assert cli.main(["train", "medusa", *common, "--heads", "2", "--draft-vocab", "100"]) == 0
    said = capsys.readouterr().err
    assert "answer tokens" in said
    assert "held-out agreement" in said
    config = json.loads((out / "drafter" / "config.json").read_text())
    assert config["specviz"]["kind"] == "medusa"
    assert config["specviz"]["seed"] == 4
    assert str(tmp_path) not in (out / "drafter" / "README.md").read_text()
    assert len(load_file(out / "drafter" / "model.safetensors")["d2t"]) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["medusa", "--tokens", "9", "--data", "nowhere"], "holds no training data"),
        (["data", "--tokens", "0"], "must be at least 1"),
        (["early-exit", "--tokens", "9", "--data", "DATA", "--exit-layer", "3"], "not 3"),
        (["medusa", "--tokens", "9", "--data", "DATA", "--threads", "0"], "--threads"),
        (["medusa", "--tokens", "-1", "--data", "DATA"], "--tokens is -1"),
        (["mtp", "--minutes", "0", "--data", "DATA"], "--minutes is 0"),
        (["mtp", "--tokens", "9", "--data", "DATA", "--passes", "0"], "--passes is 0"),
        (["mtp", "--tokens", "9", "--data", "DATA", "--passes", "10000000000"], "up to 1000"),
        (["mtp", "--tokens", "9", "--data", "DATA", "--checkpoint-minutes", "nan"], "--checkpoint-minutes is nan"),
        (["mtp", "--tokens", "9", "--data", "DATA", "--seed", "100000000000000000000"], "63 bits"),
        (["data", "--seed", "100000000000000000000"], "63 bits"),
        (["medusa", "--tokens", "9", "--data", "DATA", "--heads", "17"], "up to 16 heads"),
        (["medusa", "--tokens", "9", "--data", "DATA", "--blocks", "9"], "8 blocks"),
        (["eagle3", "--tokens", "9", "--data", "DATA", "--layers", "4,2"], "from the lowest to the highest"),
        (["eagle3", "--tokens", "9", "--data", "DATA", "--layers", "2,2"], "give each once"),
        (["eagle3", "--tokens", "9", "--data", "DATA", "--layers", "2", "--joined"], "so end --layers with 4"),
        (["mtp", "--tokens", "9", "--data", "DATA", "--begin-as", "x"], "x has no config.json"),
        (["early-exit", "--tokens", "9", "--data", "DATA", "--exit-layer", "4"], "so give 1 to 3"),
        (["early-exit", "--tokens", "9", "--data", "DATA", "--exit-layer", "2", "--width", "513"], "up to 512"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "DATA" in options:
        options = [str(tiny.written(tmp_path / "data")) if each == "DATA" else each for each in options]
    assert cli.main(["train", *options, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", [["eagle3"], ["mtp"], ["draft-model", "--layers-from", "0,2"], ["early-exit", "--exit-layer", "2"]]
)
def test_a_target_of_another_build_is_refused(
    kind: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_target("gpt2", vocab_size=tiny.target().vocab_size)
    other.weights = tiny.target().weights
    monkeypatch.setattr(train, "_target", lambda options: other)
    common = ["--data", str(tiny.written(tmp_path / "data")), "--out", str(tmp_path / "out"), "--tokens", "300"]
    assert cli.main(["train", *kind, *common]) == 2
    assert "choose one built as Llama is" in capsys.readouterr().err


def test_a_drafter_that_cannot_be_written_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tiny.written(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    (out / "drafter").write_text("a file")
    command = ["train", "medusa", "--data", str(folder), "--out", str(out), "--tokens", "300"]
    assert cli.main(command) == 2
    assert "drafter can't be written" in capsys.readouterr().err
    (out / "drafter").unlink()
    assert cli.main(command) == 0
    assert "going on after step" in capsys.readouterr().err


def test_a_card_tells_what_training_went_on_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, first, second = tiny.written(tmp_path / "data"), tmp_path / "first", tmp_path / "second"
    common = ["--data", str(folder), "--tokens", "300", "--passes", "2"]
    assert cli.main(["train", "mtp", *common, "--out", str(first)]) == 0
    told = first / "drafter" / "config.json"
    told.write_text(told.read_text().replace('"command": "', '"command": "once '))  # else the two would be the same
    again = ["train", "eagle3", *common, "--layers", "2,4", "--joined", "--begin-as", str(first / "drafter")]
    assert cli.main([*again, "--out", str(second)]) == 0
    entries = [json.loads((out / "drafter" / "config.json").read_text())["specviz"] for out in (first, second)]
    assert "begun_as" not in entries[0]
    assert entries[1]["begun_as"] == {key: entries[0][key] for key in ("command", "acceptance")}
    text = (second / "drafter" / "README.md").read_text()
    assert "It went on from a drafter that had been trained before, made by:" in text
    assert entries[0]["command"].startswith("once ") and f"made by:\n\n```\n{entries[0]['command']}\n" in text
    assert cli.main([each for each in [*again, "--out", str(tmp_path / "other")] if each != "--joined"]) == 2
    assert "--begin-as is for --joined heads" in capsys.readouterr().err
    assert cli.main([*again[:-2], "--out", str(second)]) == 2, "a run goes on only from what it began as"
    assert "holds a run with other settings" in capsys.readouterr().err
    entries[0]["target"], entries[0]["target_weights"] = "another", "0" * 64
    changed = json.loads((first / "drafter" / "config.json").read_text()) | {"specviz": entries[0]}
    (first / "drafter" / "config.json").write_text(json.dumps(changed))
    assert cli.main([*again, "--out", str(tmp_path / "third")]) == 2
    assert "was made for another, not for" in capsys.readouterr().err


def test_a_run_goes_on_only_as_it_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny.written(tmp_path / "data")
    begin = [
        "train",
        "medusa",
        "--data",
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--tokens",
        "300",
        "--heads",
        "2",
    ]
    assert cli.main(begin) == 0
    assert cli.main([*begin, "--seed", "1"]) == 2
    assert "other settings" in capsys.readouterr().err
    assert cli.main([*begin[:-1], "3"]) == 2
    (folder / f"seed{tiny.SEED}-00001.safetensors").unlink()
    assert cli.main(begin) == 2
    assert "the same data" in capsys.readouterr().err
