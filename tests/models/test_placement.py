"""Where the parts of a model go, for devices that are only imagined, and that it decodes the same from anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from fakes import ARCHITECTURES, TopKTree, reference_decode, tiny_model
from transformers import AutoConfig, PretrainedConfig

from specviz import memory
from specviz.decoding.engine import Settings, decode
from specviz.drafters import DraftModel, EarlyExit, Plain
from specviz.errors import NotEnoughMemory
from specviz.models.pack import PackedLinear, is_packed, pack
from specviz.models.placement import (
    CPU,
    Placement,
    compute_dtype,
    decoder_layers,
    free_memory,
    input_device,
    numbered,
    places,
    plan,
)
from specviz.models.skeleton import model_without_storage
from specviz.models.target import Target

GB = 10**9
GPUS = [torch.device("cuda", index) for index in range(3)]
SHAPE_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LIKE_8B = AutoConfig.for_model("llama", **SHAPE_8B, tie_word_embeddings=False)
LIKE_70B = AutoConfig.for_model(
    "llama",
    **{**SHAPE_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    tie_word_embeddings=False,
)
LIKE_1B = AutoConfig.for_model(
    "llama",
    **{**SHAPE_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    head_dim=64,
    tie_word_embeddings=True,
)
SLOW = "what waits in CPU memory is moved in for every pass, which makes every pass slow"


def placed(config: PretrainedConfig, *rooms: float, cpu: float | None = None, **asked: object) -> Placement:
    """The plan in bfloat16 for GPUs with so many GB free, and so many in CPU memory."""
    budgets = {gpu: int(room * GB) for gpu, room in zip(GPUS, rooms, strict=False)}
    budgets |= {} if cpu is None else {CPU: int(cpu * GB)}
    return plan(config, torch.bfloat16, GPUS[0], name="It", budgets=budgets, **asked)


def taken(placement: Placement, config: PretrainedConfig, device: torch.device, context: int = 2048) -> float:
    """GB that a device needs: weights with their headroom, caches of the layers that run there, and logits.

    Counted from the shapes of a Llama, apart from the code under test.
    """
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size + 2)
    embedding = config.vocab_size * config.hidden_size
    rows = 1 << (context + 8).bit_length()
    runs_here = {device, CPU} if device == GPUS[0] else {device}
    names = {f"model.layers.{index}": layer for index in range(config.num_hidden_layers)}
    names |= {"model.embed_tokens": embedding, "model.norm": config.hidden_size}
    names |= {} if config.tie_word_embeddings else {"lm_head": embedding}
    weights = sum(2 * size for name, size in names.items() if placement.devices[name] == device)
    layers = [name for name in names if ".layers." in name and placement.devices[name] in runs_here]
    cache = len(layers) * 2 * rows * keys * 2
    return (1.2 * weights + (cache if device != CPU else 0) + 9 * config.vocab_size * 4) / GB


@pytest.mark.parametrize(
    "config, rooms, context",
    [
        (LIKE_8B, (12, 12), 2048),
        (LIKE_8B, (9.5, 14), 2048),
        (LIKE_8B, (18, 24), 100_000),
        (LIKE_70B, (80, 80, 80), 2048),
        (LIKE_1B, (2.5, 2.5), 2048),
    ],
)
def test_a_model_too_large_for_one_gpu_is_spread_over_all(config, rooms, context):
    placement = placed(config, *rooms, context_tokens=context)
    assert set(placement.devices.values()) == set(GPUS[: len(rooms)])
    for gpu, room in zip(GPUS, rooms, strict=False):
        assert 0 < taken(placement, config, gpu, context) <= room
    assert placement.need.available == sum(rooms) * GB
    assert placement.device_map == {name: device.index for name, device in placement.devices.items()}


@pytest.mark.parametrize("config", [LIKE_8B, LIKE_1B])
def test_no_layer_is_split_and_every_module_has_a_place(config):
    devices = placed(config, 12 if config is LIKE_8B else 2.5, 12).devices
    layers = {f"model.layers.{index}" for index in range(config.num_hidden_layers)}
    assert set(devices) == layers | {"model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"}


def test_tied_embeddings_stay_together():
    devices = placed(LIKE_1B, 2.5, 2.5).devices
    assert devices["model.embed_tokens"] == devices["lm_head"] == GPUS[0]
    apart = placed(LIKE_8B, 12, 12).devices
    assert (apart["model.embed_tokens"], apart["lm_head"]) == (GPUS[0], GPUS[1])


def test_the_caches_of_a_long_context_take_room_from_the_layers():
    short, long = placed(LIKE_8B, 16, 26, context_tokens=10_000), placed(LIKE_8B, 16, 26, context_tokens=100_000)
    assert taken(short, LIKE_8B, GPUS[0], 10_000) < 16 < taken(short, LIKE_8B, GPUS[0], 100_000)
    assert taken(long, LIKE_8B, GPUS[0], 100_000) <= 16


@pytest.mark.parametrize(
    "config, rooms, cpu, context",
    [
        (LIKE_8B, (8,), 64, 2048),
        (LIKE_8B, (24,), 24, 100_000),
        (LIKE_8B, (10, 10), 64, 2048),
        (LIKE_70B, (24,), 200, 2048),
    ],
)
def test_what_no_gpu_has_room_for_waits_in_cpu_memory(config, rooms, cpu, context):
    placement = placed(config, *rooms, cpu=cpu, context_tokens=context)
    assert set(placement.devices.values()) == {*GPUS[: len(rooms)], CPU}
    for gpu, room in zip(GPUS, rooms, strict=False):
        assert taken(placement, config, gpu, context) <= room
    assert taken(placement, config, CPU, context) <= cpu
    assert placement.device_map["lm_head"] == "cpu" and placement.device_map["model.embed_tokens"] == 0
    assert SLOW in placement.notes[0]


def test_notes_say_how_many_layers_lie_where():
    assert placed(LIKE_8B, 12, 12).notes == ("It is spread over cuda:0 (14 of 32 layers) and cuda:1 (18).",)
    (three,) = placed(LIKE_70B, 80, 80, 80).notes
    assert three == "It is spread over cuda:0 (26 of 80 layers), cuda:1 (28) and cuda:2 (26)."
    (offloaded,) = placed(LIKE_8B, 8, cpu=64).notes
    assert offloaded == (
        "It is spread over cuda:0 (9 of 32 layers) and CPU memory (23), and what waits in CPU memory is moved in for "
        "every pass, which makes every pass slow and drafting look better than it would be."
    )


def test_what_fits_on_its_device_stays_there():
    placement = placed(LIKE_8B, 24, 24, cpu=64)
    assert placement == Placement({"": GPUS[0]}, placement.need) and not placement.is_split
    assert placement.need.available == 24 * GB
    unnumbered = plan(LIKE_8B, torch.bfloat16, torch.device("cuda"), budgets={GPUS[0]: 24 * GB})
    assert unnumbered.device_map == {"": torch.device("cuda")}


def test_a_drafters_memory_is_kept_free():
    assert not placed(LIKE_8B, 24, 24, reserve=4 * GB).is_split
    beside = placed(LIKE_8B, 24, 24, reserve=10 * GB)
    assert beside.is_split and taken(beside, LIKE_8B, GPUS[0]) <= 14


def test_weights_that_stay_quantised_count_as_they_are_stored():
    assert not placed(LIKE_70B, 80, weight_bytes=40 * GB).is_split
    half = placed(LIKE_70B, 30, 30, weight_bytes=40 * GB)
    assert set(half.devices.values()) == set(GPUS[:2])


@pytest.mark.parametrize("cpu", [None, 4])
def test_a_model_that_fits_nowhere_is_refused_with_numbers(cpu):
    with pytest.raises(NotEnoughMemory) as caught:
        placed(LIKE_8B, 8, cpu=cpu)
    text = str(caught.value)
    free = f"{8 + (cpu or 0)}.00 GB"
    for number in (
        "19.81 GB",
        "weights 16.06 GB",
        "KV cache 537 MB",
        "logits 5 MB",
        "activations 45 MB",
        "headroom 3.17 GB",
        f"{free} is free",
    ):
        assert number in text


@pytest.mark.parametrize("rooms, cpu", [((8,), 12.0), ((2,), 130.0)])
def test_memory_that_would_do_in_one_piece_only_is_refused_with_numbers(rooms, cpu):
    """In the second case the GPU can't even hold the embeddings: all would run on the CPU without a word."""
    with pytest.raises(NotEnoughMemory, match=r"19\.81 GB") as caught:
        placed(LIKE_8B, *rooms, cpu=cpu)
    assert f"(cuda:0 {rooms[0]}.00 GB, cpu {cpu:.2f} GB)" in str(caught.value)


