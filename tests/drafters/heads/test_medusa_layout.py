"""Medusa heads on disk: the published names, head and block counts from the keys, and what is refused."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from fakes import VOCAB, tiny_target
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from specviz.drafters.heads.medusa import MedusaHeads, read_medusa, write_medusa
from specviz.errors import UserError
from specviz.models.target import Target

WIDTH = 32
IDS = [1, 2, 5, 8, 9, 30]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def published(
    heads: int = 5, blocks: int = 1, own: bool = True, rows: int = VOCAB, *, turned: bool = False
) -> OrderedDict[str, Tensor]:
    """Tensors as the authors' code saves them; turned: with the matrices of ours."""
    generator = torch.Generator().manual_seed(0)
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(WIDTH, WIDTH, generator=generator) / 4
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(WIDTH, generator=generator)
        if own:
            tensors[f"{head}.{blocks}.weight"] = torch.randn(rows, WIDTH, generator=generator)
        if turned:
            tensors[f"{head}.{blocks}.turn.weight"] = torch.randn(WIDTH, WIDTH, generator=generator) / 4
    return tensors


def as_pickle(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """As on the Hub, where every config says that there are two heads."""
    config = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "medusa_lm_head.pt")
    return folder


def as_safetensors(folder: Path, tensors: dict[str, Tensor]) -> Path:
    as_pickle(folder, tensors)
    (folder / "medusa_lm_head.pt").unlink()
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def computed(tensors: dict[str, Tensor], heads: int, blocks: int, state: Tensor, lm_head: Tensor | None) -> Tensor:
    """[heads, Vd], one head and one matrix after the other."""
    rows = []
    for head in range(heads):
        x = state
        for block in range(blocks):
            x = x + silu(tensors[f"{head}.{block}.linear.weight"] @ x + tensors[f"{head}.{block}.linear.bias"])
        x = tensors.get(f"{head}.{blocks}.turn.weight", torch.eye(WIDTH)) @ x
        rows.append((tensors[f"{head}.{blocks}.weight"] if lm_head is None else lm_head) @ x)
    return torch.stack(rows)


def logits(heads: MedusaHeads, states: Tensor, target: Target, count: int | None = None) -> Tensor:
    with torch.inference_mode():
        return heads.logits(heads.bind(target).states(states, count))


@pytest.mark.parametrize("save", [as_pickle, as_safetensors])
@pytest.mark.parametrize(("heads", "blocks"), [(5, 1), (3, 2), (1, 3)])
def test_the_published_layout_gives_what_its_tensors_say(target, tmp_path, save, heads, blocks):
    tensors = published(heads, blocks)
    read = read_medusa(save(tmp_path, tensors), target.config)
    assert read.heads == heads and read.vocabulary.d2t is None
    states = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([computed(tensors, heads, blocks, state, None) for state in states], 1)
    torch.testing.assert_close(logits(read, states, target), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(read, states, target, 2), expected[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "reduced"])
