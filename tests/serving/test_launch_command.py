"""The command `launch`: one JSON object, or text that can be pasted; mistakes in one sentence."""

from __future__ import annotations

import json
import shlex

import pytest

from specviz.cli import main
from specviz.recordings import RECORDINGS


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
    _, out, _ = launched(capsys, "--drafter", "medusa", "--engine", "vllm")
    assert [line[0] for line in out.splitlines()] == ["#", "#"]


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
