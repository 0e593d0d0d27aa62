"""A suite on a tiny target: its figures are those of the traces, and what was interrupted goes on where it stopped."""

import argparse
import json
from dataclasses import replace
from itertools import islice

import pytest
import torch
from suites import PROMPTS, plan, tiny_loaded

from specviz import metrics, runs
from specviz.commands import bench
from specviz.decoding.engine import decode
from specviz.errors import UserError
from specviz.trace import Trace
from specviz.workloads import runner
from specviz.workloads.arms import Arm
from specviz.workloads.options import add_arguments
from specviz.workloads.results import Results
from specviz.workloads.summary import rows

NGRAM = Arm("ngram", {"ngram_min": 1, "ngram_max": 2}, 3)


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_figures_are_those_of_the_traces(loaded):
    arms = [NGRAM, Arm("early-exit", {"exit_layer": 3}, 2)]
    results = list(runner.run(loaded, arms, plan(), Results()))
    assert [(result.arm, result.prompt) for result in results] == [(a, p.id) for a in arms for p in PROMPTS]
    accepted, steps = 0, 0
    for result, prompt in zip(results, PROMPTS * 2, strict=True):
        settings = plan().settings(result.arm.gamma)
        prepared = runs.prepare(loaded, result.arm.kind, result.arm.settings, prompt.text, settings)
        trace = Trace(prepared.run, tuple(prepared.steps()))
        expected = metrics.acceptance(trace)
        assert len(trace.tokens) == result.tokens == 40
        assert result.acceptance_length == expected.acceptance_length == result.phases.acceptance_length
        assert (result.steps, result.accepted) == (expected.steps, expected.accepted)
        assert result.divergence is None and 0 < result.outside < 1
        if result.arm == NGRAM:
            accepted, steps = accepted + expected.accepted, steps + expected.steps
    assert accepted > 0, "a prompt on which nothing is accepted would show little"
    assert rows(results)[0].acceptance_length == 1 + accepted / steps


def test_plain_and_speculative_take_turns_at_going_first(loaded, monkeypatch):
    log = []

    def logged(target, drafter, *rest, **options):
        log.append(("phased " if options.get("phases") else "") + drafter.kind)
        assert options["detail"] is False
        return decode(target, drafter, *rest, **options)

    monkeypatch.setattr(runner, "decode", logged)
    [first, second, _] = runner.run(loaded, [NGRAM], plan(repeats=2), Results())
    watched = ["phased ngram", "phased plain"]
    ahead, behind = ["plain", "ngram", "ngram", "plain"], ["ngram", "plain", "plain", "ngram"]
    assert log == ["ngram", "plain", *ahead, *watched, *behind, *watched, *ahead, *watched]
    assert len(first.plain_s) == len(second.speculative_s) == 2


def test_what_was_interrupted_goes_on_where_it_stopped(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    arms = [NGRAM, replace(NGRAM, gamma=1)]
    begun = list(islice(runner.run(loaded, arms, plan(), Results(file)), 4))
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[-1][:50])  # cut off while a fifth was written
    found = list(runner.run(loaded, arms, plan(), Results(file)))
    assert found[:4] == begun, "times and all"
    assert [(result.arm, result.prompt) for result in found] == [(a, p.id) for a in arms for p in PROMPTS]
    assert file.read_bytes().startswith(whole) and len(file.read_text().splitlines()) == 1 + 6
    before = file.read_bytes()
    assert list(runner.run(loaded, arms, plan(), Results(file))) == found and file.read_bytes() == before
    reworded = (replace(PROMPTS[0], text="another text"), *PROMPTS[1:])
    list(runner.run(loaded, arms[:1], plan(reworded), Results(file)))
    assert len(file.read_text().splitlines()) == 1 + 7, "a prompt that was changed is measured anew"


def test_results_of_other_circumstances_are_not_mixed(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    next(runner.run(loaded, [NGRAM], plan(), Results(file)))
    with pytest.raises(
        UserError, match=r"another max new tokens \(40\) than this run \(8\); choose another --out file"
    ):
        next(runner.run(loaded, [NGRAM], plan(tokens=8), Results(file)))
    for content in (b"notes of mine", b"a line\nand another\n", b'{"schema": 1, "run": {}}\n'):
        file.write_bytes(content)
        with pytest.raises(UserError):
            Results(file)
        assert file.read_bytes() == content, "somebody else's file is left alone"


def test_the_command_prints_one_object_and_counts_down(loaded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "load", lambda options: loaded)
    monkeypatch.setattr(bench, "load_prompts", lambda: {prompt.id: prompt for prompt in PROMPTS})
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(pairing="smollm2-135m", target=None)
    asked = ["--suite", "own", "--drafters", "plain", "ngram:ngram_max=2", "--gammas", "1,3", "--max-new-tokens", "8"]
    bench.command(parser.parse_args([*asked, "--out", str(tmp_path / "r.jsonl"), "--json"]))
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert [(row["arm"]["kind"], row["arm"]["gamma"], row["prompts"]) for row in said["rows"]] == [
        ("plain", 1, 3),
        ("ngram", 1, 3),
        ("ngram", 3, 3),
    ]
    assert said["rows"][1]["arm"]["settings"] == {"ngram_min": 1, "ngram_max": 2}
    assert said["header"]["threads"] == torch.get_num_threads() and "9 of 9, about 0 min left" in err
    bench.command(parser.parse_args([*asked, "--only", "story"]))
    out, err = capsys.readouterr()
    assert "1.00" in out and "story" in out and "editing" not in out and "3 of 3" in err
