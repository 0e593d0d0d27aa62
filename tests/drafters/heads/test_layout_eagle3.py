"""EAGLE-3 checkpoints, those of speculators among them: read as published, and computing what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafted import bound, drafted, given, target_of
from fakes import tiny_target
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
from safetensors.torch import load_file, save_file
from tiny_heads import random_head
from torch import Tensor

from specviz.drafters.heads.files import about, open_checkpoint
from specviz.drafters.heads.layouts import read_head, write_head
from specviz.errors import UserError

CONFIG = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(DRAFT_IDS)}
BLOCK = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.3.0",
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    },
    "draft_vocab_size": len(DRAFT_IDS),
    "norm_before_residual": True,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "transformer_layer_config": {**BLOCK, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


def eagle3_tensors(layer: str = "midlayer.", taps: int = 3, extra: dict[str, tuple[int, ...]] | None = None):
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, taps * WIDTH),
        **attention_and_mlp(layer, 2 * WIDTH),
        f"{layer}hidden_norm.weight": (WIDTH,),
        f"{layer}input_layernorm.weight": (WIDTH,),
        f"{layer}post_attention_layernorm.weight": (WIDTH,),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (len(DRAFT_IDS), WIDTH),
        **(extra or {}),
    }
    return {**random(shapes), **vocabulary()}


def reference(config: dict[str, Any], tensors: dict[str, Tensor], name: str = "midlayer.") -> list[Tensor]:
    """Logits of four drafted tokens: fc fuses the taps once; the layer reads cat[norm(embedding), norm(fused)]."""
    w = {key: tensor.double() for key, tensor in tensors.items()}
    features, tokens, embed, lm_head = given(taps=w["fc.weight"].shape[1] // WIDTH)
    embed, lm_head = w.get("embed_tokens.weight", embed), w.get("lm_head.weight", lm_head[DRAFT_IDS])
    if config.get("norm_before_fc"):
        features = rms(features, w["input_norm.weight"])

    def step(embeddings: Tensor, fused: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms(fused, w[f"{name}hidden_norm.weight"])
        x = torch.cat([rms(embeddings, w[f"{name}input_layernorm.weight"]), normed], -1)
        output = layer(x, normed if config.get("norm_before_residual") else fused, w, name)
        states = rms(output, w["norm.weight"])
        return states @ lm_head.T, states if config.get("norm_output") else output

    return chain(step, features @ w["fc.weight"].T + w.get("fc.bias", 0), tokens, embed, DRAFT_IDS)


def agrees(folder: Path, wanted: list[Tensor], **options: Any) -> bool:
    found = drafted(bound(read_head(folder, target_of().config, **options)))
    return all(torch.allclose(a, b, rtol=0, atol=2e-5) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["midlayer.", "layers.0."])
def test_a_published_head_drafts_what_the_paper_says(tmp_path, name):
    tensors = eagle3_tensors(name)
    save(tmp_path, CONFIG, tensors)
    assert read_head(tmp_path, target_of().config).config.hidden_layers == (2, LAYERS // 2, LAYERS - 3)
    assert agrees(tmp_path, reference(CONFIG, tensors, name))


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"norm_before_residual": True}, {}),
        ({"norm_output": True}, {}),
        ({"norm_before_fc": True}, {"input_norm.weight": (3 * WIDTH,)}),
        ({}, {"fc.bias": (WIDTH,)}),
        ({}, {"embed_tokens.weight": (VOCAB, WIDTH)}),
    ],
)
def test_each_variant_is_told_from_config_and_tensors(tmp_path, changes, extra):
    tensors, config = eagle3_tensors(extra=extra), {**CONFIG, **changes}
    wanted, plain = reference(config, tensors), reference(CONFIG, eagle3_tensors())
    assert not torch.allclose(wanted[-1], plain[-1], atol=1e-3)  # it matters
    assert agrees(save(tmp_path, config, tensors), wanted)


def test_speculators_heads(tmp_path):
    tensors = eagle3_tensors("layers.0.")
    save(tmp_path, SPECULATORS, tensors)
    assert read_head(tmp_path, target_of().config).config.hidden_layers == (2, 4, 5)  # as they stand there
    assert agrees(tmp_path, reference(SPECULATORS, tensors, "layers.0."))


def test_speculators_heads_that_leave_the_residual_open_ask_for_it(tmp_path):
    tensors = eagle3_tensors("layers.0.")
    open_config = {key: value for key, value in SPECULATORS.items() if key != "norm_before_residual"}
    save(tmp_path, open_config, tensors)
    with pytest.raises(UserError, match="so give norm_before_residual"):
        read_head(tmp_path, target_of().config)
    for answer in (True, False):
        wanted = reference({"norm_before_residual": answer}, tensors, "layers.0.")
        assert agrees(tmp_path, wanted, norm_before_residual=answer)
        assert not agrees(tmp_path, wanted, norm_before_residual=not answer)


@pytest.mark.parametrize("kind", ["peagle", "dflash", "dspark"])
def test_other_speculators_are_refused_by_name(tmp_path, kind):
    save(tmp_path, {**SPECULATORS, "speculators_model_type": kind}, eagle3_tensors("layers.0."))
    with pytest.raises(UserError, match=f"of the kind {kind}; those read here are eagle3 and mtp"):
        read_head(tmp_path, target_of().config)


def test_only_its_slice_of_fc_sees_a_tapped_layer(tmp_path):
    """Perturb one layer of the target's: through another slice than its own the head must not see it."""
    tensors = eagle3_tensors()
    for slice_ in range(3):
        blind = dict(tensors)
        blind["fc.weight"] = tensors["fc.weight"].clone()
        blind["fc.weight"][:, slice_ * WIDTH : (slice_ + 1) * WIDTH] = 0
        head = bound(read_head(save(tmp_path, CONFIG, blind), target_of().config))
        plain = drafted(head)[0]
        for layer_ in range(3):
            assert torch.equal(drafted(head, perturbed=layer_)[0], plain) == (layer_ == slice_)


