"""A suite on a tiny target: its figures are those of the traces, and what was interrupted goes on where it stopped."""

import argparse
import json
import re
from dataclasses import replace
from itertools import islice

import pytest
import torch
from suites import PROMPTS, plan, tiny_loaded

from specviz import metrics, runs
from specviz.commands import bench
from specviz.decoding.engine import decode
from specviz.errors import UserError
from specviz.presets import DrafterPreset, ModelSource, pairing
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


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b"a line\nand another\n",
        b"a line\nand another that does not end",
        b'{"id": 1}\n{"id": 2}',
        b'{"schema": 1, "run": {}}\n',
        b'{"schema": 1, "text": "a run that was kept without an end of its line"}',
        b'{"schema": 1, "header": {}}\n{"result": ',
    ],
)
def test_somebody_elses_file_is_left_alone(tmp_path, content):
    file = tmp_path / "results.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Results(file)
    assert file.read_bytes() == content and str(caught.value).startswith(str(file))


def test_a_header_that_was_cut_off_is_begun_anew(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    next(runner.run(loaded, [NGRAM], plan(), Results(file)))
    file.write_bytes(file.read_bytes()[:60])
    assert Results(file).header is None and file.read_bytes() == b""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"speculative_s": [0.0]}, "tokens, steps and times are not all above 0"),
        ({"plain_s": [-1.0]}, "tokens, steps and times are not all above 0"),
        ({"steps": -1}, "tokens, steps and times are not all above 0"),
        ({"tokens": 0}, "tokens, steps and times are not all above 0"),
        ({"accepted": -1}, "tokens, steps and times are not all above 0"),
        ({"plain_s": []}, "not as many of one kind as of the other"),
        ({"kind": "opera"}, "no prompt is of the kind 'opera'"),
        ({"arm": {"kind": "oracle", "settings": {}, "gamma": 1, "weights": {}}}, "unknown kind 'oracle'"),
    ],
)
def test_a_damaged_result_is_named_by_its_line(loaded, tmp_path, damage, words):
    file = tmp_path / "results.jsonl"
    list(islice(runner.run(loaded, [NGRAM], plan(tokens=4), Results(file)), 2))
    header, first, second = file.read_text().splitlines()
    damaged = {"result": {**json.loads(second)["result"], **damage}}
    content = f"{header}\n{first}\n{json.dumps(damaged)}\n" + '{"result": '
    file.write_text(content)
    with pytest.raises(UserError, match=f"^{re.escape(str(file))}, line 3: .*{words}") as caught:
        Results(file)
    assert "\n" not in str(caught.value) and file.read_text() == content


def asked(*arguments: str, **more: object) -> argparse.Namespace:
    """The options of a suite over the default pairing."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(pairing="smollm2-135m", target=None, **more)
    return parser.parse_args(["--suite", "own", "--gammas", "1,3", *arguments])


def offer(monkeypatch, *presets: DrafterPreset) -> None:
    offered = replace(pairing("smollm2-135m"), drafters=presets)
    monkeypatch.setattr(bench, "pairing", lambda id: offered)


def model(name: str) -> ModelSource:
    return ModelSource(name, name, "none")


def test_every_preset_is_measured_with_its_own_settings_once(monkeypatch):
    exits = [{"exit_layer": 15, "gamma": 2}, {"exit_layer": 24, "gamma": 2, "adapter": False}]
    presets = [DrafterPreset("early-exit", str(index), defaults, "") for index, defaults in enumerate(exits)]
    again = DrafterPreset("early-exit", "again", {"gamma": 5, "exit_layer": 15}, "")
    offer(monkeypatch, DrafterPreset("plain", "none", {}, ""), *presets, again)
    found = [(group.arms, group.preset) for group in bench.read_arms(asked())]
    assert found == [
        ([Arm("early-exit", {"exit_layer": 15}, gamma) for gamma in (1, 3)], presets[0]),
        ([Arm("early-exit", {"exit_layer": 24, "adapter": False}, gamma) for gamma in (1, 3)], presets[1]),
    ]


def test_a_drafter_named_twice_is_measured_once():
    groups = bench.read_arms(asked("--drafters", "ngram", "ngram", "ngram:ngram_max=3", "ngram:ngram_max=2"))
    arms = [[(arm.settings["ngram_max"], arm.gamma) for arm in group.arms] for group in groups]
    assert arms == [[(3, 1), (3, 3)], [(2, 1), (2, 3)]]


def test_every_preset_drafts_with_its_own_model(monkeypatch, loaded):
    """Also one without a model, after one of its kind that has one."""
    small, large = (DrafterPreset("draft-model", name, {"gamma": 2}, "", model(name)) for name in ("small", "large"))
    itself = DrafterPreset("draft-model", "itself", {"source": "self"}, "")
    offer(monkeypatch, small, large, itself)
    calls = []
    monkeypatch.setattr(bench, "load", lambda options: calls.append(options.drafter) or loaded)
    monkeypatch.setattr(bench.loaded, "load", lambda pairing, model, **_: calls.append(model) or loaded)
    options = asked(device="cpu", dtype="float32", offline=True)
    groups = bench.read_arms(options)
    assert [len(group.arms) for group in groups] == [2, 2, 2]
    for group in groups:
        assert bench.load_group(options, group) is loaded
    assert calls == [small.model, large.model, "plain"]


@pytest.mark.parametrize(("named", "settings"), [("/a/folder", {}), ("self", {"source": "self"})])
def test_a_drafter_that_is_named_by_its_path_goes_before_the_sources_of_presets(monkeypatch, loaded, named, settings):
    sources = [DrafterPreset("draft-model", name, {"source": name}, "") for name in ("shipped", "self")]
    offer(monkeypatch, *sources)
    options = asked(drafter_path=named)
    [group] = bench.read_arms(options)
    assert group.preset is None and [arm.settings for arm in group.arms] == [settings] * 2
    monkeypatch.setattr(bench, "load", lambda options: (options.drafter, options.drafter_path))
    assert bench.load_group(options, group) == ("draft-model", named)


def test_the_command_prints_one_object_and_counts_down(loaded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "load", lambda options: loaded)
    monkeypatch.setattr(bench, "load_prompts", lambda: {prompt.id: prompt for prompt in PROMPTS})
    drafters = ["--drafters", "plain", "ngram:ngram_max=2", "--max-new-tokens", "8"]
    bench.command(asked(*drafters, "--out", str(tmp_path / "r.jsonl"), "--json"))
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert [(row["arm"]["kind"], row["arm"]["gamma"], row["prompts"]) for row in said["rows"]] == [
        ("plain", 1, 3),
        ("ngram", 1, 3),
        ("ngram", 3, 3),
    ]
    assert said["rows"][1]["arm"]["settings"] == {"ngram_min": 1, "ngram_max": 2}
    assert said["header"]["threads"] == torch.get_num_threads() and "9 of 9, about 0 min left" in err
    bench.command(asked(*drafters, "--only", "story"))
    out, err = capsys.readouterr()
    assert "1.00" in out and "story" in out and "editing" not in out and "3 of 3" in err
