"""How much memory a target and its drafter need, from their configurations alone, and how much there is.

All amounts are bytes. Nothing is loaded: parameters are counted on models built without storage.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import PretrainedConfig

from specviz.errors import NotEnoughMemory
from specviz.models.cache import capacity
from specviz.models.pack import parameters_kept
from specviz.models.skeleton import model_without_storage, mtp_without_storage

if sys.platform != "win32":
    import resource

LOGIT_BYTES = 4  # probabilities are computed in float32 whatever the model's format
STORED_BYTES = 2  # per weight in the files of heads, as nearly all are published


@dataclass(frozen=True, slots=True)
class Budget:
    """Estimated need by part, and what is available, in bytes.

    `kv` and `logits` are sums over target and drafter; `headroom` is for activations and the allocator.
    """

    weights_target: int
    weights_drafter: int
    kv: int
    logits: int
    headroom: int
    available: int

    @property
    def total(self) -> int:
        """The sum of the five parts."""
        return self.weights_target + self.weights_drafter + self.kv + self.logits + self.headroom


def estimate(
    target_config: PretrainedConfig,
    *,
    drafter_config: PretrainedConfig | None = None,
    itself: bool = False,
    mtp: bool = False,
    dtype_bytes: int,
    context_tokens: int,
    gamma: int,
    available: int | None = None,
    weight_bytes: int | None = None,
    drafter_weight_bytes: int | None = None,
    head_bytes: int = 0,
    head_layers: int = 0,
    packed: bool = False,
) -> Budget:
    """The memory that decoding with this pair needs.

    `dtype_bytes`: bytes per weight and cache entry (4 for float32, 2 for bfloat16). `context_tokens`: prompt plus new
    tokens; the caches also hold a draft of `gamma` and the token before it. `drafter_config`: a draft model with
    weights and a cache of its own; a DFlash model in the place of the target is counted without logits. `itself`: the
    target drafts for itself, with the same weights and a second cache. `mtp`: its own multi-token-prediction layers
    draft; raises ValueError if it has none. `available`: bytes there are for it, by default those that are free of the
    CPU's (see `available_bytes`); the sum over all devices where a model is spread.
    `weight_bytes`, `drafter_weight_bytes`: the weights' true size, for checkpoints that stay quantised in memory; by
    default parameters times `dtype_bytes`. `head_bytes`: size of the files of trained heads that draft, which count as
    stored in 16 bits; `head_layers`: how many of their layers have a cache, each as large as one of the target's.
    `packed`: weights are packed as they are loaded (see `pack.packs`), so LM heads that are tied to the embeddings
    are in memory twice.
    """
    configs = [target_config] if drafter_config is None else [target_config, drafter_config]
    weights = [
        count_parameters(config) * dtype_bytes if given is None else given
        for config, given in zip(configs, (weight_bytes, drafter_weight_bytes), strict=False)
    ]
    if packed:
        weights = [
            size + count_kept_by_packing(config) * dtype_bytes for size, config in zip(weights, configs, strict=True)
        ]
    if mtp:
        weights.append(count_mtp_parameters(target_config) * dtype_bytes)
        configs.append(target_config.get_mtp_config())
    if itself:  # a second cache, but the same weights
        configs.append(target_config)
    weights.append(head_weights(head_bytes, dtype_bytes))
    rows = context_tokens + gamma + 1
    head_kv = head_layers * max(kv_bytes_by_layer(target_config, rows, dtype_bytes))
    # DFlash models have no vocabulary of their own and draft through the target's LM head.
    vocabulary = getattr(target_config.get_text_config(), "vocab_size", 0)
    widths = [getattr(config.get_text_config(), "vocab_size", vocabulary) for config in configs]
    return Budget(
        weights_target=weights[0],
        weights_drafter=sum(weights[1:]),
        kv=sum(kv_bytes(config, rows, dtype_bytes) for config in configs) + head_kv,
        logits=(gamma + 1) * (sum(widths) + (widths[0] if head_bytes else 0)) * LOGIT_BYTES,
        headroom=sum(weights) // 5,
        available=available_bytes(torch.device("cpu")) if available is None else available,
    )


def head_weights(stored: int, dtype_bytes: int) -> int:
    """Bytes in memory of a trained head whose files have `stored` bytes."""
    return stored * dtype_bytes // STORED_BYTES


def check(budget: Budget) -> None:
    """Raise NotEnoughMemory with the numbers when the need exceeds what is available."""
    if budget.total <= budget.available:
        return
    weights = f"weights {human(budget.weights_target)}"
    if budget.weights_drafter:
        weights += f" + {human(budget.weights_drafter)} for the drafter"
    parts = f"{weights}, KV cache {human(budget.kv)}, logits {human(budget.logits)}"
    raise NotEnoughMemory(
        f"This run needs about {human(budget.total)} of memory ({parts}, headroom {human(budget.headroom)}) but "
        f"{human(budget.available)} is free, so choose fewer tokens, a 16-bit number format or smaller models, "
        "or close other programs."
    )


def _remembered(count: Callable[[PretrainedConfig], int]) -> Callable[[PretrainedConfig], int]:
    """The same count, made once for configurations of the same type and content."""
    known: dict[tuple[type[PretrainedConfig], str], int] = {}

    @functools.wraps(count)
    def looked_up(config: PretrainedConfig) -> int:
        key = type(config), config.to_json_string()
        if key not in known:
            known[key] = count(config)
        return known[key]

    return looked_up


@_remembered
def count_parameters(config: PretrainedConfig) -> int:
    """Parameters of the model that `config` describes; tied weights once, quantised ones unpacked."""
    return sum(parameter.numel() for parameter in model_without_storage(config).parameters())


@_remembered
def count_kept_by_packing(config: PretrainedConfig) -> int:
    """Those of them that stay in memory beside a packed copy."""
    return parameters_kept(model_without_storage(config))


@_remembered
def count_mtp_parameters(config: PretrainedConfig) -> int:
    """Parameters of the model's multi-token-prediction layers; embeddings and LM head, which are its own, not again."""
    model = model_without_storage(config)
    shared = {id(parameter) for parameter in model.parameters()}
    layers = mtp_without_storage(model).parameters()
    return sum(parameter.numel() for parameter in layers if id(parameter) not in shared)


