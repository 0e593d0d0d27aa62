"""Two runs of one prompt, timed in turns with plain decoding, so that the second can be compared with the first."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from specviz import runs, summary
from specviz.comparison import Comparison, Divergence
from specviz.decoding.verify import LOSSLESS
from specviz.errors import Cancelled, UserError
from specviz.measure import first_divergence
from specviz.ui import screens
from specviz.ui.answers import Work, report
from specviz.ui.facts import plural
from specviz.ui.form import Ask
from specviz.ui.handlers import REPEATS, Explorer, over, wait
from specviz.ui.report import Record
from specviz.ui.screens import WARM_UPS, Screen
from specviz.ui.work import Here, ShouldStop, here


class Side(NamedTuple):
    """One of the two runs, as it was made."""

    prepared: runs.Prepared
    record: Record


def check(first: Ask, second: Ask, explorer: Explorer) -> None:
    """Raise UserError for two runs whose speeds or outputs would say nothing about each other."""
    one, other = first.pairing.target, second.pairing.target
    if one != other:
        raise UserError(
            f"first has the target {one.name} and second has {other.name}, whose speeds can't be compared; run each by "
            "itself, and compare its speed-up over plain decoding."
        )
    if first.dtype != second.dtype:
        raise UserError("The two runs have different number formats; give float32 to both or to neither.")
    if first.raw != second.raw:
        raise UserError("The two runs read the prompt differently; give raw_prompt to both or to neither.")
    if explorer.worker is not here:
        raise UserError("ZeroGPU lends a GPU for one run at a time, so two can't be compared; run each by itself.")


def compared(first: Ask, second: Ask, explorer: Explorer, stop: threading.Event) -> Work:
    """Make both runs, then time them; yields what the page would show meanwhile, returns the comparison."""
    check(first, second, explorer)
    sides = []
    for ask in (first, second):
        prepared, record = yield from explorer.made(ask, (), stop)
        sides.append(Side(prepared, record))
    records = [side.record for side in sides]
    is_whole = all(record.is_complete for record in records)
    why_not = _why_outputs_differ(first, second) if is_whole else "A run was ended by the time limit."
    parting = None
    if is_whole:
        parting = yield from _timed(sides, explorer, stop, compare_outputs=not why_not)
    notes = [f"{why_not} So the outputs are not compared."] if why_not else []
    lengths = {len(record.trace.tokens) for record in records}
    if is_whole and len(lengths) > 1:
        notes.append(f"Both were timed, and compared with plain decoding, over {plural(min(lengths), 'token')}.")
    return {
        "first": report(*sides[0]),
        "second": report(*sides[1]),
        **summary.speeds(records[0].comparison, records[1].comparison),
        "identical": None if why_not else parting is None,
        "first_divergence": None if parting is None else _parting(parting),
        "notes": notes,
    }


def _timed(
    sides: Sequence[Side], explorer: Explorer, stop: threading.Event, compare_outputs: bool
) -> Generator[Screen, None, Divergence | None]:
    """Where the outputs part, if they are to be compared; and into the records, how each compares with plain decoding.

    Each run and plain decoding beside it, all to the same number of tokens, in turns within one turn at the model.
    """
    first, second = sides
    length = min(len(side.record.trace.tokens) for side in sides)
    with explorer.turns.queue(first.prepared.loaded.lock) as turn:
        yield from wait(turn, stop)
        is_over = over(stop)
        parting = _outputs_part(first, second) if compare_outputs else None
        timed = [(side.record, _against_plain(side.prepared, length, is_over)) for side in sides]
        try:
            for number in range(WARM_UPS + REPEATS + 1):  # the last tells where the time goes
                for record, comparisons in timed if number % 2 == 0 else reversed(timed):
                    record.comparison = next(comparisons)
                yield Screen(verdict=screens.measuring(second.record, min(number + 1, WARM_UPS)))
        except Cancelled:
            for side in sides:
                side.record.stopped = side.record.out_of_time = True
    return parting


def _against_plain(prepared: runs.Prepared, length: int, should_stop: ShouldStop) -> Iterator[Comparison]:
    """The run and plain decoding, timed to so many tokens whatever they are."""
    settings = replace(prepared.settings, max_new_tokens=length, stop_tokens=frozenset(), stop_strings=())
    return Here(replace(prepared, settings=settings)).measure(REPEATS, should_stop)


def _outputs_part(first: Side, second: Side) -> Divergence | None:
    prepared = first.prepared
    outputs = first.record.trace.tokens, second.record.trace.tokens
    return first_divergence(prepared.loaded.target, prepared.prompt, *outputs, prepared.settings)


def _why_outputs_differ(first: Ask, second: Ask) -> str:
    """Why the outputs need not be the same; "" where they should be."""
    if first.settings.sampler.temperature > 0 or second.settings.sampler.temperature > 0:
        return "What is sampled differs by chance."
    one, other = (replace(ask.settings, gamma=0, seed=0, gamma_policy="fixed", rule="token") for ask in (first, second))
    if one != other:
        return "The runs differ in more than their drafting."
    if not {first.settings.rule, second.settings.rule} <= LOSSLESS:
        return "Typical acceptance is lossy."
    return ""


def _parting(divergence: Divergence) -> dict[str, Any]:
    return {
        "index": divergence.index,
        "first": divergence.plain,
        "second": divergence.speculative,
        "margin": divergence.margin,
        "near_tie": divergence.near_tie,
    }
