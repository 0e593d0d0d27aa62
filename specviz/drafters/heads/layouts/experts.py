"""Experts: published one by one, and held by transformers' blocks as one tensor per projection."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from specviz.drafters.heads.layouts.names import Names
from specviz.errors import UserError

_ONE = re.compile(r"(.+\.experts)\.(\d{1,9})\.(gate_proj|up_proj|down_proj)\.weight")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def stacked(tensors: Mapping[str, Tensor], names: Names, where: str, inner: int, width: int) -> dict[str, Tensor]:
    """The same tensors with the experts as `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I], by names inside.

    inner: I; width: H. Raises UserError that names the first tensor of an expert that is missing or of another shape.
    """
    found: dict[str, dict[tuple[str, int], Tensor]] = {}
    others = {}
    for name, tensor in tensors.items():
        if one := _ONE.fullmatch(name):
            found.setdefault(one[1], {})[one[3], int(one[2])] = tensor
        else:
            others[name] = tensor
    for prefix, experts in found.items():
        present = {index for _, index in experts}
        count = 1 + max(present)
        if count > len(present):  # the largest may be any number, so it is not counted up to
            absent = next(index for index in range(count) if index not in present)
            _checked(None, names.in_file(f"{prefix}.{absent}.{PROJECTIONS[0]}.weight"), (inner, width), where)
        rows: dict[str, list[Tensor]] = {}
        for kind in PROJECTIONS:
            shape = (width, inner) if kind == "down_proj" else (inner, width)
            called = [names.in_file(f"{prefix}.{index}.{kind}.weight") for index in range(count)]
            rows[kind] = [_checked(experts.get((kind, index)), called[index], shape, where) for index in range(count)]
        gate_up = [torch.cat(pair) for pair in zip(rows["gate_proj"], rows["up_proj"], strict=True)]
        others[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        others[f"{prefix}.down_proj"] = torch.stack(rows["down_proj"])
    return others


def _checked(tensor: Tensor | None, name: str, shape: tuple[int, int], where: str) -> Tensor:
    if tensor is None:
        raise UserError(f"The drafter in {where} lacks the tensor {name}, so give a version that is complete.")
    if tensor.shape != shape:
        raise UserError(f"{name} of {where} is {list(tensor.shape)} and should be {list(shape)}; give another version.")
    return tensor
