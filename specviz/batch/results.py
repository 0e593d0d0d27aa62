"""What passes over batches cost on a device: plain values, kept as JSON. Nothing here imports torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

from specviz import trace
from specviz.errors import UserError
from specviz.theory import Load, Machine

SCHEMA = 1
MOST_CELLS = 1000
LARGEST = 1_000_000  # batch size, rows or tokens of context
LONGEST_TEXT = 2000  # characters of any text in a file


@dataclass(frozen=True, slots=True)
class Header:
    """What was measured, where and when."""

    target: str
    weights: str  # hash or revision
    device: str
    dtype: str
    threads: int | None
    versions: dict[str, str]
    context: int  # tokens in every sequence's cache before a pass
    text: str  # what the sequences hold
    repeats: int
    date: str
    load: tuple[float, ...]  # the machine's load averages at the start, over 1, 5 and 15 minutes; () where unknown
    drafter: str | None = None  # the draft model whose steps were timed too
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """Forward passes over `rows` tokens of each of `batch` sequences, one per repeat."""

    batch: int
    rows: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The first and the third; None of a single repeat."""
        if len(self.seconds) < 2:
            return None
        first, _, third = quantiles(self.seconds, n=4, method="inclusive")
        return first, third


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was left out because a pass of it was expected to take so long."""

    batch: int
    rows: int
    expected_s: float


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a mixture, all layers together. They are not part of `Work.load`'s weight bytes."""

    count: int  # per layer
    per_token: int
    weight_bytes: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a pass of the target has to move and to compute, counted from its configuration and its weights."""

    load: Load
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The costs of passes, what the device can reach, and what the target asks of it."""

    header: Header
    machine: Machine  # measured: a large copy, and a large matrix product
    work: Work
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...] = ()
    drafting: tuple[Cell, ...] = ()  # steps of the draft model, one token of each sequence

    @property
    def batches(self) -> tuple[int, ...]:
        """Those with a plain step, without which there is nothing to compare with, in ascending order."""
        return tuple(sorted(cell.batch for cell in self.cells if cell.rows == 1))

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(sorted({cell.rows for cell in self.cells}))

    def cell(self, batch: int, rows: int) -> Cell | None:
        return next((cell for cell in self.cells if (cell.batch, cell.rows) == (batch, rows)), None)


def to_json(measurement: Measurement) -> str:
    return json.dumps({"schema": SCHEMA, "measurement": trace.plain(measurement)}, allow_nan=False, indent=1)


def write(measurement: Measurement, file: Path) -> None:
    """Raises UserError if the file can't be written."""
    try:
        file.write_text(to_json(measurement) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"The measurement can't be written to {file} ({error.strerror}).") from error


def read(file: Path, name: str = "") -> Measurement:
    """Raises UserError for a file that holds anything else than a measurement; `name` is what errors call it."""
    name = name or str(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} can't be read as a measurement; give a file written by batch --out.") from error
    return from_json(text, name)


def from_json(text: str, name: str) -> Measurement:
    """Read a measurement; `name` is what errors call it. Raises UserError for anything this version does not know."""
    content = trace.load(text, name)
    if not isinstance(content, dict) or type(content.get("schema")) is not int or content["schema"] != SCHEMA:
        raise UserError(
            f"{name} is no measurement of schema {SCHEMA}, the only one that this version reads; give a file written "
            "by batch --out."
        )
    trace.check_keys(content, {"schema", "measurement"}, name)
    measurement: Measurement = trace.build(Measurement, content["measurement"], name)
    _check(measurement, name)
    return measurement


def _check(measurement: Measurement, name: str) -> None:
    """Raise UserError for values that do not fit together, so that those who compute with them need not look."""
    header, cells, drafting = measurement.header, measurement.cells, measurement.drafting
    texts = [header.target, header.weights, header.device, header.dtype, header.text, header.date, header.drafter or ""]
    if any(len(text) > LONGEST_TEXT for text in (*texts, *header.notes, *header.versions, *header.versions.values())):
        raise UserError(f"{name} holds a text of more than {LONGEST_TEXT:,} characters, which none of ours does.")
    if len(cells) > MOST_CELLS or len(drafting) > MOST_CELLS or len(measurement.skipped) > MOST_CELLS:
        raise UserError(f"{name} holds more than {MOST_CELLS:,} cells; measure fewer batch sizes.")
    everything: list[Cell | Skipped] = [*cells, *drafting, *measurement.skipped]
    sizes = [size for each in everything for size in (each.batch, each.rows)]
    if not all(1 <= size <= LARGEST for size in sizes) or not 0 <= header.context <= LARGEST:
        raise UserError(f"{name}: its batch sizes and rows are not all from 1 to {LARGEST:,}.")
    for kind in (cells, drafting):
        if len({(cell.batch, cell.rows) for cell in kind}) < len(kind):
            raise UserError(f"{name} has two cells of the same batch size and rows.")
    times = [cell.seconds for cell in (*cells, *drafting)]
    if header.repeats < 1 or any(len(each) != header.repeats for each in times) or min(chain(*times), default=1) <= 0:
        raise UserError(f"{name}: its times are not all above 0, or not as many as it says there were repeats.")
    if not measurement.batches or any(cell.rows != 1 for cell in drafting):
        raise UserError(f"{name} has no pass over one token, or drafting that is no step of one token.")
    machine, load, experts = measurement.machine, measurement.work.load, measurement.work.experts
    amounts = [machine.bandwidth, machine.flops, load.weight_bytes, load.parameters]
    if experts is not None:
        amounts += [experts.weight_bytes, experts.per_token, experts.count - experts.per_token + 1]
    if min(amounts) <= 0 or load.kv_bytes_per_token < 0:
        raise UserError(f"{name}: what its device can do, or what its target asks of it, is not above 0.")
