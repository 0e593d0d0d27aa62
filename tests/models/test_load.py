"""From a folder to a model in memory: what is read, what is refused, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from drafters.assistants import dflash_model
from fakes import byte_tokenizer, reference_logits, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, modeling_utils
from transformers.integrations import hub_kernels

from specviz import memory
from specviz.errors import NotEnoughMemory, UserError
from specviz.models.load import load_model, place_model, weight_hash
from specviz.models.pack import is_packed
from specviz.models.placement import Placement
from specviz.models.target import Target

CPU = torch.device("cpu")
BLOCK = 8  # rows and columns that share a scale in the FP8 checkpoints here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model as transformers saves it."""
    tiny_model(vocab_size=len(byte_tokenizer())).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What transformers was asked for, by the last model loaded."""
    settings: dict[str, object] = {}
    load = AutoModelForCausalLM.from_pretrained

    def recorded(*args: object, **given: object) -> object:
        settings.update(given)
        return load(*args, **given)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", recorded)
    return settings


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def to_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Make it a fine-grained FP8 checkpoint; returns the plain weights that it stands for."""
    stored, plain = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = plain[name] = weight
        if "proj" in name:
            blocks = weight.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))  # [R, 8, C, 8]
            scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
            eighths = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            stored[name] = eighths.reshape(weight.shape).contiguous()
            stored[f"{name}_scale_inv"] = scale
            plain[name] = (eighths.float() * scale[:, None, :, None]).reshape(weight.shape)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    configure(folder, quantization_config=settings)
    return plain


def test_one_device_means_no_hooks_and_nothing_to_say(folder):
    placement = place_model(folder, torch.float32, CPU)
    assert placement.devices == {"": CPU} and placement.notes == ()
    model, tokenizer = load_model(folder, torch.float32, CPU, packed=False, placement=placement)
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())
    expected = reference_logits(tiny_model(vocab_size=len(byte_tokenizer())), [1, 2, 3])
    assert torch.equal(reference_logits(model, [1, 2, 3]), expected)
    assert tokenizer.encode("ab") == byte_tokenizer().encode("ab")
    assert is_packed(load_model(folder, torch.float32, CPU)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_weights_are_unpacked_and_it_is_said(folder, dtype):
    plain = to_fp8(folder)
    placement = place_model(folder, dtype, CPU, name="Tiny")
    name = str(dtype).removeprefix("torch.")
    assert placement.notes == (
        f"The FP8 weights of Tiny are unpacked to {name}, so they are as large and as slow as others in it.",
    )
    model, _ = load_model(folder, dtype, CPU, packed=False, placement=placement)
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, plain[key].to(dtype)), key
    assert placement.need.weights_target == sum(weight.numel() for weight in plain.values()) * dtype.itemsize
    target = Target(model)
    assert target.dtype == dtype
    assert is_packed(load_model(folder, dtype, CPU)[0])


def test_fp8_weights_that_do_not_fit_unpacked_are_refused(folder, monkeypatch):
    unpacked = place_model(folder, torch.float32, CPU).need.total
    to_fp8(folder)
    monkeypatch.setattr(memory, "available_bytes", lambda device: unpacked - 1)
    with pytest.raises(NotEnoughMemory):
        load_model(folder, torch.float32, CPU)


