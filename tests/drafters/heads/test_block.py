"""The layer of a head computes what transformers' layers compute with the same weights."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from specviz.drafters.heads.block import CHUNK, MLP, Attention, Block, RMSNorm, Rotary
from specviz.models.cache import GrowingLayer

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, EPS, THETA, MOST = 32, 48, 4, 2, 16, 1e-5, 500.0, 64
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LAYERS: dict[str, tuple[str, str, dict[str, object] | None]] = {
    "llama": ("llama", "Llama", None),
    "qwen2, with biases": ("qwen2", "Qwen2", None),
    "qwen3, with norms of queries and keys": ("qwen3", "Qwen3", None),
    "linear": ("llama", "Llama", {"rope_type": "linear", "factor": 4.0}),
    "dynamic": ("llama", "Llama", {"rope_type": "dynamic", "factor": 4.0}),
    "yarn": ("llama", "Llama", YARN),
    "llama3": ("llama", "Llama", LLAMA3),
}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def library_layer(model_type: str, prefix: str, scaling: dict[str, object] | None) -> tuple[Any, Any]:
    """A decoder layer of transformers with random weights, and its rotary embedding."""
    config = AutoConfig.for_model(
        model_type,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=EPS,
        max_position_embeddings=MOST,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": THETA},
    )
    config.head_dim = HEAD_DIM
    config._attn_implementation = "sdpa"
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    layer = getattr(module, f"{prefix}DecoderLayer")(config, 0)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return layer.float(), getattr(module, f"{prefix}RotaryEmbedding")(config)


def own_layer(layer: Any) -> Block:
    names = layer.state_dict()
    attention = Attention(
        WIDTH,
        WIDTH,
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        bias="self_attn.q_proj.bias" in names,
        qk_norm="self_attn.q_norm.weight" in names,
        eps=EPS,
    )
    block = Block(attention, MLP(WIDTH, INNER), WIDTH, EPS, input_norm=True).float()
    block.load_state_dict(names, strict=True)
    return block


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_is_that_of_transformers(name):
    layer, library_rotary = library_layer(*LAYERS[name])
    block, rotary = own_layer(layer), Rotary(HEAD_DIM, THETA, LAYERS[name][2], MOST)
    states = torch.randn(2, 40, WIDTH, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(40).expand(2, 40)
    rotations = library_rotary(states, positions)
    expected = layer(states, position_embeddings=rotations, attention_mask=None, position_ids=positions)
    for mine, theirs in zip(rotary(positions, states.dtype, 40), rotations, strict=True):
        assert torch.equal(mine, theirs)
    found = block(states, states, rotary(positions, states.dtype, 40), None, None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_rows_added_one_by_one_are_those_of_one_pass():
    block, rotary = own_layer(library_layer("llama", "Llama", None)[0]), Rotary(HEAD_DIM, THETA, None, MOST)
    states = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(9)[None]
    whole = block(states, states, rotary(positions, states.dtype, 9), None, None)
    rows = GrowingLayer()
    for row in range(9):
        one = states[:, row : row + 1]
        found = block(one, one, rotary(positions[:, row : row + 1], states.dtype, row + 1), rows, None)
        torch.testing.assert_close(found, whole[:, row : row + 1], rtol=1e-5, atol=1e-5)


def test_the_norm_is_computed_in_float32():
    norm = RMSNorm(WIDTH, EPS).bfloat16()
    norm.weight.copy_(torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)))
    states = 100 * torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = states.float() * torch.rsqrt(states.float().pow(2).mean(-1, keepdim=True) + EPS)
    assert torch.equal(norm(states), exact.bfloat16() * norm.weight)
    assert not torch.equal(norm(states), torch.nn.functional.rms_norm(states, (WIDTH,), norm.weight, EPS))


def test_the_table_of_rotations_grows_and_follows_the_number_format():
    rotary = Rotary(HEAD_DIM, THETA, None, 10 * CHUNK)
    near, far = torch.tensor([[0, 5]]), torch.tensor([[5, 3 * CHUNK]])
    cos = rotary(near, torch.float32, 6)[0]
    angles = 5 * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close(cos[0], torch.stack([torch.ones(HEAD_DIM), angles.cos().repeat(2)]))
    assert torch.equal(rotary(far, torch.float32, 3 * CHUNK + 1)[0][0, 0], cos[0, 1])
    assert rotary(near, torch.bfloat16, 6)[0].dtype == torch.bfloat16


def test_dynamic_scaling_leaves_the_positions_that_a_head_was_made_for():
    """It begins beyond them, and to look ahead for the table would bring it on."""
    plain, dynamic = (Rotary(HEAD_DIM, THETA, scaling, MOST) for scaling in (None, LAYERS["dynamic"][2]))
    positions = torch.arange(MOST)[None]
    assert torch.equal(dynamic(positions, torch.float32, MOST)[0], plain(positions, torch.float32, MOST)[0])


def test_a_scaling_that_turns_kept_rows_anew_is_refused():
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0}
    with pytest.raises(ValueError, match="its positions are scaled by longrope, and those known are default, linear"):
        Rotary(HEAD_DIM, THETA, longrope, MOST)
