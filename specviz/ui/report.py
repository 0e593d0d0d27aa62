"""What a run came to, in words and figures: plain values for the page's result view."""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.comparison import Comparison, Divergence, Phases
from specviz.metrics import DEFINITIONS, acceptance
from specviz.models.text import TokenText
from specviz.trace import Run, Step, Trace
from specviz.ui.facts import SPEED, plural, rule

Pieces = list[tuple[str, str]]  # text and its tone: faster, slower, even, muted, error or ""
NOISY = 1.6  # with the largest ratio so many times the smallest, the repeats say nothing


@dataclass(slots=True)
class Record:
    """A run as far as it has come."""

    run: Run
    steps: list[Step] = field(default_factory=list)
    comparison: Comparison | None = None
    stopped: bool = False
    out_of_time: bool = False  # stopped, because the turn was over
    drafter: str = ""  # as the page calls it
    repeats: int = 3  # asked for; fewer than these prove nothing
    done: bool = False  # nothing more is to come

    @property
    def trace(self) -> Trace:
        return Trace(self.run, tuple(self.steps))

    @property
    def is_complete(self) -> bool:
        return self.trace.finish_reason != "cancelled"

    @property
    def drafts(self) -> bool:
        """Whether it could draft at all; otherwise it is plain decoding, and there is nothing to compare."""
        return self.run.drafter != "plain" and self.run.gamma > 0

    @property
    def measured(self) -> Comparison | None:
        """The comparison once all its repeats are there."""
        return self.comparison if self.comparison and self.comparison.repeats >= self.repeats else None


def verdict(record: Record) -> Pieces:
    """One sentence: tokens per pass, and whether it pays."""
    per_pass = acceptance(record.trace).tokens_per_pass
    count = len(record.trace.tokens)
    if not record.is_complete:
        bare = f"{'Out of time' if record.out_of_time else 'Stopped'} after {plural(count, 'token')}"
        return [(f"{bare}, ", ""), (f"{per_pass:.1f} per verify pass", "muted")] if per_pass else [(bare, "")]
    if per_pass is None:
        return [("Nothing was decoded", "")]
    opening = f"{per_pass:.1f} {'token' if f'{per_pass:.1f}' == '1.0' else 'tokens'} per verify pass"
    if not record.drafts:
        return [(f"{opening}: plain decoding, ", ""), ("with which every drafter is compared", "muted")]
    return _speed(opening, per_pass, record)


def _speed(opening: str, per_pass: float, record: Record) -> Pieces:
    comparison = record.measured
    if comparison is None or comparison.speedup is None or comparison.spread is None:
        return [(f"{opening}; ", ""), (_unmeasured(record), "muted")]
    low, high = (round(ratio, 2) for ratio in comparison.spread)  # what is claimed is what can be read off
    speed = f"{comparison.speedup:.2f}"
    over = f"({low:.2f} to {high:.2f} over {plural(comparison.repeats, 'repeat')})"
    clear = pays(comparison)
    if is_noisy(comparison):
        busy = f"the machine was too busy to tell the speed-up {over}; run again"
        return [(f"{opening}; ", ""), (busy, "muted")]
    if clear:
        return [(f"{opening}, ", ""), (f"{speed}× faster", "faster"), (" than plain decoding ", ""), (over, "muted")]
    if clear is False:
        joint = ", yet " if per_pass >= 1.05 else ", "
        return [(opening + joint, ""), (f"{speed}×: slower", "slower"), (" than plain decoding ", ""), (over, "muted")]
    same = f"{speed}×: no clear difference"
    return [(f"{opening}, ", ""), (same, "even"), (" from plain decoding ", ""), (over, "muted")]


def _unmeasured(record: Record) -> str:
    timed = record.comparison
    if not record.stopped:
        return "speed-up not measured"
    why = "out of time" if record.out_of_time else "measuring was stopped"
    if timed is None or timed.repeats == 0:
        return f"{why} before the first repeat was complete"
    return f"{why} after {timed.repeats} of {plural(record.repeats, 'repeat')}"


def pays(comparison: Comparison) -> bool | None:
    """Whether all repeats were faster than plain decoding, as far as the printed digits tell; None if neither."""
    if comparison.spread is None:
        return None
    low, high = (round(ratio, 2) for ratio in comparison.spread)
    return True if low > 1 else False if high < 1 else None


def is_noisy(comparison: Comparison) -> bool:
    """The repeats disagree so much that something else must have used the machine."""
    return comparison.spread is not None and comparison.spread[1] > NOISY * comparison.spread[0]


