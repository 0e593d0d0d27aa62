"""Reading a drafter's files: what is refused before it is read, strict filling, and the target it was made for."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from fakes import byte_tokenizer, tiny_target
from safetensors.torch import save_file
from torch import nn

from specviz.drafters.heads import files
from specviz.drafters.heads.files import about, check_target, describe_target, fill, open_checkpoint, tensors
from specviz.drafters.heads.offsets import from_offsets, to_offsets
from specviz.errors import UserError
from specviz.models import checkpoint

A, B = torch.arange(6.0).view(2, 3), torch.arange(4, dtype=torch.bfloat16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"specviz": {"target": "tiny"}}')
    return tmp_path


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) and found[name].dtype == wanted[name].dtype for name in wanted
    )


def shard(folder: Path, parts: dict[str, dict[str, torch.Tensor]]) -> None:
    for name, part in parts.items():
        save_file(part, folder / name)
    weight_map = {tensor: name for name, part in parts.items() for tensor in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_of_one_file_several_and_a_pickle(folder):
    torch.save({"a": A, "b": B}, folder / "pytorch_model.bin")
    assert same(tensors(folder), {"a": A, "b": B})
    shard(folder, {"x-1.safetensors": {"a": A + 1}, "x-2.safetensors": {"b": B}})
    assert same(tensors(folder), {"a": A + 1, "b": B})  # not the pickle's
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=r"several weight files \(x-1.safetensors, x-2.safetensors\)"):
        tensors(folder)
    save_file({"a": A + 2}, folder / "model.safetensors")
    assert same(tensors(folder), {"a": A + 2})


def test_old_pickles_and_what_trainers_leave_beside_them(folder):
    torch.save({"a": A}, folder / "medusa_lm_head.pt", _use_new_zipfile_serialization=False)
    torch.save({"b": B}, folder / "training_args.bin")
    assert same(tensors(folder), {"a": A})


class Harmful:
    def __reduce__(self):
        return print, ("this ran",)


def test_pickles_run_nothing(folder, capsys):
    torch.save({"a": Harmful()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="can't be read"):
        tensors(folder)
    assert "this ran" not in capsys.readouterr().out
    for other in ([A], A.to("meta"), A.to_sparse()):
        torch.save({"a": other}, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match="something else than plain tensors"):
            tensors(folder)


def test_a_folder_without_config_or_weights(tmp_path):
    with pytest.raises(UserError, match=r"has no config.json"):
        tensors(tmp_path)
    with pytest.raises(UserError, match=r"has no config.json"):
        about(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds no weights"):
        tensors(tmp_path)
    assert about(tmp_path) == {}
    (tmp_path / "config.json").write_text('{"specviz": 3}')
    with pytest.raises(UserError, match="no mapping"):
        about(tmp_path)


def test_a_damaged_file_and_one_that_names_files_elsewhere(folder):
    save_file({"a": A}, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(UserError, match="damaged or incomplete"):
        tensors(folder)
    (folder / "model.safetensors").unlink()
    (folder.parent / "other.safetensors").write_bytes(whole)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    with pytest.raises(UserError, match="lacks 1 of the weight files"):
        tensors(folder)


def test_what_does_not_fit_in_memory_is_not_read(folder, monkeypatch):
    save_file({"a": A, "b": B}, folder / "model.safetensors")
    monkeypatch.setattr(files.memory, "available_bytes", lambda device: 24)
    found = open_checkpoint(folder)  # names and shapes take nothing
    assert found.shapes == {"a": (2, 3), "b": (4,)}
    assert same(found.read(["a"]), {"a": A})  # 24 bytes
    with pytest.raises(UserError, match="memory are free"):
        tensors(folder)  # 32
    (folder / "model.safetensors").unlink()
    torch.save({"a": A}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="memory are free"):
        open_checkpoint(folder)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("d2t", torch.zeros(4, dtype=torch.int64))


GIVEN = {"linear.weight": A, "linear.bias": torch.ones(2), "d2t": torch.arange(4)}


def test_fill_takes_all_in_their_own_dtypes():
    module = Small()
    fill(module, {**GIVEN, "linear.bias": torch.ones(2, dtype=torch.bfloat16)}, "x")
    assert torch.equal(module.linear.weight, A) and module.linear.bias.dtype == torch.bfloat16
    assert torch.equal(module.d2t, torch.arange(4)) and isinstance(module.linear.weight, nn.Parameter)


@pytest.mark.parametrize("name", GIVEN)
def test_fill_names_every_tensor_that_is_missing_or_of_another_shape(name):
    with pytest.raises(UserError, match=rf"^The tensors of x do not fit .*missing: file.{name}\)"):
        fill(Small(), {key: value for key, value in GIVEN.items() if key != name}, "x", lambda inside: f"file.{inside}")
    wrong = torch.zeros(7, dtype=GIVEN[name].dtype)
    shape = list(GIVEN[name].shape)
    with pytest.raises(UserError) as refusal:
        fill(Small(), {**GIVEN, name: wrong}, "x")
    assert f"of another shape: {name} is [7] and should be {shape})" in str(refusal.value)


def test_fill_names_what_is_unexpected_and_leaves_the_module_alone():
    module = Small()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(UserError, match=r"\(unexpected: extra.weight\)"):
        fill(module, {**GIVEN, "extra.weight": A}, "x")
    assert same(module.state_dict(), before)


def target(name: str = "tiny", weights: str = "w", **overrides: object):
    found = tiny_target("llama", tokenizer=byte_tokenizer(), vocab_size=len(byte_tokenizer()), **overrides)
    found.name, found.weights = name, weights
    return found


def test_the_target_that_a_drafter_was_made_for():
    made_for = describe_target(target())
    assert check_target(made_for, target()) is None
    assert check_target({}, target()) is None
    assert check_target(made_for, target("a copy in another folder")) is None  # the same weights
    note = check_target(made_for, target(weights="other"))
    assert note is not None and note.startswith("This drafter was made for other weights of tiny;")
    with pytest.raises(UserError, match="made for tiny, not for another"):
        check_target(made_for, target("another", "other"))


def test_a_drafter_for_another_width_vocabulary_or_tokenizer_is_refused():
    made_for = describe_target(target())
    with pytest.raises(UserError, match=r"hidden size is another than that of tiny \(32, here 16\)"):
        check_target(made_for, target(hidden_size=16))
    with pytest.raises(UserError, match=r"vocabulary size is another than that of tiny \(300, here 259\)"):
        check_target({**made_for, "target_vocab_size": 300}, target())
    other = copy.deepcopy(byte_tokenizer())
    other.add_tokens(["word"])
    different = target()
    different.tokenizer = other
    with pytest.raises(UserError, match="tokenizer is another"):
        check_target(made_for, different)


IDS = torch.tensor([0, 3, 4, 9])


def test_offsets_there_and_back():
    stored = to_offsets(IDS, 10)
    assert stored["d2t"].tolist() == [0, 2, 2, 6]  # to be added to 0, 1, 2, 3
    assert stored["t2d"].nonzero()[:, 0].tolist() == IDS.tolist() and stored["t2d"].dtype == torch.bool
    assert torch.equal(from_offsets(stored, 10, "x"), IDS)
    assert torch.equal(from_offsets({"d2t": stored["d2t"].int()}, 10, "x"), IDS)
    apart = to_offsets(torch.tensor([0, 2, 4]), 10)  # no two are neighbours: the mask tells that these are offsets
    assert from_offsets(apart, 10, "x").tolist() == [0, 2, 4]
    with pytest.raises(ValueError):
        to_offsets(torch.tensor([3, 1]), 10)


class OnAnAccelerator(torch.Tensor):
    """As a tensor there: with those on the CPU it computes nothing, and it can be copied to it."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if any(type(value) is torch.Tensor for value in arguments):
            raise RuntimeError("Expected all tensors to be on the same device")
        if function is torch.Tensor.cpu:
            return arguments[0].as_subclass(torch.Tensor)
        return super().__torch_function__(function, types, arguments, named or {})


