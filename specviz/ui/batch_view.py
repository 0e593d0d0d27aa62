"""What the Batch tab shows of a measurement: figures, numbers at one batch size, and what was measured, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from specviz.batch import drawn
from specviz.batch.model import Drafting, How, gain, modelled_gain
from specviz.batch.published import Published
from specviz.batch.results import Measurement
from specviz.errors import UserError
from specviz.figures import load, verify_cost
from specviz.theory import ridge_tokens
from specviz.ui.facts import plural
from specviz.ui.screens import SKIP
from specviz.ui.tables import facts, note, problem, table

LARGEST_BATCH, LONGEST_GAMMA, MOST_COST = 256, 16, 2.0
IN_WORDS: dict[How, str] = {
    "measured": "measured",
    "interpolated": "between two measured",
    "modelled": "modelled",
}
COMPUTED: dict[How, str] = {
    "measured": "from measured passes",
    "interpolated": "from passes between two measured",
    "modelled": "from modelled passes",
}


class Shown(NamedTuple):
    """Values of the tab's outputs, or the outputs themselves."""

    verify_cost: Any
    load: Any
    numbers: Any  # HTML
    about: Any  # HTML


class Asked(NamedTuple):
    """Values of the tab's controls."""

    length: float
    gamma: int
    cost_ratio: float
    as_measured: bool  # the draft model's own steps, in place of the ratio
    batch: int
    unit: str

    def drafting(self, measurement: Measurement) -> Drafting:
        """Raises UserError for values that the sliders can't have, or that do not go together."""
        if not (1 <= self.gamma <= LONGEST_GAMMA and 0 <= self.cost_ratio <= MOST_COST):
            raise UserError("The draft length or the cost ratio is out of bounds; set them with the sliders.")
        if not 1 <= self.length <= self.gamma + 1:
            raise UserError(
                f"Drafts of {plural(self.gamma, 'token')} can't have an acceptance length of {self.length:g}; choose "
                f"1 to {self.gamma + 1}."
            )
        if not 1 <= self.batch <= LARGEST_BATCH or self.unit not in drawn.UNITS:
            raise UserError("The batch size is out of bounds; set it with the slider.")
        use_measured = self.as_measured and bool(measurement.drafting)
        return Drafting(float(self.length), int(self.gamma), None if use_measured else float(self.cost_ratio))


def show(measurement: Measurement | None, published: Iterable[Published], asked: Asked) -> Shown:
    """Everything. Where there is nothing to show that is said; what can't be asked for leaves the speed-up in view."""
    if measurement is None:
        nothing = note("Choose a measurement, upload one, or measure here.")
        return Shown(verify_cost.plot(None), load.plot(None), nothing, "")
    costs = verify_cost.plot(
        drawn.verify_cost(measurement, asked.unit if asked.unit in drawn.UNITS else drawn.UNITS[0])
    )
    try:
        drafting = asked.drafting(measurement)
    except (UserError, TypeError) as error:
        words = str(error) if isinstance(error, UserError) else "A control is empty; set it with its slider."
        return Shown(costs, SKIP, problem(words), _about(measurement))
    return Shown(
        costs,
        load.plot(drawn.load(measurement, drafting, asked.batch, published)),
        _numbers(measurement, drafting, asked.batch),
        _about(measurement),
    )


def _numbers(measurement: Measurement, drafting: Drafting, batch: int) -> str:
    """What a step costs and brings at this batch size."""
    found, modelled = gain(measurement, drafting, batch), modelled_gain(measurement, drafting, batch)
    gamma, computed = drafting.gamma, COMPUTED[found.how]
    rows = [
        ["plain step", _ms(found.plain.seconds), IN_WORDS[found.plain.how], _ms(modelled.plain.seconds)],
        [
            f"verify pass of {gamma + 1} rows",
            _ms(found.verify.seconds),
            IN_WORDS[found.verify.how],
            _ms(modelled.verify.seconds),
        ],
        [
            f"drafting {plural(gamma, 'token')}",
            _ms(gamma * found.draft.seconds),
            IN_WORDS[found.draft.how],
            _ms(gamma * modelled.draft.seconds),
        ],
        [
            "plain decoding",
            _rate(found.plain_tokens_per_s),
            COMPUTED[found.plain.how],
            _rate(modelled.plain_tokens_per_s),
        ],
        ["speculative decoding", _rate(found.tokens_per_s), computed, _rate(modelled.tokens_per_s)],
        ["speed-up", f"{found.speedup:.2f}x", computed, f"{modelled.speedup:.2f}x"],
    ]
    title = f"Batch {batch}: {_verdict(found.speedup)}"
    return table(["", "from passes", "how it is known", "roofline, modelled"], rows, caption=title)


def _verdict(speedup: float) -> str:
    if f"{speedup:.2f}" == "1.00":
        return "as fast as plain"
    return f"{speedup:.2f}x, {'faster' if speedup > 1 else 'slower'} than plain"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f} tok/s"


def _about(measurement: Measurement) -> str:
    """What was measured, where, and what is only modelled."""
    header, machine, load = measurement.header, measurement.machine, measurement.work.load
    busy = f"load average {header.load[0]:.1f} at the start" if header.load else ""
    device = " · ".join(part for part in (header.device, header.dtype, header.date[:10], busy) if part)
    lines = [
        ("Target", f"{header.target}, weights {header.weights[:12] or 'n/a'}"),
        ("Device", device),
        (
            "Measured",
            f"forward passes after {header.context:,} tokens of context, {plural(header.repeats, 'repeat')} in turns, "
            f"medians; the caches hold {header.text}. A copy reached {machine.bandwidth / 1e9:.1f} GB/s and a matrix "
            f"product {machine.flops / 1e12:.2f} TFLOP/s.",
        ),
        (
            "Modelled",
            f"the roofline: {load.weight_bytes / 1e6:,.0f} MB of weights read, {load.parameters / 1e6:,.0f} million "
            f"parameters computed with, {load.kv_bytes_per_token / 1e3:,.0f} kB of cache per token of context. It "
            "knows nothing of attention's own arithmetic, of launching work or of Python. By it a pass costs no more "
            f"than reading the weights up to {ridge_tokens(machine, load):.0f} tokens of all sequences together.",
        ),
        ("Drafting", _drafting(measurement)),
    ]
    lines += [("Left out", left_out(measurement))] if measurement.skipped else []
    return facts([*lines, *(("Note", each) for each in header.notes)])


def _drafting(measurement: Measurement) -> str:
    if measurement.drafting:
        return (
            f"the forward passes of {measurement.header.drafter} were measured at every batch size; what drafting "
            "costs besides is left out. They count where the box for them is ticked, else the cost ratio does."
        )
    return "modelled: the cost ratio of batch size 1 at every batch size, so its steps grow as the target's do."


def left_out(measurement: Measurement) -> str:
    """Which cells were not measured, and why."""
    cells = ", ".join(f"batch {each.batch} x {each.rows} rows" for each in measurement.skipped)
    slowest = max(each.expected_s for each in measurement.skipped)
    return f"{cells}: a pass was expected to take up to {slowest:.1f} s. What needs them is modelled."


def references(published: Iterable[Published]) -> str:
    """Every published speed-up with the settings that it holds for."""
    lines = []
    for entry in published:
        points = ", ".join(f"{point.where}: {point.speedup:.2f}x" for point in entry.points)
        lines.append((entry.title, "; ".join([points, *entry.lines])))
    return note("Of other models, engines and data than here, so none of them foretells this curve.") + facts(lines)