def test_the_cpu_alone_has_nowhere_to_spread_to():
    assert plan(LIKE_8B, torch.bfloat16, CPU, budgets={CPU: 20 * GB}).devices == {"": CPU}
    with pytest.raises(NotEnoughMemory):
        plan(LIKE_8B, torch.bfloat16, CPU, budgets={CPU: 19 * GB})


def test_layers_of_the_text_model_are_found_beside_those_of_an_image_encoder():
    depth = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    text = {**depth, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16}
    vision = {**depth, "image_size": 28, "patch_size": 14}
    model = model_without_storage(AutoConfig.for_model("gemma3", text_config=text, vision_config=vision))
    name, layers = decoder_layers(model)
    assert name == "model.language_model.layers" and len(layers) == 2


def test_free_memory_lists_all_gpus_and_the_cpu_unless_it_is_the_same(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 7 if device.type == "cpu" else 100 + device.index)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for integrated, expected in ((False, {GPUS[0]: 100, GPUS[1]: 101, CPU: 7}), (True, {GPUS[0]: 100, GPUS[1]: 101})):
        properties = SimpleNamespace(is_integrated=integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, properties=properties: properties)
        assert free_memory(torch.device("cuda")) == expected
    assert free_memory(CPU) == {CPU: 7}


def test_devices_without_a_number_are_the_first_of_their_kind():
    assert numbered(torch.device("cuda")) == GPUS[0] and numbered(GPUS[1]) == GPUS[1]
    assert numbered(CPU) == CPU and numbered(torch.device("mps")) == torch.device("mps")


