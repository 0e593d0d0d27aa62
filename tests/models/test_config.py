"""Configurations say what a model is, and not what else is to be read or run."""

from __future__ import annotations

import json

import pytest
from fakes import tiny_model
from transformers import modeling_utils
from transformers.integrations import hub_kernels

from specviz import memory
from specviz.models.config import IGNORED, config_of

KERNELS = sorted(name for name in IGNORED if "implementation" in name)


@pytest.fixture
def no_kernels(monkeypatch):
    """Transformers takes the library that downloads kernels for installed, and must not ask it for any."""
    for module in (hub_kernels, modeling_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda *args, **options: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **options: pytest.fail(f"kernel {name} asked for"))


def write(folder, config, **changes):
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), **changes}))
    return config_of("Tiny", folder)


def implementations(config) -> set[object]:
    """What a configuration and its parts ask for."""
    parts = [config, *(getattr(config, name) for name in config.sub_configs)]
    return {part._attn_implementation for part in parts} | {part._experts_implementation for part in parts}


@pytest.mark.parametrize("kernel", ["someone/kernel", "kernels-community/flash-attn3@other", "flash_attention_2", "x"])
@pytest.mark.parametrize("entry", KERNELS)
def test_a_config_names_no_kernels(tmp_path, no_kernels, entry, kernel):
    config = write(tmp_path, tiny_model().config, **{entry: kernel})
    assert implementations(config) == {None}
    assert memory.count_parameters(config) == tiny_model().num_parameters()


@pytest.mark.parametrize("entry", KERNELS)
def test_parts_of_a_model_name_no_kernels(tmp_path, entry):
    text = {**tiny_model("mixed").config.to_dict(), "model_type": "gemma3_text", entry: "someone/kernel"}
    vision = {"hidden_size": 8, entry: "someone/kernel"}
    raw = {"model_type": "gemma3", "text_config": text, "vision_config": vision, entry: {"text_config": "x"}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = config_of("Tiny", tmp_path)
    assert implementations(config) == {None} and config.vision_config.hidden_size == 8


def test_a_config_names_no_code_and_no_other_file(tmp_path):
    (tmp_path / "config.4.0.0.json").write_text(json.dumps(tiny_model(num_hidden_layers=1).config.to_dict()))
    config = write(
        tmp_path, tiny_model().config, configuration_files=["config.4.0.0.json"], auto_map={"AutoConfig": "new.New"}
    )
    assert not hasattr(config, "auto_map") and config.num_hidden_layers == 4
    assert config.to_dict() == {**tiny_model().config.to_dict(), "_name_or_path": str(tmp_path)}


def test_classes_are_found_as_transformers_finds_them(tmp_path):
    """A Mistral model with layers of several kinds is one of another class there."""
    config = write(tmp_path, tiny_model("sliding").config, layer_types=["full_attention"] * 4)
    assert config.model_type == "ministral"