def aux(ids: object) -> dict[str, Any]:
    return {**CONFIG, "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}}


def test_explicit_layers_ask_how_they_are_counted(tmp_path):
    save(tmp_path, aux([1, 3, 4]), eagle3_tensors())
    config = target_of().config
    with pytest.raises(UserError, match=r"so give aux_convention \(--aux-convention\): input if"):
        read_head(tmp_path, config)
    assert read_head(tmp_path, config, aux_convention="input").config.hidden_layers == (1, 3, 4)
    assert read_head(tmp_path, config, aux_convention="output").config.hidden_layers == (2, 4, 5)
    with pytest.raises(UserError, match="give input or output"):
        read_head(tmp_path, config, aux_convention="sglang")


@pytest.mark.parametrize(
    ("ids", "convention", "problem"),
    [
        ([2, 4, LAYERS], "input", "before the final norm, which transformers does not give"),
        ([2, 4, LAYERS - 1], "output", "before the final norm, which transformers does not give"),
        ([2, 4, LAYERS + 1], "input", f"this target has 0 to {LAYERS}"),
        ([-1, 4, 5], "input", f"this target has 0 to {LAYERS}"),
        ([4, 2, 5], "input", "do not rise"),
        ([2, 2, 5], "input", "do not rise"),
        ([2, "4", 5], "input", "should be numbers"),
        (3, "input", "should be numbers"),
    ],
)
def test_layers_that_can_not_be_read(tmp_path, ids, convention, problem):
    save(tmp_path, aux(ids), eagle3_tensors())
    with pytest.raises(UserError, match=problem):
        read_head(tmp_path, target_of().config, aux_convention=convention)


def test_shallow_targets_need_explicit_layers(tmp_path):
    save(tmp_path, CONFIG, eagle3_tensors())
    assert read_head(tmp_path, target_of(7).config).config.hidden_layers == (2, 3, 4)
    with pytest.raises(UserError, match="add eagle_aux_hidden_state_layer_ids"):
        read_head(tmp_path, target_of(6).config)
    save(tmp_path, aux([1, 2, 3]), eagle3_tensors())
    assert read_head(tmp_path, target_of(6).config, aux_convention="input").config.hidden_layers == (1, 2, 3)


FILLED = [name for name in eagle3_tensors() if name not in ("d2t", "t2d")]


@pytest.mark.parametrize("name", FILLED)
def test_every_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name):
    tensors = eagle3_tensors()
    changed = {**tensors, name: torch.zeros(5, 5)}
    with pytest.raises(UserError) as refusal:
        read_head(save(tmp_path, CONFIG, changed), target_of().config)
    assert f"{name} is [5, 5] and should be {list(tensors[name].shape)}" in str(refusal.value)
    del changed[name]
    with pytest.raises(UserError, match=f"missing: {name}"):
        read_head(save(tmp_path, CONFIG, changed), target_of().config)


