"""Trained heads of the user's own: from a folder or the Hub, by way of what is said of them, to a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fake_hub
import heads_on_disk
import pytest
import torch
from fakes import chat_target, tiny_model
from safetensors.torch import load_file, save_file

from specviz import loaded
from specviz.cli import main
from specviz.errors import Cancelled
from specviz.loaded import load
from specviz.own import own_pairing

PLACE = ["--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """A target in a folder, which reads chats."""
    folder = tmp_path_factory.mktemp("own") / "target"
    model = chat_target()
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> dict[str, Path]:
    """A folder of each kind of head for it."""
    root, model = tmp_path_factory.mktemp("heads"), chat_target().model
    kinds = ("eagle", "eagle3", "mtp", "medusa", "early-exit", "draft-model")
    return {kind: heads_on_disk.write(kind, root / kind, model) for kind in kinds}


def run(capsys, target: Path, *arguments: str) -> dict:
    ask = ["run", "--json", "--prompt", "abcabcab", "--max-new-tokens", "12", "--target", str(target), *PLACE]
    assert main([*ask, *arguments]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp", "medusa", "early-exit", "draft-model"])
def test_a_head_from_a_folder_drafts_and_the_header_names_it(capsys, target, heads, kind):
    drafter = ["--drafter", kind.removesuffix("3"), "--drafter-path", str(heads[kind])]
    result = run(capsys, target, *drafter, "--baseline", "--repeats", "1")
    header = result["run"]
    assert result["baseline"]["identical"] is True and result["acceptance"]["drafted"] > 0
    assert header["drafter_settings"]["source"] == kind, "the name, not where it lies"
    assert list(header["weights"]) == ["target", kind] and len(header["weights"][kind]) == 64
    assert (header["rule"], header["lossless"], header["gamma_policy"]) == ("token", True, "fixed")
    assert str(heads[kind].parent) not in json.dumps(result)


def test_a_tree_by_a_combination_under_a_policy_and_a_lossy_rule(capsys, target, heads):
    drafter = ["--drafter", "ngram+eagle", "--drafter-path", str(heads["eagle"]), "--tree", "--nodes", "6"]
    result = run(capsys, target, *drafter, "--second-gamma", "2", "--confidence", "0.01", "--rule", "typical")
    header = result["run"]
    expected = {"tree": True, "nodes": 6, "second_gamma": 2, "confidence": 0.01, "source": "eagle"}
    assert expected.items() <= header["drafter_settings"].items()
    assert list(header["weights"]) == ["target", "eagle"]
    assert (header["rule"], header["lossless"], header["gamma_policy"]) == ("typical", False, "confidence")
    greedy = "The rule typical is lossy, but at temperature 0 it keeps just what greedy decoding would."
    assert result["warnings"] == [greedy]
    assert result["lossless"] is False


def test_a_lossy_run_that_samples_is_not_compared(capsys, target, heads):
    drafter = ["--drafter", "eagle", "--drafter-path", str(heads["eagle"]), "--tree", "--nodes", "6"]
    sampled = ["--rule", "typical", "--temperature", "1", "--baseline", "--repeats", "1"]
    result = run(capsys, target, *drafter, *sampled)
    assert result["baseline"]["identical"] is None
    assert result["warnings"] == ["The rule typical is lossy: the output need not be distributed as the target's own."]


@pytest.mark.parametrize(
    ("options", "deepest"),
    [(["--gamma", "9"], 3), (["--gamma", "3"], None), (["--gamma", "3", "--tree", "--nodes", "2"], 2)],
)
def test_a_gamma_that_the_drafter_can_not_reach_is_said(capsys, target, heads, options, deepest):
    medusa = ["--drafter", "medusa", "--drafter-path", str(heads["medusa"])]
    result = run(capsys, target, *medusa, *options)
    said = f"medusa drafts {deepest} deep at most, so gamma {options[1]} comes to {deepest}."
    assert result["warnings"] == ([said] if deepest else [])


def test_each_part_that_is_too_shallow_is_named(capsys, target, heads):
    both = ["--drafter", "ngram+medusa", "--drafter-path", str(heads["medusa"]), "--gamma", "9"]
    assert run(capsys, target, *both)["warnings"] == ["medusa drafts 3 deep at most."]
    assert run(capsys, target, *both, "--second-gamma", "3")["warnings"] == []
    trees = run(capsys, target, "--drafter", "ngram", "--tree", "--nodes", "2", "--gamma", "9")["warnings"]
    assert trees == ["ngram drafts 2 deep at most, so gamma 9 comes to 2."]


def test_where_nothing_is_drafted_no_rule_is_lossy(capsys, target):
    sampled = ["--rule", "typical", "--temperature", "1"]
    for drafter in (["--drafter", "plain"], ["--drafter", "ngram", "--gamma", "0"]):
        result = run(capsys, target, *drafter, *sampled)
        assert result["warnings"] == [] and result["lossless"] is True


def test_what_ran_is_said_in_words(capsys, target, heads):
    """And the text stands above the figures, once."""
    place = ["--prompt", "abc", "--target", str(target), *PLACE, "--max-new-tokens", "6"]
    eagle = ["--drafter", "eagle", "--drafter-path", str(heads["eagle"]), "--tree", "--nodes", "6", "--gamma", "2"]
    assert main(["run", *place, *eagle]) == 0
    said = capsys.readouterr().out
    assert (
        "with eagle, trees of 6 nodes and 4 branches, source eagle, gamma 2 (fixed), token rule, greedy, in float32"
        in said
    )
    assert "Lossless: the target's own distribution." in said
    assert "6 tokens in " in said and ":\n" not in said
    assert main(["run", *place, "--logit-bias", "5:-3", "--repetition-penalty", "1.2", "--top-k", "3"]) == 0
    assert "token rule, greedy, repetition penalty 1.2, logit bias {'5': -3.0}, in float32" in capsys.readouterr().out
    sampled = ["--temperature", "0.5", "--seed", "3", "--rule", "block"]
    assert main(["run", *place, *eagle[:4], *sampled, "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    assert "block rule, temperature 0.5, seed 3, in bfloat16" in said
    assert "Lossless, up to rounding: in bfloat16 near ties can fall otherwise than in plain decoding;" in said


def test_the_draft_length_is_that_of_the_targets_own_preset(capsys, target, heads):
    assert run(capsys, target, "--drafter", "early-exit")["run"]["gamma"] == 2
    eagle = ["--drafter", "eagle", "--drafter-path", str(heads["eagle"])]
    assert run(capsys, target, *eagle)["run"]["gamma"] == 4
    assert run(capsys, target, *eagle, "--gamma", "3")["run"]["gamma"] == 3


def refused(capsys, target: Path, *arguments: str) -> str:
    assert main(["run", "--prompt", "abc", "--target", str(target), *PLACE, *arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_a_heads_file_leaves_open_is_asked_for_by_its_option(capsys, target, heads, tmp_path):
    folder = shutil.copytree(heads["eagle3"], tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    assert config["specviz"]["head"].pop("hidden_layers") == [1, 2, 3] and config.pop("norm_before_residual") is False
    (folder / "config.json").write_text(json.dumps(config))
    eagle = ["--drafter", "eagle", "--drafter-path", str(folder)]
    assert "give aux_convention (--aux-convention): input if" in refused(capsys, target, *eagle)
    asked = ["--aux-convention", "input", "--no-norm-before-residual"]
    result = run(capsys, target, *eagle, *asked)
    settings = result["run"]["drafter_settings"]
    assert settings == {"aux_convention": "input", "norm_before_residual": False, "source": "theirs"}
    known = run(capsys, target, "--drafter", "eagle", "--drafter-path", str(heads["eagle3"]))
    assert result["acceptance"] == known["acceptance"], "the same head"
    assert run(capsys, target, "--drafter", "ngram+eagle", *eagle[2:], *asked)["run"]["drafter"] == "ngram+eagle"


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("eagle", {"hidden_size": 64}, "its width is 64 and this target's 32"),
        ("eagle3", {"target_hidden_size": 64}, "its width is 64 and this target's 32"),
        ("medusa", {"vocab_size": 7}, "its vocabulary is 7 and this target's 259"),
    ],
)
def test_a_head_for_another_target_is_refused_by_its_config_alone(
    capsys, target, heads, tmp_path, monkeypatch, kind, changes, words
):
    folder = shutil.copytree(heads[kind], tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    monkeypatch.setattr(loaded, "load_model", None)
    assert words in refused(capsys, target, "--drafter", kind.removesuffix("3"), "--drafter-path", str(folder))


def test_of_several_weight_files_the_one_by_the_usual_name_is_read(capsys, target, heads, tmp_path):
    folder = shutil.copytree(heads["eagle"], tmp_path / "eagle")
    drafter = ["--drafter", "eagle", "--drafter-path", str(folder)]
    clean = run(capsys, target, *drafter)
    (folder / "stray.safetensors").write_bytes((target / "model.safetensors").read_bytes())
    with_stray = run(capsys, target, *drafter)
    assert with_stray["memory"]["estimated"] == clean["memory"]["estimated"], "what is not read is not counted"
    assert with_stray["run"]["weights"] == clean["run"]["weights"] and with_stray["tokens"] == clean["tokens"]
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    assert "several weight files (first.safetensors, stray.safetensors)" in refused(capsys, target, *drafter)


def as_pickle(folder: Path, heads: dict[str, Path]) -> Path:
    """The eagle head as the authors publish theirs."""
    folder.mkdir()
    shutil.copy(heads["eagle"] / "config.json", folder)
    torch.save(load_file(heads["eagle"] / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


def test_a_head_may_be_a_pickle_and_a_language_model_may_not(capsys, target, heads, tmp_path):
    folder = as_pickle(tmp_path / "pickled", heads)
    drafter = ["--drafter", "eagle", "--drafter-path"]
    assert (
        run(capsys, target, *drafter, str(folder))["tokens"]
        == run(capsys, target, *drafter, str(heads["eagle"]))["tokens"]
    )
    assert "only as pickles" in refused(capsys, target, "--drafter", "draft-model", "--drafter-path", str(folder))


def test_a_head_inside_the_targets_own_checkpoint(capsys, target, heads, tmp_path):
    """As MiMo has it; it costs one of the target's layers, not the whole file, and brings no weights of its own."""
    folder = shutil.copytree(target, tmp_path / "whole")
    layer = {n: t for n, t in load_file(heads["mtp"] / "model.safetensors").items() if "mtp_layers" in n}
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | layer, folder / "model.safetensors", metadata={"format": "pt"})
    plain = run(capsys, folder, "--drafter", "plain")
    for path in ("self", str(folder)):
        result = run(capsys, folder, "--drafter", "mtp", "--drafter-path", path, "--baseline", "--repeats", "1")
        assert result["baseline"]["identical"] is True and result["acceptance"]["drafted"] > 0
        assert list(result["run"]["weights"]) == ["whole"]
        more = result["memory"]["estimated"] - plain["memory"]["estimated"]
        assert more < 1.5 * (folder / "model.safetensors").stat().st_size
    assert "holds no head" in refused(capsys, target, "--drafter", "mtp", "--drafter-path", "self")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.running() as hub:
        fake_hub.use(monkeypatch, hub.endpoint, tmp_path / "home")
        yield hub


