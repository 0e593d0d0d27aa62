"""What a run came to, in words and figures: plain values for the page's result view."""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.measure import Comparison
from specviz.metrics import DEFINITIONS, acceptance, outcomes, timing
from specviz.models.text import TokenText
from specviz.trace import FinishReason, Run, Step, Trace

Pieces = list[tuple[str, str]]  # text and its tone: faster, slower, even, muted, error or ""
Lines = list[tuple[str, str]]  # name, text

SPEED = (
    "Plain time per token / speculative time per token, prefill excluded, both to the same number of tokens in turns; "
    "the median of the repeats, and the smallest and largest beside it."
)


@dataclass(slots=True)
class Record:
    """A run as far as it has come."""

    run: Run
    steps: list[Step] = field(default_factory=list)
    comparison: Comparison | None = None
    stopped: bool = False

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


def verdict(record: Record) -> Pieces:
    """One sentence: tokens per pass, and whether it pays."""
    per_pass = acceptance(record.trace).tokens_per_pass
    count = len(record.trace.tokens)
    if not record.is_complete:
        bare = f"Stopped after {plural(count, 'token')}"
        return [(f"{bare}, ", ""), (f"{per_pass:.1f} per verify pass", "muted")] if per_pass else [(bare, "")]
    if per_pass is None:
        return [("Nothing was decoded", "")]
    opening = f"{per_pass:.1f} {'token' if f'{per_pass:.1f}' == '1.0' else 'tokens'} per verify pass"
    if not record.drafts:
        return [(f"{opening}: plain decoding, ", ""), ("with which every drafter is compared", "muted")]
    return _speed(opening, per_pass, record)


def _speed(opening: str, per_pass: float, record: Record) -> Pieces:
    comparison = record.comparison
    if comparison is None or comparison.speedup is None or comparison.spread is None:
        why = "stopped before the speed-up was measured" if record.stopped else "speed-up not measured"
        return [(f"{opening}; ", ""), (why, "muted")]
    speed, (low, high) = times(comparison.speedup), comparison.spread
    digits = len(speed.partition(".")[2])
    over = f"({low:.{digits}f} to {high:.{digits}f} over {plural(comparison.repeats, 'repeat')})"
    if low > 1:
        return [(f"{opening}, ", ""), (f"{speed}× faster", "faster"), (" than plain decoding ", ""), (over, "muted")]
    if high < 1:
        joint = ", yet " if per_pass >= 1.05 else ", "
        return [(opening + joint, ""), (f"{speed}×: slower", "slower"), (" than plain decoding ", ""), (over, "muted")]
    same = f"{speed}×: no clear difference"
    return [(f"{opening}, ", ""), (same, "even"), (" from plain decoding ", ""), (over, "muted")]


def times(ratio: float) -> str:
    """A ratio with one decimal, or two where one would not tell it from 1 or from 0."""
    return f"{ratio:.1f}" if ratio >= 0.1 and f"{ratio:.1f}" != "1.0" else f"{ratio:.2f}"


def tiles(record: Record | None) -> list[dict[str, str]]:
    """The four figures of a run; dashes before there is one."""
    numbers = acceptance(record.trace) if record else None
    comparison = record.comparison if record else None
    speed, name = "–", "speed against plain"
    if comparison is not None and comparison.speedup is not None and comparison.plain_tokens_per_s is not None:
        speed = f"{times(comparison.speedup)}×"
        name += f" (plain: {comparison.plain_tokens_per_s:.0f} tokens/s)"
    elif record is not None and (record.stopped or not record.drafts or comparison is not None):
        speed = "n/a"
    per_pass, rate, length = "–", "–", "–"
    if numbers is not None and numbers.steps:
        per_pass, rate = _figure(numbers.tokens_per_pass), _percent(numbers.acceptance_rate)
        length = _figure(numbers.acceptance_length)
    shown = [
        (per_pass, "tokens per verify pass", DEFINITIONS["tokens_per_pass"]),
        (rate, "acceptance rate", DEFINITIONS["acceptance_rate"]),
        (length, "acceptance length", DEFINITIONS["acceptance_length"]),
        (speed, name, SPEED),
    ]
    return [{"value": value, "name": name, "definition": meaning} for value, name, meaning in shown]


def equality(record: Record, text: TokenText) -> tuple[str, str]:
    """Whether the output is plain decoding's, and a tone: good, bad or ""."""
    run, comparison = record.run, record.comparison
    if not record.drafts:
        return "", ""
    if run.sampler["temperature"] > 0:
        return "Output: lossless by the acceptance rule. Sampled runs differ by chance, so tokens are not compared.", ""
    if comparison is None:
        return "Output: lossless by the acceptance rule; not compared with plain decoding in this run.", ""
    parting = comparison.divergence
    if parting is None:
        return f"Output: identical to plain decoding, all {plural(comparison.tokens, 'token')}.", "good"
    plain, own = (
        "the end of the text" if token is None else f"“{_visible(text(token))}”"
        for token in (parting.plain, parting.speculative)
    )
    where = f"Output: parts from plain decoding at token {parting.index + 1}: plain has {plain}, this run {own}"
    if parting.margin is None:
        return f"{where}.", "bad"
    margin = f"{where}; the target's logits differ by {abs(parting.margin):.2g}"
    if parting.near_tie:
        return f"{margin}, a near tie that rounding in {run.dtype} decides.", ""
    return f"{margin}, more than rounding in {run.dtype} explains.", "bad"


def lines(record: Record) -> Lines:
    """How it ended, what was drafted, and on what it ran."""
    trace, run = record.trace, record.run
    counts, numbers, clock = outcomes(trace.steps), acceptance(trace), timing(trace)
    drafted = (
        f"{numbers.drafted}: {counts.accepted} accepted, {counts.rejected} rejected, {counts.untested} untested, "
        f"{counts.cut} cut, in {numbers.steps - numbers.undrafted_steps} of {plural(numbers.steps, 'verify pass')}"
    )
    shown: Lines = [("Ended", ended(trace.finish_reason, len(trace.tokens)))]
    if record.drafts:
        shown.append(("Drafted", drafted))
    if clock.prefill_s is not None:
        shown.append(("Prompt", f"{plural(len(run.prompt), 'token')}, read in {clock.prefill_s:.2f} s"))
    return [*shown, ("Run", facts(run))]


def ended(reason: FinishReason, tokens: int) -> str:
    return {
        "stop_token": f"after {plural(tokens, 'token')}, with the target's stop token",
        "stop_string": f"after {plural(tokens, 'token')}, by a stop string",
        "length": f"after {plural(tokens, 'token')}, the most that were allowed",
        "cancelled": f"stopped by you after {plural(tokens, 'token')}",
    }[reason]


def facts(run: Run) -> str:
    """Target, drafter, sampler, device, number format and seed, in one line."""
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.drafter_settings.items())
    threads = [] if run.threads is None or "thread" in run.device else [plural(run.threads, "thread")]
    parts = [
        run.target,
        run.drafter + (f" ({settings})" if settings else ""),
        f"gamma {run.gamma}",
        f"temperature {run.sampler['temperature']:g}",
        f"seed {run.seed}",
        run.device,
        *threads,
        run.dtype,
    ]
    return " · ".join(parts)


def definitions() -> list[tuple[str, str]]:
    names = ("tokens_per_pass", "acceptance_rate", "acceptance_length", "untested", "cut")
    return [*((name.replace("_", " "), DEFINITIONS[name]) for name in names), ("speed against plain", SPEED)]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.0f} %"


def _visible(text: str) -> str:
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return "".join(signs.get(letter, letter) for letter in text) if not text.strip() else text
