"""Models that can't verify a draft are refused at load; those that can are not."""

import pytest
import torch
from fakes import ARCHITECTURES, tiny_model, tiny_target
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.decoding.draft import Draft
from specviz.drafters import DraftModel
from specviz.errors import UserError
from specviz.models.probe import check_rollback
from specviz.models.target import Target

SHAPE = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}


def build(model_type: str, **settings: object):
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SHAPE, "pad_token_id": None, **settings})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # as opinionated as a trained model, so that a wrong state shows
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 3 / parameter.shape[-1] ** 0.5)
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_models_pass(architecture, dtype):
    check_rollback(tiny_model(architecture).to(dtype), "sound")


def test_recurrent_layers_that_forget_their_state_in_a_pass_over_several_tokens():
    model = build(
        "jamba", attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_key_value_heads=2, use_mamba_kernels=False
    )
    with pytest.raises(UserError, match="does not continue exactly"):
        Target(model, name="jamba")
    with pytest.raises(UserError, match=r"does not continue exactly|recurrent layers"):
        DraftModel(tiny_target(vocab_size=40), model)


def test_a_model_that_sees_later_tokens():
    with pytest.raises(UserError, match=r"does not continue exactly|can't be decoded|no cache"):
        Target(build("bert", is_decoder=False), name="bert")


def test_an_early_exit_of_the_same_model_is_untouched_by_the_probe():
    target = tiny_target()
    assert len(target.cache) == 0


def test_chunked_attention_can_verify_chains_but_is_refused_a_tree():
    model = build(
        "llama4_text",
        attention_chunk_size=8,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        intermediate_size_mlp=48,
    )
    target = Target(model, name="chunked")
    with torch.inference_mode():
        target.prefill([1, 2, 3])
        tree = Draft((5, 6), (-1, -1), torch.eye(40)[[5, 6]])
        with pytest.raises(UserError, match="masked as a tree"):
            target.verify(4, tree)
