"""Linear layers with their weights packed once for the CPU's matrix library, where that is faster.

A decode step multiplies a few rows by every weight of the model, so it is bound by how fast weights are read. oneDNN
reads its own blocked layout far faster than a plain matrix; packing once spares it from reordering at every step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FORMATS = (torch.float32, torch.bfloat16)
ROWS = 4  # the layout is chosen for passes over about so many tokens


class PackedLinear(nn.Module):
    """Computes what the linear layer computes, up to the order of summation. It has no trainable weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)

    def forward(self, states: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]"""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], "")
        return result


def can_pack(model: nn.Module) -> bool:
    """Whether this torch, and the device and number format of the module's first weight, have the packed kernels."""
    parameter = next(model.parameters())
    return (
        parameter.device.type == "cpu"
        and parameter.dtype in FORMATS
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and (parameter.dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


@torch.inference_mode()
def pack(model: nn.Module) -> int:
    """Replace the model's linear layers by packed ones, in place; returns how many.

    The original weights are freed, except those that something else (tied embeddings) still holds. Layers that
    `can_pack` refuses are left as they are, offloaded ones among them, and so are quantised ones.
    """
    replaced = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and type(child.weight) is nn.Parameter and can_pack(child):
                setattr(module, name, PackedLinear(child))
                replaced += 1
    return replaced


def is_packed(model: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())
