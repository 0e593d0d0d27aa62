"""Where each part of a model goes: one device, all GPUs of its kind, or the rest in CPU memory.

Decided from the configuration alone, before anything is loaded. Accelerate works out what goes where; this file tells
it how much room there is, and says in words what came out. Nothing is ever offloaded to disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from accelerate import infer_auto_device_map
from accelerate.utils import get_balanced_memory
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specviz import memory
from specviz.errors import NotEnoughMemory, UserError
from specviz.models.pack import packs
from specviz.models.skeleton import model_without_storage

CONTEXT = 2048  # tokens of context that a placement has room for, if it is told no other number
GAMMA = 8  # and a draft of so many tokens
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model's modules lie.

    `devices`: by module name; a name covers all that is below it, "" the whole model. Where some parts lie on a GPU,
    those on the CPU wait there, and are moved to the first GPU whenever they run. `need`: the memory planned for, and
    what these devices have. `notes`: what a page and a trace must say about it; none when the model lies on one device
    as it is stored.
    """

    devices: Mapping[str, torch.device]
    need: memory.Budget
    notes: tuple[str, ...] = ()

    @property
    def is_split(self) -> bool:
        """Whether several devices hold the model, so that accelerate's hooks move states and weights between them."""
        return len(set(self.devices.values())) > 1

    @property
    def device_map(self) -> dict[str, torch.device | int | str]:
        """The same for `from_pretrained`, with devices as accelerate names them."""
        return {name: _key(device) if self.is_split else device for name, device in self.devices.items()}


def plan(
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    name: str = "",
    budgets: Mapping[torch.device, int] | None = None,
    weight_bytes: int | None = None,
    context_tokens: int = CONTEXT,
    gamma: int = GAMMA,
    reserve: int = 0,
) -> Placement:
    """A place for every module of the model that `config` describes: all of it on `device` if that has room.

    Else over all GPUs of its kind, else with the rest in CPU memory; raises UserError, with the numbers, if even that
    does not suffice. Room is kept for the KV cache of each layer where it runs, for logits and for activations.

    `name`: what notes call the model. `budgets`: bytes free on each device that may be used, by default what
    `free_memory` finds. `weight_bytes`: the true size of weights that stay quantised. `reserve`: bytes to leave free
    on `device`, for a drafter.
    """
    name = name or str(config.model_type)
    free = dict(free_memory(device) if budgets is None else budgets)
    main = numbered(device)
    free[main] = max(0, free[main] - reserve)
    need = memory.estimate(
        config,
        dtype_bytes=dtype.itemsize,
        context_tokens=context_tokens,
        gamma=gamma,
        available=free[main],
        weight_bytes=weight_bytes,
        packed=packs(device, dtype),
    )
    if need.total <= need.available:
        return Placement({"": device}, need)
    memory.check(replace(need, available=sum(free.values())))
    model = model_without_storage(config)
    kv = memory.kv_bytes_by_layer(config, context_tokens + gamma + 1, dtype.itemsize)
    devices = _spread(model, dtype, need, kv, free)
    if devices is None:
        rooms = ", ".join(f"{place} {memory.human(room)}" for place, room in free.items())
        raise NotEnoughMemory(
            f"{name} needs about {memory.human(need.total)} of memory, and no way was found to share it out so that "
            f"each part fits into what is free ({rooms}), so choose fewer tokens, "
            "a 16-bit number format or a smaller model, or close other programs."
        )
    need = replace(need, available=sum(free[place] for place in set(devices.values())))
    return Placement(devices, need, (_describe(devices, model, name),))


def free_memory(device: torch.device) -> dict[torch.device, int]:
    """Bytes free on every device of this kind, in order, and in the CPU memory where parts of a model could wait."""
    if device.type not in ("cuda", "xpu"):
        return {device: memory.available_bytes(device)}
    backend = torch.cuda if device.type == "cuda" else torch.xpu
    places = [torch.device(device.type, index) for index in range(backend.device_count())]
    if not getattr(backend.get_device_properties(places[0]), "is_integrated", False):  # else its memory is the CPU's
        places.append(CPU)
    return {place: memory.available_bytes(place) for place in places}


def numbered(device: torch.device) -> torch.device:
    """The device with its number, 0 unless it has one, where devices of its kind are numbered."""
    return torch.device(f"{device}:0") if str(device) in ("cuda", "xpu") else device


