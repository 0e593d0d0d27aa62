"""Tiny heads on disk that stand in for the public ones: their file names, tensor names, number formats and config.json.

Each is made from the first layer of its target's stand-in, or from what that says, so that some drafts are accepted.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from public_configs import HEADS
from safetensors.torch import load_file, save_file
from standins import EMBEDDING, PROSE
from torch import Tensor
from torch.nn.functional import one_hot
from transformers import AutoModelForCausalLM, AutoTokenizer

MEDUSA_HEADS = 5
TEXT, LEARNT = PROSE.partition(" the log")[0], 48  # what Medusa's heads are fitted to, and tokens after it
FAINT = 0.1  # strength of what a head reads of its target's states, of which its drafts make no use
ATTENTION = ("q_proj", "k_proj", "v_proj")
Tensors = dict[str, Tensor]


def save(repo: str, folder: Path, target: Path) -> Path:
    """A head of that repository's kind, in `folder`, for the stand-in in `target`."""
    public = HEADS[repo]
    tensors = LAYOUTS[public.layout](target)
    sizes = json.loads((target / "config.json").read_text(encoding="utf-8"))
    folder.mkdir()
    config = _shrunk(public.config, {**sizes, "num_hidden_layers": 1, "draft_vocab_size": len(tensors.get("d2t", ()))})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if public.weights.endswith(".safetensors"):
        save_file(tensors, folder / public.weights, metadata={"format": "pt"})
    else:
        torch.save(OrderedDict(tensors), folder / public.weights)
    return folder


def _shrunk(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The same entries, with the target's sizes."""
    small = {key: sizes[key] for key, value in config.items() if type(value) is int and type(sizes.get(key)) is int}
    inner = {key: _shrunk(value, sizes) for key, value in config.items() if isinstance(value, dict)}
    return {**config, **small, **inner}


def _eagle(target: Path) -> Tensors:
    """EAGLE-1: no norm before the layer, which makes up for that; its own embeddings; the target's LM head; float32."""
    layer, whole = _first_layer(target)
    width = whole["lm_head.weight"].shape[1]
    del layer["input_layernorm.weight"]
    for name in ATTENTION:
        layer[f"self_attn.{name}.weight"] /= EMBEDDING
    return {
        "embed_tokens.weight": whole["model.embed_tokens.weight"],
        "fc.weight": torch.cat([torch.eye(width), torch.zeros(width, width)], 1),
        "fc.bias": torch.zeros(width),
        **{f"layers.0.{name}": tensor for name, tensor in layer.items()},
    }


def _eagle3(target: Path) -> Tensors:
    """As the authors publish it, in half precision and with the target's embeddings."""
    return _as(torch.float16, _wide(target, "midlayer."))


def _speculators(target: Path) -> Tensors:
    """In bfloat16, with its own copy of the target's embeddings."""
    _, whole = _first_layer(target)
    embeddings = {"embed_tokens.weight": whole["model.embed_tokens.weight"]}
    return _as(torch.bfloat16, {**_wide(target, "layers.0."), **embeddings})


def _wide(target: Path, prefix: str) -> Tensors:
    """EAGLE-3: a layer that reads the embedding beside the fused states, and drafts letters alone."""
    layer, whole = _first_layer(target)
    rows = whole["lm_head.weight"]
    width, ids = rows.shape[1], rows.abs().sum(1).nonzero().flatten()
    layer = {name: tensor for name, tensor in layer.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))}
    for name in ATTENTION:
        weight = layer[f"self_attn.{name}.weight"]
        layer[f"self_attn.{name}.weight"] = torch.cat([weight, torch.zeros_like(weight)], 1)
    return {
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.isin(torch.arange(len(rows)), ids),
        **{f"{prefix}{name}": tensor for name, tensor in layer.items()},
        f"{prefix}hidden_norm.weight": torch.full((width,), FAINT),
        "fc.weight": torch.cat([torch.eye(width)] * 3, 1) * FAINT,
        "norm.weight": whole["model.norm.weight"],
        "lm_head.weight": rows[ids],
    }


@torch.inference_mode()
def _medusa(target: Path) -> Tensors:
    """In bfloat16. The LM heads are fitted to what the target says after a text; the blocks before them add nothing."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokens = torch.tensor([AutoTokenizer.from_pretrained(target).encode(TEXT)])
    tokens = model.generate(tokens, do_sample=False, max_new_tokens=LEARNT, pad_token_id=0)
    states = model(tokens, output_hidden_states=True).hidden_states[-1][0]
    vocabulary, width = model.lm_head.weight.shape
    tensors = {}
    for head in range(MEDUSA_HEADS):
        later = one_hot(tokens[0, 2 + head :], vocabulary).float()  # the state after token t is to name t + 2 + head
        tensors[f"{head}.0.linear.weight"] = torch.zeros(width, width)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(width)
        tensors[f"{head}.1.weight"] = (torch.linalg.pinv(states[: len(later)]) @ later).T.contiguous()
    return _as(torch.bfloat16, tensors)


LAYOUTS: dict[str, Callable[[Path], Tensors]] = {
    "eagle": _eagle,
    "eagle3": _eagle3,
    "speculators": _speculators,
    "medusa": _medusa,
}


def _first_layer(target: Path) -> tuple[Tensors, Tensors]:
    """Copies of the tensors of the target's first layer, by their names in it; and all of the target's."""
    whole, prefix = load_file(target / "model.safetensors"), "model.layers.0."
    first = {name.removeprefix(prefix): tensor.clone() for name, tensor in whole.items() if name.startswith(prefix)}
    return first, whole


def _as(dtype: torch.dtype, tensors: Tensors) -> Tensors:
    """All but the vocabulary in this number format."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
