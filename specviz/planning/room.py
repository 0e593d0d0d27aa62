"""How much memory there is for a run, by which counter, and how much one has really taken. Amounts are bytes."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

if sys.platform != "win32":
    import resource


@dataclass(frozen=True, slots=True)
class Room:
    """What a new run may use on a device, and which counter says so and why."""

    amount: int
    source: str


def room(device: torch.device) -> Room:
    """Bytes that a new run may use on `device`.

    CUDA: free on the device plus what torch holds unused. Apple: the recommended maximum less what is in use. CPU, and
    GPUs that share its memory: what the system has available, bounded by a container's limit.
    """
    shared = device.type == "cuda" and is_integrated(device)
    if device.type == "cuda" and not shared:
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Room(
            int(torch.cuda.mem_get_info(device)[0] + unused), "free on the GPU, and what torch holds there unused"
        )
    if device.type == "xpu":
        unused = torch.xpu.memory_reserved(device) - torch.xpu.memory_allocated(device)
        return Room(
            int(torch.xpu.mem_get_info(device)[0] + unused), "free on the GPU, and what torch holds there unused"
        )
    if device.type == "mps":
        left = int(torch.mps.recommended_max_memory()) - int(torch.mps.driver_allocated_memory())
        return Room(max(0, left), "what Apple recommends as the GPU's most, less what is in use; not all memory")
    found = Room(int(psutil.virtual_memory().available), "available by the system's count, reclaimable caches included")
    if shared:
        # CUDA counts reclaimable page cache as used there, and so reports too little.
        found = Room(
            found.amount,
            "available by the system's count, because this GPU shares the CPU's memory and CUDA takes file caches for "
            "used; `sync; echo 3 > /proc/sys/vm/drop_caches`, run by you as root, empties these for programs that ask "
            "CUDA",
        )
    limits = min(cgroup_room(), default=found.amount)
    return Room(limits, "left under this container's memory limit") if limits < found.amount else found


def available_bytes(device: torch.device) -> int:
    """The amount alone."""
    return room(device).amount


def is_integrated(device: torch.device) -> bool:
    """Whether a CUDA device has no memory of its own, as on a DGX Spark or a Jetson."""
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def peak_bytes(device: torch.device) -> int:
    """The most used so far: on CUDA what torch has allocated for tensors, else this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "xpu":
        return int(torch.xpu.max_memory_allocated(device))
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # getrusage's maximum survives exec, so it may be that of the program that started us.
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def used_bytes(device: torch.device) -> int:
    """What is in use now, counted as `peak_bytes` counts it."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "xpu":
        return int(torch.xpu.memory_allocated(device))
    return int(psutil.Process().memory_info().rss)


def forget_peak(device: torch.device) -> bool:
    """Let the peak start again from what is in use; whether the system can do that."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    if device.type == "xpu":
        torch.xpu.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Return to the system what the C library keeps of freed memory, where it is one that does (glibc).

    Weights that were converted or packed as they were loaded leave as much behind as they take.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Growth:
    """How far memory grows on a device between two moments.

    `peak`: bytes above what was in use at the start; None before `stop`, and where the system can't tell: it may keep
    one peak for the whole life of a process, and that may have been higher.
    """

    def __init__(self) -> None:
        self.peak: int | None = None
        self._device = torch.device("cpu")
        self._before = self._floor = 0

    def start(self, device: torch.device) -> None:
        self._device, self.peak = device, None
        if device.type == "cpu":
            give_back()
        is_new = forget_peak(device)
        self._before = used_bytes(device)
        self._floor = 0 if is_new else peak_bytes(device)

    def stop(self) -> None:
        peak = peak_bytes(self._device)
        if self._device.type != "mps" and peak > self._floor:  # of its own memory an Apple GPU keeps no peak
            self.peak = max(0, peak - self._before)


def cgroup_room(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
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
                yield from _left(folder, names, page_cache)


def _left(folder: Path, names: tuple[str, str], page_cache: str) -> Iterator[int]:
    try:
        limit, used = ((folder / name).read_text(encoding="utf-8").strip() for name in names)
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        # Cached file pages count as used but are given back under pressure.
        yield max(0, int(limit) - int(used) + int(stat.get(page_cache, 0)))