def kv_bytes(config: PretrainedConfig, rows: int, dtype_bytes: int) -> int:
    """Size of the key and value cache for `rows` tokens, all layers together."""
    return sum(kv_bytes_by_layer(config, rows, dtype_bytes))


def kv_bytes_by_layer(config: PretrainedConfig, rows: int, dtype_bytes: int) -> list[int]:
    """Size of each layer's key and value cache for `rows` tokens.

    Its buffers double as they fill, and keep all rows even under a sliding window, so that drafts can be taken back.
    Recurrent layers' states, whose size doesn't depend on the length, are left to the headroom.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    each = 2 * capacity(rows) * int(heads) * int(head_dim) * dtype_bytes
    return [0 if kind == "linear_attention" else each for kind in kinds]


def available_bytes(device: torch.device) -> int:
    """Bytes that a new run may use on `device`.

    CUDA: free on the device plus what torch holds unused. Apple: the recommended maximum less what is in use. CPU, and
    GPUs that share its memory: what the system has available, bounded by a container's limit.
    """
    if device.type == "cuda" and not getattr(torch.cuda.get_device_properties(device), "is_integrated", False):
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type == "xpu":
        unused = torch.xpu.memory_reserved(device) - torch.xpu.memory_allocated(device)
        return int(torch.xpu.mem_get_info(device)[0] + unused)
    if device.type == "mps":
        return max(0, int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory()))
    # On a GPU that shares memory CUDA counts reclaimable page cache as used, so the system's figure is right there too.
    return min([int(psutil.virtual_memory().available), *_cgroup_room()])


def peak_bytes(device: torch.device) -> int:
    """The most used so far: on CUDA what torch has allocated for tensors, else this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # getrusage's maximum survives exec, so it may be that of the program that started us.
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cgroup_room(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Bytes left under each memory limit, version 1 or 2, on this process and the groups around it."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            top, names, page_cache = root, ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in controllers.split(","):
            names, page_cache = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
            top = root / "memory"
        else:
            continue
        group = top / path.lstrip("/")
        # Inside a container the path may be the host's; then only the top is visible, and it is the container's own.
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                yield from _room(folder, names, page_cache)


def _room(folder: Path, names: tuple[str, str], page_cache: str) -> Iterator[int]:
    try:
        limit, used = ((folder / name).read_text(encoding="utf-8").strip() for name in names)
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        # Cached file pages count as used but are given back under pressure.
        yield max(0, int(limit) - int(used) + int(stat.get(page_cache, 0)))


def human(amount: int) -> str:
    """An amount of bytes, in MB or GB."""
    return f"{amount / 1e9:.2f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"
