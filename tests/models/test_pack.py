"""Packed linear layers: the same numbers as the layers they replace."""

import pytest
import torch
from fakes import VOCAB, tiny_model
from torch import nn

from specviz.models.pack import FORMATS, PackedLinear, bytes_held, can_pack, pack, packs, parameters_kept, weight_of
from specviz.models.skeleton import model_without_storage


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_layer_it_replaces(dtype, tolerance, bias):
    torch.manual_seed(0)
    linear = nn.Linear(96, 160, bias=bias, dtype=dtype)
    if not can_pack(linear):
        pytest.fail("this machine has no packed kernels, so the test shows nothing")
    packed = PackedLinear(linear)
    for rows in (1, 2, 5, 8, 33):
        states = torch.randn(1, rows, 96, dtype=dtype)
        with torch.inference_mode():
            torch.testing.assert_close(packed(states), linear(states), atol=tolerance, rtol=tolerance)


@torch.inference_mode()
def test_a_packed_model_gives_the_same_logits_and_holds_no_second_copy():
    model, twin = tiny_model("llama"), tiny_model("llama")
    linears = sum(type(module) is nn.Linear for module in model.modules())
    assert pack(twin) == linears == 4 * 7 + 1
    assert not any(type(module) is nn.Linear for module in twin.modules())
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    torch.testing.assert_close(twin(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_tied_embeddings_stay_usable():
    model, twin = (tiny_model("llama", tie_word_embeddings=True) for _ in range(2))
    pack(twin)
    ids = torch.tensor([[3, 1, 4]])
    torch.testing.assert_close(twin(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(twin.get_input_embeddings().weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_what_packing_keeps_is_known_before(architecture):
    for tied in (False, True):
        model = tiny_model(architecture, tie_word_embeddings=tied)
        kept, before = parameters_kept(model_without_storage(model.config)), bytes_held(model)
        assert kept == parameters_kept(model) == tied * VOCAB * 32
        assert before == 4 * model.num_parameters()
        pack(model)
        assert bytes_held(model) == before + 4 * kept


def test_formats_without_kernels_are_left_alone():
    model = tiny_model("llama").to(torch.float64)
    assert not can_pack(model) and pack(model) == 0
    assert not packs(torch.device("cpu"), torch.float64) and not packs(torch.device("meta"), FORMATS[0])
    assert any(type(module) is nn.Linear for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_weight_is_given_back_bit_for_bit(dtype, tied):
    """Sizes that are no multiples of the blocks in which it is stored."""
    sizes = {"vocab_size": 333, "hidden_size": 36, "intermediate_size": 50, "tie_word_embeddings": tied}
    model, twin = (tiny_model("llama", **sizes).to(dtype) for _ in range(2))
    if not can_pack(model):
        pytest.fail("this machine has no packed kernels, so the test shows nothing")
    pack(twin)
    assert isinstance(twin.lm_head, PackedLinear)
    assert torch.equal(weight_of(twin.lm_head, twin), model.lm_head.weight)
    assert torch.equal(weight_of(model.lm_head, model), model.lm_head.weight)
    shared = twin.get_input_embeddings().weight
    assert (weight_of(twin.lm_head, twin).data_ptr() == shared.data_ptr()) == tied, "no copy where there is no need"
    for mine, theirs in zip(twin.base_model.layers, model.base_model.layers, strict=True):
        assert torch.equal(weight_of(mine.mlp.down_proj, twin), theirs.mlp.down_proj.weight)
        assert torch.equal(weight_of(mine.self_attn.k_proj, twin), theirs.self_attn.k_proj.weight)


def test_another_layer_of_the_embeddings_shape_is_not_taken_for_them():
    sizes = {"vocab_size": 48, "intermediate_size": 48, "tie_word_embeddings": True}
    model, twin = (tiny_model("llama", **sizes) for _ in range(2))
    pack(twin)
    gate = twin.base_model.layers[0].mlp.gate_proj
    assert (gate.out_features, gate.in_features) == twin.get_input_embeddings().weight.shape
    assert torch.equal(weight_of(gate, twin), model.base_model.layers[0].mlp.gate_proj.weight)
