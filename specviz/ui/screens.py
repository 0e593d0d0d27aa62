"""What the outputs of the page show at each moment of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import gradio as gr

from specviz import memory, runs
from specviz.figures import histogram, style, survival, time_share
from specviz.metrics import acceptance
from specviz.models.text import TokenText
from specviz.prompts import Turn
from specviz.recordings import Recording
from specviz.ui import facts, race, report, wire
from specviz.ui.facts import plural
from specviz.ui.report import Pieces, Record

Value = Any  # what a Gradio component takes
SKIP: Value = gr.skip()
WARM_UPS = 2  # speculative and plain, as `compare` does it
EARLIER = "Below is the run before this one."
FIGURES = {"histogram": histogram, "survival": survival, "time_share": time_share}


class Screen(NamedTuple):
    """The outputs, in the order of the page's components; what is left out stays as it is."""

    tokens: Value = SKIP
    verdict: Value = SKIP
    race: Value = SKIP
    histogram: Value = SKIP
    survival: Value = SKIP
    time_share: Value = SKIP
    details: Value = SKIP
    memory: Value = SKIP
    run: Value = SKIP
    step: Value = SKIP
    stop: Value = SKIP
    follow_up: Value = SKIP
    stepping: Value = SKIP  # state: the run that Step goes on with
    exchange: Value = SKIP  # state: the conversation up to the end of this run

    def offering(self, exchange: tuple[Turn, ...]) -> Screen:
        """With the offer to go on from here."""
        has_answer = bool(exchange[-1].assistant.strip())
        return self._replace(exchange=exchange, follow_up=gr.update(visible=has_answer, interactive=True))


def recorded(recording: Recording, drafter: str, remark: str = "") -> Screen:
    """A recorded run, as it was when it ended. remark: what has to be said before anything else."""
    record = _ended(recording, drafter)
    return Screen(
        tokens=wire.whole(recording.trace),
        verdict=_outcome(record, TokenText(None), "recorded", remark),
        race=race.lanes(record),
        details=details(record),
        stepping=None,
        **figures(record),
    ).offering((Turn(record.run.prompt_text, record.trace.text),))


def _ended(recording: Recording, drafter: str) -> Record:
    trace, comparison = recording.trace, recording.comparison
    return Record(trace.run, list(trace.steps), comparison, drafter=drafter, repeats=comparison.repeats, done=True)


def instead(recording: Recording, drafter: str, reason: str) -> Screen:
    """A recorded run where a live one can't be had, and why; the last screen of a run."""
    shown, record = recorded(recording, drafter), _ended(recording, drafter)
    what = f"What follows is recorded: the example “{recording.example.title}”, drafted by {drafter}."
    source = _source("recorded", facts.source(record.run, drafter))
    tiles = report.tiles(record)
    card = _card(headline=[(reason, "error")], status=what, tiles=tiles, source=source, announce=f"{reason} {what}")
    buttons = ready()
    return shown._replace(verdict=card, run=buttons.run, step=buttons.step, stop=buttons.stop)


def empty() -> str:
    """The verdict's card where nothing is recorded and nothing has run."""
    headline = [("Which words does the drafter guess, and does it pay?", "")]
    status = (
        "Press Run. A cheap drafter proposes the next tokens, the target checks them all in one pass, "
        "and only what the target would have said itself stays."
    )
    return _card(headline=headline, status=status, tiles=report.tiles(None))


def starting() -> Screen:
    off, stop = gr.update(interactive=False), gr.update(value="Stop", interactive=True)
    return Screen(verdict=working("Starting"), run=off, step=off, stop=stop, follow_up=off)


def begun(record: Record) -> Screen:
    """The first step: nothing of the run before is left in view, and nothing can be followed up yet."""
    waiting = "Drawn when the run is over."
    blank = {name: style.empty(figure.TITLE, waiting) for name, figure in FIGURES.items()}
    gone = gr.update(visible=False)
    verdict = progress(record)
    return Screen(verdict=verdict, race="", details="", follow_up=gone, stepping=None, exchange=(), **blank)