def test_other_quantised_weights_count_as_they_are_stored(folder):
    configure(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    placement = place_model(folder, torch.float32, CPU)
    assert placement.need.weights_target == (folder / "model.safetensors").stat().st_size
    assert placement.notes == ()


def test_a_quantisation_that_needs_what_is_not_installed_is_one_sentence(folder):
    configure(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UserError, match="can't be loaded") as caught:
        load_model(folder, torch.float32, CPU)
    assert "\n" not in str(caught.value)


def test_weights_of_several_devices_are_loaded_as_placed(folder, asked):
    """The map reaches transformers; here every part of it is the CPU, so no hooks come of it."""
    parts = {"model": CPU, "lm_head": CPU}
    need = place_model(folder, torch.float32, CPU).need
    load_model(folder, torch.float32, CPU, placement=Placement(parts, need))
    assert asked["device_map"] == parts and asked["use_safetensors"] and asked["trust_remote_code"] is False
    assert "quantization_config" not in asked


def test_unpacking_is_asked_for_even_where_a_gpu_could_compute_in_fp8(folder, asked):
    """Transformers would download kernels for that, and run them."""
    to_fp8(folder)
    load_model(folder, torch.float32, CPU)
    assert asked["quantization_config"].dequantize is True
    assert tuple(asked["quantization_config"].weight_block_size) == (BLOCK, BLOCK)


def test_a_model_too_large_is_refused_before_its_weights_are_read(folder, monkeypatch):
    need = place_model(folder, torch.float32, CPU).need
    monkeypatch.setattr(memory, "available_bytes", lambda device: need.total - 1)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", pytest.fail)
    with pytest.raises(NotEnoughMemory, match=memory.human(need.total)):
        load_model(folder, torch.float32, CPU)
    monkeypatch.setattr(memory, "available_bytes", lambda device: need.total)
    assert place_model(folder, torch.float32, CPU).need.available == need.total
    with pytest.raises(NotEnoughMemory):
        place_model(folder, torch.float32, CPU, reserve=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dflash_model_is_loaded_without_a_tokenizer(tmp_path, dtype):
    dflash_model().save_pretrained(tmp_path)
    placement = place_model(tmp_path, dtype, CPU)
    assert placement.devices == {"": CPU} and placement.notes == ()
    model, tokenizer = load_model(tmp_path, dtype, CPU, packed=False, placement=placement)
    assert tokenizer is None and type(model) is type(dflash_model())
    for name, weight in dflash_model().state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.to(dtype)), name
    assert placement.need.weights_target == sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    assert is_packed(load_model(tmp_path, dtype, CPU)[0])
    byte_tokenizer().save_pretrained(tmp_path)
    _, tokenizer = load_model(tmp_path, dtype, CPU)
    assert tokenizer.get_vocab() == byte_tokenizer().get_vocab()


def test_any_other_model_needs_its_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="can't be loaded"):
        load_model(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    "name, sentence", [("config.json", "holds no model"), ("model.safetensors", "no .safetensors")]
)
def test_a_folder_without_a_model_is_refused(folder, name, sentence):
    (folder / name).unlink()
    for attempt in (place_model, load_model):
        with pytest.raises(UserError, match=sentence):
            attempt(folder, torch.float32, CPU)


def test_a_missing_tensor_is_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 tensors are missing, first model\.layers\.2\.mlp\.up_proj\.weight"):
        load_model(folder, torch.float32, CPU)


@pytest.mark.parametrize("changes", [{"hidden_size": "wide"}, {"model_type": "unheard-of"}, {"num_attention_heads": 0}])
def test_a_broken_config_is_one_sentence(folder, changes):
    configure(folder, **changes)
    for attempt in (place_model, load_model):
        with pytest.raises(UserError, match="can't be loaded") as caught:
            attempt(folder, torch.float32, CPU)
        assert "\n" not in str(caught.value)


def test_the_hash_is_of_the_weights_alone(folder):
    before = weight_hash(folder)
    configure(folder, note="changed")
    assert weight_hash(folder) == before and len(before) == 64
    to_fp8(folder)
    assert weight_hash(folder) != before


@pytest.mark.parametrize("entry", ["attn_implementation", "_attn_implementation", "_experts_implementation"])
def test_kernels_that_a_config_names_are_not_used(folder, monkeypatch, entry):
    """As if the library were installed that downloads and runs them."""
    for module in (hub_kernels, modeling_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda *args, **options: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **options: pytest.fail(f"kernel {name} asked for"))
    configure(folder, **{entry: "someone/kernel"})
    model, _ = load_model(folder, torch.float32, CPU)
    assert model.config._attn_implementation == "sdpa"
    assert model.config._experts_implementation == "eager"  # there are no experts
    expected = reference_logits(tiny_model(vocab_size=len(byte_tokenizer())), [1, 2, 3])
    assert torch.allclose(reference_logits(model, [1, 2, 3]), expected, atol=1e-4)


def test_a_config_of_too_many_layers_is_refused_before_a_model_is_built(folder, monkeypatch):
    configure(folder, num_hidden_layers=100_000)
    monkeypatch.setattr(memory, "estimate", pytest.fail)
    for attempt in (place_model, load_model):
        with pytest.raises(UserError, match=r"^config.json of the model in .* names more than 1000 layers"):
            attempt(folder, torch.float32, CPU)
