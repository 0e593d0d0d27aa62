"""A suite on a tiny target: its figures are those of the traces, and what was interrupted goes on where it stopped."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest
import torch
from suites import PROMPTS, SUITE, TALK, plan, tiny_loaded

from specviz import measure, metrics, trace
from specviz.commands import bench, suite
from specviz.decoding.engine import decode
from specviz.decoding.sampling import Sampler
from specviz.errors import Cancelled, UserError
from specviz.models.target import Target
from specviz.presets import DrafterPreset, ModelSource, pairing
from specviz.prompts import Turn, encode
from specviz.workloads import runner
from specviz.workloads.arms import Arm
from specviz.workloads.options import add_arguments
from specviz.workloads.prompts import Prompt
from specviz.workloads.result_file import Results, parse
from specviz.workloads.results import digest
from specviz.workloads.suites import Suite
from specviz.workloads.summary import rows

NGRAM = Arm("ngram", {"ngram_min": 1, "ngram_max": 2}, 3)
STEP = {"prompt_tokens": 5, "depths": [2], "drafted": [2], "accepted": [1], "committed": [2]}


@pytest.fixture(scope="module")
def loaded():
    return tiny_loaded()


def test_figures_are_those_of_the_traces(loaded):
    arms = [NGRAM, Arm("early-exit", {"exit_layer": 3}, 2)]
    kept = {}
    results = list(
        runner.run(loaded, arms, plan(), Results(), keep=lambda result, traces: kept.update({id(result): traces}))
    )
    assert [(result.arm, result.prompt) for result in results] == [(a, p.id) for a in arms for p in PROMPTS]
    accepted, steps = 0, 0
    for result, prompt in zip(results, PROMPTS * 2, strict=True):
        [run] = kept[id(result)]
        expected = metrics.acceptance(run)
        assert run.run.prompt_text == prompt.text and list(run.run.prompt) == encode(loaded.target, prompt.text)
        assert len(run.tokens) == result.tokens <= 40
        assert result.acceptance_length == expected.acceptance_length == result.phases.acceptance_length
        assert (result.steps, result.accepted, result.drafted) == (expected.steps, expected.accepted, expected.drafted)
        assert result.identical is True and result.divergence is None and 0 < result.outside < 1
        if result.arm == NGRAM:
            accepted, steps = accepted + expected.accepted, steps + expected.steps
            pooled = rows([result])[0].survival
            assert pooled == expected.survival[: len(pooled)]
    assert accepted > 0, "a prompt on which nothing is accepted would show little"
    assert rows(results)[0].acceptance_length == 1 + accepted / steps


def test_an_answer_ends_where_the_target_ends_it_and_is_timed_to_the_same_length(loaded, monkeypatch):
    """What would follow a stop token is no answer, and counts neither as accepted nor as time."""
    prompt = Suite("own", PROMPTS[:1])
    [whole] = runner.run(loaded, [NGRAM], plan(prompt), Results())
    traces = []
    [_] = runner.run(loaded, [NGRAM], plan(prompt), Results(), keep=lambda _, kept: traces.extend(kept))
    third = traces[0].tokens[2]
    assert third not in traces[0].tokens[:2] and whole.tokens == 40
    monkeypatch.setattr(Target, "stop_tokens", frozenset({third}))
    lengths = []
    monkeypatch.setattr(measure, "decode", lambda *given, **options: logged(lengths, *given, **options))
    [result] = runner.run(loaded, [NGRAM], plan(prompt), Results())
    assert result.tokens == 3 and lengths[-5:] == [3] * 5, "counted, timed twice, watched twice"


def logged(lengths, target, drafter, prompt, settings, **options):
    steps = list(decode(target, drafter, prompt, settings, **options))
    lengths.append(sum(len(step.committed) for step in steps))
    return iter(steps)


def test_each_turn_is_asked_after_the_targets_own_answers(loaded):
    traces = []
    [result] = runner.run(
        loaded, [NGRAM], plan(Suite("talks", (TALK,)), tokens=12), Results(), keep=lambda _, kept: traces.extend(kept)
    )
    assert [answer.prompt_tokens for answer in result.answers] == [len(trace.run.prompt) for trace in traces]
    history = []
    for text, one in zip(TALK.turns, traces, strict=True):
        assert list(one.run.prompt) == encode(loaded.target, text, history=history)
        history.append(Turn(text, one.text))
    assert (result.turns, len(result.answers), result.workload) == (3, 3, "multi-turn")
    assert result.accepted == sum(metrics.acceptance(one).accepted for one in traces)
    assert result.phases.acceptance_length == pytest.approx(result.acceptance_length)


def test_a_conversation_that_outgrows_the_target_ends_early_and_says_so(loaded, monkeypatch):
    room = len(encode(loaded.target, TALK.turns[0])) + 8
    monkeypatch.setattr(Target, "max_tokens", room)
    [result] = runner.run(loaded, [NGRAM], plan(Suite("talks", (TALK,)), tokens=6), Results())
    assert result.turns == 3 and len(result.answers) == 1


def test_prompts_that_the_target_cannot_hold_are_found_before_anything_is_measured(loaded, monkeypatch):
    long = Prompt("long", "story", ("word " * 500,))
    monkeypatch.setattr(Target, "max_tokens", 100)
    found = runner.unfit(loaded, plan(Suite("own", (*PROMPTS, long))))
    assert list(found) == [("own", "long")] and "100" in found["own", "long"]
    kept, left_out = suite.fitting(loaded, plan(Suite("own", (*PROMPTS, long)), Suite("other", (long,))))
    assert [(each["suite"], each["prompt"]) for each in left_out] == [("own", "long"), ("other", "long")]
    assert [(suite.name, suite.prompts) for suite in kept.suites] == [("own", PROMPTS)]
    with pytest.raises(UserError, match="can decode none of these prompts"):
        suite.fitting(loaded, plan(Suite("other", (long,))))


def test_untimed_counts_the_same_and_times_nothing(loaded):
    timed = list(runner.run(loaded, [NGRAM], plan(), Results()))
    counted = list(runner.run(loaded, [NGRAM], plan(repeats=0), Results()))
    assert [result.answers for result in counted] == [result.answers for result in timed]
    assert {(r.plain_s, r.phases, r.outside, r.identical, r.speedup) for r in counted} == {((), None, None, None, None)}


def test_sampled_outputs_are_drawn_anew_with_the_seed_and_not_compared(loaded):
    def sampled(seed):
        settings = {"sampler": Sampler(temperature=1.0), "seed": seed, "tokens": 20}
        return list(runner.run(loaded, [NGRAM], plan(**settings), Results()))

    answers = [[result.answers for result in sampled(seed)] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert all(result.identical is None and result.speedup for result in sampled(1))


def test_stopping_ends_it_within_a_step_and_keeps_what_there_is(loaded):
    results, steps = Results(), []
    stop = lambda: steps.append(1) or len(results.all) == 1  # noqa: E731
    with pytest.raises(Cancelled):
        list(runner.run(loaded, [NGRAM], plan(), results, should_stop=stop))
    assert [result.prompt for result in results.all] == ["copy"] and not loaded.lock.locked()


def test_plain_and_speculative_take_turns_at_going_first(loaded, monkeypatch):
    log = []

    def logged(target, drafter, *rest, **options):
        log.append(("phased " if options.get("phases") else "") + drafter.kind)
        assert options["detail"] is False
        return decode(target, drafter, *rest, **options)

    monkeypatch.setattr(measure, "decode", logged)
    [first, second, _] = runner.run(loaded, [NGRAM], plan(repeats=2), Results())
    counted, watched = "ngram", ["phased ngram", "phased plain"]
    ahead, behind = ["plain", "ngram", "ngram", "plain"], ["ngram", "plain", "plain", "ngram"]
    each = [[counted, *times, *watched] for times in (ahead, behind, ahead)]
    assert log == ["ngram", "plain", *each[0], *each[1], *each[2]]
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
    reworded = Suite("own", (replace(PROMPTS[0], turns=("another text",)), *PROMPTS[1:]))
    list(runner.run(loaded, arms[:1], plan(reworded), Results(file)))
    assert len(file.read_text().splitlines()) == 1 + 7, "a prompt that was changed is measured anew"
    list(runner.run(loaded, arms[:1], plan(SUITE, Suite("mine", PROMPTS[:1])), Results(file)))
    assert len(file.read_text().splitlines()) == 1 + 8, "the same prompt of another suite is another"


def test_results_of_other_circumstances_are_not_mixed(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    next(runner.run(loaded, [NGRAM], plan(), Results(file)))
    with pytest.raises(UserError, match=r"another max new tokens \(40\) than this run \(8\); choose another file"):
        next(runner.run(loaded, [NGRAM], plan(tokens=8), Results(file)))


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b"a line\nand another\n",
        b"a line\nand another that does not end",
        b'{"id": 1}\n{"id": 2}',
        b'{"schema": 2, "run": {}}\n',
        b'{"schema": 1, "header": {}}\n',
        b'{"schema": 2, "text": "a run that was kept without an end of its line"}',
        b'{"schema": 2, "header": {}}\n{"result": ',
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
    whole = file.read_bytes()
    for length in (60, 20, 5):
        file.write_bytes(whole[:length])
        with Results(file) as results:
            assert results.header is None and file.read_bytes() == b""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"speculative_s": [0.0]}, "its times are no seconds that a token could take"),
        ({"plain_s": [-1.0]}, "its times are no seconds that a token could take"),
        ({"plain_s": [1e300]}, "its times are no seconds that a token could take"),
        ({"turns": 0}, "its turns, answers and steps do not fit together"),
        ({"answers": []}, "its turns, answers and steps do not fit together"),
        ({"arm": {"kind": "ngram", "settings": {}, "gamma": -5, "weights": {}}}, "its gamma is not from 1 to 64"),
        ({"answers": [STEP | {"depths": [10**9], "drafted": [10**9]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"drafted": [10**6]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"committed": [9]}]}, "its steps and tokens do not fit together"),
        ({"plain_s": []}, "not as many of one kind as of the other"),
        ({"length": "vast"}, "no prompt is 'vast'"),
        ({"answers": [STEP | {"accepted": [3]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"accepted": [-1]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"committed": [0], "accepted": [0]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"depths": [2, 2]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"drafted": [1]}]}, "its steps and tokens do not fit together"),
        ({"answers": [STEP | {"prompt_tokens": 0}]}, "its steps and tokens do not fit together"),
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


def test_one_process_at_a_time_writes_to_a_file(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    with Results(file) as results:
        next(runner.run(loaded, [NGRAM], plan(tokens=4), results))
        before = file.read_bytes()
        script = (
            f"from pathlib import Path; from specviz.workloads.result_file import Results; Results(Path({str(file)!r}))"
        )
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert other.returncode and "Another process writes to" in other.stderr
        assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
    with Results(file) as results:
        assert len(results.all) == 1


def test_of_a_prompt_that_was_changed_the_last_result_counts(loaded, tmp_path):
    file = tmp_path / "results.jsonl"
    changed = Suite("own", (replace(PROMPTS[0], turns=("another text",)), *PROMPTS[1:]))
    for each in (SUITE, changed):
        with Results(file) as results:
            list(runner.run(loaded, [NGRAM], plan(each, tokens=4), results))
    assert len(file.read_text().splitlines()) == 1 + 4
    _, read = parse(file.read_text(), "it")
    assert len(read) == 3 and digest(changed.prompts[0]) in {result.text for result in read}
    assert digest(PROMPTS[0]) not in {result.text for result in read}


def test_targets_that_read_no_chats_get_bare_text(loaded):
    bare = replace(loaded, pairing=replace(loaded.pairing, chat=False))
    results, traces = Results(), []
    [first, *_] = runner.run(bare, [NGRAM], plan(tokens=4), results, keep=lambda _, kept: traces.extend(kept))
    assert results.header.chat_template is False and runner.unfit(bare, plan()) == {}
    assert list(traces[0].run.prompt) == encode(loaded.target, PROMPTS[0].text, raw=True)
    assert first.answers[0].prompt_tokens == len(traces[0].run.prompt)


@pytest.mark.parametrize("sampler", [{}, {"temperature": "0"}, {"top_p": None}, {"top_k": True}])
def test_a_header_whose_sampler_is_none_is_refused(loaded, tmp_path, sampler):
    file = tmp_path / "results.jsonl"
    next(runner.run(loaded, [NGRAM], plan(tokens=4), Results(file)))
    first, *others = file.read_text().splitlines(keepends=True)
    damaged = json.loads(first)
    damaged["header"]["sampler"] = damaged["header"]["sampler"] | sampler if sampler else {}
    file.write_text(json.dumps(damaged) + "\n" + "".join(others))
    with pytest.raises(UserError, match="line 1: its sampler has no number as "):
        Results(file)


def asked(*arguments: str, **more: object) -> argparse.Namespace:
    """The options of a suite over the default pairing."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(pairing="smollm2-135m", target=None)
    return argparse.Namespace(**{**vars(parser.parse_args(["--suite", "own", "--gammas", "1,3", *arguments])), **more})