def test_without_its_norm_it_is_an_eagle3_head_still(tmp_path):
    tensors = eagle3_tensors("layers.0.")
    del tensors["layers.0.hidden_norm.weight"]
    with pytest.raises(UserError, match=r"\(missing: layers.0.hidden_norm.weight\)"):
        read_head(save(tmp_path, CONFIG, tensors), target_of().config)


@pytest.mark.parametrize(
    "name", ["midlayer.self_attn.extra.weight", "layers.1.mlp.up_proj.weight", "embedding_norm.weight"]
)
def test_unexpected_tensors_are_named(tmp_path, name):
    save(tmp_path, CONFIG, {**eagle3_tensors(), name: torch.zeros(2)})
    with pytest.raises(UserError, match="2 layers" if "layers.1" in name else f"unexpected: {name}"):
        read_head(tmp_path, target_of().config)


def test_the_draft_vocabulary_has_to_agree(tmp_path):
    tensors, config = eagle3_tensors(), target_of().config
    with pytest.raises(UserError, match="d2t is missing"):
        read_head(save(tmp_path, CONFIG, {k: v for k, v in tensors.items() if k != "d2t"}), config)
    with pytest.raises(UserError, match="token ids themselves"):
        read_head(save(tmp_path, CONFIG, {**tensors, "d2t": torch.tensor(DRAFT_IDS)}), config)
    with pytest.raises(UserError, match=r"d2t of .* has 8 entries and draft_vocab_size is 9"):
        read_head(save(tmp_path, {**CONFIG, "draft_vocab_size": 9}, tensors), config)
    head = read_head(save(tmp_path, CONFIG, tensors), config)
    assert head.d2t.tolist() == DRAFT_IDS and head.config.draft_vocab_size == len(DRAFT_IDS)


def test_a_draft_vocabulary_of_all_tokens_is_the_targets(tmp_path):
    whole = {"d2t": torch.zeros(VOCAB, dtype=torch.long), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    tensors = {**eagle3_tensors(), **whole, "lm_head.weight": torch.ones(VOCAB, WIDTH)}
    head = read_head(save(tmp_path, {**CONFIG, "draft_vocab_size": VOCAB}, tensors), target_of().config)
    assert head.config.draft_vocab_size is None and head.lm_head.weight.shape == (VOCAB, WIDTH)


def test_a_head_for_another_target_is_refused(tmp_path):
    tensors, config = eagle3_tensors(), target_of().config
    for key, value, kind in (("vocab_size", 31, "vocabulary is 31"), ("target_hidden_size", 20, "width is 20")):
        with pytest.raises(UserError, match=f"made for another target: its {kind}"):
            read_head(save(tmp_path, {**CONFIG, key: value}, tensors), config)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": 10**9}, "no size of a head"),
        ({"intermediate_size": 0}, "no size of a head"),
        ({"num_attention_heads": None}, "has no num_attention_heads"),
        ({"norm_output": "yes"}, "neither true nor false"),
        ({"hidden_act": "gelu"}, "only silu"),
        ({"rope_scaling": 3}, "no mapping"),
        ({"rms_norm_eps": -1}, "no positive number"),
        ({"rms_norm_eps": 10**400}, "as rms_norm_eps, which is no positive number"),
        ({"rope_theta": 10**400}, "as rope_theta, which is no positive number"),
        ({"num_key_value_heads": 3}, "has 4 heads of queries and 3 of keys, which they can't share evenly"),
        ({"head_dim": 7}, "its heads have 7 values, and positions turn pairs of them"),
        ({"partial_rotary_factor": 0.5}, "it turns 0.5 of each head by its position"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "it turns 0.5 of each head"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
            "it turns 0.5 of each",
        ),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "can't be built"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "'factor': 0.0}, which gives no angles"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2.0}}, "which gives no angles"),
        *(
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": factor}}, "gives no angles")
            for factor in (0.0, float("nan"), float("inf"), 1e300)
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "which gives no angles"),
        ({"fc_norm": True}, "norms each state before fc"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "no states of lower layers"),
    ],
)
def test_configs_that_can_not_be_are_refused(tmp_path, changes, problem):
    save(tmp_path, {**CONFIG, **changes}, eagle3_tensors())
    with pytest.raises(UserError, match=problem):
        read_head(tmp_path, target_of().config)


