"""The examples and their recorded runs: read strictly, each of its example, and each decodes again to the same ids."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from traces import step, trace

from specviz import runs
from specviz.comparison import Comparison, Lap
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.errors import UserError
from specviz.loaded import load
from specviz.presets import PRESETS, load_pairings
from specviz.recordings import RECORDINGS, SAMPLER, Example, Recording, load_examples, load_recordings, write

EXAMPLES = load_examples()
GREEDY = [id for id, example in EXAMPLES.items() if example.sampler["temperature"] == 0]
SMALL = Example(
    id="small",
    title="Small",
    prompt="Hé",
    drafter="ngram",
    drafter_settings={"ngram_max": 2},
    gamma=4,
    sampler=dict(SAMPLER),
    seed=7,
    max_new_tokens=8,
)


def recording(**changes: Any) -> Recording:
    """Of the small example: a draft token kept, one rejected; `changes` alter the header."""
    header = {
        "mode": "recorded",
        "title": SMALL.title,
        "prompt_text": SMALL.prompt,
        "chat_template": True,
        "drafter_settings": SMALL.drafter_settings,
        "sampler": {**SMALL.sampler, "logit_bias": {}},
        "seed": SMALL.seed,
        "max_new_tokens": SMALL.max_new_tokens,
    }
    said = trace(step("ar", seconds=0.5), step("a", seconds=0.5, cut="stop_token"), **{**header, **changes})
    plain = Lap((1.0, 2.0, 3.0), (("a",), ("b",), ("c",)))
    fast = Lap((1.0, 2.0), (("a", "b"), ("c",)))
    return Recording(SMALL, said, Comparison(3, (plain,), (fast,), True, None))


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The shipped file with `change` applied to its last example."""
    raw = yaml.safe_load((PRESETS / "examples.yaml").read_text(encoding="utf-8"))
    change(raw["examples"][-1])
    path = tmp_path / "examples.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


# --- examples ------------------------------------------------------------------------------------------------------


def test_the_shipped_examples_in_their_order():
    titles = [example.title for example in EXAMPLES.values()]
    assert titles == ["Editing", "Code", "Translation", "Summary", "List", "E-mail", "Arithmetic", "Story"]
    assert list(EXAMPLES) == [title.lower() for title in titles]
    kinds = [(example.drafter, example.gamma) for example in EXAMPLES.values()]
    ngram, exits = ("ngram", 5), ("early-exit", 3)
    assert kinds == [ngram, ngram, exits, ngram, ngram, ("eagle", 3), ("draft-model", 4), exits]
    assert all(example.max_new_tokens <= 64 and example.prompt.strip() for example in EXAMPLES.values())
    assert [id for id in EXAMPLES if id not in GREEDY] == ["story"]
    assert EXAMPLES["story"].sampler == {**SAMPLER, "temperature": 0.8}


def test_every_drafter_is_offered_with_the_default_pairing():
    offered = {drafter.kind for drafter in load_pairings()["smollm2-135m"].drafters}
    assert {example.drafter for example in EXAMPLES.values()} <= offered


def test_what_an_example_leaves_out_is_the_samplers_own_default():
    assert asdict(Sampler()) == {**SAMPLER, "logit_bias": {}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda e: e.pop("prompt"), "example 8 lacks 'prompt'"),
        (lambda e: e.update(promt="x"), "unknown key 'promt'"),
        (lambda e: e.update(gamma="3"), "'gamma' must be of type int"),
        (lambda e: e.update(seed=True), "'seed' must be of type int"),
        (lambda e: e.update(drafter="psychic"), r"\(story\): unknown kind 'psychic'"),
        (lambda e: e["drafter_settings"].update(exit_layer=[24]), "the setting 'exit_layer' must be a number"),
        (lambda e: e["sampler"].update(heat=1.0), "sampler has the unknown key 'heat'"),
        (lambda e: e["sampler"].update(temperature="hot"), "sampler: 'temperature' must be of type float"),
        (lambda e: e.update(sampler=[0.8]), "'sampler' must be of type dict"),
        (lambda e: e.update(id="../up"), "'../up'"),
        (lambda e: e.update(id="code"), "two examples with the id 'code'"),
    ],
)
def test_mistakes_are_named(tmp_path, change, named):
    with pytest.raises(UserError, match=f"examples.yaml.*{named}"):
        load_examples(changed(tmp_path, change))


def test_reading_recordings_needs_no_torch():
    script = "import sys, specviz.recordings as r; r.load_recordings(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=PRESETS.parent).returncode == 0


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_written_recording_reads_back_identically(tmp_path):
    folder = tmp_path / "new" / "folder"
    write(recording(), folder)
    assert sorted(file.name for file in folder.iterdir()) == ["small.comparison.json", "small.jsonl"]
    assert load_recordings(folder, {"small": SMALL}) == {"small": recording()}


