"""Points of golden curves from traces and results: counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from golden_results import HEADER, result, written
from traces import step, trace

from specviz import golden
from specviz.acceptance_record import record
from specviz.errors import UserError
from specviz.golden import Measured
from specviz.synthetic import distribution, synthetic_trace
from specviz.workloads import measured
from specviz.workloads.golden_file import golden_of

RESULTS = (
    result([2, 1, 0], prompt="one"),
    result([2, 2], prompt="two", workload="chat"),
    result([1, 0, 0], [2, 2, 0], prompt="three", workload="chat"),
    result([1, 0], gamma=1, prompt="one"),
    result([1, 1], [2, 0], kind="ngram", prompt="one"),
)

MORE = (result([2, 1], prompt="four"), result([0, 2], prompt="five"))  # as many as an interval takes


def test_traces_of_a_draft_length_are_counted_together():
    runs = {"a": trace("ar", "", gamma=2), "b": trace("aa", gamma=2), "c": trace("aaa", gamma=3)}
    assert measured.of_traces(runs) == {2: Measured(1 + 3 / 2, None, None, 2), 3: Measured(4.0, None, None, 1)}
    assert measured.of_traces({"a": trace("", "", gamma=2)}) == {}


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (trace(step("ra", parents=(-1, -1))), "trees"),
        (trace("ar", gamma_policy="confidence"), "fixed gamma"),
        (trace("ar", drafter_settings={"eagle.confidence": 0.4}), "fixed gamma"),
        (synthetic_trace(distribution("geometric", 2.0, 3), 5, seed=0), "synthetic"),
    ],
)
def test_runs_that_are_no_measurement_of_a_chain_are_refused(run, why: str):
    with pytest.raises(UserError, match=f"^run.jsonl .*{why}"):
        measured.of_traces({"run.jsonl": run})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target": "large"}, r"model \(tiny and large\)"),
        ({"drafter": "eagle"}, r"drafter \(ngram and eagle\), method \(ngram and eagle\)"),
        ({"drafter_settings": {"ngram_max": 4}}, r"drafter \(ngram and ngram \(ngram_max 4\)\)"),
        ({"sampler": {"temperature": 0.7}}, r"temperature \(0 and 0.7\)"),
        ({"dtype": "bfloat16"}, r"dtype \(float32 and bfloat16\)"),
        ({"weights": {"tiny": "abc"}}, r"weights \(n/a and abc\)"),
    ],
)
def test_runs_of_different_kinds_are_not_counted_together(changes, what: str):
    runs = {"a.jsonl": trace("ar", gamma=2), "b.jsonl": trace("aa", gamma=2, **changes)}
    with pytest.raises(UserError, match=rf"^a.jsonl and b.jsonl can't be .* differ in {what}; give runs of one"):
        measured.of_traces(runs)
    assert measured.of_traces({"a": trace("ar", gamma=2), "b": trace("aa", gamma=2, max_new_tokens=9, seed=2)})


def test_results_are_counted_over_the_drafts_of_all_prompts_with_an_interval():
    points = measured.of_results(each for each in (*RESULTS, *MORE) if each.arm.kind == "eagle")
    assert points[1] == Measured(1.5, None, None, 2)  # of one prompt there is no interval
    assert points[2].length == pytest.approx(1 + 13 / 11) and points[2].drafts == 11
    assert 1.5 <= points[2].low < points[2].length < points[2].high <= 3  # within the prompts' own 1.5 to 3


def test_trees_and_plain_decoding_are_left_out():
    tree = result([1], [5], settings={"tree": True, "nodes": 5}, gamma=2)
    plain = result([0], [0], kind="plain", gamma=1)
    assert measured.of_results([tree, plain]) == {}
    assert measured.left_out([tree, tree, plain]) == ["eagle, 5 nodes, depth 2: drafts trees"]
    with pytest.raises(UserError, match="none that drafts chains"):
        measured.of_one_drafter([tree, plain])


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"confidence": 0.4}, "confidence"),
        ({"eagle.confidence": 0.4}, "confidence"),
        ({"gamma_policy": "adaptive"}, "adaptive"),
        ({"confidence": 0.0}, "fixed"),
        ({"second_gamma": 2}, "fixed"),  # of 2, which is gamma itself
    ],
)
def test_drafts_whose_length_goes_by_a_policy_are_left_out(settings, policy: str):
    found = [result([1, 0], [2, 1], settings=settings)]
    assert next(measured.records(HEADER, found))["gamma_policy"] == policy
    counted = policy == "fixed"
    assert bool(measured.of_results(found)) == bool(measured.groups(HEADER, found)) == counted
    assert [policy in way for way in measured.left_out(found)] == [True] * (not counted)


def test_combinations_that_draft_two_lengths_are_left_out():
    found = result([1], settings={"second_gamma": 1}, kind="ngram+eagle")
    assert measured.of_results([found]) == {}
    assert measured.left_out([found]) == [
        "ngram+eagle (second_gamma 1), gamma 2: asks its parts for drafts of two lengths"
    ]
    with pytest.raises(UserError, match="fixed gamma"):
        measured.of_traces({"a": trace("ar", gamma=2, drafter_settings={"second_gamma": 1})})


def test_groups_are_named_as_the_curves_of_a_golden_file():
    found = measured.groups(HEADER, RESULTS)
    assert [(group.model, group.mode, list(group.points)) for group in found] == [
        ("Tiny + eagle", "own", [1, 2]),
        ("Tiny + eagle", "own/code", [1, 2]),
        ("Tiny + eagle", "own/chat", [2]),
        ("Tiny + ngram", "own", [2]),  # of one workload only
    ]
    chat = next(group for group in found if group.mode == "own/chat")
    assert chat.points == {2: Measured(1 + 5 / 4, None, None, 4)}


def test_several_suites_are_also_taken_together():
    found = measured.groups(HEADER, [result([1]), replace(result([0]), suite="other")])
    assert [(group.mode, group.points[2].length) for group in found] == [("all suites", 1.5), ("own", 2), ("other", 1)]


def test_one_drafter_is_told_by_its_kind():
    assert len(measured.of_one_drafter(RESULTS, "ngram")) == 1
    assert len(measured.of_one_drafter(RESULTS[:4])) == 4
    for name in (None, "medusa"):
        with pytest.raises(UserError, match="name one of those that they have: eagle, ngram"):
            measured.of_one_drafter(RESULTS, name)


def test_costs_are_the_medians_at_a_draft_length():
    timed = [result([1], costs=(0.1, 1.1)), result([1], costs=(0.3, 1.5)), result([1], costs=(0.2, 1.2))]
    other = result([1], gamma=4, costs=(9.0, 9.0))
    assert measured.costs([*timed, other], 2) == (0.2, 1.2)
    with pytest.raises(UserError, match="no costs of drafts of 3 tokens"):
        measured.costs(timed, 3)


def test_records_of_answers_have_a_traces_fields():
    made = list(measured.records(HEADER, [RESULTS[2]]))
    assert len(made) == 1
    (answer,) = made
    assert set(record(trace())) == set(answer) - {"suite", "workload", "prompt", "turn"}
    assert (answer["per_step_accepted"], answer["per_step_drafted"], answer["undrafted_steps"]) == ([1, 0], [2, 2], 1)
    assert (answer["prompt"], answer["turn"], answer["weights"]) == ("three", 1, {"Tiny": "abc"})
    assert (answer["temperature"], answer["seed"], answer["completion_tokens"]) == (0.0, 7, 4)


def test_results_are_read_while_they_are_still_written(tmp_path: Path):
    file = written(tmp_path / "r.jsonl", RESULTS[0])
    with file.open("a") as out:
        out.write('{"result": {"ar')
    before = file.read_bytes()
    assert measured.read_results(file) == (HEADER, [RESULTS[0]])
    assert file.read_bytes() == before
    assert not measured.holds_trace(file)
    with pytest.raises(UserError, match="can't be read"):
        measured.read_results(tmp_path / "none.jsonl")


def test_a_golden_file_of_our_own_has_every_curve_and_what_reproduces_it(tmp_path: Path):
    made = golden_of("tiny", HEADER, [*RESULTS, *MORE])
    assert [curve.name for curve in made.curves][:2] == ["Tiny + eagle/own", "Tiny + eagle/own/code"]
    assert made.curves[0].lengths == {1: 1.5, 2: round(1 + 13 / 11, 4)}
    facts = made.provenance
    told = {"status": "measured", "dataset": "own", "temperature": "0", "output_len": "64", "dtype": "float32"}
    told |= {"device": "cpu, 1 thread", "seed": "7", "weights": "abc", "rule": "token", "chat_template": "true"}
    told |= {"top_k": "0", "top_p": "1", "min_p": "0", "repetition_penalty": "1"}
    assert {name: facts[name] for name in told} == told
    assert '#  "prompts": 5,' in made.comments
    assert any("k 2: 11 drafts, 95 % from" in line for line in made.comments)
    golden.write(made, tmp_path / "tiny.yaml")
    assert golden.read(tmp_path / "tiny.yaml") == made


def test_the_digest_of_the_prompts_changes_with_their_texts():
    def digest(*found) -> str:
        return next(line for line in golden_of("t", HEADER, found).comments if "prompts_sha256" in line)

    assert digest(RESULTS[0]) == digest(RESULTS[0], RESULTS[0])
    assert digest(RESULTS[0]) != digest(replace(RESULTS[0], text="changed"))


def test_no_name_ends_a_comment():
    made = golden_of("tiny", replace(HEADER, dtype="f\nevil:\n  on: {1: 2}", weights="a\x85b\u2028c"), RESULTS)
    assert golden.parse(golden.render(made), "tiny.yaml").curves == made.curves
    assert all(comment.startswith("#") and comment.isprintable() for comment in made.comments)


def test_nothing_drafted_makes_no_golden_file():
    with pytest.raises(UserError, match="no golden length"):
        golden_of("tiny", HEADER, [result([0], [0], kind="plain", gamma=1)])