def test_states_are_computed_in_more_bits_than_weights_may_be_stored_in():
    model = tiny_model().to(torch.bfloat16)
    assert compute_dtype(model) == torch.bfloat16
    embeddings = model.get_input_embeddings()
    embeddings.weight = torch.nn.Parameter(embeddings.weight.to(torch.float8_e4m3fn), requires_grad=False)
    assert model.dtype == torch.float8_e4m3fn and compute_dtype(model) == Target.dtype.fget(
        SimpleNamespace(model=model)
    )
    assert compute_dtype(model) == torch.bfloat16


def offloaded(architecture: str):
    """All weights wait in CPU memory, and every module fetches its own when it runs."""
    return cpu_offload(tiny_model(architecture), execution_device=CPU, offload_buffers=True)


def hooked(architecture: str):
    """Spread over several devices, as accelerate sees it."""
    model = tiny_model(architecture)
    devices = {name: "cpu" for name, _ in model.named_children() if name != model.base_model_prefix}
    devices |= {f"{model.base_model_prefix}.{name}": "cpu" for name, _ in model.base_model.named_children()}
    skipped = list(model._skip_keys_device_placement)
    return dispatch_model(model, devices, force_hooks=True, skip_keys=skipped)


HOW = pytest.mark.parametrize("how", [offloaded, hooked])


@HOW
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_decodes_the_same_with_accelerates_hooks(architecture, how):
    plain, prompt = tiny_model(architecture), [1, 2, 3]
    expected = reference_decode(plain, prompt, 12)
    target = Target(how(architecture))  # and its rollback is tried
    assert hasattr(target.model.get_input_embeddings(), "_hf_hook") and target.device == CPU
    drafters = [Plain(), EarlyExit(target, 3)]
    if architecture != "hybrid":
        drafters += [TopKTree(plain, (2, 2)), DraftModel(target, target.model), DraftModel(target, how(architecture))]
    for drafter in drafters:
        steps = list(decode(target, drafter, prompt, Settings(gamma=3, max_new_tokens=12)))
        assert [token for step in steps for token in step.committed] == expected
    assert architecture == "hybrid" or len(steps) < len(expected), "the model drafts what it would say itself"


@HOW
@torch.inference_mode()
def test_hidden_rows_are_the_same_with_accelerates_hooks(how):
    layers = (0, 1, 2, 4)
    torch.testing.assert_close(
        Target(how("llama")).prefill([1, 2, 3, 4], layers), Target(tiny_model()).prefill([1, 2, 3, 4], layers)
    )


@HOW
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_an_early_exit_leaves_early_with_accelerates_hooks(architecture, how):
    """A hooked module's `forward` is bound to it: in a copy it would run all layers of the original."""
    hooks, plain = Target(how(architecture)), Target(tiny_model(architecture))
    logits = []
    for target in (hooks, plain):
        target.prefill([1, 2, 3])
        with target.early_exit(1) as step:
            logits += [step(4), step(5)]
    torch.testing.assert_close(logits[:2], logits[2:])
    assert hooks.cache.hf.layers[3].rows == 3


def test_weights_that_wait_are_seen_and_not_packed():
    model = offloaded("llama")
    assert model.device == torch.device("meta") and input_device(model) == CPU and places(model) == {CPU}
    assert pack(model) == 0 and not is_packed(model)


class Quantised(torch.Tensor):
    """What a weight looks like that computes in a format of its own."""


def test_quantised_weights_are_not_packed():
    model = tiny_model()
    layer = model.base_model.layers[0].mlp
    layer.up_proj.weight = torch.nn.Parameter(layer.up_proj.weight.detach().as_subclass(Quantised))
    assert pack(model) == 4 * 7  # all linear layers but that one
    assert type(layer.up_proj) is torch.nn.Linear and isinstance(layer.down_proj, PackedLinear)


def test_between_two_devices_everything_meets_where_it_should():
    """In a process of its own: torch can't forget the devices that it imagines there."""
    program = Path(__file__).with_name("imagined.py")
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    kinds = ("plain", "early-exit", "draft-model", "tree", "hidden rows", "logits of an exit")
    spread = (("llama", "imagined:1"), ("mixed", "imagined:1"), ("llama", "cpu"))
    expected = [f"{architecture} {rest} {kind}" for architecture, rest in spread for kind in kinds]
    assert result.stdout.splitlines() == ["tensors of two devices can't meet", *expected]
