"""Exact budgets for known shapes."""

import copy
import threading
from dataclasses import replace

import psutil
import pytest
import torch
from fakes import byte_tokenizer, tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.cache_utils import DynamicCache

from specviz import memory
from specviz.errors import UserError
from specviz.memory import (
    Budget,
    check,
    count_kept_by_packing,
    count_mtp_parameters,
    count_parameters,
    estimate,
    kv_bytes,
    kv_bytes_by_layer,
)
from specviz.models.load import load_model
from specviz.models.skeleton import model_without_storage
from specviz.models.target import PREFILL_CHUNK
from specviz.presets import load_pairings

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
TINY = LlamaConfig(
    vocab_size=100,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    tie_word_embeddings=False,
)
# Embedding and head, then per layer: q, k, v, o; gate, up, down; two norms; and the last norm.
TINY_PARAMETERS = 2 * 100 * 16 + 2 * (16 * 32 + 2 * 16 * 16 + 32 * 16 + 3 * 16 * 32 + 2 * 16) + 16


uncounted = count_parameters.__wrapped__  # counts even what has been counted before


def test_parameters_are_counted_once_when_tied():
    assert count_parameters(SMOLLM2) == 134_515_008
    assert count_parameters(TINY) == TINY_PARAMETERS
    tied = copy.deepcopy(TINY)
    tied.tie_word_embeddings = True
    assert count_parameters(tied) == TINY_PARAMETERS - 100 * 16


