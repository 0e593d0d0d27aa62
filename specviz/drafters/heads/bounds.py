"""How large the numbers of a config.json may be from which a layer or a model of transformers is built.

Such classes take memory or time for some of them before any tensor is compared, and a file may claim anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from specviz.refusals import brief

MOST = 100_000_000  # of whole numbers; positions and token ids are the largest
# By what the names end in. A rotary table is as wide as a head, times its share that turns.
ENDINGS = {"experts": 4_096, "layers": 1_000, "_dim": 65_536, "partial_rotary_factor": 1, "theta": 1e15}


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise ValueError that names the first number, at any depth, which is larger than any model has."""
    for name, value in _numbers(config):
        others = MOST if isinstance(value, int) else math.inf
        most = next((limit for ending, limit in ENDINGS.items() if name.endswith(ending)), others)
        if value > most:
            raise ValueError(f"it has {brief(value)} as {brief(name)}, and {most:,} is the most")


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """All numbers with the name of the entry that they stand in."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _numbers(entry, str(key))
    elif isinstance(value, list):
        for entry in value:
            yield from _numbers(entry, name)
    elif isinstance(value, int | float):
        yield name, value
