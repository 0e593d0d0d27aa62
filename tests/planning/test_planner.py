"""Plans from configurations alone: published ratios, what still fits, and several GPUs."""

from dataclasses import replace

import pytest
from public_configs import SHAPES
from transformers import AutoConfig, LlamaConfig

from specviz import memory
from specviz.errors import UserError
from specviz.models.skeleton import model_without_storage
from specviz.planning.configs import KnownHead
from specviz.planning.planner import BITS, Drafting, Spec, largest, plan, quantised_bytes

GB = 10**9
TINY = LlamaConfig(
    vocab_size=100,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=5000,
    tie_word_embeddings=False,
)


def pair(target, drafter, **formats):
    return Spec(SHAPES[target].full(), Drafting("small", config=SHAPES[drafter].full()), 2, **formats)


def planned(spec, context=2048, batch=1, gamma=4, available=10**12, **more):
    return plan(spec, context, batch, gamma, available=available, counter="made up", **more)


@pytest.mark.parametrize(
    ("target", "drafter", "rows", "ratio"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", (147_456, 114_688), 1.78),  # published as 1.77
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", (131_072, 32_768), 1.25),
    ],
)
def test_published_ratios_of_caches_come_out_of_the_configurations(target, drafter, rows, ratio):
    made = planned(pair(target, drafter))
    assert (made.kv_row_target, made.kv_row_drafter) == rows
    assert made.kv_ratio == sum(rows) / rows[0] and round(made.kv_ratio, 2) == ratio
    assert any("times the target's own" in hint for hint in made.hints) is (ratio > 1.5)


def test_a_plan_adds_up():
    made = planned(pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"))
    for target, drafter, both in list(zip(made.target, made.drafter, made.both, strict=True))[:3]:
        assert target + drafter == both > 0
    need = pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B").need(2048, 1, 4)
    assert made.both.total == need.total and made.both.weights == need.weights_target + need.weights_drafter


@pytest.mark.parametrize(("gigabytes", "fits"), [(24, True), (20, False)])
def test_the_verdict_has_the_numbers(gigabytes, fits):
    made = planned(pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"), available=gigabytes * GB)
    assert made.fits is fits and f"{gigabytes}.00 GB" in made.verdict and memory.human(made.both.total) in made.verdict
    assert any("Quantised to 4bit" in hint and "would fit" in hint for hint in made.hints) is not fits


def test_the_largest_context_and_batch_fit_and_one_more_does_not():
    spec, available = pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"), 28 * GB
    made = planned(spec, available=available)
    assert 2048 < made.largest_context < 40_960 and made.largest_batch > 1
    for context, batch in ((made.largest_context, 1), (2048, made.largest_batch)):
        assert spec.need(context, batch, 4).total <= available
    assert spec.need(made.largest_context + 1, 1, 4).total > available
    assert spec.need(2048, made.largest_batch + 1, 4).total > available


def test_no_context_is_longer_than_the_model_reads():
    made = planned(Spec(TINY, Drafting("none"), 4), limit=5000)
    assert made.largest_context == made.limit == 5000
    assert planned(Spec(TINY, Drafting("none"), 4), available=1000).largest_context == 0


def test_largest_is_the_last_that_fits():
    for limit in (1, 7, 8, 1000):
        for most in range(min(limit, 12) + 1):
            assert largest(lambda count, most=most: count <= most, limit) == most


def test_quantised_weights_leave_embeddings_and_head_as_they_are():
    ends = 2 * 100 * 16
    norms = 5 * 16
    matrices = memory.count_parameters(TINY) - ends - norms
    assert quantised_bytes(TINY, "4bit", 2) == -(-matrices * 9 // 16) + 2 * (ends + norms)
    made = planned(Spec(TINY, Drafting("none"), 2, quantisation="8bit"))
    assert made.both.weights == quantised_bytes(TINY, "8bit", 2) and str(BITS["8bit"]) in made.notes[0]


def test_every_expert_is_quantised_and_in_memory():
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        moe_intermediate_size=32,
        num_experts=5,
        tie_word_embeddings=False,
    )
    experts = 2 * 5 * 3 * 16 * 32
    four, sixteen = (quantised_bytes(config, "4bit", 2), 2 * memory.count_parameters(config))
    assert sixteen - four > experts * (2 - 4.5 / 8)
    assert sum(weight.numel() for weight in model_without_storage(config).parameters()) == sixteen // 2


def test_what_drafts_brings_what_it_is():
    base = Spec(TINY, Drafting("none"), 4)
    head = KnownHead("head", size=1000, layers=1, states=3, source="made up")
    by_kind = {
        "none": base,
        "itself": replace(base, drafting=Drafting("itself", itself=True)),
        "head": replace(base, drafting=Drafting("head", heads=(head,))),
        "model": replace(base, drafting=Drafting("model", config=TINY)),
    }
    made = {kind: planned(spec, context=300).drafter for kind, spec in by_kind.items()}
    assert made["none"][:4] == (0, 0, 0, 0)
    assert made["itself"].weights == 0 and made["itself"].kv == planned(base, context=300).target.kv
    assert made["head"].weights == 2000, "16 bits in the file, 32 in memory"
    assert made["head"].kv == made["itself"].kv // 2 and made["head"].activations > 0
    assert made["model"].weights == 4 * memory.count_parameters(TINY)


@pytest.mark.parametrize(
    ("devices", "fits", "words"),
    [
        ((1, 24 * GB), True, "Everything fits on one of the GPUs."),
        ((2, 14 * GB), True, "spread over cuda:0"),
        ((4, 4 * GB), False, ""),
    ],
)
def test_several_gpus_hold_the_parts_of_a_target(devices, fits, words):
    made = planned(pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"), devices=devices, available=0)
    assert made.fits is fits and made.available == devices[0] * devices[1]
    assert words in " ".join(made.notes)


def test_a_sum_that_suffices_in_no_shares_is_refused():
    made = planned(pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"), devices=(40, 600_000_000), available=0)
    assert made.both.total < made.available and not made.fits
    assert "No way was found" in made.notes[0]


def test_engines_cap_sliding_windows_and_ours_do_not():
    config = SHAPES["google/gemma-3-1b-it"].full()
    config.sliding_window = 512
    ours = Spec(config, Drafting("none"), 2)
    engines = replace(ours, windowed=True)
    assert ours.need(8000, 1, 0).kv > 3 * engines.need(8000, 1, 0).kv
    assert ours.kv_row(drafter=False) == engines.kv_row(drafter=False) == 26 * 2 * 256 * 2


def test_a_target_without_prediction_layers_is_said_in_one_sentence():
    spec = Spec(TINY, Drafting("mtp", mtp=True), 4)
    with pytest.raises(UserError, match=r"no multi-token-prediction layers.*choose other models"):
        planned(spec)


def test_a_cpu_counts_rows_in_use_and_libraries():
    cpu, gpu = (Spec(TINY, Drafting("none"), 4, on_cpu=on_cpu).need(300, 1, 0) for on_cpu in (True, False))
    assert cpu.kv * 512 == gpu.kv * 301 and cpu.runtime > gpu.runtime == 0
