"""Draft models with a reduced vocabulary on disk: what they share with the target, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes import VOCAB, tiny_model, tiny_target
from safetensors.torch import load_file, save_file

from specviz.drafters.heads import reduced
from specviz.drafters.heads.reduced import read_reduced, reduced_model, write_reduced
from specviz.errors import UserError
from specviz.models.target import Target

IDS = torch.tensor([1, 2, 5, 8, 9, 30])


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture
def folder(target, tmp_path) -> Path:
    write_reduced(reduced_model(target, 2, IDS), IDS, tmp_path, {"kind": "draft-model"})
    return tmp_path


def changed(folder: Path, **entries: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


def test_the_file_holds_decoder_layers_norm_and_draft_vocabulary_only(folder):
    names = load_file(folder / "model.safetensors").keys()
    layers = {name for name in names if name.startswith(("model.layers.0.", "model.layers.1."))}
    assert len(layers) == 18 and names - layers == {"model.norm.weight", "d2t", "t2d"}
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"], config["draft_vocab_size"]) == (2, VOCAB, 6)
    assert (config["model_type"], config["specviz"]) == ("llama", {"kind": "draft-model"})


def test_embeddings_are_the_targets_own_and_not_copied(folder, target):
    model, d2t = read_reduced(folder, target)
    assert torch.equal(d2t, IDS)
    assert model.get_input_embeddings() is target.model.get_input_embeddings()
    with torch.inference_mode():
        states = torch.randn(3, 32)
        rows = target.model.get_output_embeddings().weight[IDS]
        torch.testing.assert_close(model.get_output_embeddings()(states), states @ rows.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen", "gpt2", "gpt-neox", "sliding", "mixed"])
def test_models_of_the_targets_kind_are_written_and_read_again(architecture, tmp_path):
    target = tiny_target(architecture)
    model = reduced_model(target, 2, IDS)
    write_reduced(model, IDS, tmp_path, {})
    twin, _ = read_reduced(tmp_path, target)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(twin(input_ids=ids, use_cache=False).logits, logits, rtol=1e-4, atol=1e-4)
    assert logits.shape == (1, 5, 6) and twin.config.vocab_size == VOCAB


def test_in_bfloat16_positions_stay_as_exact_as_in_any_loaded_model(folder):
    target = Target(tiny_model().bfloat16(), None, name="tiny llama")
    model, _ = read_reduced(folder, target)
    rotary = model.base_model.rotary_emb
    assert rotary.inv_freq.dtype == torch.float32
    assert model.base_model.norm.weight.dtype == torch.bfloat16


def test_building_one_leaves_the_global_generator_alone(target):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    reduced_model(target, 2, IDS)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.norm.weight": None}, r"missing: model\.norm\.weight\)"),
        ({"lm_head.weight": torch.zeros(6, 32)}, r"unexpected: model\.lm_head\.weight\)"),
        ({"model.norm.weight": torch.zeros(3)}, r"model\.norm\.weight is \[3\] and should be \[32\]\)"),
        ({"d2t": None}, r"no draft model with a reduced vocabulary \(no d2t\)"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, target, change, said):
    stored = load_file(folder / "model.safetensors") | change
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, folder / "model.safetensors")
    with pytest.raises(UserError, match=said):
        read_reduced(folder, target)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"hidden_size": 64}, "made for another target: its hidden size is 64 and that of tiny llama 32"),
        ({"vocab_size": 99}, "made for another target: its vocabulary size is 99"),
        ({"num_hidden_layers": 65}, "has 65 as num_hidden_layers; give 1 to 64"),
        ({"num_hidden_layers": 10**9}, "it has 1000000000 as num_hidden_layers, and 1,000 is the most"),
        ({"intermediate_size": 10**8}, r"of another shape: .*mlp\.gate_proj"),
        ({"model_type": "nonsense"}, "describes no draft model"),
        ({"model_type": "vit"}, "has vit as model_type, which is no language model"),
        ({"intermediate_size": 10**9}, "it has 1000000000 as intermediate_size, and 100,000,000 is the most"),
        ({"max_position_embeddings": 257}, "names 257 as its positions, and tiny llama has 256"),
        ({"num_attention_heads": 0}, "No llama model can be built|describes no draft model"),
    ],
)
def test_a_config_that_can_not_be_is_refused(folder, target, entries, said):
    with pytest.raises(UserError, match=said):
        read_reduced(changed(folder, **entries), target)


def test_tables_that_no_file_holds_are_measured_before_they_are_built(folder, target, monkeypatch):
    monkeypatch.setattr(reduced, "MOST_TABLES", 2 * 4 * 4)  # twice the rotary frequencies: 4 in float32
    assert read_reduced(folder, target)
    monkeypatch.setattr(reduced, "MOST_TABLES", 2 * 4 * 4 - 1)
    with pytest.raises(UserError, match=r"would build tables of .*, more than any does"):
        read_reduced(folder, target)


def test_a_config_chooses_no_code(folder, target):
    model, _ = read_reduced(
        changed(folder, attn_implementation="somebody/kernels", auto_map={"AutoConfig": "x.Y"}), target
    )
    assert model.config._attn_implementation == "sdpa"