def test_offsets_of_a_head_that_was_trained_on_an_accelerator():
    there = IDS.as_subclass(OnAnAccelerator)
    with pytest.raises(RuntimeError, match="same device"):
        there - torch.arange(4)
    found = to_offsets(there, 10)
    assert same(found, to_offsets(IDS, 10)) and {type(tensor) for tensor in found.values()} == {torch.Tensor}


def test_offsets_that_are_none_are_refused():
    t2d = to_offsets(IDS, 10)["t2d"]
    for wrong in ({"d2t": IDS}, {"d2t": IDS, "t2d": t2d}, {"d2t": torch.tensor([0, 1, 2])}):
        with pytest.raises(UserError, match="holds the target's token ids themselves"):
            from_offsets(wrong, 10, "x")
    offsets = torch.tensor([0, 2, 2, 6])
    with pytest.raises(UserError, match="does not name the tokens that t2d names"):
        from_offsets({"d2t": offsets, "t2d": t2d.roll(1)}, 10, "x")
    for unsorted in (torch.tensor([5, 0, 0, 0]), torch.tensor([0, -1, 0, 0]), torch.tensor([-1, 0, 0, 0]), offsets + 1):
        with pytest.raises(UserError, match="not sorted, or goes beyond"):
            from_offsets({"d2t": unsorted}, 10, "x")
    with pytest.raises(UserError, match=r"t2d of x is \[9\] and should be \[10\]"):
        from_offsets({"d2t": offsets, "t2d": t2d[:9]}, 10, "x")
    for shape in (torch.zeros(4), torch.zeros(0, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long)):
        with pytest.raises(UserError, match="whole numbers"):
            from_offsets({"d2t": shape}, 10, "x")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_weights_that_are_no_numbers_with_a_fraction_are_refused(dtype):
    layer = nn.Linear(2, 2)
    layer.register_buffer("ids", torch.arange(2))
    stored = {"weight": torch.ones(2, 2, dtype=dtype), "bias": torch.ones(2).half(), "ids": torch.tensor([3, 4])}
    with pytest.raises(UserError, match=rf"\(of another type: weight is {dtype}\)"):
        fill(layer, stored, "x")
    with pytest.raises(UserError, match=r"\(of another type: ids is torch.float32\)"):
        fill(layer, {**stored, "weight": torch.ones(2, 2), "ids": torch.ones(2)}, "x")
    fill(layer, {**stored, "weight": torch.ones(2, 2).bfloat16()}, "x")
    assert layer.weight.dtype == torch.bfloat16 and layer.ids.tolist() == [3, 4]


def test_a_config_longer_than_any_is_not_read(folder, monkeypatch):
    length = (folder / "config.json").stat().st_size
    monkeypatch.setattr(checkpoint, "MOST_JSON", length)
    assert about(folder) == {"target": "tiny"}
    monkeypatch.setattr(checkpoint, "MOST_JSON", length - 1)
    with pytest.raises(UserError, match=rf"can't be read \(it has more than {length - 1} bytes\)"):
        about(folder)
