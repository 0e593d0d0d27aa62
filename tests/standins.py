"""Tiny checkpoints on disk that stand in for the public models: the same classes and peculiarities, made-up weights.

A tensor is made from its name, and a row of the embeddings from its token's text. So models are related as far as their
architectures agree: one with fewer layers is the other cut short, whatever tokenizers they read.
"""

from __future__ import annotations

import copy
import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from public_configs import SHAPES, Shape
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LATER, EMBEDDING = 0.5, 0.05  # strength of the weights of all layers but the first, and of the embeddings
WINDOW = 8
LAYERS = {"target": 4, "drafter": 2}
# Heads that name no layers of their target read three that differ only if it has at least seven.
DEEP = {"meta-llama/Llama-3.1-8B-Instruct": 8, "Qwen/Qwen3-8B": 8}
HEADS, SHARED = 4, 2  # attention heads, and how many keys and values they share where they do
FIRST_NORM = "layers.0.input_layernorm.weight"
BLOCK = 128  # FP8 checkpoints scale their weights in blocks of 128 x 128
SIZES = {
    "hidden_size": BLOCK,
    "n_embd": BLOCK,
    "intermediate_size": 2 * BLOCK,
    "moe_intermediate_size": BLOCK,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_attention_heads": HEADS,
    "n_head": HEADS,
    "head_dim": 64,
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": BLOCK}
# Rows of the embeddings beyond those of the smaller models of the family.
PADDING = {"Qwen/Qwen2.5-Coder-7B-Instruct": 128, "google/gemma-3-4b-it": 64}

PROSE = "the cat sat on the mat and the dog sat on the log while the rain ran down the pane and the man ran home again"
CODE = "for index in range(count): total = total + values[index]; return total if total else None  # def main(args):"
TEXTS = {"qwen": CODE, "gemma3": CODE, "mellum": CODE}  # the others learnt from prose
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"


@cache
def tokenizer(vocabulary: str, chat: bool) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer trained on a text; `chat`: with a template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=288, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([TEXTS.get(vocabulary, PROSE)] * 4, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=backend)
    made.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    made.chat_template = TEMPLATE if chat else None
    return made


def layers(repo: str, role: str) -> int:
    """How many the stand-in has."""
    return DEEP.get(repo, LAYERS[role]) if role == "target" else LAYERS[role]


def save(repo: str, folder: Path, *, role: str, chat: bool) -> Path:
    """A checkpoint of that repository's kind, in `folder`. role: "target" or "drafter", which has fewer layers."""
    shape = SHAPES[repo]
    words = tokenizer(shape.vocabulary, chat)
    model = _model(shape, layers(repo, role), len(words) + PADDING.get(repo, 0))
    _fill(model, words)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    if {"num_nextn_predict_layers", "mtp_num_hidden_layers"} & {*shape.config, *shape.config.get("text_config", {})}:
        _add_mtp(folder)
    if "quantization_config" in shape.config:
        _quantise(folder, shape.config["quantization_config"])
    return folder


def _model(shape: Shape, layers: int, vocab_size: int) -> PreTrainedModel:
    config = copy.deepcopy(shape.config)
    config.pop("quantization_config", None)  # the weights are quantised once they are on disk
    text = config.get("text_config", config)
    _shrink(text, layers, vocab_size)
    if shape.model_type == "gemma3":
        config["vision_config"] |= VISION
        config |= {"mm_tokens_per_image": 4, "image_token_index": vocab_size - 1}
    elif shape.model_type == "qwen3_5":
        config["vision_config"] |= QWEN_VISION
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    model = whole.from_config(AutoConfig.for_model(shape.model_type, **config), dtype=torch.float32)
    return model.eval()


def _shrink(text: dict[str, Any], layers: int, vocab_size: int) -> None:
    """Small sizes in place of the real ones; what makes the architecture stays."""
    heads, kv = text.get("num_attention_heads"), text.get("num_key_value_heads")
    text |= {name: size for name, size in SIZES.items() if name in text}
    if kv is not None:  # all, some or one
        text["num_key_value_heads"] = HEADS if kv == heads else min(kv, SHARED)
    if "linear_attention" in text.get("layer_types", []):  # the first is what the layer that predicts is made from
        text["layer_types"] = ["full_attention", "linear_attention"] * (layers // 2)
    elif "layer_types" in text:
        text |= {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2), "sliding_window": WINDOW}
    text["n_layer" if "n_layer" in text else "num_hidden_layers"] = layers
    text["n_positions" if "n_embd" in text else "max_position_embeddings"] = 256
    text |= {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@torch.no_grad()
def _fill(model: PreTrainedModel, words: PreTrainedTokenizerFast) -> None:
    """Weights made from names. Later layers do less than the first, so that a model cut short still agrees often."""
    rows = torch.stack([_row(text) for text in words.convert_ids_to_tokens(range(len(words)))])
    own = getattr(model.config.get_text_config(), "num_key_value_heads", None) == HEADS
    for name, parameter in model.named_parameters():
        layer = re.search(r"(?:layers|h)\.(\d+)\.", name)
        strength = 1.0 if layer is None or layer[1] == "0" else LATER
        if name.split(".")[-2] in ("embed_tokens", "wte", "embed_in", "lm_head", "embed_out"):
            parameter.zero_()[: len(rows)] = rows * EMBEDDING
        elif parameter.dim() > 1:
            parameter.copy_(_weight(name.split("layers.")[-1], parameter.shape, own) * 2 * strength / BLOCK**0.5)
        elif "post_" in name and "Gemma3" in type(model).__name__:  # it sets what a layer adds; 0 stands for a factor 1
            parameter.fill_(4 * strength**3 - 1)


def _row(text: str) -> Tensor:
    """Nothing for tokens that are no letters: greedy output then is text, which another tokenizer can read again."""
    return _noise(text, BLOCK) if re.fullmatch("[!-;=-~Ġ]+", text) else torch.zeros(BLOCK)


def _weight(name: str, shape: torch.Size, own: bool) -> Tensor:
    """Noise. own: each head has its keys and values; those of neighbours are made the same, as if they shared."""
    if own and name.endswith(("k_proj.weight", "v_proj.weight")):
        shared = _noise(name, SHARED, shape[0] // HEADS, shape[1])
        return shared.repeat_interleave(HEADS // SHARED, 0).view(shape)
    return _noise(name, *shape)


def _noise(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def _add_mtp(folder: Path) -> None:
    """A layer for multi-token prediction, named as Mellum's and Qwen's: the first, which ignores the hidden state."""
    tensors = load_file(folder / "model.safetensors")
    (model,) = (name.removesuffix(FIRST_NORM) for name in tensors if name.endswith(FIRST_NORM))
    first = [name for name in tensors if name.startswith(f"{model}layers.0.")]
    tensors |= {f"mtp.{name.removeprefix(model)}": tensors[name].clone() for name in first}
    norm = tensors[f"{model}norm.weight"]
    tensors |= {f"mtp.{name}.weight": norm.clone() for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    tensors["mtp.fc.weight"] = torch.cat([torch.eye(len(norm)), torch.zeros(len(norm), len(norm))], 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _quantise(folder: Path, how: dict[str, Any]) -> None:
    """Linear layers in 8 bits with a scale for each block, all else in bfloat16, as such checkpoints are published."""
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight.bfloat16()
            continue
        blocks = weight.view(weight.shape[0] // BLOCK, BLOCK, -1, BLOCK)
        scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        tensors[name] = (blocks / scale[:, None, :, None]).view_as(weight).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"quantization_config": how, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
