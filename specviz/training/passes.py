"""Training an autoregressive head on its own outputs: as many passes over the sequences as drafts will be deep.

In pass k, row i reads what the head gave in row i-1 of pass k-1, as it will when it drafts its k-th token. It sees the
true rows (pass 1) up to where that draft began, and of each later pass the one row in between. EAGLE-3 calls this
training-time test (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specviz.drafters.heads.block import Attention, Block
from specviz.drafters.heads.head import Head


def passes(head: Head, states: Tensor, tokens: Tensor, count: int, start: int) -> Iterator[Tensor]:
    """What the LM head reads, [B, L, H], for pass 1, 2, ... `count`; row i predicts what follows tokens[:, i].

    They are fewer where no row is left for more.

    states: [B, L, F * Ht], the target's; tokens: [B, L], those after them. start: the first row of passes 2 and on
    that is of use: what stands before it there is zero.
    """
    block = head.layers[0]
    assert isinstance(block, Block)
    length = tokens.shape[1]
    positions = torch.arange(length, device=tokens.device)
    rotary = head.rotations(positions[None], states.dtype, length)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    features = head.fuse(states)
    first = 0
    for number in range(1, count + 1):
        rows = slice(first, length)
        read, residual = head.combine(features, tokens[:, rows], positions[None, rows])
        if block.input_layernorm is not None:
            read = block.input_layernorm(read)
        attention = block.self_attn
        q, k, v = attention.project(read, (rotary[0][:, rows], rotary[1][:, rows]))
        keys.append(_padded(k, first))
        values.append(_padded(v, first))
        mixed = _attend(attention, q, keys, values, first, number)
        output = block.finish(residual + attention.o_proj(mixed))
        normed = head.normed(output)
        yield torch.nn.functional.pad(normed, (0, 0, first, 0)) if first else normed
        fed_back = normed if head.config.feedback == "normed" else output
        first = max(start, first + 1)
        if first >= length:
            return
        features = fed_back[:, first - 1 - rows.start : -1]


def _attend(
    attention: Attention, q: Tensor, keys: list[Tensor], values: list[Tensor], first: int, number: int
) -> Tensor:
    """[B, T, heads * d] for the rows from `first` on of pass `number`; keys, values: [B, kv_heads, L, d] by pass."""
    batch, heads, rows, width = q.shape
    groups = heads // keys[0].shape[1]
    key, value = (each[0].repeat_interleave(groups, 1) for each in (keys, values))
    length = key.shape[2]
    scores = q @ key.transpose(-1, -2)  # [B, heads, rows, L]
    last = torch.arange(first, length, device=q.device) - (number - 1)  # the true row that each row sees last
    hidden = torch.arange(length, device=q.device)[None] > last[:, None]
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    between = [_shifted(each, number - 1 - index, first, groups) for index, each in enumerate(keys[1:], 1)]
    scores = torch.cat([scores, *[(q * key).sum(-1, keepdim=True) for key in between]], -1)
    weights = torch.softmax(scores.float() * width**-0.5, -1).to(q.dtype)
    mixed = weights[..., :length] @ value
    for index, each in enumerate(values[1:], 1):
        column = length + index - 1
        shifted = _shifted(each, number - 1 - index, first, groups)
        mixed = mixed + weights[..., column : column + 1] * shifted
    return mixed.transpose(1, 2).reshape(batch, rows, heads * width)


def _shifted(rows: Tensor, by: int, first: int, groups: int) -> Tensor:
    """For each row from `first` on, the one that stands `by` before it."""
    moved = torch.roll(rows, by, 2) if by else rows  # what comes round from the end lies before `first`, or is unused
    return moved[:, :, first:].repeat_interleave(groups, 1)


def _padded(rows: Tensor, first: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, first, 0)) if first else rows