def publish(hub: fake_hub.FakeHub, folder: Path, *, gated: bool = False) -> str:
    return hub.add("someone/head", {path.name: path.read_bytes() for path in folder.iterdir()}, gated=gated)


def test_a_head_from_the_hub_is_fetched_once(capsys, target, heads, hub):
    commit = publish(hub, heads["eagle"])
    drafter = ["--drafter", "eagle", "--drafter-path", "someone/head"]
    assert "offline mode forbids" in refused(capsys, target, *drafter, "--offline")
    assert hub.requests == []
    header = run(capsys, target, *drafter)["run"]
    assert header["weights"]["someone/head"] == commit and header["drafter_settings"]["source"] == "someone/head"
    assert len(hub.served("model.safetensors")) >= 1
    hub.requests.clear()
    assert run(capsys, target, *drafter, "--offline")["run"]["weights"] == header["weights"]
    assert hub.requests == []


def test_a_pickle_from_the_hub(capsys, target, heads, hub, tmp_path):
    publish(hub, as_pickle(tmp_path / "pickled", heads))
    assert run(capsys, target, "--drafter", "eagle", "--drafter-path", "someone/head")["acceptance"]["drafted"] > 0


def test_a_gated_head_says_how_to_get_it(capsys, target, heads, hub):
    publish(hub, heads["eagle"], gated=True)
    assert "someone/head" in refused(capsys, target, "--drafter", "eagle", "--drafter-path", "someone/head")
    assert hub.served("model.safetensors") == []


def test_the_weights_of_a_head_for_another_target_are_not_fetched(capsys, target, hub, tmp_path):
    publish(hub, heads_on_disk.write("eagle", tmp_path / "wide", tiny_model(vocab_size=300)))
    words = refused(capsys, target, "--drafter", "eagle", "--drafter-path", "someone/head")
    assert "its vocabulary is 300 and this target's 259" in words
    assert hub.served("model.safetensors") == []


def test_progress_is_told_and_an_exception_of_it_stops_the_download(target, heads, hub):
    publish(hub, heads["medusa"])
    told: list[str] = []

    def progress(text: str, fraction: float | None) -> None:
        told.append(text)
        if fraction is not None:
            raise Cancelled("enough")

    own = own_pairing(str(target), "someone/head", kind="medusa", device="cpu", dtype="float32")
    with pytest.raises(Cancelled, match=r"^enough$"):
        load(own.pairing, own.head, device="cpu", dtype="float32", progress=progress)
    assert any("someone/head" in text for text in told)
    assert load(own.pairing, own.head, device="cpu", dtype="float32").head.name == "someone/head"