def places(model: PreTrainedModel) -> set[torch.device]:
    """The devices that hold a model's weights. What accelerate offloads shows as meta, and waits on the CPU."""
    return {CPU if weight.device.type == "meta" else weight.device for weight in model.parameters()}


def input_device(model: PreTrainedModel) -> torch.device:
    """Where a model takes token ids: the device that its input embeddings run on, even if they wait on another."""
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    runs_on = getattr(hook, "execution_device", None)
    device: torch.device = model.device if runs_on is None else torch.device(runs_on)
    return device


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """The number format of the states between layers. Weights may be stored in fewer bits."""
    formats: Iterator[torch.dtype] = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(dtype for dtype in formats if dtype.itemsize > 1)


def _spread(
    model: PreTrainedModel, dtype: torch.dtype, need: memory.Budget, kv: Sequence[int], free: Mapping[torch.device, int]
) -> dict[str, torch.device] | None:
    """A device for every module of a model that is too large for one; None if no way is found.

    `model`: without storage. `kv`: bytes of each layer's cache.
    """
    stored = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    # Accelerate counts weights as stored in `dtype`. A byte that it counts takes so many, headroom included:
    unit = (need.weights_target + need.activations + need.headroom) / stored
    rooms = {_key(place): int(max(0, room - need.logits) / unit) for place, room in free.items()}
    waiting = rooms.pop("cpu", 0)
    classes = list(model._no_split_modules or ())

    def inferred(rooms: Mapping[int | str, int]) -> dict[str, int | str]:
        # offload_buffers: no warning about buffers, which are small but for the caches below
        return dict(infer_auto_device_map(model, dict(rooms), classes, dtype, offload_buffers=True))

    _, layers = decoder_layers(model)
    for layer, size in zip(layers, kv, strict=True):  # a layer's cache lies where the layer runs, as a buffer would
        layer.register_buffer("cache", torch.empty(int(size / unit), dtype=torch.uint8, device="meta"))
    keys = inferred(get_balanced_memory(model, dict(rooms), classes, dtype))
    if "disk" in keys.values():
        keys = inferred(rooms)  # balanced shares can leave a rest where full ones don't
    if "disk" in keys.values():
        for layer in layers:
            del layer.cache  # layers that wait in CPU memory run on a GPU, so each GPU keeps room for all caches
        keys = inferred({gpu: max(0, room - int(sum(kv) / unit)) for gpu, room in rooms.items()} | {"cpu": waiting})
    if "disk" in keys.values() or set(keys.values()) == {"cpu"}:
        return None
    named = {_key(place): place for place in free}
    return {name: named[key] for name, key in keys.items()}


def decoder_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list of the text model's layers and its name; raises UserError if the model has none."""
    count = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    inside = {id(module) for module in model.get_decoder().modules()}  # and not in an image or sound encoder
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and id(module) in inside:
            return name, module
    raise UserError(
        f"{model.config.model_type} models show no list of layers to share out; use a device that holds it."
    )


def _key(device: torch.device) -> int | str:
    """A device as accelerate names it: numbered ones by their number."""
    return device.type if device.index is None else device.index


def _describe(devices: Mapping[str, torch.device], model: PreTrainedModel, name: str) -> str:
    """One sentence that says how many layers lie where."""
    path, layers = decoder_layers(model)
    held = Counter(_holder(f"{path}.{index}", devices) for index in range(len(layers)))
    holders = sorted(set(devices.values()), key=lambda place: (place == CPU, place.index))
    shares = [f"{'CPU memory' if place == CPU else place} ({held[place]})" for place in holders]
    shares[0] = shares[0].replace(")", f" of {len(layers)} layers)")
    spread = f"{name} is spread over {', '.join(shares[:-1])} and {shares[-1]}"
    if CPU not in holders:
        return f"{spread}."
    return (
        f"{spread}, and what waits in CPU memory is moved in for every pass, which makes every pass slow and drafting "
        "look better than it would be."
    )


def _holder(module: str, devices: Mapping[str, torch.device]) -> torch.device:
    """The device of a module, named itself or by what it is part of."""
    while module not in devices:
        module = module.rpartition(".")[0]
    return devices[module]