def offer(monkeypatch, *presets: DrafterPreset) -> None:
    offered = replace(pairing("smollm2-135m"), drafters=presets)
    monkeypatch.setattr(suite, "pairing", lambda id: offered)


def model(name: str) -> ModelSource:
    return ModelSource(name, name, "none")


def test_every_preset_is_measured_with_its_own_settings_once(monkeypatch):
    exits = [{"exit_layer": 15, "gamma": 2}, {"exit_layer": 24, "gamma": 2, "adapter": False}]
    presets = [DrafterPreset("early-exit", str(index), defaults, "") for index, defaults in enumerate(exits)]
    again = DrafterPreset("early-exit", "again", {"gamma": 5, "exit_layer": 15}, "")
    offer(monkeypatch, DrafterPreset("plain", "none", {}, ""), *presets, again)
    found = [(group.arms, group.preset) for group in suite.read_arms(asked())]
    assert found == [
        ([Arm("early-exit", {"exit_layer": 15}, gamma) for gamma in (1, 3)], presets[0]),
        ([Arm("early-exit", {"exit_layer": 24, "adapter": False}, gamma) for gamma in (1, 3)], presets[1]),
    ]


def test_a_drafter_named_twice_is_measured_once():
    groups = suite.read_arms(asked("--drafters", "ngram", "ngram", "ngram:ngram_max=3", "ngram:ngram_max=2"))
    arms = [[(arm.settings["ngram_max"], arm.gamma) for arm in group.arms] for group in groups]
    assert arms == [[(3, 1), (3, 3)], [(2, 1), (2, 3)]]


