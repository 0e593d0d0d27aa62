"""What a device reaches when it only copies and only multiplies, and what a model asks of it: the roofline's sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import Tensor, nn

from specviz import memory
from specviz.batch.results import Experts, Work
from specviz.models.cache import FIRST_CAPACITY
from specviz.models.devices import synchronise
from specviz.models.pack import PackedLinear
from specviz.models.skeleton import model_without_storage
from specviz.models.target import Target
from specviz.theory import Load, Machine

COPIED = 256 * 2**20  # bytes of each side of a copy: far more than caches hold
SIDE = {"cpu": 2048, "mps": 4096}  # of the square matrices that are multiplied
SIDE_ELSEWHERE = 8192
TRIES = 6  # of which the first only warms up

# What configurations call the number of experts, and how many of them a token goes through.
COUNTS, PER_TOKEN = ("num_local_experts", "num_experts", "n_routed_experts"), ("num_experts_per_tok", "moe_topk")


@torch.inference_mode()
def attainable(device: torch.device, dtype: torch.dtype) -> Machine:
    """Bandwidth of a large copy, each byte counted twice, and operations of a large matrix product in this format.

    The best of several tries: no pass can do better for long. The copy takes no more than an eighth of what is free.
    """
    return Machine(_bandwidth(device, dtype), _flops(device, dtype))


def _bandwidth(device: torch.device, dtype: torch.dtype) -> float:
    size = min(COPIED, memory.available_bytes(device) // 16) // dtype.itemsize
    source = torch.ones(size, dtype=dtype, device=device)
    copy = torch.empty_like(source)
    return 2 * _bytes(source) / _best_seconds(device, lambda: copy.copy_(source))


def _flops(device: torch.device, dtype: torch.dtype) -> float:
    side = SIDE.get(device.type, SIDE_ELSEWHERE)
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    return 2 * side**3 / _best_seconds(device, lambda: matrix @ matrix)


def _best_seconds(device: torch.device, work: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(TRIES):
        synchronise(device)
        started = perf_counter()
        work()
        synchronise(device)
        times.append(perf_counter() - started)
    return min(times[1:])


def work_of(target: Target) -> tuple[Work, tuple[str, ...]]:
    """What a pass of the target moves and computes, and what has to be said of how it was counted.

    Embeddings that are only looked up take no part. Parameters come from the configuration, bytes from the weights as
    they are in memory. Attention's own arithmetic over the context is left out, as the roofline does.
    """
    outline = model_without_storage(target.model.config)
    parameters, routed = (sum(weight.numel() for weight in weights) for weights in _read(outline))
    fixed_bytes, routed_bytes = (sum(map(_bytes, weights)) for weights in _read(target.model))
    kv = memory.kv_bytes(target.config, FIRST_CAPACITY, target.dtype.itemsize) / FIRST_CAPACITY
    count, per_token = (
        next((int(found) for name in names if (found := getattr(target.config, name, None))), 0)
        for names in (COUNTS, PER_TOKEN)
    )
    if not routed:
        return Work(Load(fixed_bytes, parameters, kv)), ()
    if not 0 < per_token <= count:
        note = f"The configuration of {target.name} does not say how many experts a token takes, so all are counted."
        return Work(Load(fixed_bytes + routed_bytes, parameters + routed, kv)), (note,)
    note = (
        f"{target.name} has {count} experts per layer, of which a token takes {per_token}: how many a pass reads is "
        "modelled as if routing were even and random."
    )
    load = Load(fixed_bytes, parameters + routed * per_token / count, kv)
    return Work(load, Experts(count, per_token, routed_bytes)), (note,)


def _read(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that a pass reads as a whole, and those of routed experts; each once, however often it is shared."""
    fixed: dict[int, Tensor] = {}
    routed: dict[int, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue  # of which a pass looks up a few rows; an LM head that shares its weight counts by itself
        found = routed if "experts" in name.split(".") else fixed
        found |= {id(weight): weight for weight in _own(module)}
    return list(fixed.values()), list(routed.values())


def _own(module: nn.Module) -> Iterator[Tensor]:
    if isinstance(module, PackedLinear):
        yield module.packed
    yield from module.parameters(recurse=False)


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
