"""Whatever loads weights does so alone, because transformers alters the whole process meanwhile."""

from __future__ import annotations

import pytest
import torch
from fakes import byte_tokenizer, tiny_model
from locks import is_held

from specviz.models import fetch
from specviz.models.alone import loading_alone
from specviz.models.load import load_model


def test_a_model_is_loaded_alone(tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    original, held = torch.set_default_dtype, []

    def watched(dtype: torch.dtype) -> None:
        held.append(is_held(loading_alone))
        original(dtype)

    monkeypatch.setattr(torch, "set_default_dtype", watched)
    load_model(tmp_path, torch.bfloat16, torch.device("cpu"))
    assert held and all(held) and not is_held(loading_alone)


def test_weights_are_expanded_alone(tmp_path, monkeypatch):
    held = []

    def failing(*args: object, **kwargs: object) -> None:
        held.append(is_held(loading_alone))
        raise ValueError("not a GGUF file")

    monkeypatch.setattr(fetch.AutoModelForCausalLM, "from_pretrained", failing)
    with pytest.raises(fetch.Unavailable):
        fetch.convert(tmp_path / "weights.gguf", tmp_path / "out", lambda text, fraction: None)
    assert held == [True] and not is_held(loading_alone)
