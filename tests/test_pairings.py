"""Every shipped pairing, at small scale: stand-ins of the same kinds are loaded the same way, and decode losslessly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import standin_heads
import standins
import torch
from fakes import reference_decode
from public_configs import CHECKPOINTS, HEADS, SHAPES
from safetensors.torch import load_file
from transformers import PretrainedConfig

from specviz import runs
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.loaded import Loaded, load
from specviz.memory import count_parameters, estimate
from specviz.models.heads import cached_layers, share
from specviz.presets import DrafterPreset, ModelSource, Pairing, load_pairings
from specviz.prompts import encode
from specviz.trace import Step

PAIRINGS = load_pairings()
PROMPT = "the cat sat on the mat and the dog sat on"
BUDGET = 40
# Of the default pairing: what comes along is for the real target alone, and is tested with that.
SHIPPED = (
    "N-gram lookup, else EAGLE head",
    "EAGLE head",
    "Multi-token prediction",
    "Medusa heads",
    "Small draft model",
    "Early exit with adapter",
)
CASES = [
    pytest.param(pairing, preset, id=f"{pairing.id}, {preset.title}")
    for pairing in PAIRINGS.values()
    for preset in pairing.drafters
    if preset.kind != "plain" and not (pairing.id == "smollm2-135m" and preset.title in SHIPPED)
]


class Shelf:
    """Stand-ins on disk, each made once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def source(self, model: ModelSource, role: str, chat: bool) -> ModelSource:
        """The same model, to be had from a folder."""
        assert model.hub is not None
        folder = self.root / f"{model.id}, {role}"
        if not folder.exists():
            standins.save(model.hub.repo, folder, role=role, chat=chat)
        return replace(model, path=folder, wheel=None, hub=None)

    def head(self, model: ModelSource, target: ModelSource) -> ModelSource:
        """The same head, for that target: from a folder of its own, or from the target's."""
        assert model.hub is not None and target.path is not None
        folder = self.root / f"{model.id}, head"
        if model.id == target.id:
            folder = target.path
        elif not folder.exists():
            standin_heads.save(model.hub.repo, folder, target.path)
        return replace(model, path=folder, hub=None)

    def load(self, pairing: Pairing, preset: DrafterPreset) -> Loaded:
        target, drafts = self.source(pairing.target, "target", pairing.chat), preset.model
        if drafts is not None:
            drafts = self.head(drafts, target) if drafts.head else self.source(drafts, "drafter", pairing.chat)
        return load(replace(pairing, target=target), drafts, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("stand-ins"))


def scaled(pairing: Pairing, preset: DrafterPreset) -> dict[str, object]:
    """The preset's settings, for a target with fewer layers."""
    settings = {name: value for name, value in preset.defaults.items() if name != "gamma"}
    if "exit_layer" in settings:
        real = full(pairing.target).num_hidden_layers
        layers = standins.layers(pairing.target.hub.repo, "target")
        settings["exit_layer"] = max(1, round(int(settings["exit_layer"]) / real * layers))
    return settings


def full(model: ModelSource) -> PretrainedConfig:
    """The model's config at its real size."""
    assert model.hub is not None
    return SHAPES[model.hub.repo].full()


def run(loaded: Loaded, kind: str, settings: dict[str, object], gamma: int, temperature: float) -> list[Step]:
    sampler = Sampler(temperature=temperature, top_k=20)  # the padding of a vocabulary is never sampled
    asked = Settings(gamma, BUDGET, sampler, stop_tokens=frozenset())
    return list(runs.prepare(loaded, kind, settings, PROMPT, asked, raw_prompt=not loaded.pairing.chat).steps())


