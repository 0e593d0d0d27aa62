"""Linear layers with their weights packed once for the CPU's matrix library, where that is faster.

A decode step multiplies a few rows by every weight of the model, so it is bound by how fast weights are read. oneDNN
reads its own blocked layout far faster than a plain matrix; packing once spares it from reordering at every step.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

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


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch has the packed kernels for weights of this number format on this device.

    They exist for float32 on the CPU, and for bfloat16 where oneDNN supports the processor.
    """
    return (
        device.type == "cpu"
        and dtype in FORMATS
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and (dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


def can_pack(module: nn.Module) -> bool:
    """Whether there are packed kernels for the device and number format of the module's first weight."""
    parameter = next(module.parameters())
    return packs(parameter.device, parameter.dtype)


@torch.inference_mode()
def pack(model: nn.Module) -> int:
    """Replace the model's linear layers by packed ones, in place; returns how many.

    The original weights are freed, except those that something else (tied embeddings) still holds. Layers that
    `can_pack` refuses are left as they are, offloaded ones among them, and so are quantised ones.
    """
    replaced = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            if _is_plain(child) and can_pack(child):
                setattr(module, name, PackedLinear(child))
                replaced += 1
    return replaced


def parameters_kept(model: nn.Module) -> int:
    """How many parameters packing leaves in memory beside their packed copies: those of LM heads tied to embeddings.

    Also right for a model whose tensors have no storage, and as if there were packed kernels for it.
    """
    others = {
        id(weight) for module in model.modules() if not _is_plain(module) for weight in module.parameters(recurse=False)
    }
    packed = {id(module.weight): module.weight for module in model.modules() if _is_plain(module)}
    return sum(weight.numel() for key, weight in packed.items() if key in others)


def bytes_held(model: nn.Module) -> int:
    """What the model's weights take in memory. Packed ones are not among its parameters."""
    packed = (module.packed for module in model.modules() if isinstance(module, PackedLinear))
    return sum(weight.numel() * weight.element_size() for weight in (*model.parameters(), *packed))


def weight_of(linear: nn.Module, model: PreTrainedModel) -> Tensor:
    """The weight [out, in] of a linear layer of the model, bit for bit; unpacked, into new memory, if it was packed.

    An LM head that is tied to the embeddings shares their weight, which packing leaves as it was.
    """
    if not isinstance(linear, PackedLinear):
        weight = linear.weight
        assert isinstance(weight, Tensor)
        return weight.detach()
    if model.config.get_text_config(decoder=True).tie_word_embeddings and linear is model.get_output_embeddings():
        shared: Tensor = model.get_input_embeddings().weight.detach()
        return shared
    unpacked: Tensor = linear.packed.to_dense()
    return unpacked


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Not a quantised layer, nor one with a forward pass of its own."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter


def is_packed(model: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())
