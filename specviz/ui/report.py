"""What a run came to, in words and figures: plain values for the page's result view."""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.measure import Comparison
from specviz.metrics import DEFINITIONS, acceptance, outcomes, timing
from specviz.models.text import TokenText
from specviz.trace import FinishReason, Run, Step, Trace

Pieces = list[tuple[str, str]]  # text and its tone: faster, slower, even, muted, error or ""
Lines = list[tuple[str, str]]  # name, text
NOISY = 1.6  # with the largest ratio so many times the smallest, the repeats say nothing
SHOWN_PROMPT = 60  # characters

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
        bare = f"Stopped after {plural(count, 'token')}"
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
    if is_noisy(comparison):
        busy = f"the machine was too busy to tell the speed-up {over}; run again"
        return [(f"{opening}; ", ""), (busy, "muted")]
    if low > 1:
        return [(f"{opening}, ", ""), (f"{speed}× faster", "faster"), (" than plain decoding ", ""), (over, "muted")]
    if high < 1:
        joint = ", yet " if per_pass >= 1.05 else ", "
        return [(opening + joint, ""), (f"{speed}×: slower", "slower"), (" than plain decoding ", ""), (over, "muted")]
    same = f"{speed}×: no clear difference"
    return [(f"{opening}, ", ""), (same, "even"), (" from plain decoding ", ""), (over, "muted")]


def _unmeasured(record: Record) -> str:
    timed = record.comparison
    if not record.stopped:
        return "speed-up not measured"
    if timed is None or timed.repeats == 0:
        return "measuring was stopped before the first repeat was complete"
    return f"measuring was stopped after {timed.repeats} of {plural(record.repeats, 'repeat')}"


def is_noisy(comparison: Comparison) -> bool:
    """The repeats disagree so much that something else must have used the machine."""
    return comparison.spread is not None and comparison.spread[1] > NOISY * comparison.spread[0]


def tiles(record: Record | None) -> list[dict[str, str]]:
    """The four figures of a run; dashes before there is one."""
    numbers = acceptance(record.trace) if record else None
    timed = record.measured if record and record.done else None
    speed, name = "–", "speed-up"
    if timed is not None and timed.speedup is not None and not is_noisy(timed):
        speed = f"{timed.speedup:.2f}×"
        name += f" (plain: {timed.plain_tokens_per_s:.0f} tokens/s)" if timed.plain_tokens_per_s else ""
    elif record is not None and (record.done or not record.drafts):
        speed = "n/a"
    per_pass, rate, length = "–", "–", "–"
    if numbers is not None and numbers.steps:
        per_pass, rate = _figure(numbers.tokens_per_pass), _percent(numbers.acceptance_rate)
        length = _figure(numbers.acceptance_length)
    shown = [
        (per_pass, "tokens per pass", DEFINITIONS["tokens_per_pass"]),
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
    rounding = "" if run.dtype == "float32" else f", up to rounding in {run.dtype}"
    lossless = f"Output: lossless by the acceptance rule{rounding}"
    if run.sampler["temperature"] > 0:
        return f"{lossless}. Sampled runs differ by chance, so tokens are not compared.", ""
    if comparison is None or comparison.identical is None:
        return f"{lossless}; not compared with plain decoding in this run.", ""
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
    read = "" if clock.prefill_s is None else f", read in {clock.prefill_s:.2f} s"
    shown.append(("Prompt", f"“{shortened(run.prompt_text)}” ({plural(len(run.prompt), 'token')}{read})"))
    return [*shown, ("Run", facts(run, record.drafter))]


def shortened(prompt: str) -> str:
    """The beginning of a prompt, in one line."""
    words = " ".join(prompt.split())
    return words if len(words) <= SHOWN_PROMPT else words[:SHOWN_PROMPT].rstrip() + "…"


def ended(reason: FinishReason, tokens: int) -> str:
    return {
        "stop_token": f"after {plural(tokens, 'token')}, with the target's stop token",
        "stop_string": f"after {plural(tokens, 'token')}, by a stop string",
        "length": f"after {plural(tokens, 'token')}, the most that were allowed",
        "cancelled": f"stopped by you after {plural(tokens, 'token')}",
    }[reason]


def facts(run: Run, drafter: str = "") -> str:
    """Target, drafter, sampler, device, number format and seed, in one line."""
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.drafter_settings.items())
    threads = [] if run.threads is None or "thread" in run.device else [plural(run.threads, "thread")]
    parts = [
        run.target,
        (drafter or run.drafter) + (f" ({settings})" if settings else ""),
        *([] if run.drafter == "plain" else [f"gamma {run.gamma}"]),
        f"temperature {run.sampler['temperature']:g}",
        f"seed {run.seed}",
        run.device,
        *threads,
        run.dtype,
    ]
    return " · ".join(parts)


def definitions() -> list[tuple[str, str]]:
    names = ("tokens_per_pass", "acceptance_rate", "acceptance_length", "untested", "cut")
    return [*((name.replace("_", " "), DEFINITIONS[name]) for name in names), ("speed-up", SPEED)]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.0f} %"


def _visible(text: str) -> str:
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return "".join(signs.get(letter, letter) for letter in text) if not text.strip() else text