def committed(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def test_every_model_has_a_stand_in_and_no_stand_in_is_idle():
    offered = {model.hub.repo for pairing in PAIRINGS.values() for model in pairing.models if model.hub is not None}
    assert offered == SHAPES.keys() | HEADS.keys()


def test_the_stand_ins_have_the_peculiarities_of_the_real_ones(shelf):
    def tensors(id: str) -> dict[str, torch.Tensor]:
        pairing = PAIRINGS[id]
        folder = shelf.source(pairing.target, "target", pairing.chat).path
        return load_file(folder / "model.safetensors")

    quantised = tensors("qwen3-8b-fp8")
    assert quantised["model.layers.0.mlp.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert quantised["model.layers.0.mlp.up_proj.weight_scale_inv"].shape == (2, 1)
    assert quantised["lm_head.weight"].dtype == torch.bfloat16
    assert "mtp.layers.0.self_attn.q_proj.weight" in tensors("mellum2.1-12b-mtp")
    assert any(name.startswith("vision_tower.") or ".vision_tower." in name for name in tensors("gemma-3-4b"))
    said = shelf.load(PAIRINGS["qwen3-8b-fp8"], PAIRINGS["qwen3-8b-fp8"].drafters[0]).notes
    assert any("FP8" in note for note in said)
    coder = PAIRINGS["qwen2.5-coder-7b"]
    loaded = shelf.load(coder, coder.drafters[2])
    assert loaded.target.vocab_size == loaded.assistant.model.config.vocab_size + 128
    target, drafter = (SHAPES[model.hub.repo].vocabulary for model in PAIRINGS["qwen3-0.6b"].models)
    ours, theirs = (standins.tokenizer(vocabulary, chat=True) for vocabulary in (target, drafter))
    assert ours.encode(PROMPT) != theirs.encode(PROMPT) and len(ours.encode(PROMPT)) > len(theirs.encode(PROMPT))


def test_the_stand_ins_of_heads_have_the_peculiarities_of_the_real_ones(shelf):
    def files(id: str, title: str) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
        pairing = PAIRINGS[id]
        (preset,) = (preset for preset in pairing.drafters if preset.title == title)
        folder = shelf.head(preset.model, shelf.source(pairing.target, "target", pairing.chat)).path
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = folder / HEADS[preset.model.hub.repo].weights
        return config, load_file(weights) if weights.suffix == ".safetensors" else torch.load(weights)

    config, tensors = files("llama-3.1-8b", "EAGLE-3 head")
    assert "eagle_config" not in config and "embed_tokens.weight" not in tensors
    assert tensors["midlayer.hidden_norm.weight"].dtype == torch.float16
    assert 0 < config["draft_vocab_size"] == len(tensors["d2t"]) < config["vocab_size"] == len(tensors["t2d"])
    config, tensors = files("qwen3-8b", "EAGLE-3 head")
    assert config["transformer_layer_config"]["hidden_size"] == 128 and config["norm_before_residual"] is True
    assert tensors["layers.0.hidden_norm.weight"].dtype == tensors["embed_tokens.weight"].dtype == torch.bfloat16
    config, tensors = files("vicuna-7b", "EAGLE-1 head")
    assert "layers.0.input_layernorm.weight" not in tensors and not {"lm_head.weight", "norm.weight"} & tensors.keys()
    assert tensors["fc.bias"].dtype == torch.float32 and "num_key_value_heads" not in config
    config, tensors = files("vicuna-7b", "Medusa heads")
    assert config["medusa_num_heads"] == 2 and tensors["4.1.weight"].dtype == torch.bfloat16


def test_a_head_in_its_targets_checkpoint_brings_no_weights_of_its_own(shelf):
    pairing = PAIRINGS["qwen3.5-0.8b"]
    (preset,) = (preset for preset in pairing.drafters if preset.kind == "mtp")
    loaded = shelf.load(pairing, preset)
    names = load_file(loaded.folder / "model.safetensors").keys()
    assert {"mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight"} <= names
    assert any(name.startswith("model.visual.") for name in names)
    assert loaded.head.path == loaded.folder and loaded.head.hash == loaded.target.weights


def test_the_pairings_cover_families_and_kinds():
    shapes = [SHAPES[pairing.target.hub.repo] for pairing in PAIRINGS.values()]
    assert len(PAIRINGS) >= 12
    families = {"llama", "qwen2", "qwen3", "qwen3_5", "gpt2", "gpt_neox", "gemma3", "mellum"}
    assert {shape.model_type for shape in shapes} == families
    assert any("quantization_config" in shape.config for shape in shapes)
    methods = {preset.defaults.get("method") for pairing in PAIRINGS.values() for preset in pairing.drafters}
    assert methods == {None, "universal", "mtp"}
    kinds = {part for pairing in PAIRINGS.values() for preset in pairing.drafters for part in preset.kind.split("+")}
    assert kinds == {"plain", "ngram", "early-exit", "draft-model", "library", "eagle", "medusa", "mtp"}
    for pairing in PAIRINGS.values():
        assert pairing.drafters[0].kind == "plain" and any(preset.kind == "ngram" for preset in pairing.drafters)


@pytest.mark.parametrize(("pairing", "preset"), CASES)
def test_a_stand_in_loads_and_decodes_as_plain_decoding_does(shelf, pairing, preset):
    loaded = shelf.load(pairing, preset)
    assert loaded.target.config.model_type == full(pairing.target).get_text_config(decoder=True).model_type
    gamma, settings = int(preset.defaults["gamma"]), scaled(pairing, preset)
    greedy = run(loaded, preset.kind, settings, gamma, temperature=0)
    assert committed(greedy) == committed(run(loaded, "plain", {}, 0, temperature=0))
    sampled = run(loaded, preset.kind, settings, gamma, temperature=1)
    assert len(committed(sampled)) == BUDGET
    for steps in (greedy, sampled):
        assert any(step.nodes for step in steps) and all(step.note is None for step in steps)
    if preset.kind != "ngram":  # whose drafts come from the text alone
        assert any(step.path for step in (*greedy, *sampled)), "the stand-ins are related, so some drafts are accepted"


@pytest.mark.parametrize("pairing", PAIRINGS.values(), ids=PAIRINGS.keys())
def test_plain_decoding_is_what_the_model_says_without_a_cache(shelf, pairing):
    loaded = shelf.load(pairing, pairing.drafters[0])
    steps = run(loaded, "plain", {}, 0, temperature=0)
    prompt = encode(loaded.target, PROMPT, raw=not pairing.chat)
    with torch.inference_mode():
        assert committed(steps) == reference_decode(loaded.target.model, prompt, BUDGET)


@pytest.mark.parametrize("pairing", PAIRINGS.values(), ids=PAIRINGS.keys())
def test_the_memory_is_what_the_dearest_drafter_needs(pairing):
    needed = max(total_bytes(pairing, preset) for preset in pairing.drafters) / 10**6
    assert needed <= pairing.memory_mb <= needed * 1.05


def total_bytes(pairing: Pairing, preset: DrafterPreset) -> int:
    """Target and drafter with 1,000 tokens of context, in the number format of the pairing's hardware."""
    target, drafter, head = full(pairing.target), None, 0
    if preset.model is not None and preset.model.head:
        head = head_bytes(preset.model, target)
    elif preset.model is not None:
        drafter = full(preset.model)
    elif preset.defaults.get("source") == "self":
        drafter = target
    need = estimate(
        target,
        drafter_config=drafter,
        head_bytes=head,
        head_layers=cached_layers(preset.kind, {}) if head else 0,
        mtp=preset.defaults.get("method") == "mtp",
        dtype_bytes=4 if pairing.hardware == "cpu" else 2,
        context_tokens=1000,
        gamma=max(int(preset.defaults.get(name, 0)) for name in ("gamma", "nodes")),
        available=0,
        packed=pairing.hardware == "cpu",
    )
    return need.total


def head_bytes(model: ModelSource, target: PretrainedConfig) -> int:
    """Size of a head's file, or its share of the file that holds its target too."""
    assert model.hub is not None
    if model.hub.repo in HEADS:
        return HEADS[model.hub.repo].size
    return share(CHECKPOINTS[model.hub.repo], True, target)


def test_multi_token_prediction_counts_in_the_memory():
    pairing = PAIRINGS["mellum2.1-12b-mtp"]
    total = {preset.kind: total_bytes(pairing, preset) for preset in pairing.drafters}
    assert total["library"] - total["plain"] > 2 * mtp_parameters(full(pairing.target).get_mtp_config())


def mtp_parameters(config: PretrainedConfig) -> int:
    """Its layers, each with a projection from two states to one and two more norms; embeddings and head are shared."""
    shared = 2 * config.vocab_size * config.hidden_size
    extra = config.num_hidden_layers * (2 * config.hidden_size**2 + 2 * config.hidden_size)
    return count_parameters(config) - shared + extra


@pytest.mark.parametrize("pairing", PAIRINGS.values(), ids=PAIRINGS.keys())
def test_a_cpu_is_promised_only_what_it_can_do(pairing):
    """At most 0.6 billion parameters in the target, and room in 16 GB."""
    small = count_parameters(full(pairing.target)) <= 0.6e9
    assert (pairing.hardware == "cpu") == small
    assert not small or pairing.memory_mb <= 16_000
