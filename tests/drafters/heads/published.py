"""Tiny checkpoints in the published layouts, and what these say is computed, in plain torch without caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 16, 24, 4, 2, 8, 29, 8
EPS, THETA = 1e-5, 500.0
DRAFT_IDS = [0, 2, 3, 7, 11, 12, 20, 28]  # the target's ids of a draft vocabulary

# As in public config.json files; head_dim is not hidden_size / num_attention_heads, as in Qwen3's.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "max_position_embeddings": 64,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}


def attention_and_mlp(prefix: str, read: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Shapes of a Llama layer's tensors, its norms left out. read: the width that q, k and v read."""
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD_DIM, read),
        f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, read),
        f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, read),
        f"{prefix}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
        f"{prefix}mlp.gate_proj.weight": (INNER, WIDTH),
        f"{prefix}mlp.up_proj.weight": (INNER, WIDTH),
        f"{prefix}mlp.down_proj.weight": (WIDTH, INNER),
    }


def random(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }


def vocabulary() -> dict[str, Tensor]:
    """d2t as offsets and t2d, as EAGLE-3 checkpoints hold them."""
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[DRAFT_IDS] = True
    return {"d2t": torch.tensor(DRAFT_IDS) - torch.arange(len(DRAFT_IDS)), "t2d": t2d}


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotated(x: Tensor) -> Tensor:
    """Rotary positions 0, 1, 2, ... of [T, heads, HEAD_DIM], in Llama's halves."""
    angles = torch.arange(len(x))[:, None].double() * THETA ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def attention(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    """Causal attention over [T, read] with grouped keys; biases and norms of q and k where the tensors have them."""

    def projected(name: str, heads: int) -> Tensor:
        rows = x @ w[f"{prefix}{name}_proj.weight"].T + w.get(f"{prefix}{name}_proj.bias", 0)
        rows = rows.view(len(x), heads, HEAD_DIM)
        return rms(rows, w[f"{prefix}{name}_norm.weight"]) if f"{prefix}{name}_norm.weight" in w else rows

    q, k, v = rotated(projected("q", HEADS)), rotated(projected("k", KV_HEADS)), projected("v", KV_HEADS)
    k, v = (rows.repeat_interleave(HEADS // KV_HEADS, 1) for rows in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * HEAD_DIM**-0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(len(x), -1)
    return mixed @ w[f"{prefix}o_proj.weight"].T + w.get(f"{prefix}o_proj.bias", 0)


def mlp(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up, down = (w[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def layer(x: Tensor, residual: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    """The part of a Llama layer that all heads share: attention over x, then the MLP, both added to the residual."""
    between = residual + attention(x, w, f"{prefix}self_attn.")
    return between + mlp(rms(between, w[f"{prefix}post_attention_layernorm.weight"]), w, f"{prefix}mlp.")


Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def chain(
    step: Step, features: Tensor, tokens: list[int], embed: Tensor, ids: list[int], steps: int = 4
) -> list[Tensor]:
    """Logits [Vd] of `steps` tokens drafted greedily: one from the given rows, the others from rows fed back.

    step(embeddings [T, H], features [T, H]) -> logits [T, Vd] and the states [T, H] that stand for later features.
    features: [T, H]; row i goes with tokens[i]. ids: the target's id of each entry of the logits.
    """
    tokens, found = list(tokens), []
    for _ in range(steps):
        logits, states = step(embed[tokens], features)
        found.append(logits[-1])
        features = torch.cat([features, states[-1:]])
        tokens.append(ids[int(logits[-1].argmax())])
    return found
