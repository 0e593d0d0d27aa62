"""AdamW on float32 copies of 16-bit parameters, and the course of its learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

BETAS, WEIGHT_DECAY, WARM_UP, LAST = (0.9, 0.95), 0.01, 0.03, 0.05
LARGEST_NORM = 1.0  # of all gradients together


class Optimiser:
    """Steps of the float32 copies are copied back: steps too small for 16 bits are not lost."""

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.copies = [p.detach().float().clone() for p in self.parameters]
        self.learning_rate = learning_rate
        decayed = [copy for copy in self.copies if copy.dim() > 1]
        others = [copy for copy in self.copies if copy.dim() < 2]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=True)

    def step(self, progress: float) -> None:
        """progress: 0 at the beginning of training, 1 at its end."""
        for group in self.adam.param_groups:
            group["lr"] = self.learning_rate * course(progress)
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.copies, LARGEST_NORM)
        self.adam.step()
        with torch.no_grad():
            for parameter, copy in zip(self.parameters, self.copies, strict=True):
                parameter.copy_(copy)

    def state(self) -> dict[str, Any]:
        return {"copies": self.copies, "adam": self.adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        with torch.no_grad():
            for parameter, copy, saved in zip(self.parameters, self.copies, state["copies"], strict=True):
                copy.copy_(saved)
                parameter.copy_(saved)


def course(progress: float) -> float:
    """The share of the learning rate: up during the warm-up, then down along half a cosine."""
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    along = min(1.0, (progress - WARM_UP) / (1 - WARM_UP))
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * along)) / 2
