"""Checkpoints that stay mapped into memory after their weights have been copied out of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn

MAPS = Path("/proc/self/smaps")
WEIGHTS = ".safetensors"


def idle_mapped(models: Iterable[nn.Module], maps: Path = MAPS) -> int:
    """Bytes of mapped checkpoint files that are resident and that no weight of the models uses; 0 where not told.

    They count as this process's memory, and the system takes them back when it needs the room.
    """
    try:
        lines = maps.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0  # not Linux
    resident = 0
    ranges: list[tuple[int, int]] = []
    inside = False
    for line in lines:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # a mapping: its addresses first, its file last
            inside = line.endswith(WEIGHTS)
            if inside:
                begin, end = (int(address, 16) for address in name.split("-"))
                ranges.append((begin, end))
        elif inside and name == "Rss:":
            resident += int(rest.split()[0]) * 1024
    weights = {weight.data_ptr(): weight for model in models for weight in model.parameters()}
    used = (
        weight.numel() * weight.element_size()
        for place, weight in weights.items()
        if any(begin <= place < end for begin, end in ranges)
    )
    return max(0, resident - sum(used))
