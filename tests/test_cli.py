"""The command line: its JSON contract, its exit statuses and its one-line errors, on a tiny target."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from fakes import chat_target, tiny_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specviz import bench, loaded, runs, trace
from specviz.cli import main, make_parser
from specviz.presets import ModelSource
from specviz.recordings import RECORDINGS, SAMPLER, Example, load_recordings

KEYS = {
    "": "schema text tokens finish_reason lossless rule warnings acceptance timing cost_ratio verify_cost memory "
    "baseline run",
    "acceptance": "steps undrafted_steps drafted accepted acceptance_length acceptance_length_drafted tokens_per_pass "
    "acceptance_rate tested_rate histogram survival conditional",
    "timing": "prefill_s decode_s tokens_per_s draft_s verify_s decide_s",
    "memory": "estimated peak",
    "baseline": "tokens_per_s speedup spread repeats identical first_divergence",
}


@pytest.fixture
def target(monkeypatch, tmp_path_factory):
    """A tiny target in the place of every pairing's own."""
    target, load = chat_target(), loaded.load
    source = ModelSource("tiny", target.name, "none", path=tmp_path_factory.mktemp("target"))
    target.model.save_pretrained(source.path)
    target.tokenizer.save_pretrained(source.path)

    def with_the_tiny_target(pairing, drafts=None, **where):
        pairing = replace(pairing, target=source)
        asked = (torch.device("cpu"), torch.float32)
        there = loaded.Loaded(pairing, target, ("a note of the loader",), asked=asked)
        return load(pairing, drafts, **{**where, "device": "cpu", "dtype": "float32", "having": [there]})

    monkeypatch.setattr(loaded, "load", with_the_tiny_target)
    return target


def run(capsys, *arguments: str) -> dict:
    assert main(["run", "--json", "--prompt", "abcabcab", "--max-new-tokens", "12", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one object on stdout and nothing else"
    return json.loads(out)


@pytest.mark.parametrize("drafter", ["plain", "ngram", "early-exit", "draft-model"])
def test_keys_and_consistency(target, capsys, drafter):
    options = {"early-exit": ("--exit-layer", "2"), "draft-model": ("--drafter-path", "self")}.get(drafter, ())
    result = run(capsys, "--drafter", drafter, "--baseline", "--repeats", "1", *options)
    for key, names in KEYS.items():
        assert list(result[key] if key else result) == names.split(), key
    assert result["run"]["drafter"] == drafter
    assert result["baseline"]["identical"] is True and result["baseline"]["first_divergence"] is None
    assert result["baseline"]["repeats"] == 1 and result["baseline"]["speedup"] > 0
    assert len(result["tokens"]) == 12 and result["finish_reason"] == "length"
    assert result["acceptance"]["accepted"] + result["acceptance"]["steps"] == 12
    assert result["warnings"] == ["a note of the loader"]
    assert result["memory"]["estimated"] > 0 and result["memory"]["peak"] > 0
    assert result["cost_ratio"] is None, "needs phases"
    if drafter == "draft-model":
        assert result["acceptance"]["tested_rate"] == 1


def test_phases_bring_cost_ratio_and_verify_cost(target, capsys):
    itself = ("--drafter", "draft-model", "--drafter-path", "self")
    result = run(capsys, *itself, "--gamma", "2", "--baseline", "--repeats", "1", "--phases")
    assert result["cost_ratio"] > 0 and result["verify_cost"] > 0
    assert result["run"]["synchronised"] is True
    timing = result["timing"]
    assert timing["decode_s"] >= timing["draft_s"] + timing["verify_s"] + timing["decide_s"] > 0


def test_identical_is_null_when_sampling(target, capsys):
    result = run(capsys, "--temperature", "1", "--baseline", "--repeats", "1")
    assert result["baseline"]["identical"] is None
    assert result["run"]["sampler"]["temperature"] == 1


def test_settings_reach_the_run(target, capsys):
    result = run(
        capsys,
        *["--drafter", "ngram", "--ngram-min", "2", "--ngram-max", "4", "--ngram-pick", "frequent", "--gamma", "3"],
        *["--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.1"],
        *["--logit-bias", "7:-3.5", "--seed", "9", "--stop", "x", "--stop", "yz", "--raw-prompt"],
    )
    header = result["run"]
    assert header["drafter_settings"] == {"ngram_min": 2, "ngram_max": 4, "pick": "frequent"}
    assert header["sampler"] == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -3.5},
    }
    assert (header["gamma"], header["seed"], header["stop_strings"]) == (3, 9, ["x", "yz"])
    assert header["prompt"] == target.tokenizer.encode("abcabcab") and header["chat_template"] is False


