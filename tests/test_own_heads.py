"""Trained heads of the user's own: from a folder or the Hub, by way of what is said of them, to a run."""

from __future__ import annotations

import json
from pathlib import Path

import heads_on_disk
import pytest
from fakes import byte_tokenizer, chat_target, tiny_model

from specviz.cli import main

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