def reason(record: Record) -> str:
    """Why it pays or does not: what a draft token costs, beside what it may cost. "" where that is not known."""
    timed = record.measured
    if timed is None or timed.phases is None or is_noisy(timed):
        return ""
    cost, limit = timed.phases.cost_ratio, timed.phases.break_even
    if cost is None or limit is None:
        return ""
    if limit <= 0:
        return "Too little is accepted here for any drafter to pay, even one that cost nothing."
    spent = "next to nothing" if cost < 0.005 else f"{cost:.2f} of a plain step"
    pays = f"{'it pays' if cost < limit else 'it would pay'} up to {limit:.2f}"
    return f"A draft token costs {spent}; here {pays}.{_gap(timed, timed.phases)}"


def _gap(timed: Comparison, phases: Phases) -> str:
    if phases.promised is None or timed.speedup is None:
        return ""
    return f" Acceptance and costs promise {phases.promised:.2f}×, measured is {timed.speedup:.2f}×."


def tiles(record: Record | None) -> list[dict[str, str]]:
    """The figures of a run; dashes before there is one."""
    numbers = acceptance(record.trace) if record else None
    per_pass, rate, length = "–", "–", "–"
    if numbers is not None and numbers.steps:
        per_pass, rate = _figure(numbers.tokens_per_pass), _percent(numbers.acceptance_rate)
        length = _figure(numbers.acceptance_length)
    speed, note = _speed_tile(record)
    shown = [
        (per_pass, "tokens per pass", DEFINITIONS["tokens_per_pass"], ""),
        (rate, "acceptance rate", DEFINITIONS["acceptance_rate"], ""),
        (length, "acceptance length", DEFINITIONS["acceptance_length"], ""),
        (speed, "speed-up", SPEED, note),
    ]
    named = [dict(zip(("value", "name", "definition", "note"), tile, strict=True)) for tile in shown]
    return [{key: text for key, text in tile.items() if text} for tile in named]


def _speed_tile(record: Record | None) -> tuple[str, str]:
    """The speed-up, and plain decoding's own speed as a note."""
    timed = record.measured if record and record.done else None
    if timed is not None and timed.speedup is not None and timed.typical is not None and not is_noisy(timed):
        plain = timed.plain[timed.typical]  # the one that the race shows
        return f"{timed.speedup:.2f}×", f"plain: {plain.tokens / plain.total:.0f} tokens/s"
    return "n/a" if record is not None and (record.done or not record.drafts) else "–", ""


def equality(record: Record, text: TokenText) -> dict[str, str] | None:
    """Whether the output is plain decoding's: a badge's tone (good, near, bad, lossy or ""), its label, a sentence."""
    run, comparison = record.run, record.comparison
    if not record.drafts:
        return None
    if not run.lossless:
        return _badge("lossy", "lossy", _lossy(record, text))
    rounding = "" if run.dtype == "float32" else f", up to rounding in {run.dtype}"
    lossless = f"by {'the acceptance rule' if run.rule == 'token' else rule(run)}{rounding}"
    if run.sampler["temperature"] > 0:
        return _badge("", "lossless", f"{lossless}; sampled runs differ by chance, so tokens are not compared.")
    if comparison is None or comparison.identical is None:
        return _badge("", "lossless", f"{lossless}; not compared with plain decoding in this run.")
    parting = comparison.divergence
    if parting is None:
        return _badge("good", "identical to plain decoding", f"all {plural(comparison.tokens, 'token')} are the same.")
    where = _where(parting, text)
    if parting.margin is None:
        return _badge("bad", "differs from plain decoding", f"{where}.")
    margin = f"{where}; the target's logits differ by {abs(parting.margin):.2g}"
    if parting.near_tie:
        tie = f"{margin}, which rounding in {run.dtype} decides. The number format float32 is exact."
        return _badge("near", "differs at a near tie", tie)
    return _badge("bad", "differs from plain decoding", f"{margin}, more than rounding in {run.dtype} explains.")


def _lossy(record: Record, text: TokenText) -> str:
    """What the rule allows, and what came of it here."""
    kept = f"{record.run.rule} acceptance keeps what the target finds not unlikely, so the output need not be its own."
    if record.run.sampler["temperature"] == 0:
        kept += " At temperature 0 it keeps just what greedy decoding would."
    comparison = record.comparison
    if comparison is None or comparison.identical is None:
        return kept
    if comparison.divergence is None:
        return f"{kept} Here all {plural(comparison.tokens, 'token')} are plain decoding's."
    return f"{kept} Here it differs {_where(comparison.divergence, text)}."


def _where(parting: Divergence, text: TokenText) -> str:
    plain, own = (
        "the end of the text" if token is None else f"“{_visible(text(token))}”"
        for token in (parting.plain, parting.speculative)
    )
    return f"from token {parting.index + 1}, where plain decoding has {plain} and this run {own}"


def _badge(tone: str, label: str, text: str) -> dict[str, str]:
    return {"tone": tone, "label": label, "text": text}


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.0f} %"


def _visible(text: str) -> str:
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return "".join(signs.get(letter, letter) for letter in text) if not text.strip() else text
