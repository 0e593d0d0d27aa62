"""Measurements of batches made by hand, in round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specviz.batch.results import Cell, Experts, Header, Measurement, Work
from specviz.theory import Load, Machine

SECONDS = {(1, 1): 1.0, (1, 2): 1.0, (1, 4): 1.25, (2, 1): 1.0, (2, 2): 1.5, (2, 4): 2.0, (8, 1): 2.0, (8, 2): 4.0}
SECONDS[8, 4] = 8.0
HEADER = Header(
    target="tiny",
    weights="0123456789abcdef",
    device="a clock",
    dtype="float32",
    threads=2,
    versions={"torch": "2"},
    context=20,
    text="made-up text",
    repeats=3,
    date="2026-01-02T03:04:05+00:00",
    load=(0.5, 0.25, 0.125),
)
# A pass reads 50 bytes of weights and 2 per token of 20 tokens of context, and computes with 25 parameters.
MACHINE, LOAD = Machine(bandwidth=100, flops=1000), Load(weight_bytes=50, parameters=25, kv_bytes_per_token=2)


def measurement(
    seconds: dict[tuple[int, int], float] = SECONDS,
    drafting: dict[int, float] | None = None,
    experts: Experts | None = None,
    **header: Any,
) -> Measurement:
    """Three repeats of each cell, which spread by a tenth to both sides."""
    drafter = {"drafter": "tiny draft model"} if drafting else {}
    return Measurement(
        replace(HEADER, **drafter, **header),
        MACHINE,
        Work(LOAD, experts),
        tuple(cell(batch, rows, middle) for (batch, rows), middle in sorted(seconds.items())),
        drafting=tuple(cell(batch, 1, middle) for batch, middle in sorted((drafting or {}).items())),
    )


def cell(batch: int, rows: int, middle: float) -> Cell:
    return Cell(batch, rows, (1.1 * middle, middle, 0.9 * middle))
