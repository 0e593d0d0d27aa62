"""The command `launch`: one JSON object, or text that can be pasted; mistakes in one sentence."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from traces import trace as recorded

from specviz import trace as traces
from specviz.cli import main
from specviz.commands.launch import NOT_LAUNCHED, in_words
from specviz.recordings import RECORDINGS
from specviz.serving import Launch
from specviz.serving.answer import Request


def launched(capsys, *arguments):
    status = main(["launch", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def answer(capsys, *arguments):
    status, out, _ = launched(capsys, "--json", *arguments)
    assert status == 0
    return json.loads(out)


def test_json_is_one_object_with_every_engine(capsys):
    found = answer(capsys, "--pairing", "qwen3-8b", "--drafter", "draft-model", "--gamma", "3", "--temperature", "0.5")
    assert (found["target"], found["drafter"], found["drafts_with"], found["gamma"]) == (
        "Qwen3-8B",
        "draft-model",
        "Qwen3-0.6B",
        3,
    )
    engines = [launch["engine"] for launch in found["launches"]]
    assert engines == ["vllm", "sglang", "llama.cpp", "tensorrt-llm", "transformers"]
    assert json.loads(found["launches"][0]["request"]["body"])["temperature"] == 0.5
    assert {*found["launches"][0]} == {
        *("engine", "title", "checked", "command", "language", "differs", "request", "unsupported")
    }


def test_what_is_left_out_is_as_the_pairings_preset_has_it(capsys):
    (found,) = answer(capsys, "--drafter", "ngram", "--ngram-max", "4", "--engine", "vllm")["launches"]
    words = shlex.split(found["command"].replace("\\\n", " "))
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["prompt_lookup_max"] == 4 and config["num_speculative_tokens"] == 5
    assert words[2] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_text_is_the_command_among_comments(capsys):
    status, out, _ = launched(capsys, "--pairing", "gpt2", "--drafter", "draft-model", "--engine", "sglang")
    first, second, *rest = out.splitlines()
    assert status == 0 and first.startswith("# SGLang") and second == "python -m sglang.launch_server \\"
    assert rest[-1].startswith("# - ")
    with pytest.raises(SystemExit) as ended:  # so that no script takes it for a launch
        launched(capsys, "--drafter", "medusa", "--engine", "vllm")
    assert ended.value.code == NOT_LAUNCHED
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["#", "#"]


def test_all_but_the_command_are_comments(capsys):
    """An example request has lines of its own, and a sentence must not be able to."""
    _, out, _ = launched(capsys, "--pairing", "qwen3-8b", "--drafter", "ngram", "--engine", "vllm")
    (found,) = answer(capsys, "--pairing", "qwen3-8b", "--drafter", "ngram", "--engine", "vllm")["launches"]
    rest = out.replace(found["command"], "# the command").splitlines()
    assert all(line.startswith("# ") for line in rest)
    body = rest.index("# Example request: POST /v1/chat/completions") + 1
    assert rest[body : body + 2] == ["# {", '#   "model": "Qwen/Qwen3-8B",']
    hostile = Launch("e", "E", "now", "serve", differs=("one\nrm -rf x",), request=Request("/v1\nrm", "{}\nrm"))
    assert in_words(hostile).splitlines() == [
        "# E: now",
        "serve",
        "# Example request: POST /v1",
        "# rm",
        "# {}",
        "# rm",
        "# - one",
        "# rm -rf x",
    ]
    assert in_words(replace(hostile, command=None, unsupported="a\nrm")).splitlines() == ["# E: now", "# a", "# rm"]


def test_a_folders_name_cannot_bring_lines_of_its_own(capsys, tmp_path):
    folder = tmp_path / "a\nrm -rf x"
    folder.mkdir()
    for models in (("--target", folder), ("--target", "someone/fine", "--drafter-path", folder)):
        status, out, err = launched(capsys, "--drafter", "draft-model", *map(str, models))
        assert (status, out) == (2, "") and "control character" in err and len(err.splitlines()) == 1


def test_a_trace_cannot_bring_lines_of_its_own(capsys, tmp_path):
    for change in ({"target": "evil\nrm -rf ~/x #"}, {"drafter": "eagle", "drafter_settings": {"source": "a\nrm"}}):
        traces.write(recorded("a", **change), tmp_path / "evil.jsonl")
        status, out, err = launched(capsys, "--trace", str(tmp_path / "evil.jsonl"), "--engine", "vllm")
        assert (status, out) == (2, "") and "control character" in err and len(err.splitlines()) == 1


def test_a_recorded_run_brings_its_settings(capsys):
    found = answer(capsys, "--trace", str(RECORDINGS / "story.jsonl"))
    assert (found["drafter"], found["settings"], found["gamma"]) == ("early-exit", {"exit_layer": 24}, 3)
    assert found["sampling"]["temperature"] == 0.8 and found["sampling"]["seed"] == 2
    other = answer(capsys, "--trace", str(RECORDINGS / "story.jsonl"), "--gamma", "2", "--temperature", "0")
    assert (other["gamma"], other["sampling"]["temperature"]) == (2, 0.0)


def test_own_models_are_taken_by_name(capsys, tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    status, out, err = launched(
        capsys, "--json", "--target", str(folder), "--drafter-path", "someone/small", "--engine", "vllm"
    )
    assert status == 0 and "not checked" in err and str(tmp_path) not in out
    (found,) = json.loads(out)["launches"]
    assert shlex.split(found["command"].replace("\\\n", " "))[2] == "/path/to/my model"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--drafter", "eagle9"), "eagle9"),
        (("--temperature", "nan"), "temperature"),
        (("--context", "0"), "context"),
        (("--engine", "lmdeploy"), "lmdeploy"),
        (("--pairing", "nothing"), "nothing"),
        (("--drafter", "ngram", "--nodes", "4"), "tree"),
        (("--trace", "missing.jsonl"), "missing.jsonl"),
        (("--trace", str(RECORDINGS / "list.jsonl"), "--drafter", "ngram"), "--drafter"),
        (("--trace", str(RECORDINGS / "list.jsonl"), "--nodes", "4"), "--nodes"),
        (("--trace", str(RECORDINGS / "list.jsonl"), "--pairing", "gpt2"), "trace"),
    ],
)
def test_mistakes_end_with_2_and_one_sentence(capsys, arguments, word):
    status, out, err = launched(capsys, *arguments)
    assert (status, out) == (2, "")
    assert word in err and len(err.splitlines()) == 1
