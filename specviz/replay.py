"""A trace in the terminal, a line per step.

Colour only repeats what marks and words say, so a line without it reads the same. Traces come from anywhere:
whatever in their text could steer a terminal is shown by name, never sent.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import asdict, replace
from itertools import groupby
from time import sleep
from typing import Any, TextIO

from specviz.metrics import DEFINITIONS, acceptance, outcomes, timing
from specviz.trace import Node, Run, Step, Trace

PROMPT_SHOWN = 300  # characters
LISTED = 8  # draft tokens without a verdict that a line names; a tree may have dozens
LEGEND = "✓ accepted   ~~rejected~~   → correction   + bonus   ○ untested   ✂ cut"
NUMBERS = {  # what the summary shows, and how
    "acceptance_length": ("acceptance length", "{:.2f}"),
    "acceptance_length_drafted": ("acceptance length, drafted", "{:.2f}"),
    "tokens_per_pass": ("tokens per pass", "{:.2f}"),
    "acceptance_rate": ("acceptance rate", "{:.1%}"),
    "tested_rate": ("tested rate", "{:.1%}"),
    "prefill_s": ("prefill", "{:.3f} s"),
    "tokens_per_s": ("decode speed", "{:.1f} tokens/s"),
}
ENDINGS = {
    "stop_token": "ended by a stop token",
    "stop_string": "ended by a stop string",
    "length": "ended by the token budget",
    "cancelled": "cancelled before its end",
}
_COLOURS = {"accepted": "36", "rejected": "9;33", "correction": "35", "bonus": "32", "untested": "2", "cut": "2"}
_MARKS = {"accepted": "✓", "untested": "○", "cut": "✂"}
_LINE = str.maketrans({"\n": "⏎", "\t": "⇥"})
_WORD = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode: control, format, surrogate, line separator, paragraph separator
_BYTES = re.compile("⟨[0-9A-F]{2}( [0-9A-F]{2})*⟩")  # how traces name bytes that are no character


def wants_colour(out: TextIO) -> bool:
    """Whether `out` is a terminal and nobody has asked for plain text (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Running text with nothing in it that a terminal would obey.

    Line feeds and tabs stay. Other control characters (ESC, CR and C1 among them), bidi overrides and other invisible
    format characters, line separators and lone surrogates become ⟨U+001B⟩ and the like; of these only the joiners
    (U+200C, U+200D) stay, which some scripts and emoji are written with.
    """
    return "".join(
        _name(character)
        if unicodedata.category(character) in _STEERING and character not in "\n\t\u200c\u200d"
        else character
        for character in text
    )


def visible_token(text: str, token: int) -> str:
    """A token's text as one word: ␣ for a space, ⏎ line feed, ⇥ tab, ⟨U+001B⟩ and so on; ⟨id⟩ if it has no text."""
    if not text:
        return f"⟨{token}⟩"
    if _BYTES.fullmatch(text):
        return text
    word = "".join(
        _name(character) if unicodedata.category(character) in (*_STEERING, "Zs") else character
        for character in text.translate(_WORD)
    )
    return f"◌{word}" if unicodedata.category(word[0]).startswith("M") else word  # else it would sit on the word before


def _name(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


def _line(text: str) -> str:
    return visible(text).translate(_LINE)


def render_header(run: Run) -> str:
    """Who decoded what, and the legend of the lines that follow."""
    prompt = run.prompt_text[:PROMPT_SHOWN] + ("…" if len(run.prompt_text) > PROMPT_SHOWN else "")
    lines = [
        run.title,
        f"target {run.target}, drafter {run.drafter}{_settings(run.drafter_settings)}",
        f"gamma {run.gamma} ({run.gamma_policy}), {run.rule} rule, {'lossless' if run.lossless else 'NOT lossless'}",
        f"seed {run.seed}{_settings(run.sampler)}",
        f"{run.mode}, {run.device}, {run.dtype}{', ' if run.date else ''}{run.date}",
        f"prompt, {_count(len(run.prompt), 'token')}: {prompt}",
        *(f"note: {note}" for note in run.notes),
    ]
    return "\n".join([*(_line(line) for line in lines if line), "", LEGEND])


def _settings(values: dict[str, Any]) -> str:
    """The settings that are set, in brackets."""
    shown = [f"{key} {value}" for key, value in values.items() if value not in (None, {}, [], "")]
    return f" ({', '.join(shown)})" if shown else ""


def render_step(step: Step, *, colour: bool = False) -> str:
    """One line: draft tokens as they were tried, the target's own token, what was left over; then the same in words.
    Between siblings in a tree, of which one at most is kept, stands a |.

    The bracket at the end has the numbers of the last token tested: it passed if r, where one was drawn, was below its
    chance, which is min(1, p/q) under the token rule.
    """
    named = len(_drafters(step)) > 1
    tested = [node for node in step.nodes if node.outcome in ("accepted", "rejected")]  # in trial order
    rest = [node for node in step.nodes if node.outcome in ("untested", "cut")]
    words = [
        " | ".join(_paint(_marked(node, named), node.outcome, colour) for node in siblings)
        for _, siblings in groupby(tested, key=lambda node: node.parent)
    ]
    if step.last:
        mark = "→" if step.last.kind == "correction" else "+"
        words.append(_paint(f"{mark} {visible_token(step.last.text, step.last.token)}", step.last.kind, colour))
    if rest:
        listed = " ".join(_paint(_marked(node, named), node.outcome, colour) for node in rest[:LISTED])
        words.append(f"({listed}{f' … {len(rest) - LISTED} more' if len(rest) > LISTED else ''})")
    parts = [" ".join(words), _in_words(step)]
    if tested:
        parts.append(_numbers(tested[-1]))
    if step.note:
        parts.append(f"[{_line(step.note)}]")
    return f"step {step.index + 1:>2}  " + "   ".join(part for part in parts if part)


def _marked(node: Node, named: bool) -> str:
    """A draft token with its outcome; `named`: and who drafted it, where several did in one step."""
    word = visible_token(node.text, node.token)
    marked = f"~~{word}~~" if node.outcome == "rejected" else f"{word} {_MARKS[node.outcome]}"
    return f"{marked} ‹{_line(node.by)}›" if named and node.by else marked


def _drafters(step: Step) -> list[str]:
    """The kinds that drafted the step, where the trace says so, in order."""
    return list(dict.fromkeys(node.by for node in step.nodes if node.by))


def _paint(text: str, kind: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if colour else text


def _in_words(step: Step) -> str:
    counts = outcomes([step])
    words = [f"{counts.accepted}/{len(step.nodes)} accepted" if step.nodes else "no draft"]
    if drafters := _drafters(step):
        words.append(f"drafted by {' and '.join(map(_line, drafters))}")
    if step.last:
        words.append(step.last.kind)
    words += [f"{count} {name}" for name, count in counts._asdict().items() if count and name != "accepted"]
    if step.cut:
        words.append(ENDINGS[step.cut])
    return ", ".join(words)


def _numbers(node: Node) -> str:
    if node.p_trial is None or node.q is None:
        return ""
    numbers = [f"p/q {node.p_trial:.3g}/{node.q:.3g}"]
    if node.accept_prob is not None:
        numbers.append(f"chance {node.accept_prob:.3g}")
    if node.r is not None:
        numbers.append(f"r {node.r:.3g}")
    return f"({visible_token(node.text, node.token)}: {', '.join(numbers)})"


def render_summary(trace: Trace, *, with_text: bool = True) -> str:
    """The text so far, how it ended, and the run's numbers with what they mean."""
    ending = ENDINGS[trace.finish_reason]
    tokens, steps = _count(len(trace.tokens), "token"), _count(len(trace.steps), "step")
    came = f"{tokens} in {steps}, {ending}"
    lines = [f"{came}:", visible(trace.text), ""] if with_text else [f"{came}.", ""]
    values = {**asdict(acceptance(trace)), **asdict(timing(trace))}
    for key, (name, form) in NUMBERS.items():
        value = "n/a" if values[key] is None else form.format(values[key])
        lines.append(f"{name:<26}{value:>15}  {DEFINITIONS[key]}")
    if trace.run.synchronised:
        lines.append("Phases were timed in this run, which slows it down: its speed is no benchmark.")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def play(trace: Trace, out: TextIO, *, colour: bool = False, delay: float = 0.0) -> None:
    """Write the whole trace, with `delay` seconds between steps. Interrupted, it still gives the text so far."""
    shown = 0
    try:
        _write(out, render_header(trace.run))
        for step in trace.steps:
            if shown and delay > 0:
                sleep(delay)
            _write(out, render_step(step, colour=colour))
            shown += 1
    except KeyboardInterrupt:
        _write(out, "\n" + render_summary(replace(trace, steps=trace.steps[:shown])))
        raise
    _write(out, "\n" + render_summary(trace))


def write_text(out: TextIO, text: str) -> None:
    """Write text as it is, with escapes for what the terminal's encoding lacks."""
    encoding = getattr(out, "encoding", None) or "utf-8"  # some terminals still know no ✓
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))
    out.flush()


def _write(out: TextIO, text: str) -> None:
    write_text(out, text + "\n")