def test_a_tree_a_rule_and_a_policy_reach_the_header(target, capsys):
    tree = run(capsys, "--drafter", "ngram", "--tree", "--nodes", "6", "--branches", "2", "--rule", "typical")["run"]
    assert {"tree": True, "nodes": 6, "branches": 2}.items() <= tree["drafter_settings"].items()
    assert (tree["rule"], tree["lossless"], tree["gamma_policy"]) == ("typical", False, "fixed")
    itself = ("--drafter", "draft-model", "--drafter-path", "self")
    sure = run(capsys, *itself, "--gamma-policy", "confidence", "--rule", "block")["run"]
    assert sure["drafter_settings"]["confidence"] == 0.4 and sure["gamma"] == 2, "the preset's"
    assert (sure["rule"], sure["lossless"], sure["gamma_policy"]) == ("block", True, "confidence")
    assert run(capsys, "--gamma-policy", "adaptive")["run"]["gamma_policy"] == "adaptive"


def test_chat_prompt_is_the_template_and_nothing_more(target, capsys):
    expected = target.tokenizer.encode("<s>abcabcab</s>", add_special_tokens=False)
    assert run(capsys)["run"]["prompt"] == expected


def test_a_trace_is_written_and_replayed(target, capsys, tmp_path):
    file = tmp_path / "run.jsonl"
    result = run(capsys, "--trace", str(file))
    recorded = trace.read(file)
    assert list(recorded.tokens) == result["tokens"] and recorded.text == result["text"]
    assert recorded.steps[0].decisions, "probabilities are recorded unless --no-trace"
    assert main(["replay", str(file), "--colour", "never"]) == 0
    printed = capsys.readouterr().out
    assert "step  1" in printed and "\x1b" not in printed
    assert main(["replay", str(file), "--colour", "always"]) == 0
    assert "\x1b[" in capsys.readouterr().out


def test_no_trace_keeps_outcomes_and_metrics(target, capsys, tmp_path):
    full, bare = run(capsys), run(capsys, "--no-trace", "--trace", str(tmp_path / "bare.jsonl"))
    assert bare["acceptance"] == full["acceptance"] and bare["tokens"] == full["tokens"]
    assert all(step.decisions == () for step in trace.read(tmp_path / "bare.jsonl").steps)


def test_a_draft_model_from_a_folder(target, capsys, tmp_path):
    folder = tmp_path / "small"
    tiny_model("llama", 5, vocab_size=target.vocab_size, num_hidden_layers=1).save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    result = run(capsys, "--drafter", "draft-model", "--drafter-path", str(folder), "--baseline", "--repeats", "1")
    assert result["baseline"]["identical"] is True
    assert result["acceptance"]["drafted"] > 0
    assert result["memory"]["estimated"] > run(capsys, "--drafter", "plain")["memory"]["estimated"]