OURS = {**CONFIG, "norm_output": True, "specviz": {"shares_lm_head": True, "head": {"hidden_layers": [2, 4, LAYERS]}}}


def ours() -> dict[str, Tensor]:
    return {name: tensor for name, tensor in eagle3_tensors().items() if name != "lm_head.weight"}


def test_a_head_of_ours_shares_the_lm_head_and_may_read_the_last_state(tmp_path):
    save(tmp_path, OURS, ours())
    assert read_head(tmp_path, target_of().config).config.hidden_layers == (2, 4, LAYERS)
    assert agrees(tmp_path, reference(OURS, ours()))
    save(tmp_path, OURS, eagle3_tensors())
    with pytest.raises(UserError, match=r"unexpected: lm_head.weight"):
        read_head(tmp_path, target_of().config)
    save(tmp_path, {**OURS, "specviz": {"head": {"flavour": "sweet"}}}, ours())
    with pytest.raises(UserError, match="sweet as flavour of its head"):
        read_head(tmp_path, target_of().config)


def test_a_joined_head_is_written_with_names_that_no_public_layout_has(tmp_path):
    target = tiny_target()
    head = random_head(target, "joined", draft_ids=[1, 4, 9]).bind(target)
    write_head(head, tmp_path, "eagle3", {"kind": "eagle"})
    shapes = open_checkpoint(tmp_path).shapes
    width = head.config.hidden_size
    assert shapes["join.weight"] == (width, 2 * width) and shapes["fc.weight"] == (width, 3 * width)
    assert {"embedding_norm.weight", "feature_norm.weight", "midlayer.input_layernorm.weight"} < shapes.keys()
    again = read_head(tmp_path, target.config)
    assert again.config == head.config
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in head.state_dict().items())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["join.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"missing: join\.weight"):
        read_head(tmp_path, target.config)


@pytest.mark.parametrize("config", [OURS, CONFIG])
def test_written_and_read_again(tmp_path, config):
    tensors = ours() if config is OURS else eagle3_tensors()
    tensors = {name: x.bfloat16() if x.is_floating_point() else x for name, x in tensors.items()}
    head = read_head(save(tmp_path / "a", config, tensors), target_of().config)
    write_head(head, tmp_path / "b", "eagle3", {"kind": "eagle", "seed": 3})
    again = read_head(tmp_path / "b", target_of().config)
    assert again.config == head.config
    assert again.state_dict().keys() == head.state_dict().keys()
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor) and again.state_dict()[name].dtype == tensor.dtype
    assert {"d2t", "t2d"} < open_checkpoint(tmp_path / "b").shapes.keys()  # other engines need both
    said = about(tmp_path / "b")
    assert (said["kind"], said["seed"], said["shares_lm_head"]) == ("eagle", 3, config is OURS)
