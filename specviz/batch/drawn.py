"""What the figures of a measurement show, as their plain values. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from specviz.batch.model import Drafting, Gain, crossing, crossover, gain, modelled_gain, roofline
from specviz.batch.published import Published
from specviz.batch.results import Measurement
from specviz.figures.load import GainPoint, LoadInfo, PublishedPoint
from specviz.figures.verify_cost import Curve, VerifyCostInfo

SAME_BATCH, ONE_SEQUENCE = "plain steps of the same batch", "plain steps of one sequence"
UNITS = (SAME_BATCH, ONE_SEQUENCE)
MODELLED_TO = 256  # batch sizes that the roofline is drawn for, at least


def verify_cost(measurement: Measurement, unit: str = SAME_BATCH) -> VerifyCostInfo:
    """T(B, k) / T(B, 1), or T(B, k) / T(1, 1); the roofline in plain steps of its own."""
    header = measurement.header
    curves = [curve for batch in measurement.batches if (curve := _curve(measurement, batch, unit)) is not None]
    return VerifyCostInfo(tuple(curves), unit, (header.target, f"{header.dtype}, {header.context} tokens of context"))


def _curve(measurement: Measurement, batch: int, unit: str) -> Curve | None:
    base = measurement.cell(batch if unit == SAME_BATCH else 1, 1)
    if base is None:
        return None
    cells = sorted((cell for cell in measurement.cells if cell.batch == batch), key=lambda cell: cell.rows)
    spans = [cell.quartiles or (cell.median, cell.median) for cell in cells]
    least = roofline(measurement, base.batch, 1)
    return Curve(
        batch,
        rows=tuple(cell.rows for cell in cells),
        milliseconds=tuple(1e3 * cell.median for cell in cells),
        cost=tuple(cell.median / base.median for cell in cells),
        low=tuple(low / base.median for low, _ in spans),
        high=tuple(high / base.median for _, high in spans),
        roofline=tuple(roofline(measurement, batch, cell.rows) / least for cell in cells),
    )


def load(
    measurement: Measurement, drafting: Drafting, chosen: int | None = None, published: Iterable[Published] = ()
) -> LoadInfo:
    """The speed-up at every batch size that was measured, and by the roofline alone at powers of two."""
    gains = [gain(measurement, drafting, batch) for batch in measurement.batches]
    widest = max(MODELLED_TO, measurement.batches[-1])
    powers = [1 << exponent for exponent in range(widest.bit_length())]
    ratio = "c as measured" if drafting.cost_ratio is None else f"c = {drafting.cost_ratio:.3g}"
    return LoadInfo(
        gains=tuple(map(_point, gains)),
        roofline=tuple(_point(modelled_gain(measurement, drafting, batch)) for batch in powers),
        crossover=crossover(gains),
        crossing=crossing(gains),
        assumed=(f"acceptance length {drafting.length:.2f}", f"gamma {drafting.gamma}, {ratio}"),
        chosen=chosen,
        published=tuple(
            PublishedPoint(point.batch, point.speedup, entry.title, tuple(entry.lines))
            for entry in published
            for point in entry.points
            if point.batch is not None
        ),
    )


def _point(gain: Gain) -> GainPoint:
    return GainPoint(gain.batch, gain.speedup, gain.how)