def test_an_example_without_a_recording_is_absent(tmp_path):
    write(recording(), tmp_path)
    examples = {"other": replace(SMALL, id="other"), "small": SMALL}
    assert list(load_recordings(tmp_path, examples)) == ["small"]
    assert load_recordings(tmp_path / "nowhere", examples) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "live"),
        ("title", "Other"),
        ("prompt_text", "He"),
        ("chat_template", False),
        ("drafter", "plain"),
        ("drafter_settings", {"ngram_max": 3}),
        ("gamma", 5),
        ("sampler", {**SAMPLER, "logit_bias": {"3": 1.0}}),
        ("sampler", {**SAMPLER, "temperature": 0.5, "logit_bias": {}}),
        ("seed", 8),
        ("max_new_tokens", 9),
        ("stop_strings", ("x",)),
    ],
)
def test_a_recording_of_something_else_is_refused(tmp_path, name, value):
    write(recording(**{name: value}), tmp_path)
    with pytest.raises(UserError, match=rf"small.jsonl has another {name} than the example, so record 'small' again"):
        load_recordings(tmp_path, {"small": SMALL})


def test_a_comparison_of_another_run_is_refused(tmp_path):
    made = recording()
    shorter = Lap((1.0,), (("a", "b"),))
    write(made._replace(comparison=Comparison(2, (shorter,), (shorter,), True, None)), tmp_path)
    with pytest.raises(UserError, match="times other tokens than the run has"):
        load_recordings(tmp_path, {"small": SMALL})


def test_half_a_recording_is_refused(tmp_path):
    write(recording(), tmp_path)
    file = tmp_path / "small.comparison.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"small.comparison.json is not JSON"):
        load_recordings(tmp_path, {"small": SMALL})
    file.unlink()
    with pytest.raises(UserError, match=r"small.comparison.json can't be read"):
        load_recordings(tmp_path, {"small": SMALL})


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        write(recording(), tmp_path / "file")


# --- the shipped recordings ----------------------------------------------------------------------------------------


def test_every_example_is_recorded_and_nothing_else_is():
    assert list(load_recordings()) == list(EXAMPLES)
    names = {f"{id}.{end}" for id in EXAMPLES for end in ("jsonl", "comparison.json")}
    assert {file.name for file in RECORDINGS.iterdir()} == names


@pytest.mark.parametrize("id", EXAMPLES)
def test_a_shipped_recording_is_whole_and_measured(id):
    example, said, compared = load_recordings()[id]
    assert example == EXAMPLES[id]
    assert said.finish_reason in ("stop_token", "length") and 10 < len(said.tokens) <= 64
    assert said.run.target == "SmolLM2-135M-Instruct" and said.run.dtype == "float32" and not said.run.synchronised
    assert all(step.decisions and step.seconds for step in said.steps)
    assert compared.repeats >= 2 and compared.speedup is not None and compared.speedup > 0
    assert compared.identical is (True if id in GREEDY else None) and compared.divergence is None
    assert all(lap.texts == tuple(step.text for step in said.steps) for lap in compared.speculative)
    phases = compared.phases
    assert phases is not None and phases.promised is not None and phases.break_even is not None
    # The timed runs go to the same token without a stop, so that each of their steps ends with one of the target's own.
    assert phases.acceptance_length == pytest.approx(len(said.tokens) / len(said.steps))


def test_together_the_recordings_show_every_outcome():
    shown = {id: recorded.trace for id, recorded in load_recordings().items()}
    outcomes = {node.outcome for said in shown.values() for step in said.steps for node in step.nodes}
    assert outcomes >= {"accepted", "rejected", "untested"}
    story = shown["story"]
    assert {"accepted", "rejected"} <= {node.outcome for step in story.steps for node in step.nodes}
    assert {"correction", "bonus"} <= {step.last.kind for step in story.steps if step.nodes and step.last}
    drawn = [node for step in story.steps for node in step.nodes if node.accept_prob is not None]
    assert any(0.05 < node.accept_prob < 0.95 for node in drawn if node.accept_prob is not None), "a draw decided"
    arithmetic = [node.outcome for step in shown["arithmetic"].steps for node in step.nodes]
    assert set(arithmetic) <= {"accepted", "cut"}, "its own drafter"


def test_no_recording_tells_where_it_was_made():
    for file in RECORDINGS.iterdir():
        text = file.read_text(encoding="utf-8")
        assert str(Path.home()) not in text and str(PRESETS.parent) not in text, file.name


@pytest.mark.model
@pytest.mark.parametrize("id", EXAMPLES)
def test_a_recorded_run_decodes_again_to_the_same_ids(id):
    example, said, _ = load_recordings()[id]
    loaded = load("smollm2-135m", device="cpu", dtype="float32")
    settings = Settings(
        gamma=example.gamma,
        max_new_tokens=example.max_new_tokens,
        sampler=Sampler(**example.sampler),
        seed=example.seed,
    )
    prepared = runs.prepare(loaded, example.drafter, example.drafter_settings, example.prompt, settings)
    assert prepared.run.prompt == said.run.prompt and prepared.run.weights == said.run.weights
    steps = list(prepared.steps())
    assert [step.committed for step in steps] == [step.committed for step in said.steps]
    for mine, recorded in zip(steps, said.steps, strict=True):
        assert [(node.token, node.outcome) for node in mine.nodes] == [(n.token, n.outcome) for n in recorded.nodes]
        assert (mine.text, mine.cut) == (recorded.text, recorded.cut)