def test_every_preset_drafts_with_its_own_model(monkeypatch, loaded):
    """Also one without a model, after one of its kind that has one."""
    small, large = (DrafterPreset("draft-model", name, {"gamma": 2}, "", model(name)) for name in ("small", "large"))
    itself = DrafterPreset("draft-model", "itself", {"source": "self"}, "")
    offer(monkeypatch, small, large, itself)
    calls = []
    monkeypatch.setattr(suite, "load", lambda options: calls.append(options.drafter) or loaded)
    monkeypatch.setattr(suite.loaded, "load", lambda pairing, model, **_: calls.append(model) or loaded)
    options = asked(device="cpu", dtype="float32", offline=True)
    groups = suite.read_arms(options)
    assert [len(group.arms) for group in groups] == [2, 2, 2]
    for group in groups:
        assert suite.load_group(options, group) is loaded
    assert calls == [small.model, large.model, "plain"]


@pytest.mark.parametrize(("named", "settings"), [("/a/folder", {}), ("self", {"source": "self"})])
def test_a_drafter_that_is_named_by_its_path_goes_before_the_sources_of_presets(monkeypatch, loaded, named, settings):
    sources = [DrafterPreset("draft-model", name, {"source": name}, "") for name in ("shipped", "self")]
    offer(monkeypatch, *sources)
    options = asked(drafter_path=named)
    [group] = suite.read_arms(options)
    assert group.preset is None and [arm.settings for arm in group.arms] == [settings] * 2
    monkeypatch.setattr(suite, "load", lambda options: (options.drafter, options.drafter_path))
    assert suite.load_group(options, group) == ("draft-model", named)


