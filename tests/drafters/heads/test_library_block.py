"""Layers of transformers as a head's layer: kept rows are those of one pass, in chains and trees."""

from __future__ import annotations

import pytest
import torch
from fakes import tiny_target
from tiny_heads import Checked, drafter, random_head

from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters.heads.library_block import FAMILIES, LibraryBlock
from specviz.errors import UserError

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 8,
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 7,
    "max_position_embeddings": 1024,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
QWEN_EXPERTS = {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16}
LINEAR = {"layer_types": ["linear_attention"] * 6 + ["full_attention"]}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
CONFIGS = {
    "deepseek_v3": {**SIZES, **ROUTED, **LATENT, "num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 3},
    "glm4_moe": {**SIZES, **ROUTED, "first_k_dense_replace": 3},
    "qwen3_next": {**SIZES, **QWEN_EXPERTS, **LINEAR},
    "qwen3_5_text": {**SIZES, **LINEAR},
    "qwen3_5_moe_text": {**SIZES, **QWEN_EXPERTS, **LINEAR},
}


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("block_type", FAMILIES)
def test_kept_rows_are_those_of_one_pass(block_type, tree):
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    head = random_head(target, "mtp", block_type=block_type, block_config=CONFIGS[block_type])
    made = drafter(target, head, Checked, tree=tree, nodes=6, branches=3)
    settings = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset(), sampler=Sampler(4.0))
    steps = list(decode(target, made, [3, 4, 5, 3], settings))
    assert {"accepted", "rejected"} <= {node.outcome for step in steps for node in step.nodes}


@pytest.mark.parametrize("block_type", FAMILIES)
def test_the_layer_is_of_the_kind_that_predicts(block_type):
    """With full attention, and with experts where the family has any, wherever the model's own layers have them."""
    layer = LibraryBlock(block_type, CONFIGS[block_type]).layer
    names = {name for name, _ in layer.named_parameters()}
    assert any(name.startswith("self_attn.") for name in names)
    assert any("experts" in name for name in names) == (block_type != "qwen3_5_text")


def test_the_norms_are_the_familys():
    states = torch.full((1, 4), 3.0)
    scaled_by = {name: family.norm(4, 0.0)(states)[0, 0].item() for name, family in FAMILIES.items()}
    assert scaled_by == dict.fromkeys(FAMILIES, 1.0)  # each as it is initialised
    assert [FAMILIES[name].norm(4, 0.0).weight[0].item() for name in ("glm4_moe", "qwen3_next")] == [1.0, 0.0]


def test_an_unknown_family_is_refused():
    with pytest.raises(UserError, match="of the family 'mamba' are not read here; the families are deepseek_v3, glm4"):
        LibraryBlock("mamba", {})