def test_without_lm_heads_of_their_own_they_use_the_targets(target, tmp_path, ids, turned):
    tensors = published(3, 2, own=False, turned=turned)
    folder = as_safetensors(tmp_path, tensors)
    if ids is not None:
        save_file({**tensors, "d2t": torch.tensor(ids) - torch.arange(len(ids))}, folder / "model.safetensors")
    read = read_medusa(folder, target.config)
    state = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1))
    lm_head = target.model.get_output_embeddings().weight.detach()
    expected = computed(tensors, 3, 2, state[0], lm_head if ids is None else lm_head[ids])
    torch.testing.assert_close(logits(read, state, target)[:, 0], expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(logits(read, state, target, 2)[:, 0], expected[:2], rtol=1e-4, atol=1e-3)
    whole = read.vocabulary.full(logits(read, state, target))
    assert whole.shape == (3, 1, VOCAB)
    assert set(torch.isfinite(whole[0, 0]).nonzero()[:, 0].tolist()) == set(range(VOCAB) if ids is None else ids)


@pytest.mark.parametrize(("own", "turned"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "reduced"])
def test_what_is_written_has_the_published_names_and_is_read_again(target, tmp_path, own, turned, ids):
    tensors = published(3, 2, own, len(ids or range(VOCAB)), turned=turned)
    if ids is not None:
        tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
    read = read_medusa(as_safetensors(tmp_path, tensors), target.config)
    write_medusa(read, tmp_path / "again", {"kind": "medusa", "seed": 3})
    written = load_file(tmp_path / "again" / "model.safetensors")
    written.pop("t2d", None)
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["medusa_num_heads"] == 3 and config["medusa_num_layers"] == 2
    assert config["draft_vocab_size"] == len(ids or range(VOCAB)) and config["vocab_size"] == VOCAB
    assert config["specviz"] == {"kind": "medusa", "seed": 3}
    states = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))
    twin = read_medusa(tmp_path / "again", target.config)
    assert torch.equal(logits(twin, states, target), logits(read, states, target))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("1.0.linear.bias"), r"missing: 1\.0\.linear\.bias\)"),
        (lambda t: t.pop("2.1.weight"), r"missing: 2\.1\.weight\)"),
        (lambda t: t.update({"extra": torch.zeros(1)}), r"unexpected: extra\)"),
        (lambda t: t.update({"2.0.weight": torch.zeros(1)}), r"unexpected: 2\.0\.weight\)"),
        (
            lambda t: t.update({"0.1.weight": torch.zeros(7, WIDTH)}),
            rf"of another shape: 0\.1\.weight is \[7, {WIDTH}\] and should be \[{VOCAB}, {WIDTH}\]\)",
        ),
        (lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(1)}), "holds a whole model"),
        (lambda t: t.update({"99.0.linear.weight": torch.zeros(1)}), "100 Medusa heads"),
        (lambda t: [t.pop(name) for name in list(t)] and t.update({"fc.weight": torch.zeros(1)}), "no Medusa heads"),
    ],
)
def test_tensors_that_do_not_fit_are_named(target, tmp_path, change, said):
    tensors = published(3)
    change(tensors)
    with pytest.raises(UserError, match=said):
        read_medusa(as_safetensors(tmp_path, tensors), target.config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update({"0.1.weight": torch.zeros(VOCAB, WIDTH)}), "both LM heads and matrices"),
        (lambda t: t.pop("1.1.turn.weight"), r"missing: 1\.1\.turn\.weight\)"),
        (lambda t: t.update({"1.0.turn.weight": torch.zeros(1)}), r"unexpected: 1\.0\.turn\.weight\)"),
        (
            lambda t: t.update({"2.1.turn.weight": torch.zeros(WIDTH, 7)}),
            rf"of another shape: 2\.1\.turn\.weight is \[{WIDTH}, 7\] and should be \[{WIDTH}, {WIDTH}\]\)",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_named(target, tmp_path, change, said):
    tensors = published(3, own=False, turned=True)
    change(tensors)
    with pytest.raises(UserError, match=said):
        read_medusa(as_safetensors(tmp_path, tensors), target.config)


def test_heads_for_another_width_are_refused(tmp_path):
    with pytest.raises(UserError, match=re.escape(f"0.0.linear.weight is [{WIDTH}, {WIDTH}] and should be [64, 64]")):
        read_medusa(as_safetensors(tmp_path, published(2)), tiny_target(hidden_size=64).config)


class Code:
    def __reduce__(self):
        return print, ("executed",)


def test_a_pickle_that_holds_code_is_not_executed(target, tmp_path, capsys):
    folder = as_pickle(tmp_path, {**published(1), "0.2.weight": Code()})
    with pytest.raises(UserError, match="can't be read"):
        read_medusa(folder, target.config)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["{}.0.linear.weight", "0.{}.linear.bias", "{}.1.weight"])
def test_a_number_of_thousands_of_digits_counts_no_head(target, tmp_path, name):
    folder = as_safetensors(tmp_path, {**published(2, 1), name.format("9" * 5000): torch.zeros(1)})
    with pytest.raises(UserError, match=r"unexpected: [09]"):
        read_medusa(folder, target.config)