def test_the_command_prints_one_object_and_counts_down(loaded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(suite, "load", lambda options: loaded)
    monkeypatch.setattr(suite, "load_suite", lambda name: SUITE if name == "own" else Suite(name, PROMPTS[2:]))
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
    bench.command(asked(*drafters, "--suite", "story", "--untimed"))
    out, err = capsys.readouterr()
    assert "story" in out and "editing" not in out and "acceptance alone, untimed" in out and "3 of 3" in err
    with pytest.raises(UserError, match="Two suites are called own"):
        bench.command(asked(*drafters, "--suite", "own", "own"))
    for more, words in (
        ({"gamma": 3}, "A suite takes no --gamma; use --drafters and --gammas"),
        ({"gamma_policy": "adaptive"}, "takes no --gamma-policy"),
        ({"prompt": "xyz"}, "takes no --prompt"),
    ):
        with pytest.raises(UserError, match=words):
            bench.command(asked(*drafters, **more))
    with pytest.raises(UserError, match="The race against transformers takes no --untimed; add --suite"):
        bench.command(argparse.Namespace(**{**vars(asked("--untimed")), "suite": None}))
    for wrong in (["--prompts", "0"], ["--repeats", "0"], ["--max-new-tokens", "0"]):
        with pytest.raises(UserError, match="at least 1"):
            bench.command(asked(*drafters, *wrong))


def test_every_answer_is_kept_as_a_trace_from_which_the_figures_can_be_had_again(loaded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(suite, "load", lambda options: loaded)
    alike = [Prompt(id, "story", (f"rain {id}",)) for id in ("../a/b", "../a_b", "雨" * 60)]
    monkeypatch.setattr(suite, "load_suite", lambda name: Suite("a/suite", (*alike, TALK)))
    out = tmp_path / "r.jsonl"
    arguments = ["--drafters", "ngram:ngram_max=2", "--max-new-tokens", "8", "--untimed", "--out", str(out)]
    bench.command(asked(*arguments, "--traces", str(tmp_path / "traces")))
    bench.command(asked(*arguments, "--traces", str(tmp_path / "none")))
    assert "8 of the results are from a run without traces" in capsys.readouterr().err
    files = sorted((tmp_path / "traces").iterdir())
    assert len(files) == 2 * (3 + 3)
    of_three = [trace.read(file) for file in files if "-ngram-3-" in file.name]
    assert len(of_three) == 6
    accepted = sum(metrics.acceptance(one).accepted for one in of_three)
    steps = sum(metrics.acceptance(one).steps for one in of_three)
    row = next(row for row in rows(Results(out).all) if row.arm.gamma == 3)
    assert row.acceptance_length == 1 + accepted / steps
