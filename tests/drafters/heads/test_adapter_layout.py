"""Exit adapters on disk: what is written is read again, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes import VOCAB, tiny_target
from safetensors.torch import load_file, save_file

from specviz.drafters.heads.adapter import ExitAdapter, read_adapter, write_adapter
from specviz.errors import UserError

WIDTH, INNER, IDS = 32, 24, [1, 2, 5, 8, 9, 30]


@pytest.fixture(scope="module")
def config():
    return tiny_target().config


def adapter(ids: list[int] | None) -> ExitAdapter:
    torch.manual_seed(0)
    made = ExitAdapter(2, WIDTH, INNER, VOCAB, None if ids is None else len(ids), eps=1e-6)
    if ids is not None:
        made.d2t = torch.tensor(ids)
    return made


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    stored = load_file(folder / "model.safetensors") | {name.replace("__", "."): t for name, t in tensors.items()}
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "reduced"])
def test_what_is_written_is_read_again(config, tmp_path, ids):
    made = adapter(ids)
    write_adapter(made, tmp_path, {"kind": "early-exit"})
    names = {"adapter.up.weight", "adapter.down.weight", "adapter.norm.weight", "norm.weight"}
    assert load_file(tmp_path / "model.safetensors").keys() == names | (set() if ids is None else {"d2t", "t2d"})
    entries = json.loads((tmp_path / "config.json").read_text())
    assert (entries["exit_layer"], entries["specviz"]) == (2, {"kind": "early-exit"})
    assert entries["draft_vocab_size"] == len(ids or range(VOCAB))
    read = read_adapter(tmp_path, config)
    assert (read.exit_layer, read.eps, read.draft_vocab_size) == (2, 1e-6, None if ids is None else len(ids))
    states = torch.randn(3, WIDTH)
    assert torch.equal(read.states(states), made.states(states))
    assert ids is None or read.d2t.tolist() == ids


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"norm__weight": None}, r"missing: norm\.weight\)"),
        ({"gate": torch.zeros(1)}, r"unexpected: gate\)"),
        (
            {"adapter__down__weight": torch.zeros(WIDTH, 3)},
            r"down\.weight is \[32, 3\] and should be \[32, 24\]",
        ),
        ({"adapter__up__weight": None}, r"no exit adapter \(exit_layer or adapter\.up\.weight is missing\)"),
        (
            {"adapter__up__weight": torch.zeros(INNER, 64)},
            r"up\.weight is \[24, 64\] and should be \[24, 32\]",
        ),
        ({"d2t": torch.tensor([0, 40, 0, 0, 0, 0]), "t2d": None}, "d2t of"),
    ],
)
def test_tensors_that_do_not_fit_are_named(config, tmp_path, change, said):
    write_adapter(adapter(IDS), tmp_path, {})
    with pytest.raises(UserError, match=said):
        read_adapter(changed(tmp_path, **change), config)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"exit_layer": 4}, "for an exit after layer 4, and this target has 4 layers"),
        ({"exit_layer": "2"}, "holds no exit adapter"),
        ({"exit_layer": True}, "holds no exit adapter"),
        ({"rms_norm_eps": "small"}, "has small as rms_norm_eps"),
    ],
)
def test_a_config_that_can_not_be_is_refused(config, tmp_path, entry, said):
    write_adapter(adapter(None), tmp_path, {})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    with pytest.raises(UserError, match=said):
        read_adapter(tmp_path, config)