def ready(verdict: Value = SKIP, **outputs: Value) -> Screen:
    """Run works again."""
    on = gr.update(interactive=True)
    off = gr.update(value="Stop", interactive=False)  # it may have said "Stopping…"
    return Screen(**{"verdict": verdict, "run": on, "step": on, "stop": off, "follow_up": on, **outputs})


def message(sentence: str, tone: str = "error", begun: bool = False) -> str:
    """One sentence in place of a verdict. Unless the run had begun, the one before it stays in view."""
    headline = [(sentence, tone)]
    if begun:
        return _card(headline=headline, status="", tiles=report.tiles(None), announce=sentence)
    return _card(headline=headline, status="", earlier=EARLIER, announce=sentence)


def working(sentence: str) -> str:
    """What is done before there is a first token; the run before stays in view."""
    return _card(headline=[(sentence, "muted")], status="", earlier=EARLIER, busy=True)


def waiting(ahead: int, seconds: float | None) -> str:
    """Place in the line, and for how long if that can be guessed."""
    return working(f"Waiting: {_place(ahead, seconds)}")


def waiting_to_measure(record: Record, ahead: int, seconds: float | None) -> str:
    return _half_done(record, f"waiting to measure the speed-up: {_place(ahead, seconds)}")


def _place(ahead: int, seconds: float | None) -> str:
    others = f", with {plural(ahead, 'other')} before you" if ahead else ", you are next"
    guess = "" if seconds is None else f", about {max(1, round(seconds))} s"
    return f"another run is using the model{others}{guess}"


def progress(record: Record) -> str:
    """How far the run has come."""
    count = len(record.trace.tokens)
    per_pass = acceptance(record.trace).tokens_per_pass or 0
    headline = [(f"{per_pass:.1f} tokens per verify pass ", ""), ("so far", "muted")]
    status = f"decoding: {count} of at most {plural(record.run.max_new_tokens, 'token')}"
    return _card(headline=headline, status=status, busy=True, tiles=report.tiles(record), source=_source("live"))


def measuring(record: Record, warmed: int) -> str:
    """The figures are there, the speed-up is still to come. `warmed`: how many of the two untimed runs are over."""
    now = f"warming up ({warmed + 1} of {WARM_UPS})"
    if record.measured:
        now = "where the time goes"
    elif warmed >= WARM_UPS:
        now = f"repeat {record.comparison.repeats + 1 if record.comparison else 1} of {record.repeats}"
    return _half_done(record, f"measuring against plain decoding: {now}")


def _half_done(record: Record, status: str) -> str:
    headline = [(f"{acceptance(record.trace).tokens_per_pass or 0:.1f} tokens per verify pass", "")]
    return _card(headline=headline, status=status, busy=True, tiles=report.tiles(record), source=_source("live"))


def paused(record: Record, is_changed: bool) -> Screen:
    """Between two steps of a run made step by step. `is_changed`: the settings have, so that it began anew."""
    count = len(record.trace.tokens)
    headline = [(f"{plural(len(record.steps), 'verify pass')}, {plural(count, 'token')} ", ""), ("so far", "muted")]
    status = "The settings have changed, so this run began anew." if is_changed else ""
    source = _source("step", "Step makes the next verify pass, Run starts over")
    card = _card(headline=headline, status=status, tiles=report.tiles(record), source=source)
    lines = facts.lines(record.trace, record.drafter, "not ended yet,")
    follow_up = {"follow_up": gr.update(visible=False), "exchange": ()}
    return ready(card, race="", details=_about(record, lines), **follow_up, **figures(record))


def finished(record: Record, text: TokenText) -> Screen:
    return ready(_outcome(record, text, "live"), race=race.lanes(record), details=details(record), **figures(record))


def details(record: Record) -> str:
    """The last card: how it ended, on what it ran, and what to know about it."""
    why = "ended by the time limit" if record.out_of_time else "stopped by you"
    return _about(record, facts.lines(record.trace, record.drafter, why))


