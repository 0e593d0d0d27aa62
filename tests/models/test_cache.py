"""Rows of the KV cache are exactly the rows kept, across crops, gathers and growth; what can't be kept is refused."""

import pytest
import torch
from fakes import tiny_model
from transformers import AutoConfig

from specviz.errors import UserError
from specviz.models.cache import FIRST_CAPACITY, GrowingLayer, PrefixCache


def rows(*values: int) -> torch.Tensor:
    """Keys [1, 2, k, 3] that show which row they are."""
    return torch.tensor(values, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 3).clone()


def held(layer: GrowingLayer) -> list[int]:
    assert torch.equal(layer.values, -layer.keys), "keys and values hold different rows"
    assert layer.keys.shape[-2] == layer.get_seq_length() == layer.rows
    assert bool((layer.keys == layer.keys[:, :1, :, :1]).all()), "heads hold different rows"
    return layer.keys[0, 0, :, 0].int().tolist()


def layer_with(count: int) -> GrowingLayer:
    layer = GrowingLayer()
    layer.update(rows(*range(count)), -rows(*range(count)))
    return layer


def test_rows_are_appended_in_order():
    layer = layer_with(3)
    keys, values = layer.update(rows(7, 8), -rows(7, 8))
    assert held(layer) == [0, 1, 2, 7, 8]
    assert torch.equal(keys, layer.keys) and torch.equal(values, layer.values)


@pytest.mark.parametrize("first", [1, FIRST_CAPACITY - 1, FIRST_CAPACITY, FIRST_CAPACITY + 1, 3 * FIRST_CAPACITY])
@pytest.mark.parametrize("more", [1, 2, FIRST_CAPACITY])
def test_growing_across_the_capacity_loses_nothing(first, more):
    layer = layer_with(first)
    added = range(first, first + more)
    layer.update(rows(*added), -rows(*added))
    assert held(layer) == list(range(first + more))


def test_the_buffer_doubles_and_single_tokens_are_written_in_place():
    layer = layer_with(1)
    buffers = set()
    for row in range(1, 4 * FIRST_CAPACITY):
        layer.update(rows(row), -rows(row))
        buffers.add(layer.key_buffer.data_ptr())
        assert layer.keys.data_ptr() == layer.key_buffer.data_ptr()
    assert layer.key_buffer.shape[-2] == 4 * FIRST_CAPACITY
    assert len(buffers) <= 3
    assert held(layer) == list(range(4 * FIRST_CAPACITY))


def test_growth_after_a_crop_keeps_only_the_rows_that_were_left():
    layer = layer_with(FIRST_CAPACITY)
    layer.crop(-6)
    added = range(1000, 1000 + FIRST_CAPACITY)
    layer.update(rows(*added), -rows(*added))
    assert held(layer) == [*range(FIRST_CAPACITY - 6), *added]


def test_crop_of_a_layer_takes_the_number_of_rows_to_remove():
    layer = layer_with(10)
    layer.crop(-3)
    assert held(layer) == list(range(7))
    layer.crop(2)
    assert held(layer) == list(range(5))
    layer.crop(0)
    assert held(layer) == list(range(5))
    GrowingLayer().crop(-2)  # nothing read yet


@pytest.mark.parametrize("kept", [[], [4], [5], [7], [4, 5, 6, 7], [4, 6], [5, 7], [6, 7], [4, 5, 7]])
def test_gather_keeps_the_prefix_and_the_rows_asked_for(kept):
    layer = layer_with(8)
    layer.gather(4, kept)
    assert held(layer) == [0, 1, 2, 3, *kept]
    layer.update(rows(50), -rows(50))
    assert held(layer) == [0, 1, 2, 3, *kept, 50]


def test_a_prefix_cache_crops_to_a_length_and_never_grows_by_it():
    cache = PrefixCache(tiny_model().config)
    for layer in cache.hf.layers:
        layer.update(rows(*range(9)), -rows(*range(9)))
    cache.crop(12)
    assert len(cache) == 9
    cache.crop(5)
    assert len(cache) == 5
    assert all(held(layer) == [0, 1, 2, 3, 4] for layer in cache.hf.layers)


def test_crop_leaves_layers_alone_that_an_early_exit_skipped():
    cache = PrefixCache(tiny_model().config)
    for index, layer in enumerate(cache.hf.layers):
        count = 7 if index < 2 else 4
        layer.update(rows(*range(count)), -rows(*range(count)))
    assert len(cache) == 7
    cache.crop(4)
    assert [layer.rows for layer in cache.hf.layers] == [4, 4, 4, 4]


@pytest.mark.parametrize("architecture", ["llama", "qwen", "gpt2", "gpt-neox", "sliding", "mixed"])
def test_attention_alone_needs_no_snapshot(architecture):
    cache = PrefixCache(tiny_model(architecture).config)
    assert not cache.is_recurrent and cache.snapshot() == []


def test_a_hybrid_model_is_recurrent():
    assert PrefixCache(tiny_model("hybrid").config).is_recurrent


@torch.inference_mode()
def test_a_snapshot_brings_the_recurrent_states_back():
    model = tiny_model("hybrid")
    cache = PrefixCache(model.config)

    def read(*tokens: int) -> None:
        model(input_ids=torch.tensor([tokens]), cache=cache.hf, use_cache=True)

    def states() -> list[torch.Tensor]:
        layers = [layer for layer in cache.hf.layers if hasattr(layer, "recurrent_states")]
        return [state.clone() for layer in layers for state in (layer.conv_states[0], layer.recurrent_states[0])]

    read(3, 4, 5)
    before, snapshot = states(), cache.snapshot()
    read(6, 7)
    assert len(before) == 4 and all(not torch.equal(a, b) for a, b in zip(before, states(), strict=True))
    cache.restore(snapshot)
    assert all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))
    read(6, 7)
    cache.restore(snapshot)  # a snapshot is a copy: it serves again
    assert all(torch.equal(a, b) for a, b in zip(before, states(), strict=True))


@torch.inference_mode()
def test_a_snapshot_of_nothing_read_brings_nothing_back():
    model = tiny_model("hybrid")
    cache, fresh = PrefixCache(model.config), PrefixCache(model.config)
    snapshot = cache.snapshot()
    model(input_ids=torch.tensor([[6, 7]]), cache=cache.hf, use_cache=True)
    cache.crop(0)
    cache.restore(snapshot)
    again = model(input_ids=torch.tensor([[3, 4, 5]]), cache=cache.hf, use_cache=True).logits
    expected = model(input_ids=torch.tensor([[3, 4, 5]]), cache=fresh.hf, use_cache=True).logits
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize(
    ("model_type", "settings", "named"),
    [
        ("mamba", {"num_hidden_layers": 2}, "recurrent layers only"),
        ("mamba2", {"num_hidden_layers": 2}, "recurrent layers only"),
        ("falcon_h1", {"num_hidden_layers": 2}, "LinearAttentionAndFullAttentionLayer"),
        ("deepseek_v32", {"num_hidden_layers": 2}, "DynamicIndexedLayer"),
    ],
)
def test_what_cannot_be_rolled_back_is_refused_in_one_sentence(model_type, settings, named):
    with pytest.raises(UserError, match=named) as refused:
        PrefixCache(AutoConfig.for_model(model_type, **settings))
    sentence = str(refused.value)
    assert sentence.startswith(model_type) and sentence.endswith(".") and sentence.count(". ") == 0
    assert "choose" in sentence
