"""Traces as files: what is written comes back, and what is no trace is refused by line and key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from fakes import SampledTree, byte_tokenizer, tiny_model, tiny_target
from traces import trace as hand_made

from specviz import trace
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Drafter, DraftModel
from specviz.errors import UserError
from specviz.trace import Run, Step, Trace

PROMPT = "Hé 🎈"
SMALL = {"vocab_size": 259, "num_hidden_layers": 1, "spread": 2.0}
HEADER = Run(
    target="tiny",
    drafter="draft-model",
    drafter_settings={"path": "a/b", "layers": 2, "nested": {"list": [1, 2.5, None, True]}},
    gamma=4,
    sampler={"temperature": 1.0, "logit_bias": {"3": -1.5}},
    seed=-(2**63),
    max_new_tokens=30,
    prompt=(1, 2, 3),
    prompt_text=PROMPT,
    chat_template=False,
    device="cpu",
    dtype="float32",
    threads=1,
    synchronised=False,
    versions={"torch": "2"},
    weights={"tiny": "sha"},
    notes=("substituted",),
)


@pytest.fixture(scope="module")
def runs() -> dict[str, Trace]:
    """Real runs: a chain that ends at the budget, a tree, and a tree cut by a stop token inside the draft."""
    tokenizer = byte_tokenizer()
    target = tiny_target(tokenizer=tokenizer, **SMALL)
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    sampler = Sampler(1.3)
    chain = DraftModel(target, tiny_model(seed=1, **SMALL))
    own_tree = SampledTree(target.model, (2, 2))

    def run(drafter: Drafter, **settings: Any) -> Trace:
        asked = Settings(gamma=4, max_new_tokens=30, sampler=sampler, stop_tokens=frozenset(), seed=3)
        return Trace(HEADER, tuple(decode(target, drafter, prompt, replace(asked, **settings))))

    tree = run(own_tree)
    inside = next(step.committed[0] for step in tree.steps if len(step.path) == 2)
    return {"chain": run(chain), "tree": tree, "cut": run(own_tree, stop_tokens=frozenset({inside}))}


def lines_of(run: Trace) -> list[str]:
    return [trace.header_line(run.run), *map(trace.step_line, run.steps)]


@pytest.mark.parametrize("name", ["chain", "tree", "cut"])
def test_a_written_run_reads_back_identically(name, runs, tmp_path):
    file = tmp_path / "run.jsonl"
    trace.write(runs[name], file)
    again = trace.read(file)
    assert again == runs[name]
    assert lines_of(again) == lines_of(runs[name]) == file.read_text(encoding="utf-8").split("\n")[:-1]


def test_the_runs_hold_what_the_round_trip_is_to_prove(runs):
    assert all(node.rank_q for step in runs["chain"].steps for node in step.nodes)
    assert any(len(set(node.parent for node in step.nodes)) < len(step.nodes) for step in runs["tree"].steps)
    last = runs["cut"].steps[-1]
    assert last.cut == "stop_token" and last.last is None
    assert any(node.outcome == "cut" for node in last.nodes)
    assert any(decision.residual for run in runs.values() for step in run.steps for decision in step.decisions)
    assert any(not piece.isascii() for step in runs["chain"].steps for piece in step.text)


def test_who_drafted_each_node_is_kept_and_may_be_absent(runs):
    first = runs["chain"].steps[0]
    step = replace(first, nodes=tuple(replace(node, by="ngram") for node in first.nodes))
    assert trace.parse(lines_of(Trace(HEADER, (step,)))).steps == (step,)
    old = trace.step_line(first).replace(',"by":null', "")
    assert old.count('"by"') == 0 < trace.step_line(first).count('"by"') == len(first.nodes)
    assert trace.parse([trace.header_line(HEADER), old]).steps == (first,)


def test_what_has_a_default_may_be_absent_and_nothing_else_may(runs):
    step = replace(runs["chain"].steps[1], note=None)
    row, header = json.loads(trace.step_line(step)), json.loads(trace.header_line(HEADER))
    for key in ("note", "rerun", "draft_s"):
        del row[key]
    for key in ("rule", "versions", "batch"):
        del header["run"][key]
    read = trace.parse([json.dumps(header), json.dumps(row)])
    assert read.steps == (step,)
    assert (read.run.rule, read.run.versions, read.run.batch) == ("token", {}, 1)


def test_a_step_without_any_numbers_reads_back(runs):
    bare = replace(runs["chain"].steps[0], seconds=None, prefill_s=None, decisions=(), note="why")
    assert trace.parse(lines_of(Trace(HEADER, (bare,)))).steps == (bare,)


def test_tokens_text_and_finish_reason(runs):
    run = runs["chain"]
    assert len(run.tokens) == 30 and run.finish_reason == "length"
    tokenizer = byte_tokenizer()
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    text = tokenizer.decode([*prompt, *run.tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert PROMPT + run.text == text


def test_the_stop_token_is_among_the_tokens_and_not_in_the_text(runs):
    run = runs["cut"]
    assert run.finish_reason == "stop_token"
    assert run.tokens[-1] == run.steps[-1].committed[-1]
    assert run.steps[-1].text[-1] and run.text + run.steps[-1].text[-1] == "".join(
        piece for step in run.steps for piece in step.text
    )


def test_a_run_that_was_broken_off_is_cancelled(runs):
    run = runs["chain"]
    assert Trace(run.run, run.steps[:-1]).finish_reason == "cancelled"
    assert Trace(run.run, ()).finish_reason == "cancelled"
    assert Trace(replace(run.run, max_new_tokens=0), ()).finish_reason == "length"
    assert Trace(run.run, ()).text == "" and Trace(run.run, ()).tokens == ()


def test_a_stop_string_stays_in_the_text(runs):
    step = replace(runs["chain"].steps[-1], cut="stop_string")
    run = Trace(HEADER, (step,))
    assert run.finish_reason == "stop_string" and run.text == "".join(step.text)


def test_warnings_are_the_notes_each_once_and_in_order(runs):
    first, second, third = runs["chain"].steps[:3]
    steps = (replace(first, note="b"), replace(second, note="substituted"), replace(third, note="b"))
    assert Trace(HEADER, steps).warnings == ("substituted", "b")


def test_num_accepted_excludes_the_targets_own_token(runs):
    for step in runs["tree"].steps:
        assert step.num_accepted == len(step.path) == len(step.committed) - (step.last is not None)


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(runs) -> list[str]:
    return lines_of(runs["chain"])


def refused(lines: list[str], *words: str) -> None:
    with pytest.raises(UserError) as refusal:
        trace.parse(lines, "run.jsonl")
    message = str(refusal.value)
    assert message.startswith("run.jsonl") and "\n" not in message and len(message) < 500
    for word in words:
        assert word in message


def changed(line: str, change: Callable[[Any], Any]) -> str:
    value = json.loads(line)
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize("schema", [0, 2, "1", None, True, 1.0, [1], "x" * 1000])
def test_another_schema_is_refused(lines, schema):
    lines[0] = changed(lines[0], lambda header: header.update(schema=schema))
    refused(lines, "schema", "this version reads schema 1")


@pytest.mark.parametrize("first", ['{"run":{}}', "[]", "1", "null", '"text"'])
def test_a_file_without_a_header_is_refused(lines, first):
    refused([first, *lines[1:]], "does not start with a trace header")


def test_a_file_that_starts_with_a_step_is_refused(lines):
    refused(lines[1:], "does not start with a trace header")


@pytest.mark.parametrize("empty", [[], [""], ["", "  "]])
def test_an_empty_trace_is_refused(empty):
    refused(empty, "does not start with a trace header")


def test_a_header_alone_is_a_run_that_was_broken_off(lines):
    assert trace.parse(lines[:1]).finish_reason == "cancelled"


def test_blank_lines_do_not_shift_the_numbers_in_messages(lines):
    lines[2] = lines[2][:-1]
    refused(["", lines[0], "", lines[1], lines[2]], "line 5")
    refused(["", changed(lines[0], lambda header: header["run"].pop("seed"))], "line 2", "seed")


def test_unknown_keys_are_named(lines):
    refused([changed(lines[0], lambda header: header.update(extra=1))], "line 1", "unknown keys ['extra']")
    refused([changed(lines[0], lambda header: header["run"].update(extra=1))], "line 1", "unknown keys ['extra']")
    for place, change in {
        "line 3": lambda step: step.update(extra=1),
        "line 3, nodes": lambda step: step["nodes"][0].update(extra=1),
        "line 3, decisions": lambda step: step["decisions"][0].update(extra=1),
        "line 3, last": lambda step: step["last"].update(extra=1),
    }.items():
        refused([*lines[:2], changed(lines[2], change)], place, "unknown keys ['extra']")


def test_missing_keys_are_named(lines):
    refused([changed(lines[0], lambda header: header.pop("run"))], "line 1", "missing keys ['run']")
    refused([changed(lines[0], lambda header: header["run"].pop("gamma"))], "line 1", "missing keys ['gamma']")
    for place, change in {
        "line 3": lambda step: step.pop("path"),
        "line 3, nodes": lambda step: step["nodes"][1].pop("parent"),
    }.items():
        refused([*lines[:2], changed(lines[2], change)], place, "missing keys ['pa")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("index", "0"),
        ("index", 0.0),
        ("index", True),
        ("index", None),
        ("start", [1]),
        ("nodes", {}),
        ("nodes", "text"),
        ("nodes", [1]),
        ("path", [0.5]),
        ("path", [None]),
        ("path", 3),
        ("last", []),
        ("last", "token"),
        ("committed", ["1"]),
        ("committed", "12"),
        ("text", [1]),
        ("text", "text"),
        ("cut", "because"),
        ("cut", 1),
        ("cut", ["length"]),
        ("seconds", "1"),
        ("seconds", True),
        pytest.param("seconds", 10**400, id="seconds-beyond any float"),
        ("note", 5),
        ("decisions", [[]]),
        ("decisions", None),
    ],
)
def test_wrong_types_in_a_step_are_refused(lines, key, value):
    refused([*lines[:2], changed(lines[2], lambda step: step.update({key: value}))], f"line 3, {key}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma", 4.0),
        ("prompt", [1, "2"]),
        ("prompt_text", None),
        ("chat_template", 0),
        ("mode", "dreamt"),
        ("sampler", []),
        ("versions", {"torch": 2}),
        ("weights", {"tiny": None}),
        ("notes", "text"),
        ("notes", [None]),
        ("stop_tokens", None),
    ],
)
def test_wrong_types_in_the_header_are_refused(lines, key, value):
    refused([changed(lines[0], lambda header: header["run"].update({key: value}))], f"line 1, {key}")
    refused([changed(lines[0], lambda header: header.update(run=[]))], "line 1")


@pytest.mark.parametrize("outcome", ["kept", "", "Accepted", None, 1, ["accepted"], "<script>alert(1)</script>" * 100])
def test_an_unknown_outcome_is_refused(lines, outcome):
    bad = changed(lines[1], lambda step: step["nodes"][0].update(outcome=outcome))
    refused([lines[0], bad], "line 2, nodes, outcome", "accepted, rejected, untested, cut")


@pytest.mark.parametrize(
    "candidate", [[1, "a", 0.5], [1, "a", 0.5, None, 1], ["1", "a", 0.5, None], [1, "a", None, 0.5], {}]
)
def test_a_malformed_candidate_is_refused(lines, candidate):
    bad = changed(lines[1], lambda step: step["decisions"][0].update(p=[candidate]))
    refused([lines[0], bad], "line 2, decisions, p")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused(lines, constant):
    bad = lines[1].replace('"seconds":', f'"note":{constant},"seconds":', 1)
    refused([lines[0], bad], "line 2", constant.lstrip("-") if constant[-1] == "y" else constant)
    refused([lines[0].replace('"layers":2', f'"layers":{constant}')], "line 1")


def test_a_file_cut_off_within_a_line_is_refused(lines):
    for end in (1, len(lines[2]) // 2, len(lines[2]) - 1):
        refused([*lines[:2], lines[2][:end]], "line 3 is not JSON", "may be cut off")


@pytest.mark.parametrize("depth", [900, 10_000, 1_000_000])
def test_deeply_nested_lists_are_refused(lines, depth):
    bomb = "[" * depth + "]" * depth
    refused([bomb])
    refused([lines[0], bomb], "line 2")
    refused([lines[0], '{"index":' + bomb + "}"], "line 2")
    refused([*lines[:1], lines[1].replace('"path":[', f'"path":[{bomb},', 1)], "line 2")


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_not(lines):
    def with_text(escape: str) -> list[str]:
        return [lines[0].replace(f'"prompt_text":"{PROMPT}"', f'"prompt_text":"{escape}"')]

    for half in (r"\ud83c", r"\uDF88", r"\udf88\ud83c"):
        refused(with_text(half), "line 1")
    assert trace.parse(with_text(r"\ud83c\udf88")).run.prompt_text == "🎈"


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path):
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\x80\x02}q\x00X\xff\xfe")
    empty.write_bytes(b"")
    for file in (binary, empty, tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match="give a file written by --trace") as refusal:
            trace.read(file)
        assert str(file) in str(refusal.value)


# --- hostile text ---------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"},"schema":2,{"',
    "back\\slash \\u0041 \\n",
    "line\nbreaks\r\nand\ttabs",
    "every\x0bother\x0cbreak\x1c\x1d\x1e\x85\u2028\u2029that splits lines",
    "\x00\x1b[31m\x7f\ufeff\u202e",
    "🎈\u0301" * 50,
    "__import__('os').system('true')",
    "{0.__class__} %s ${x}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_any_kind_comes_back_unchanged(text, runs, tmp_path):
    file = tmp_path / "run.jsonl"
    first = runs["chain"].steps[0]
    step = replace(first, text=(text,) * len(first.text), note=text, nodes=(replace(first.nodes[0], text=text),))
    run = Trace(replace(HEADER, prompt_text=text, title=text, drafter_settings={text: text}), (step,))
    trace.write(run, file)
    assert trace.read(file) == run
    assert len(file.read_bytes().split(b"\n")) == 3  # a line each, and what follows the last


def test_hostile_keys_and_values_in_a_message_stay_short_and_on_one_line(lines):
    hostile = "\n<b>" + "x" * 100_000
    refused([*lines[:1], changed(lines[1], lambda step: step.update({hostile: 1}))], "line 2")
    refused([*lines[:1], changed(lines[1], lambda step: step.update(cut=hostile))], "line 2")
    refused([changed(lines[0], lambda header: header["run"]["versions"].update({hostile: 1}))], "line 1")
    refused([*lines[:1], changed(lines[1], lambda step: step.update(path=[list(range(100_000))]))], "line 2")


def test_reading_builds_plain_values_only(runs, tmp_path):
    file = tmp_path / "run.jsonl"
    trace.write(runs["tree"], file)

    def plain_all_the_way(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(plain_all_the_way, [*value.keys(), *value.values()]))
        if isinstance(value, list | tuple):
            return all(map(plain_all_the_way, value))
        return value is None or type(value) in (int, float, str, bool)

    read = trace.read(file)
    assert plain_all_the_way(asdict(read.run)) and all(plain_all_the_way(asdict(step)) for step in read.steps)
    assert all(type(step) is Step for step in read.steps)


@pytest.mark.parametrize(
    "key, value",
    [("path", [7]), ("path", [-1]), ("text", []), ("parent", 0), ("parent", -2), ("decision", 9), ("decision", -2)],
)
def test_references_that_lead_nowhere_are_refused(key, value):
    recorded = hand_made("ar")
    row = json.loads(trace.step_line(recorded.steps[0]))
    if key == "parent":
        row["nodes"][0]["parent"] = value
    elif key == "decision":
        row["decisions"] = [trace.plain(trace.Decision(value, (), (), (), None, None, None))]
    else:
        row[key] = value
    with pytest.raises(UserError, match="line 2: its nodes, path, tokens and text do not fit together"):
        trace.parse([trace.header_line(recorded.run), json.dumps(row)])


@pytest.mark.parametrize("by", ["target", "drafter"])
def test_a_half_character_before_the_stop_token_is_not_lost(by):
    """The bytes wait for the rest of their character, which never comes; the stop token's piece carries them."""
    tokenizer = byte_tokenizer()
    half, stop = tokenizer.encode("🎈")[:2], tokenizer.eos_token_id
    run = replace(HEADER, prompt=(1,))
    node = trace.Node(stop, "</s>", -1, 1, "accepted", 1.0, 1.0, 1.0, 1.0, 0.0, None, None, None, None)
    last = trace.LastToken(stop, "</s>", "bonus", 1.0)
    ends = {"target": ((), (), last), "drafter": ((node,), (0,), None)}
    nodes, path, own = ends[by]
    piece = "\ufffd</s>"
    step = Step(0, 1, 1, len(nodes), nodes, path, own, (*half, stop), ("", "", piece), "stop_token", 0.1)
    assert Trace(run, (step,)).text == "\ufffd" == tokenizer.decode(half)


def test_numbers_too_large_to_count_are_refused_and_a_byte_order_mark_is_not(tmp_path):
    recorded = hand_made("ar")
    row = json.loads(trace.step_line(recorded.steps[0]))
    with pytest.raises(UserError, match="too large"):
        trace.parse([trace.header_line(recorded.run), json.dumps({**row, "index": 10**400})])
    back = trace.parse([trace.header_line(recorded.run), json.dumps({**row, "seconds": 3})])
    assert type(back.steps[0].seconds) is float
    file = tmp_path / "bom.jsonl"
    trace.write(recorded, file)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert trace.read(file) == recorded


def test_what_is_not_finite_is_never_written():
    recorded = hand_made("ar")
    with pytest.raises(ValueError):
        trace.step_line(replace(recorded.steps[0], seconds=float("inf")))