def _about(record: Record, lines: facts.Lines) -> str:
    return _card(lines=lines, notes=list(record.trace.warnings), definitions=facts.definitions())


def figures(record: Record) -> dict[str, Value]:
    """The three figures by the names of their outputs."""
    timed = record.measured if record.measured and not report.is_noisy(record.measured) else None
    return {
        "histogram": histogram.plot(histogram.info(record.trace)),
        "survival": survival.plot(survival.info(record.trace)),
        "time_share": time_share.plot(time_share.info(timed, record.trace)),
    }


def status(state: str, text: str, fraction: float | None = None, detail: str = "") -> str:
    """The model's state: loading, ready or failed."""
    return _json({"state": state, "text": text, "fraction": fraction, "detail": detail})


def conversation(history: Sequence[Turn]) -> str:
    """The turns before the prompt, shortened; "" where there are none."""
    lines = [pair for turn in history for pair in (("You", turn.user), ("Target", turn.assistant))]
    return _card(lines=[(who, facts.shortened(said)) for who, said in lines]) if lines else ""


def about(lines: facts.Lines, headline: tuple[str, str] | None = None) -> str:
    """A pairing's card: what to know of it, under a headline (text, tone) if there is something to say."""
    return _card(headline=[headline] if headline else None, lines=lines, announce=headline[0] if headline else "")


def budget(needed: memory.Budget, peak: int | None = None) -> str:
    """The memory bar: what target and drafter need, beside what there is for them.

    peak: what a run took, as `runs.peak_bytes` has it; set beside what was expected of it.
    """
    parts = [("target", needed.weights_target), ("drafter", needed.weights_drafter), ("KV cache", needed.kv)]
    parts.append(("rest", needed.total - sum(size for _, size in parts)))
    bar = {
        "parts": [{"name": name, "bytes": size, "text": memory.human(size)} for name, size in parts],
        "available": {"bytes": needed.available, "text": memory.human(needed.available)},
        "fits": needed.total <= needed.available,
    }
    if peak is not None:
        expected = memory.human(needed.expected - needed.runtime)
        bar["note"] = f"The run took {memory.human(peak)} at its peak; {expected} was expected without headroom."
    return _json(bar)


def used(prepared: runs.Prepared) -> str:
    """The memory bar of a run that is over, with what it took where that is known."""
    return budget(runs.budget(prepared), runs.peak_bytes(prepared))


def _outcome(record: Record, text: TokenText, kind: str, remark: str = "") -> str:
    """The verdict's card of a run that is over."""
    sentence, equality, why = report.verdict(record), report.equality(record, text), report.reason(record)
    spoken = ["".join(words for words, _ in sentence), why]
    if equality:
        spoken.append(f"Output {equality['label']}: {equality['text']}")
    return _card(
        headline=sentence,
        status=f"{remark} {why}".strip(),
        equality=equality,
        tiles=report.tiles(record),
        source=_source(kind, facts.source(record.run, record.drafter)),
        announce=". ".join(part.rstrip(".") for part in spoken if part) if kind != "recorded" else "",
    )


def _source(kind: str, text: str = "") -> dict[str, str]:
    return {"kind": kind, "text": text}


def _card(
    *,
    headline: Pieces | None = None,
    status: str | None = None,
    busy: bool = False,
    tiles: list[dict[str, str]] | None = None,
    source: dict[str, str] | None = None,
    equality: dict[str, str] | None = None,
    earlier: str | None = None,
    lines: facts.Lines | None = None,
    notes: list[str] | None = None,
    definitions: list[tuple[str, str]] | None = None,
    announce: str = "",
) -> str:
    """JSON for assets/js/result_view.js, which writes it as text."""
    values = {
        "headline": headline,
        "status": status,
        "busy": busy or None,
        "tiles": tiles,
        "source": source,
        "equality": equality,
        "earlier": earlier,
        "lines": lines,
        "notes": notes,
        "definitions": definitions,
        "announce": announce or None,
    }
    return _json({name: value for name, value in values.items() if value is not None})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
