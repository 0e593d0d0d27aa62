"""Prediction layers as MiMo, Qwen, DeepSeek and GLM ship them, and speculators': read and computed as published."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafted import bound, drafted, given, target_of
from published import (
    DRAFT_IDS,
    LAYERS,
    LLAMA,
    VOCAB,
    WIDTH,
    attention_and_mlp,
    chain,
    layer,
    random,
    rms,
    save,
    vocabulary,
)
from torch import Tensor

from specviz.drafters.heads.files import about
from specviz.drafters.heads.layouts import read_head, write_head
from specviz.errors import UserError

MIMO = {**LLAMA, "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
LAYER = "model.mtp_layers.0."
REST = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}


def mimo_tensors(prefix: str = LAYER, bias: bool = True, extra: dict[str, tuple[int, ...]] | None = None):
    shapes = {
        f"{prefix}token_layernorm.weight": (WIDTH,),
        f"{prefix}hidden_layernorm.weight": (WIDTH,),
        f"{prefix}input_proj.weight": (WIDTH, 2 * WIDTH),
        f"{prefix}final_layernorm.weight": (WIDTH,),
        f"{prefix}input_layernorm.weight": (WIDTH,),
        f"{prefix}post_attention_layernorm.weight": (WIDTH,),
        **attention_and_mlp(prefix),
        **(extra or {}),
    }
    widths = {f"{prefix}self_attn.{n}_proj.bias": shapes[f"{prefix}self_attn.{n}_proj.weight"][:1] for n in "qkv"}
    return random({**shapes, **(widths if bias else {})})


def reference(
    tensors: dict[str, Tensor],
    prefix: str = LAYER,
    *,
    reverse: bool = True,
    zeroed: bool = True,
    ids: list[int] | None = None,
) -> list[Tensor]:
    """Logits of four drafted tokens: norms of state and embedding, projected to one width, a layer, a norm."""
    w = {key: tensor.double() for key, tensor in tensors.items()}
    features, tokens, embed, lm_head = given(taps=1)
    ids = ids or list(range(VOCAB))
    lm_head = lm_head[ids]

    def step(embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = torch.cat([embeddings[:1] * (not zeroed), embeddings[1:]])  # as vLLM runs it
        pair = [
            rms(embeddings, w[f"{prefix}token_layernorm.weight"]),
            rms(features, w[f"{prefix}hidden_layernorm.weight"]),
        ]
        x = torch.cat(pair[::-1] if reverse else pair, -1) @ w[f"{prefix}input_proj.weight"].T
        states = layer_with_norm(x, w, prefix)
        states = rms(states, w[f"{prefix}final_layernorm.weight"])
        return states @ lm_head.T, states

    return chain(step, features, tokens, embed, ids)


def layer_with_norm(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    return layer(rms(x, w[f"{prefix}input_layernorm.weight"]), x, w, prefix)


def check(folder, wanted: list[Tensor]) -> None:
    for found, expected in zip(drafted(bound(read_head(folder, target_of().config))), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_mimo_out_of_a_whole_model(tmp_path, bias):
    tensors = mimo_tensors(bias=bias)
    rest = random({**REST, "model.layers.0.mlp.up_proj.weight": (3, 3)}, seed=1)
    save(tmp_path, {**MIMO, "num_hidden_layers": LAYERS}, {**tensors, **rest})
    assert read_head(tmp_path, target_of().config).config.hidden_layers == (LAYERS,)
    check(tmp_path, reference(tensors))


def test_the_order_and_the_first_embedding_matter(tmp_path):
    tensors = mimo_tensors()
    usual = reference(tensors)[-1]
    assert not torch.allclose(usual, reference(tensors, reverse=False)[-1], atol=1e-3)
    assert not torch.allclose(usual, reference(tensors, zeroed=False)[-1], atol=1e-3)


SPECULATORS: dict[str, Any] = {
    "architectures": ["MTPDraftModel"],
    "speculators_model_type": "mtp",
    "speculators_config": {"algorithm": "mtp", "verifier": {"name_or_path": "some/target", "architectures": []}},
    "num_nextn_predict_layers": 1,
    "transformer_layer_config": {**LLAMA, "model_type": "qwen3", "num_hidden_layers": LAYERS},
}


def test_speculators(tmp_path):
    prefix = "mtp_layers.0."
    norms = {f"{prefix}self_attn.{name}_norm.weight": (8,) for name in "qk"}
    tensors = mimo_tensors(prefix, bias=False, extra=norms)
    save(tmp_path, SPECULATORS, tensors)
    check(tmp_path, reference(tensors, prefix, reverse=False, zeroed=False))


@pytest.mark.parametrize("name", mimo_tensors(bias=False))
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name):
    tensors = mimo_tensors(bias=False)
    changed = {**tensors, name: torch.zeros(5, 5)}
    with pytest.raises(UserError) as refusal:
        read_head(save(tmp_path, MIMO, changed), target_of().config)
    assert f"{name} is [5, 5] and should be {list(tensors[name].shape)}" in str(refusal.value)
    del changed[name]
    with pytest.raises(UserError, match=f"missing: {name}"):
        read_head(save(tmp_path, MIMO, changed), target_of().config)


def test_what_is_not_read_is_said(tmp_path):
    config = target_of().config
    save(tmp_path, MIMO, {**mimo_tensors(), f"{LAYER}router.weight": torch.zeros(2)})
    with pytest.raises(UserError, match=f"unexpected: {LAYER}router.weight"):
        read_head(tmp_path, config)
    save(tmp_path, MIMO, {**mimo_tensors(), **mimo_tensors("model.mtp_layers.1.")})
    with pytest.raises(UserError, match="has 2 layers"):
        read_head(tmp_path, config)
    save(tmp_path, MIMO, {**mimo_tensors(), f"{LAYER}mlp.up_proj.weight_scale_inv": torch.zeros(1)})
    with pytest.raises(UserError, match="is quantised"):
        read_head(tmp_path, config)
    save(tmp_path, {**MIMO, "hidden_size": 20}, mimo_tensors())
    with pytest.raises(UserError, match="its width is 20 and this target's 16"):
        read_head(tmp_path, config)


OURS = {**MIMO, "draft_vocab_size": len(DRAFT_IDS), "specviz": {"shares_lm_head": True}}


def test_a_head_of_ours_with_a_draft_vocabulary(tmp_path):
    tensors = mimo_tensors(bias=False)
    save(tmp_path, OURS, {**tensors, **vocabulary()})
    check(tmp_path, reference(tensors, ids=DRAFT_IDS))
    said = {"head": {"combine": "mtp", "zero_first_embedding": False, "feedback": "normed", "hidden_layers": [LAYERS]}}
    save(tmp_path, {**OURS, "specviz": said}, {**tensors, **vocabulary()})
    check(tmp_path, reference(tensors, ids=DRAFT_IDS, reverse=False, zeroed=False))


@pytest.mark.parametrize("own_lm_head", [True, False])
def test_written_and_read_again(tmp_path, own_lm_head):
    lm_head = random({"lm_head.weight": (len(DRAFT_IDS), WIDTH)}) if own_lm_head else {}
    said = {"shares_lm_head": not own_lm_head, "head": {"zero_first_embedding": False}}
    tensors = {**mimo_tensors(bias=False), **vocabulary(), **lm_head}
    head = read_head(save(tmp_path / "a", {**OURS, "specviz": said}, tensors), target_of().config)
    write_head(head, tmp_path / "b", "mtp", {"kind": "mtp"})
    again = read_head(tmp_path / "b", target_of().config)
    assert again.config == head.config and again.config.zero_first_embedding is False
    assert again.state_dict().keys() == head.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in head.state_dict().items())
    assert about(tmp_path / "b")["shares_lm_head"] is not own_lm_head