SEEING = AutoConfig.for_model(
    "gemma3",
    text_config={**TINY.to_diff_dict(), "model_type": "gemma3_text", "dtype": "bfloat16"},
    vision_config={"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    dtype="bfloat16",
)


@pytest.fixture
def restored_dtype():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("config", [TINY, SEEING], ids=["llama", "gemma3"])
def test_counting_changes_neither_the_config_nor_torch(config, monkeypatch):
    """Not even for a moment: other threads are loading and decoding."""
    config = copy.deepcopy(config)
    config.dtype = torch.bfloat16
    before, random = config.to_json_string(), torch.get_rng_state()
    monkeypatch.setattr(torch, "set_default_dtype", None)  # would fail
    uncounted(config)
    assert config.to_json_string() == before
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_what_a_load_alters_meanwhile_changes_no_count(dtype, monkeypatch, restored_dtype):
    """Torch's default dtype is the model's then, and transformers ties no weights."""
    expected = [parameter.shape for parameter in model_without_storage(SMOLLM2).parameters()]
    monkeypatch.setattr(PreTrainedModel, "tie_weights", lambda *args, **kwargs: None)
    torch.set_default_dtype(dtype)
    assert uncounted(SMOLLM2) == 134_515_008
    model = model_without_storage(SMOLLM2)
    assert [parameter.shape for parameter in model.parameters()] == expected
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert count_kept_by_packing.__wrapped__(SMOLLM2) == 49152 * 576


def test_models_load_while_others_are_counted(tmp_path, restored_dtype):
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            uncounted(TINY)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(8):
            model, _ = load_model(tmp_path, torch.bfloat16, torch.device("cpu"), packed=False)
            assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
            assert torch.get_default_dtype() == torch.float32
    finally:
        done.set()
        counting.join()


def test_the_same_configuration_is_counted_once(monkeypatch):
    shape = {**TINY.to_dict(), "vocab_size": 101}
    assert count_parameters(LlamaConfig(**shape)) == TINY_PARAMETERS + 2 * 16
    monkeypatch.setattr(memory, "model_without_storage", None)  # would fail
    assert count_parameters(LlamaConfig(**shape)) == TINY_PARAMETERS + 2 * 16
    with pytest.raises(TypeError):
        count_parameters(LlamaConfig(**{**shape, "vocab_size": 102}))
    with pytest.raises(TypeError):
        count_parameters(AutoConfig.for_model("mistral", **{**shape, "model_type": "mistral"}))


@pytest.mark.parametrize("model_type", ["gpt2", "qwen3_5", "gemma3"])
def test_the_model_is_the_one_that_transformers_would_load(model_type):
    """Of some models with parts it is the text part alone."""
    config = AutoConfig.for_model(model_type)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
    ours = model_without_storage(config)
    assert type(ours) is type(theirs)
    shapes = [{name: weight.shape for name, weight in model.named_parameters()} for model in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_a_configuration_of_no_language_model_is_refused():
    with pytest.raises(ValueError, match="no language model of the type vit"):
        model_without_storage(AutoConfig.for_model("vit"))


def test_quantised_weights_are_counted_as_if_unpacked():
    config = copy.deepcopy(TINY)
    config.quantization_config = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    assert count_parameters(config) == TINY_PARAMETERS
    assert config.quantization_config["quant_method"] == "fp8"


def test_every_expert_counts():
    shape = {key: getattr(TINY, key) for key in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim")}
    config = AutoConfig.for_model(
        "qwen3_moe",
        **shape,
        num_hidden_layers=2,
        num_key_value_heads=2,
        moe_intermediate_size=32,
        num_experts=5,
        tie_word_embeddings=False,
    )
    experts = 5 * 3 * 16 * 32 - 3 * 16 * 32 + 5 * 16  # in place of one network, and the router that chooses
    assert count_parameters(config) == TINY_PARAMETERS + 2 * (experts + 2 * 8)  # and norms of queries and keys


def test_of_a_model_that_sees_the_text_part_and_the_encoder_count():
    depth = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    text = {**depth, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16}
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config={**depth, "image_size": 28, "patch_size": 14}
    )
    alone = AutoConfig.for_model("gemma3_text", **text)
    assert count_parameters(config) > count_parameters(alone) > 64 * 32
    seeing, reading = (estimate(one, dtype_bytes=2, context_tokens=9, gamma=1) for one in (config, alone))
    assert (seeing.kv, seeing.logits) == (reading.kv, reading.logits) == (2 * 2 * 16 * 256 * 2, 2 * 64 * 4)


def test_a_dflash_model_drafts_through_the_targets_head():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8, "block_size": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "target_layer_ids": [0, 1, 1]}
    config = AutoConfig.for_model("muse_glimmer_assistant", **shape, **heads)
    layers = TINY_PARAMETERS - 2 * 100 * 16 + 2 * 2 * 8  # no embeddings and no head, but norms of queries and keys
    assert count_parameters(config) == layers + 3 * 16 * 16 + 16  # and three target layers are made one, and normed
    beside = estimate(TINY, drafter_config=config, dtype_bytes=4, context_tokens=9, gamma=5)
    assert beside.weights_drafter == 4 * count_parameters(config)
    assert (beside.kv, beside.logits) == (2 * 256 * 2 * 2 * 2 * 8 * 4, 2 * 6 * 100 * 4)
    alone = estimate(config, dtype_bytes=4, context_tokens=9, gamma=5)
    assert (alone.weights_target, alone.kv, alone.logits) == (beside.weights_drafter, beside.kv // 2, 0)


def test_cache_size_per_token():
    assert kv_bytes(SMOLLM2, 1024, 2) == 1024 * 23_040
    assert 2 * 30 * 3 * 64 * 2 == 23_040  # keys and values, layers, KV heads, head_dim, bytes
    assert kv_bytes(TINY, 512, 4) == 2 * 2 * 2 * 8 * 512 * 4  # head_dim of the config, not 16 / 4


def test_buffers_are_counted_as_large_as_they_grow():
    assert kv_bytes(TINY, 1, 4) == kv_bytes(TINY, 256, 4) == kv_bytes(TINY, 512, 4) / 2 == kv_bytes(TINY, 257, 4) / 2


def test_sliding_layers_keep_every_row_and_recurrent_ones_none():
    kinds = ["full_attention", "sliding_attention", "linear_attention"]
    shape = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(**shape, layer_types=kinds, use_sliding_window=True, sliding_window=4)
    row = 2 * 2 * 8 * 2
    assert kv_bytes(config, 1000, 2) == row * 1024 * 2
    assert kv_bytes_by_layer(config, 1000, 2) == [row * 1024, row * 1024, 0]


def test_budget_of_a_pair():
    budget = estimate(SMOLLM2, drafter_config=TINY, dtype_bytes=2, context_tokens=1000, gamma=4, available=7)
    assert budget.weights_target == 269_030_016
    assert budget.weights_drafter == 2 * TINY_PARAMETERS
    assert budget.kv == 1024 * (23_040 + 2 * 2 * 2 * 8 * 2)  # 1005 rows, in buffers of 1024
    assert budget.logits == 5 * (49152 + 100) * 4
    rows, width, spread = 256, 576, 9 * 64  # the last part of the prompt, in either model
    attention = 2 * rows * spread + 2 * 1000 * spread + rows * 1000
    small = 3 * rows * 16 + max(3 * rows * 32, 2 * rows * 32 + 2 * 1000 * 32 + rows * 1000)
    assert budget.activations == 2 * (3 * rows * width + max(3 * rows * 1536, attention) + small)
    assert budget.headroom == (269_030_016 + 2 * TINY_PARAMETERS) // 5 - budget.activations
    expected = (budget.weights_target, budget.weights_drafter, budget.kv, budget.logits, budget.activations)
    assert budget.expected == sum(expected) and budget.total == budget.expected + budget.headroom
    assert (budget.available, budget.runtime) == (7, 0)


def test_a_pass_is_counted_as_long_as_the_target_makes_it():
    assert memory.PASS == PREFILL_CHUNK


def test_headroom_is_never_less_than_what_the_estimate_may_be_off_by():
    budget = estimate(TINY, dtype_bytes=4, context_tokens=1000, gamma=4, available=7)
    assert budget.activations > 4 * TINY_PARAMETERS // 5 and budget.headroom == budget.expected // 20


def test_a_cpu_gives_memory_as_it_is_written_and_runs_libraries_in_it():
    sizes = {"dtype_bytes": 2, "context_tokens": 1030, "gamma": 4, "available": 7}
    gpu, cpu = estimate(SMOLLM2, **sizes), estimate(SMOLLM2, **sizes, on_cpu=True)
    assert gpu.kv == 2048 * 23_040 and cpu.kv == 1035 * 23_040, "whole buffers, or the rows in use"
    assert cpu.runtime == 32_000_000 + 330 * 49152 and gpu.runtime == 0
    pair = estimate(SMOLLM2, drafter_config=SMOLLM2, **sizes, on_cpu=True)
    assert pair.runtime == cpu.runtime, "one vocabulary, one tokenizer's memory"


def test_sequences_multiply_all_but_weights():
    sizes = {"dtype_bytes": 2, "context_tokens": 500, "gamma": 3, "available": 7, "head_bytes": 10, "head_states": 3}
    one, eight = estimate(SMOLLM2, **sizes), estimate(SMOLLM2, **sizes, batch=8)
    for part in ("kv", "logits", "activations"):
        assert getattr(eight, part) == 8 * getattr(one, part)
    assert (one.weights_target, one.weights_drafter) == (eight.weights_target, eight.weights_drafter)


def test_a_cache_may_have_a_format_of_its_own():
    sizes = {"dtype_bytes": 2, "context_tokens": 500, "gamma": 3, "available": 7}
    assert estimate(SMOLLM2, **sizes, kv_dtype_bytes=1).kv * 2 == estimate(SMOLLM2, **sizes).kv


def test_the_states_that_a_head_reads_are_kept_for_every_token():
    sizes = {"dtype_bytes": 2, "context_tokens": 4000, "gamma": 2, "available": 7, "head_bytes": 1000}
    state = 4000 * 576 * 2
    cpu, gpu = (estimate(SMOLLM2, **sizes, head_states=3, on_cpu=on_cpu) for on_cpu in (True, False))
    layers = 31 * 512 * 576 * 2  # of two passes
    for need, on_cpu, joined in ((cpu, True, 2), (gpu, False, 3)):
        during = estimate(SMOLLM2, **sizes, on_cpu=on_cpu).activations + layers + 3 * state
        assert need.activations == max(during, joined * 3 * state), "joined from parts, with room to grow beside it"


def test_attention_spreads_keys_and_values_over_all_heads_and_a_head_works_beside_the_target():
    def activations(context: int, **more: int) -> int:
        return estimate(SMOLLM2, dtype_bytes=2, context_tokens=context, gamma=2, available=7, **more).activations

    spread, mask = 2 * 9 * 64, 256  # numbers for one more token, of 9 heads with 64 each, and of a pass of 256 rows
    assert activations(5000) - activations(4000) == 1000 * (spread + mask) * 2
    assert activations(4000, head_layers=2) == 2 * activations(4000)


def test_a_verify_pass_of_a_large_tree_outweighs_the_prompt():
    budget = estimate(SMOLLM2, dtype_bytes=2, context_tokens=9, gamma=64, available=7)
    assert budget.activations == 2 * budget.logits == 2 * 65 * 49152 * 4


def test_latent_attention_caches_the_compressed_pair():
    """DeepSeek's: transformers caches it as one head, before it is expanded."""
    shape = {"hidden_size": 64, "num_attention_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    config = AutoConfig.for_model(
        "minicpm3",
        **shape,
        vocab_size=50,
        num_hidden_layers=2,
        intermediate_size=32,
        q_lora_rank=12,
        qk_nope_head_dim=16,
    )
    assert kv_bytes(config, 256, 2) == 2 * (16 + 8) * 256 * 2
    model, cache = model_without_storage(config), DynamicCache(config=config)
    with torch.device("meta"), torch.inference_mode():
        model(input_ids=torch.zeros(1, 7, dtype=torch.long), cache=cache, use_cache=True)
    cached = sum(states.numel() for layer in cache.layers for states in (layer.keys, layer.values))
    assert cached == 7 * kv_bytes(config, 256, 1) // 256, "as the model itself does"


def test_engines_keep_no_more_rows_than_a_window():
    kinds = ["full_attention", "sliding_attention", "linear_attention"]
    shape = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(**shape, layer_types=kinds, use_sliding_window=True, sliding_window=4)
    row = 2 * 2 * 8 * 2
    assert kv_bytes_by_layer(config, 1000, 2, windowed=True) == [row * 1000, row * 4, 0]
    everywhere = AutoConfig.for_model("mistral", **{**shape, "num_attention_heads": 2}, sliding_window=4)
    assert kv_bytes_by_layer(everywhere, 1000, 2, windowed=True) == [row * 4] * 3


def test_weights_can_be_given_instead_of_counted():
    given = {"weight_bytes": 1000, "drafter_weight_bytes": 50}
    budget = estimate(SMOLLM2, drafter_config=TINY, dtype_bytes=2, context_tokens=9, gamma=0, available=7, **given)
    assert (budget.weights_target, budget.weights_drafter) == (1000, 50)
    counted = estimate(SMOLLM2, drafter_config=TINY, dtype_bytes=2, context_tokens=9, gamma=0, drafter_weight_bytes=0)
    assert (counted.weights_target, counted.weights_drafter) == (269_030_016, 0)
    assert budget.kv == counted.kv and budget.logits == counted.logits


MTP = AutoConfig.for_model(
    "glm4_moe",
    **{key: getattr(TINY, key) for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    **{key: getattr(TINY, key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")},
    tie_word_embeddings=False,
    moe_intermediate_size=8,
    n_routed_experts=3,
    num_experts_per_tok=1,
    n_group=1,
    topk_group=1,
    num_mtp_layers=2,
)


def test_the_targets_own_prediction_layers_count_as_a_drafter():
    sizes = {"dtype_bytes": 2, "context_tokens": 1000, "gamma": 2, "available": 7}
    alone, predicting = estimate(MTP, **sizes), estimate(MTP, **sizes, mtp=True)
    attention = 16 * 32 + 2 * 16 * 16 + 32 * 16  # q, k, v, o
    experts = 4 * 3 * 16 * 8 + 3 * 16  # three and one shared, and the router
    layer = attention + experts + 2 * 16 + 2 * 16 * 16 + 3 * 16  # two norms; what makes a layer an MTP layer
    assert count_mtp_parameters(MTP) == 2 * layer
    assert predicting.weights_target == alone.weights_target
    assert (alone.weights_drafter, predicting.weights_drafter) == (0, 2 * 2 * layer)
    assert predicting.kv == 2 * alone.kv == 2 * 1024 * 2 * 2 * 2 * 8 * 2
    assert predicting.logits == 2 * alone.logits == 2 * 3 * 100 * 4
    with pytest.raises(ValueError, match="llama has no multi-token-prediction layers"):
        estimate(TINY, **sizes, mtp=True)


def test_a_target_that_drafts_for_itself_takes_a_second_cache_and_no_weights():
    sizes = {"dtype_bytes": 2, "context_tokens": 1000, "gamma": 2, "available": 7, "packed": True}
    alone, itself = estimate(SMOLLM2, **sizes), estimate(SMOLLM2, **sizes, itself=True)
    assert (itself.weights_target, itself.weights_drafter) == (alone.weights_target, 0)
    assert (itself.kv, itself.logits) == (2 * alone.kv, 2 * alone.logits)


def test_packed_weights_take_a_tied_head_twice():
    sizes = {"dtype_bytes": 2, "context_tokens": 9, "gamma": 0, "available": 7}
    pair = {"drafter_config": SMOLLM2, **sizes}
    plain, packed = estimate(TINY, **pair), estimate(TINY, **pair, packed=True)
    assert packed.weights_target == plain.weights_target, "its head is not tied"
    assert packed.weights_drafter == plain.weights_drafter + 2 * 49152 * 576
    given = estimate(SMOLLM2, **sizes, weight_bytes=1000, packed=True)
    assert given.weights_target == 1000 + 2 * 49152 * 576


def test_without_a_drafter_its_part_is_nothing():
    budget = estimate(TINY, dtype_bytes=4, context_tokens=9, gamma=0)
    assert budget.weights_drafter == 0 and budget.logits == 400 and budget.kv == 256 * 256
    assert 0 < budget.available <= psutil.virtual_memory().total


def test_the_shipped_figure_covers_the_dearest_drafter():
    sizes = {"dtype_bytes": 4, "context_tokens": 1000, "gamma": 4, "available": 0}
    budget = estimate(SMOLLM2, drafter_config=SMOLLM2, **sizes, packed=True)
    assert 0.95 < budget.total / 1e6 / load_pairings()["smollm2-135m"].memory_mb <= 1


def test_check_refuses_exactly_what_does_not_fit():
    budget = Budget(
        3 * 10**9, 10**8, 2 * 10**7, 10**6, 62 * 10**7, 3_801_000_000, activations=4 * 10**7, runtime=2 * 10**7
    )
    check(budget)
    with pytest.raises(UserError) as caught:
        check(replace(budget, available=budget.total - 1))
    text = str(caught.value)
    for number in ("3.80 GB", "3.00 GB", "100 MB", "20 MB", "1 MB", "activations 60 MB", "620 MB"):
        assert number in text
    assert "\n" not in text and ". " not in text
