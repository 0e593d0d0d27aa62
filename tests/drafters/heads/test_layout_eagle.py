"""EAGLE-1 and EAGLE-2 checkpoints: read as published, and computing what is published."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafted import bound, drafted, given, target_of
from published import LAYERS, LLAMA, VOCAB, WIDTH, attention_and_mlp, chain, layer, random, save
from torch import Tensor

from specviz.drafters.heads.layouts import read_head, write_head
from specviz.errors import UserError

CONFIG = {**LLAMA, "architectures": ["LlamaForCausalLM"], "bias": True}


def eagle_tensors(bias: bool = True) -> dict[str, Tensor]:
    return random(
        {
            "embed_tokens.weight": (VOCAB, WIDTH),
            "fc.weight": (WIDTH, 2 * WIDTH),
            **({"fc.bias": (WIDTH,)} if bias else {}),
            **attention_and_mlp("layers.0."),
            "layers.0.post_attention_layernorm.weight": (WIDTH,),
        }
    )


def reference(tensors: dict[str, Tensor]) -> list[Tensor]:
    """Logits of four drafted tokens: a layer without a norm before its attention, the target's LM head, and no norm."""
    w = {key: tensor.double() for key, tensor in tensors.items()}
    features, tokens, embed, lm_head = given(taps=1)

    def step(embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([embeddings, features], -1) @ w["fc.weight"].T + w.get("fc.bias", 0)
        output = layer(x, x, w, "layers.0.")
        return output @ lm_head.T, output

    return chain(step, features, tokens, w.get("embed_tokens.weight", embed), list(range(VOCAB)))


@pytest.mark.parametrize("said", [True, False])  # what the config says of the bias; it does not count
@pytest.mark.parametrize("bias", [True, False])
def test_a_published_head_drafts_what_the_paper_says(tmp_path, bias, said):
    tensors = eagle_tensors(bias)
    head = read_head(save(tmp_path, {**CONFIG, "bias": said}, tensors), target_of().config)
    assert (head.config.fc_bias, head.config.hidden_layers) == (bias, (LAYERS,))
    for found, wanted in zip(drafted(bound(head)), reference(tensors), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


def test_without_an_embedding_it_has_the_targets(tmp_path):
    tensors = {name: tensor for name, tensor in eagle_tensors().items() if name != "embed_tokens.weight"}
    head = bound(read_head(save(tmp_path, CONFIG, tensors), target_of().config))
    for found, wanted in zip(drafted(head), reference(tensors), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in eagle_tensors(False) if name != "embed_tokens.weight"])
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name):
    tensors = eagle_tensors()
    changed = {**tensors, name: torch.zeros(5, 5)}
    with pytest.raises(UserError) as refusal:
        read_head(save(tmp_path, CONFIG, changed), target_of().config)
    assert f"{name} is [5, 5] and should be {list(tensors[name].shape)}" in str(refusal.value)
    del changed[name]
    with pytest.raises(UserError, match=f"missing: {name}"):
        read_head(save(tmp_path, CONFIG, changed), target_of().config)


def test_what_does_not_belong_there_is_named(tmp_path):
    save(tmp_path, CONFIG, {**eagle_tensors(), "layers.0.self_attn.rotary.weight": torch.zeros(2)})
    with pytest.raises(UserError, match=r"unexpected: layers.0.self_attn.rotary.weight"):
        read_head(tmp_path, target_of().config)
    more: dict[str, Any] = {f"layers.1.{name}": torch.zeros(1) for name in ("a", "b")}
    with pytest.raises(UserError, match=r"has 2 layers, \[0, 1\]; heads have one"):
        read_head(save(tmp_path, CONFIG, {**eagle_tensors(), **more}), target_of().config)
    with pytest.raises(UserError, match="holds no head in a layout"):
        read_head(save(tmp_path, CONFIG, {"0.0.linear.weight": torch.zeros(2)}), target_of().config)


def test_a_layout_that_can_not_say_it_is_not_written_in_silence(tmp_path):
    head = read_head(save(tmp_path / "a", CONFIG, eagle_tensors()), target_of().config)
    with pytest.raises(ValueError, match="the layout eagle3 can't say"):
        write_head(head, tmp_path / "b", "eagle3", {})
    with pytest.raises(ValueError, match="is only read"):
        write_head(head, tmp_path / "b", "speculators", {})


@pytest.mark.parametrize("bias", [True, False])
def test_written_and_read_again(tmp_path, bias):
    head = read_head(save(tmp_path / "a", CONFIG, eagle_tensors(bias)), target_of().config)
    write_head(head, tmp_path / "b", "eagle", {"kind": "eagle"})
    again = read_head(tmp_path / "b", target_of().config)
    assert again.config == head.config
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in head.state_dict().items())
