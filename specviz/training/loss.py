"""Cross-entropy against the target's own distribution, through a frozen LM head."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

ROWS = 1024  # at a time: their logits stay in the processor's cache
TINY = 1e-30  # keeps the logarithm of a vanished probability finite


class Loss(NamedTuple):
    """Over the rows of one depth."""

    mean: Tensor  # a scalar to be minimised
    agreed: int  # rows where the drafter's first choice is the target's
    rows: int


class LmHead(NamedTuple):
    """A frozen LM head, or those of its rows that are drafted."""

    weight: Tensor  # [Vd, H]
    bias: Tensor | None  # [Vd]


def soft_loss(states: Tensor, lm: LmHead, top_ids: Tensor, top_probs: Tensor, best: Tensor) -> Loss:
    """How far the drafter's distributions are from the target's.

    states: [N, H], what the LM head reads; top_ids, top_probs: [N, TOP], the target's distribution, rows of
    probability 0 being left out; best: [N], its first choice as a draft id or -1.
    """
    mean, agreed = _Fused.apply(states, lm, top_ids, top_probs, best)  # type: ignore[no-untyped-call]
    return Loss(mean, int(agreed), len(states))


class _Fused(torch.autograd.Function):
    """The logits of a few rows are made, used for loss and gradient, and forgotten; autograd would keep them all."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, lm: LmHead, top_ids: Tensor, top_probs: Tensor, best: Tensor
    ) -> tuple[Tensor, Tensor]:
        counted = (top_probs.sum(-1) > 0).float()
        scale = 1 / counted.sum().clamp_min(1)
        gradient = torch.empty_like(states)
        total = torch.zeros((), device=states.device)
        agreed = torch.zeros((), dtype=torch.long, device=states.device)
        for start in range(0, len(states), ROWS):
            rows = slice(start, start + ROWS)
            logits = torch.nn.functional.linear(states[rows], lm.weight, lm.bias)  # [rows, Vd]
            agreed += (logits.max(-1).indices == best[rows]).sum()
            ids, probs, used = top_ids[rows], top_probs[rows], counted[rows]
            slope = torch.softmax(logits, -1)
            logs = slope.gather(-1, ids).float().clamp_min(TINY).log()
            total -= ((logs * probs).sum(-1) * used).sum()
            slope.scatter_add_(-1, ids, -probs.to(slope.dtype)).mul_((used * scale).to(slope.dtype)[:, None])
            gradient[rows] = slope @ lm.weight
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(agreed)
        return total * scale, agreed

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * slope.to(gradient.dtype), None, None, None, None
