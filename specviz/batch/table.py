"""A measurement as text, for terminals. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.batch.model import Drafting, crossing, gain, modelled_gain, roofline
from specviz.batch.results import Measurement

ABOUT = """\
Milliseconds of a forward pass over so many rows of every sequence: the median, the quartiles in brackets, and after ~
the roofline, which is modelled from what a large copy and a large matrix product reach here."""


def costs(measurement: Measurement) -> str:
    """Every cell beside the roofline, and what was left out."""
    lines = [_machine(measurement), "", ABOUT, ""]
    head = ["batch", *(f"{rows} row{'' if rows == 1 else 's'}" for rows in measurement.rows)]
    lines += _columns([head, *(_row(measurement, batch) for batch in measurement.batches)])
    for each in measurement.skipped:
        lines.append(
            f"left out: batch {each.batch}, {each.rows} rows, expected to take {each.expected_s:.1f} s per pass"
        )
    if measurement.drafting:
        steps = ", ".join(f"batch {cell.batch}: {1e3 * cell.median:.1f} ms" for cell in measurement.drafting)
        lines.append(f"one step of {measurement.header.drafter}: {steps}")
    return "\n".join([*lines, *measurement.header.notes])


def speedups(measurement: Measurement, drafting: Drafting) -> str:
    """What the costs leave of a run's speed-up at every batch size."""
    gains = [gain(measurement, drafting, batch) for batch in measurement.batches]
    ratio = "as measured" if drafting.cost_ratio is None else f"{drafting.cost_ratio:g} (modelled: the same for all)"
    title = f"speed-up with acceptance length {drafting.length:g}, gamma {drafting.gamma}, c {ratio}"
    head = ["batch", "speed-up", "verifying", "roofline alone"]
    rows = [
        [
            str(each.batch),
            f"{each.speedup:.2f}x",
            each.how,
            f"{modelled_gain(measurement, drafting, each.batch).speedup:.2f}x",
        ]
        for each in gains
    ]
    return "\n".join([title, *_columns([head, *rows]), crossing(gains)])


def _machine(measurement: Measurement) -> str:
    header, machine = measurement.header, measurement.machine
    parts = [
        header.target,
        header.device,
        header.dtype,
        f"{header.context} tokens of context",
        f"{header.repeats} repeats",
        f"{machine.bandwidth / 1e9:.1f} GB/s and {machine.flops / 1e12:.2f} TFLOP/s measured",
    ]
    return " · ".join(parts)


def _row(measurement: Measurement, batch: int) -> list[str]:
    cells = [measurement.cell(batch, rows) for rows in measurement.rows]
    row = [str(batch)]
    for cell in cells:
        if cell is None:
            row.append("n/a")
            continue
        quartiles = "" if cell.quartiles is None else " [{:.1f} {:.1f}]".format(*(1e3 * q for q in cell.quartiles))
        row.append(f"{1e3 * cell.median:.1f}{quartiles} ~{1e3 * roofline(measurement, batch, cell.rows):.1f}")
    return row


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