@pytest.fixture
def own(tmp_path):
    """Folders of the user's own: a target and a small model that speak the same tokens, and one that does not."""
    tokenizer = chat_target().tokenizer
    for name, seed in (("large", 1), ("small", 2), ("stranger", 3)):
        tiny_model("llama", seed, vocab_size=300, num_hidden_layers=3).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    words = {"<unk>": 0, **{word: index for index, word in enumerate(["a", "b", "c", "ab", "abc"], start=1)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / "stranger")
    return tmp_path


def test_a_target_and_a_drafter_of_the_users_own(capsys, own):
    pair = ["--target", str(own / "large"), "--drafter", "draft-model", "--drafter-path", str(own / "small")]
    result = run(capsys, *pair, "--device", "cpu", "--dtype", "float32", "--baseline", "--repeats", "1")
    assert (result["run"]["target"], result["run"]["drafter_settings"]) == ("large", {"source": "small"})
    assert result["baseline"]["identical"] is True and result["acceptance"]["drafted"] > 0
    assert list(result["run"]["weights"]) == ["large", "small"]
    assert run(capsys, *pair[:2], *pair[4:], "--device", "cpu")["run"]["drafter"] == "draft-model", (
        "what a path asks for"
    )
    exits = run(capsys, "--target", str(own / "large"), "--drafter", "early-exit", "--device", "cpu")
    assert exits["run"]["drafter_settings"] == {"exit_layer": 2}, "where the target's first layers leave off"


def test_models_that_do_not_fit_each_other_are_refused_before_they_are_loaded(capsys, own, monkeypatch):
    monkeypatch.setattr(loaded, "load_model", None)
    pair = ["--target", str(own / "large"), "--drafter", "draft-model", "--drafter-path", str(own / "stranger")]
    assert main(["run", "--prompt", "x", "--device", "cpu", *pair]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("specviz: stranger has another tokenizer than large") and "universal" in error


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "--prompt", ""], "The prompt is empty"),
        (["run", "--prompt", "x", "--drafter", "magic"], "choose one of plain"),
        (["run", "--prompt", "x", "--gamma", "-1"], "Gamma is -1"),
        (["run", "--prompt", "x", "--max-new-tokens", "-1"], "The budget is -1"),
        (["run", "--prompt", "x", "--temperature", "nan"], "Temperature is nan"),
        (["run", "--prompt", "x", "--stop", ""], "stop string is empty"),
        (["run", "--prompt", "x", "--logit-bias", "7"], "not ID:BIAS"),
        (["run", "--prompt", "x", "--logit-bias", "99999:1"], "the vocabulary has"),
        (["run", "--prompt", "x", "--repeats", "0"], "--repeats is 0"),
        (["run", "--prompt", "x", "--ngram-min", "3", "--ngram-max", "2"], "N-grams of 3 to 2"),
        (["run", "--prompt", "x", "--drafter", "early-exit", "--exit-layer", "4"], "give 1 to 3"),
        (["run", "--prompt-file", "/nowhere/prompt.txt"], "can't be read"),
        (["run", "--prompt", "x", "--drafter", "draft-model", "--drafter-path", "/nowhere"], "does not exist"),
        (["run", "--prompt", "x", "--trace", "/nowhere/t.jsonl"], "can't be written"),
        (["run", "--prompt", "x", "--drafter", "ngram", "--drafter-path", "a/b"], "leave one of them out"),
        (["run", "--prompt", "x", "--method", "mtp"], "choose --drafter library, or leave"),
        (["run", "--prompt", "x", "--nodes", "5"], "add --tree"),
        (["run", "--prompt", "x", "--tree", "--rule", "block"], "and ngram drafts trees; add --no-tree"),
        (
            ["run", "--prompt", "x", "--drafter", "draft-model", "--tree"],
            "--tree is of ngram or eagle or medusa or mtp, not of draft-model; choose --drafter ngram or another",
        ),
        (["run", "--prompt", "x", "--confidence", "0.5"], "--confidence is of early-exit or "),
        (["run", "--prompt", "x", "--second-gamma", "2"], "for combinations"),
        (["run", "--prompt", "x", "--aux-convention", "input"], "--aux-convention is of eagle, not of ngram"),
        (["run", "--prompt", "x", "--no-norm-before-residual"], "--norm-before-residual is of eagle, not of ngram"),
        (["run", "--prompt", "x", "--aux-convention", "sglang"], "invalid choice"),
        (["run", "--prompt", "x", "--drafter-path", "/nowhere"], "The folder /nowhere does not exist"),
        (["run", "--prompt", "x", "--target", "/nowhere"], "The folder /nowhere does not exist"),
        (["run", "--prompt", "x", "--target", "a", "--pairing", "b"], "not allowed with argument"),
        (["run", "--prompt", "x", "--drafter", "library", "--method", "magic"], "invalid choice"),
        (["replay", "/nowhere/t.jsonl"], "can't be read"),
        (["bench", "--drafter", "draft-model"], "no counterpart"),
        (["bench", "--gamma", "0"], "must be at least 1"),
        (["bench", "--ngram-pick", "frequent"], "leave them out"),
        (["run", "--gamma", "x", "--prompt", "x"], "invalid int value"),
        (["run", "--rule", "zz", "--prompt", "x"], "invalid choice"),
        (["run"], "required"),
        ([], "required"),
        (["replay", "x.jsonl", "--delay", "inf"], "from 0 to 60"),
        (["run", "--prompt", "caf\udce9"], "not UTF-8"),
        (["record", "--repeats", "0"], "--repeats is 0"),
        (["record", "--only", "opera"], "no example 'opera'; choose one of editing, code"),
    ],
)
def test_user_errors_exit_2_with_one_line(target, capsys, arguments, words):
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len([line for line in lines if words in line]) == 1, lines
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("model", ["pickle", "broken", "incomplete"])
def test_a_folder_without_sound_safetensors_is_refused(target, capsys, tmp_path, model):
    tiny_model("llama", vocab_size=target.vocab_size).save_pretrained(tmp_path)
    target.tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    if model == "pickle":
        weights.rename(tmp_path / "pytorch_model.bin")
    elif model == "broken":
        weights.write_bytes(b"\xff" * 64)
    else:
        tensors = load_file(weights)
        del tensors["model.norm.weight"]
        save_file(tensors, weights, {"format": "pt"})
    assert main(["run", "--prompt", "x", "--drafter", "draft-model", "--drafter-path", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    words = {"pickle": "only as pickles", "broken": "damaged or incomplete", "incomplete": "missing, first model.norm"}
    assert words[model] in error


def test_unknown_pairings_devices_and_formats(capsys):
    assert main(["run", "--prompt", "x", "--pairing", "nobody"]) == 2
    assert "smollm2-135m" in capsys.readouterr().err
    assert main(["run", "--prompt", "x", "--device", "abacus"]) == 2
    assert main(["run", "--prompt", "x", "--dtype", "int3"]) == 2
    assert capsys.readouterr().err.count("specviz: ") == 2


def test_an_internal_error_exits_1(target, monkeypatch, capsys):
    monkeypatch.setattr(runs, "prepare", lambda *_, **__: 1 / 0)
    assert main(["run", "--prompt", "x"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_ctrl_c_reports_the_run_so_far(target, monkeypatch, capsys):
    verify, calls = target.verify, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return verify(*arguments)

    monkeypatch.setattr(target, "verify", interrupted)
    result = run(capsys, "--drafter", "plain", "--baseline")
    assert result["finish_reason"] == "cancelled" and len(result["tokens"]) == 3 and result["baseline"] is None


def test_bench_prints_both_loops(target, monkeypatch, capsys):
    monkeypatch.setattr("specviz.commands.bench.load_model", lambda *_, **__: (target.model, target.tokenizer))
    assert main(["bench", "--drafter", "ngram", "--max-new-tokens", "8", "--repeats", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["identical"] is True and result["repeats"] == 2 and result["ratio"] > 0
    assert set(result["ms_per_token"]) == {"specviz, trace on", "specviz, trace off", "transformers"}


@pytest.mark.parametrize(("asked", "gamma"), [([], 2), (["--gamma", "3"], 3)])
def test_bench_drafts_as_long_as_is_usual_for_the_kind(capsys, own, monkeypatch, asked, gamma):
    gammas, race = [], bench.against_transformers
    monkeypatch.setattr(bench, "against_transformers", lambda *given: gammas.append(given[4]) or race(*given))
    arguments = ["--target", str(own / "large"), "--drafter", "early-exit", "--max-new-tokens", "4", "--repeats", "1"]
    assert main(["bench", *arguments, "--device", "cpu", "--dtype", "float32", "--json", *asked]) == 0
    assert gammas == [gamma]


def test_record_makes_the_recordings_anew(target, monkeypatch, capsys, tmp_path):
    small = Example("small", "Small", "abcabcab", "ngram", {"ngram_max": 2}, 3, {**SAMPLER, "top_k": 5}, 4, 12)
    warm = replace(small, id="warm", title="Warm", sampler={**SAMPLER, "temperature": 0.8}, drafter="draft-model")
    examples = {"small": small, "warm": replace(warm, drafter_settings={"source": "self"})}
    monkeypatch.setattr("specviz.recordings.load_examples", lambda: examples)
    assert main(["record", "--repeats", "2", "--out", str(tmp_path / "made")]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "recording small" in err and "timed 2 of 2 repeats" in err
    made = load_recordings(tmp_path / "made", examples)
    assert list(made) == ["small", "warm"]
    for id, (example, said, compared) in made.items():
        assert said.run.mode == "recorded" and said.run.title == example.title and not said.run.synchronised
        assert len(said.tokens) == compared.tokens == 12 and compared.repeats == 2 and compared.phases is not None
        assert compared.identical is (True if id == "small" else None)
        assert all(step.decisions for step in said.steps), "with every probability"
    again = run(capsys, "--drafter", "ngram", "--ngram-max", "2", "--gamma", "3", "--seed", "4")
    assert again["tokens"] == list(made["small"].trace.tokens)


def test_record_can_make_one_alone(target, monkeypatch, tmp_path):
    small = Example("small", "Small", "abc", "ngram", {}, 3, dict(SAMPLER), 0, 4)
    examples = {"small": small, "other": replace(small, id="other")}
    monkeypatch.setattr("specviz.recordings.load_examples", lambda: examples)
    assert main(["record", "--repeats", "1", "--only", "other", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.comparison.json", "other.jsonl"]


def test_recordings_are_float32_unless_asked_otherwise():
    options = make_parser().parse_args(["record"])
    assert (options.dtype, options.pairing, options.repeats, options.only) == ("float32", "smollm2-135m", 5, None)
    assert options.out == RECORDINGS


def test_a_bad_place_for_the_trace_is_said_before_the_run(target, monkeypatch, capsys):
    monkeypatch.setattr(runs, "prepare", lambda *_, **__: pytest.fail("the run began"))
    assert main(["run", "--prompt", "x", "--trace", "/nowhere/t.jsonl"]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_ctrl_c_while_measuring_keeps_the_run(target, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("specviz.measure.compare", interrupted)
    result = run(capsys, "--baseline")
    assert result["finish_reason"] == "length" and result["baseline"] is None


def test_json_is_ascii(target, capsys):
    assert main(["run", "--json", "--prompt", "é🎈", "--max-new-tokens", "2"]) == 0
    assert capsys.readouterr().out.isascii()


def test_replay_needs_no_torch(target, capsys, tmp_path):
    file = tmp_path / "run.jsonl"
    run(capsys, "--trace", str(file))
    script = (
        f"import sys; from specviz.cli import main; main(['replay', {str(file)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "specviz", "run", "--prompt", "x", "--pairing", "nobody"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
