"""Prediction layers whose block is a family's own: Qwen3.5's gated attention, GLM's experts, DeepSeek's latents.

transformers computes norms and routing in float32 whatever it is given, so these agree to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drafted import bound, drafted, given, target_of
from fakes import tiny_target
from published import HEAD_DIM, HEADS, INNER, KV_HEADS, LAYERS, LLAMA, VOCAB, WIDTH, chain, mlp, random, rms, save
from torch import Tensor

from specviz.drafters.heads.layouts import read_head
from specviz.errors import UserError

EXPERTS, CHOSEN, SCALE, SMALL = 4, 2, 1.5, 12
NOPE, ROPE, VALUE, Q_RANK, KV_RANK = 4, 4, 6, 10, 7  # DeepSeek's sizes of a head and of its latents
Shapes = dict[str, tuple[int, ...]]


def rotate(x: Tensor, size: int, interleaved: bool = False) -> Tensor:
    """Rotary positions on the first `size` values of [T, heads, D]: in halves, or in neighbouring pairs."""
    angles = torch.arange(len(x))[:, None].double() * LLAMA["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    part, rest = x[..., :size], x[..., size:]
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        return torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), rest], -1)
    a, b = part[..., : size // 2], part[..., size // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [T, heads, D], keys and values repeated for the heads that share them: [T, heads * D]."""
    k, v = (rows.repeat_interleave(q.shape[1] // rows.shape[1], 1) for rows in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)


def linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def mixture(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    """The CHOSEN experts with the best corrected scores, weighted by their share of the scores; and the shared one."""
    scores = (x @ w[f"{prefix}gate.weight"].T).sigmoid()
    rows = []
    for row, score in zip(x, scores, strict=True):
        best = (score + w[f"{prefix}gate.e_score_correction_bias"]).topk(CHOSEN).indices
        outputs = torch.stack([mlp(row, w, f"{prefix}experts.{int(i)}.") for i in best])
        rows.append(SCALE * (score[best] / score[best].sum()) @ outputs)
    return torch.stack(rows) + mlp(x, w, f"{prefix}shared_experts.")


def qwen_attention(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    """A gate beside each head's query; rotary positions on half of a head; norms whose weights are stored less one."""
    q, gate = linear(x, w, f"{prefix}q_proj").view(len(x), HEADS, 2 * HEAD_DIM).chunk(2, -1)
    k = linear(x, w, f"{prefix}k_proj").view(len(x), KV_HEADS, HEAD_DIM)
    v = linear(x, w, f"{prefix}v_proj").view(len(x), KV_HEADS, HEAD_DIM)
    q, k = rms(q, 1 + w[f"{prefix}q_norm.weight"]), rms(k, 1 + w[f"{prefix}k_norm.weight"])
    mixed = attend(rotate(q, HEAD_DIM // 2), rotate(k, HEAD_DIM // 2), v) * gate.flatten(1).sigmoid()
    return linear(mixed, w, f"{prefix}o_proj")


def glm_attention(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    q = linear(x, w, f"{prefix}q_proj").view(len(x), HEADS, HEAD_DIM)
    k = linear(x, w, f"{prefix}k_proj").view(len(x), KV_HEADS, HEAD_DIM)
    v = linear(x, w, f"{prefix}v_proj").view(len(x), KV_HEADS, HEAD_DIM)
    return linear(attend(rotate(q, HEAD_DIM // 2), rotate(k, HEAD_DIM // 2), v), w, f"{prefix}o_proj")


def deepseek_attention(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    """Queries, keys and values out of two latents; the rotary part of the keys is one for all heads."""
    latent = latent_norm(linear(x, w, f"{prefix}q_a_proj"), w[f"{prefix}q_a_layernorm.weight"])
    q = linear(latent, w, f"{prefix}q_b_proj").view(len(x), HEADS, NOPE + ROPE)
    latent, k_rotary = linear(x, w, f"{prefix}kv_a_proj_with_mqa").split([KV_RANK, ROPE], -1)
    latent = latent_norm(latent, w[f"{prefix}kv_a_layernorm.weight"])
    kv = linear(latent, w, f"{prefix}kv_b_proj").view(len(x), HEADS, NOPE + VALUE)
    k_rotary = rotate(k_rotary[:, None], ROPE, interleaved=True).expand(-1, HEADS, -1)
    q = torch.cat([q[..., :NOPE], rotate(q[..., NOPE:], ROPE, interleaved=True)], -1)
    return linear(attend(q, torch.cat([kv[..., :NOPE], k_rotary], -1), kv[..., NOPE:]), w, f"{prefix}o_proj")


def latent_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight  # its own epsilon


def reference(
    tensors: dict[str, Tensor],
    parts: tuple[str, str, str, str],
    prefix: str,
    attention: Callable[[Tensor, dict[str, Tensor], str], Tensor],
    feed: Callable[[Tensor, dict[str, Tensor], str], Tensor],
    *,
    less_one: bool = False,
    zeroed: bool = False,
) -> list[Tensor]:
    """parts: what the norms of embedding and state, the projection and the last norm are called. prefix: the block."""
    w = {key: tensor.double() for key, tensor in tensors.items()}
    features, tokens, embed, lm_head = given(taps=1)
    embedding_norm, feature_norm, projection, last_norm = parts

    def norm(x: Tensor, name: str) -> Tensor:
        return rms(x, w[f"{name}.weight"] + less_one)

    def step(embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = torch.cat([embeddings[:1] * (not zeroed), embeddings[1:]])
        x = linear(torch.cat([norm(embeddings, embedding_norm), norm(features, feature_norm)], -1), w, projection)
        x = x + attention(norm(x, f"{prefix}input_layernorm"), w, f"{prefix}self_attn.")
        x = x + feed(norm(x, f"{prefix}post_attention_layernorm"), w, f"{prefix}mlp.")
        states = norm(x, last_norm)
        return states @ lm_head.T, states

    return chain(step, features, tokens, embed, list(range(VOCAB)))


def around(names: tuple[str, str, str, str], prefix: str) -> Shapes:
    embedding_norm, feature_norm, projection, last_norm = names
    norms = (embedding_norm, feature_norm, last_norm, f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm")
    return {f"{projection}.weight": (WIDTH, 2 * WIDTH), **{f"{name}.weight": (WIDTH,) for name in norms}}


def mlp_shapes(prefix: str, inner: int) -> Shapes:
    sides = {f"{prefix}{name}_proj.weight": (inner, WIDTH) for name in ("gate", "up")}
    return {**sides, f"{prefix}down_proj.weight": (WIDTH, inner)}


def moe_shapes(prefix: str) -> Shapes:
    gate = {f"{prefix}gate.weight": (EXPERTS, WIDTH), f"{prefix}gate.e_score_correction_bias": (EXPERTS,)}
    experts = [mlp_shapes(f"{prefix}experts.{index}.", SMALL) for index in range(EXPERTS)]
    return gate | mlp_shapes(f"{prefix}shared_experts.", SMALL) | {k: v for one in experts for k, v in one.items()}


QWEN_PARTS = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        **{key: value for key, value in LLAMA.items() if key != "rope_theta"},
        "model_type": "qwen3_5_text",
        "num_hidden_layers": LAYERS,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * (LAYERS // 4),
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": LLAMA["rope_theta"], "partial_rotary_factor": 0.5},
    },
}


def qwen_tensors() -> dict[str, Tensor]:
    at = "mtp.layers.0.self_attn."
    tensors = random(
        {
            **around(QWEN_PARTS, "mtp.layers.0."),
            **mlp_shapes("mtp.layers.0.mlp.", INNER),
            f"{at}q_proj.weight": (2 * HEADS * HEAD_DIM, WIDTH),
            f"{at}k_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{at}v_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{at}o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
            f"{at}q_norm.weight": (HEAD_DIM,),
            f"{at}k_norm.weight": (HEAD_DIM,),
        }
    )
    return {name: tensor - float(tensor.dim() == 1) for name, tensor in tensors.items()}  # norms are stored less one


MOE: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "n_shared_experts": 1,
    "moe_intermediate_size": SMALL,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": SCALE,
}
GLM = {
    **LLAMA,
    **MOE,
    "model_type": "glm4_moe",
    "attention_bias": True,
    "use_qk_norm": False,
    "partial_rotary_factor": 0.5,
}
DEEPSEEK = {
    **{key: value for key, value in LLAMA.items() if key != "head_dim"},
    **MOE,
    "model_type": "deepseek_v3",
    "num_key_value_heads": HEADS,
    "attention_bias": False,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": KV_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
}
BLOCK = f"model.layers.{LAYERS}."
PARTS = (f"{BLOCK}enorm", f"{BLOCK}hnorm", f"{BLOCK}eh_proj", f"{BLOCK}shared_head.norm")


def glm_tensors() -> dict[str, Tensor]:
    at = f"{BLOCK}self_attn."
    widths = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    weights = {f"{at}{name}_proj.weight": (heads * HEAD_DIM, WIDTH) for name, heads in widths.items()}
    biases = {f"{at}{name}_proj.bias": (heads * HEAD_DIM,) for name, heads in widths.items()}
    output = {f"{at}o_proj.weight": (WIDTH, HEADS * HEAD_DIM)}
    return random({**around(PARTS, BLOCK), **weights, **biases, **output, **moe_shapes(f"{BLOCK}mlp.")})


def deepseek_tensors() -> dict[str, Tensor]:
    at = f"{BLOCK}self_attn."
    return random(
        {
            **around(PARTS, BLOCK),
            **moe_shapes(f"{BLOCK}mlp."),
            f"{at}q_a_proj.weight": (Q_RANK, WIDTH),
            f"{at}q_a_layernorm.weight": (Q_RANK,),
            f"{at}q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_RANK),
            f"{at}kv_a_proj_with_mqa.weight": (KV_RANK + ROPE, WIDTH),
            f"{at}kv_a_layernorm.weight": (KV_RANK,),
            f"{at}kv_b_proj.weight": (HEADS * (NOPE + VALUE), KV_RANK),
            f"{at}o_proj.weight": (WIDTH, HEADS * VALUE),
        }
    )


def check(folder, wanted: list[Tensor]) -> None:
    for found, expected in zip(drafted(bound(read_head(folder, target_of().config))), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_qwen(tmp_path):
    tensors = qwen_tensors()
    save(tmp_path, QWEN, {**tensors, "model.language_model.norm.weight": torch.ones(WIDTH)})
    check(tmp_path, reference(tensors, QWEN_PARTS, "mtp.layers.0.", qwen_attention, mlp, less_one=True))


def test_glm(tmp_path):
    tensors = glm_tensors()
    others = ("model.layers.0.mlp.up_proj.weight", f"{BLOCK}self_attn.rotary_emb.inv_freq")  # the target's; computed
    save(tmp_path, GLM, {**tensors, **{name: torch.ones(3) for name in others}})
    check(tmp_path, reference(tensors, PARTS, BLOCK, glm_attention, mixture, zeroed=True))


def test_deepseek_with_copies_of_the_targets_embedding_and_lm_head(tmp_path):
    tensors = deepseek_tensors()
    _, _, embed, lm_head = given(taps=1)
    copies = {f"{BLOCK}embed_tokens.weight": embed, f"{BLOCK}shared_head.head.weight": lm_head}
    save(tmp_path, DEEPSEEK, {**tensors, **copies})
    check(tmp_path, reference(tensors, PARTS, BLOCK, deepseek_attention, mixture, zeroed=True))


@pytest.mark.parametrize(
    ("config", "tensors"), [(QWEN, qwen_tensors()), (GLM, glm_tensors()), (DEEPSEEK, deepseek_tensors())]
)
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, config, tensors):
    for name in tensors:
        with pytest.raises(UserError) as refusal:
            read_head(
                save(tmp_path, config, {key: value for key, value in tensors.items() if key != name}),
                target_of().config,
            )
        assert name in str(refusal.value)
        with pytest.raises(UserError) as refusal:
            read_head(save(tmp_path, config, {**tensors, name: torch.zeros(5, 5)}), target_of().config)
        assert name in str(refusal.value)


@pytest.mark.parametrize("name", ["mtp.router.weight", "mtp.layers.0.router.weight"])
def test_what_else_stands_with_the_layer_is_named(tmp_path, name):
    save(tmp_path, QWEN, {**qwen_tensors(), name: torch.ones(2)})
    with pytest.raises(UserError, match=f"unexpected: {name}"):
        read_head(tmp_path, target_of().config)


def test_a_prediction_layer_elsewhere_is_another_targets(tmp_path):
    moved = {name.replace(BLOCK, "model.layers.5."): tensor for name, tensor in glm_tensors().items()}
    save(tmp_path, GLM, moved)
    with pytest.raises(UserError, match=rf"at layer \[5\]; for this target it should have one at {LAYERS}"):
        read_head(tmp_path, target_of().config)


@pytest.mark.parametrize("name", ["layers", "model.layers"])
def test_a_number_of_thousands_of_digits_is_no_layers(tmp_path, name):
    """So the tensor is another part of the model, and not read."""
    tensors = {**glm_tensors(), f"{name}.{'9' * 5000}.eh_proj.weight": torch.ones(1)}
    assert read_head(save(tmp_path, GLM, tensors), target_of().config).config.block_type == "glm4_moe"


@pytest.mark.parametrize("name", ["model.mtp_layers", "mtp.layers"])
def test_nor_is_it_that_of_a_prediction_layer(tmp_path, name):
    tensors = {**glm_tensors(), f"{name}.{'9' * 5000}.eh_proj.weight": torch.ones(1)}
    with pytest.raises(UserError, match="has 0 layers"):
        read_head(save(tmp_path, GLM, tensors), target_of().config)


def test_a_number_of_experts_is_compared_before_it_is_counted_up_to(tmp_path):
    given = {name.replace("experts.3.", "experts.999999999."): tensor for name, tensor in glm_tensors().items()}
    with pytest.raises(UserError, match=rf"lacks the tensor {BLOCK}mlp.experts.3.gate_proj.weight"):
        read_head(save(tmp_path, GLM, given), target_of().config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"qk_rope_head_dim": 2 * 10**9}, "it has 2000000000 as qk_rope_head_dim, and 65,536 is the most"),
        ({"n_routed_experts": 4097}, "it has 4097 as n_routed_experts, and 4,096 is the most"),
        ({"partial_rotary_factor": 1e9}, "it has 1000000000.0 as partial_rotary_factor, and 1 is the most"),
        ({"rope_parameters": {"original_max_position_embeddings": 10**9}}, "as original_max_position_embeddings, and"),
        ({"mrope_section": [1, 10**9]}, "as mrope_section, and 100,000,000 is the most"),
    ],
)
def test_sizes_that_no_layer_has_are_refused(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        read_head(save(tmp_path, {**DEEPSEEK, **changes}, deepseek_tensors()), target_of().config)


@pytest.mark.parametrize(("dtype", "routers"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
@pytest.mark.parametrize(("config", "tensors"), [(GLM, glm_tensors()), (DEEPSEEK, deepseek_tensors())])
def test_routers_stay_in_float32_as_transformers_keeps_them(tmp_path, config, tensors, dtype, routers):
    """In 16 bits the correction of the scores would be too coarse to choose experts by."""
    target = tiny_target("llama", hidden_size=WIDTH, num_hidden_layers=LAYERS, vocab_size=VOCAB)
    target.model.to(dtype)
    head = read_head(save(tmp_path, config, tensors), target.config).bind(target)
    kinds = {name: tensor.dtype for name, tensor in head.state_dict().items()}
    gate = {f"layers.0.mlp.gate.{name}" for name in ("weight", "e_score_correction_bias")}
    assert gate < kinds.keys() and kinds == {name: routers if name in gate else dtype for name in kinds}
    bias = head.layers[0].mlp.gate.e_score_correction_bias
    assert torch.equal(bias.float(), tensors[f"{BLOCK}mlp.gate.e_score_correction_bias"])
