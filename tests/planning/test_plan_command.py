"""`plan` as a whole: what it prints for people and for programs."""

import argparse
import json

import pytest

from specviz.commands import plan
from specviz.commands.plan import command
from specviz.errors import UserError
from specviz.memory import Budget
from specviz.planning.measuring import Measured, Report
from specviz.planning.options import add_arguments

QWEN = ("--pairing", "qwen3-8b", "--offline")


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command(parser.parse_args(arguments))


def object_of(capsys, *arguments):
    run(*arguments, "--json")
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    return json.loads(printed.out)


def test_a_pairing_is_planned_for_another_machine(capsys):
    made = object_of(capsys, *QWEN, "--memory", "24GB", "--context", "4096")
    assert made["kv_per_token"] == {"target": 147456, "drafter": 114688, "ratio": pytest.approx(1.7778, abs=1e-4)}
    assert made["available"] == 24 * 10**9 and made["fits"] is True
    assert made["parts"]["both"]["weights"] == made["parts"]["target"]["weights"] + made["parts"]["drafter"]["weights"]
    assert sum(made["parts"]["both"].values()) == made["total"]
    assert made["expected"] == made["total"] - made["parts"]["both"]["headroom"]
    smaller = object_of(capsys, *QWEN, "--memory", "24GB", "--context", "4096", "--quantisation", "4bit")
    assert smaller["total"] < made["total"] and smaller["largest_batch"] > made["largest_batch"]
    batch = object_of(capsys, *QWEN, "--memory", "24GB", "--context", "4096", "--batch", "8")
    assert batch["parts"]["both"]["kv"] == 8 * made["parts"]["both"]["kv"] and not batch["fits"]


def test_a_plan_in_words(capsys):
    run(*QWEN, "--devices", "2x14GB")
    said = capsys.readouterr().out
    for words in ("target", "drafter", "both", "147,456 B target", "1.78x", "2 GPUs of 14.00 GB", "spread over cuda:0"):
        assert words in said
    assert "Fits: it needs " in said and "Largest context at this batch: " in said


def test_the_drafter_decides_what_is_added(capsys):
    def more(*arguments):
        parts = object_of(capsys, "--offline", "--memory", "8GB", *arguments)["parts"]["drafter"]
        return parts["weights"], parts["kv"]

    assert more("--drafter", "ngram") == (0, 0)
    weights, kv = more("--drafter", "eagle")
    assert 15_000_000 < weights < 25_000_000 and kv > 0
    itself = more("--drafter", "draft-model", "--drafter-path", "self")
    assert itself[0] == 0 and itself[1] == 30 * kv


def test_a_target_of_ones_own_from_its_configuration(capsys, tmp_path):
    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "num_attention_heads": 2, "intermediate_size": 8}))
    made = object_of(capsys, "--target", str(file), "--memory", "1GB", "--dtype", "float32")
    assert made["kv_per_token"]["target"] == 3 * 2 * 16 * 4 and made["parts"]["drafter"]["weights"] == 0
    pair = object_of(capsys, "--target", str(file), "--drafter-path", str(file), "--memory", "1GB")
    assert pair["parts"]["drafter"]["weights"] == pair["parts"]["target"]["weights"]
    here = object_of(capsys, "--target", str(file), "--device", "cpu")
    assert here["parts"]["both"]["runtime"] > 0 and "by the system's count" in here["counter"]


def test_what_is_not_offered_or_not_here_is_one_sentence(capsys):
    with pytest.raises(UserError, match="qwen3-8b offers no drafter 'medusa'"):
        run(*QWEN, "--drafter", "medusa")
    with pytest.raises(UserError, match="not on this machine and offline mode"):
        run("--target", "some/model", "--offline", "--memory", "8GB")


@pytest.mark.parametrize("measured", [100_000_000, None])
def test_what_was_measured_stands_beside_the_estimate(capsys, monkeypatch, measured):
    need = Budget(80_000_000, 0, 20_000_000, 0, 5_000_000, 10**9, activations=2_000_000)
    report = Report(400_000_000, 150_000_000, 90_000_000, 30_000_000, (Measured(512, need, measured),))
    asked = []
    monkeypatch.setattr(plan, "measure", lambda *a, **k: asked.append((a, k)) or report)
    run("--measure", "--drafter", "eagle", "--context", "512")
    said = capsys.readouterr().out
    assert ("expected 102 MB, measured 100 MB, +2.0%" if measured else "expected 102 MB, measured n/a") in said
    assert "30 MB of checkpoints that stay mapped" in said
    (((pairing, kind, _, contexts), options),) = asked
    assert (pairing, kind, contexts, options["gamma"]) == ("smollm2-135m", "eagle", [512], 2)
    made = object_of(capsys, "--measure", "--drafter", "eagle", "--context", "512")
    assert (made["expected"], made["measured"]) == (102_000_000, measured)
    assert made["difference"] == (pytest.approx(0.02) if measured else None)
