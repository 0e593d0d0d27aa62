"""What the page should show of a trace, worked out anew: tokens, sentences and numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from typing import NamedTuple

from specviz.trace import Step, Trace

SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
UNSEEN = "\u00ad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
LONGEST = 24  # characters of a token in the card
ENDS = {
    "stop_token": " The stop token ends the run.",
    "stop_string": " A stop string ends the run.",
    "length": " The token budget ends the run.",
}


# --- tokens --------------------------------------------------------------------------------------------------


def kind_of_own(step: Step) -> str:
    """What the target's own token is, where there is one."""
    assert step.last is not None
    return step.last.kind if step.nodes else "plain"


class Piece(NamedTuple):
    """A token in view."""

    text: str
    kind: str
    step: int
    node: int | None  # None: the target's own token


def pieces(trace: Trace) -> list[Piece]:
    """Those that are drawn: half a character has no text."""
    return [piece for piece in every_piece(trace) if piece.text]


def every_piece(trace: Trace) -> list[Piece]:
    """The tokens in reading order: at each place what was rejected and then what was kept; of a chain what was cut."""
    shown: list[Piece] = []
    for at, step in enumerate(trace.steps):
        for depth, place in enumerate([-1, *step.path]):
            shown += struck(step, at, place)
            if depth < len(step.path):
                shown.append(Piece(step.text[depth], "accepted", at, step.path[depth]))
        shown += [Piece(step.text[-1], kind_of_own(step), at, None)] if step.last else []
        if all(node.parent == index - 1 for index, node in enumerate(step.nodes)):
            cut = [index for index, node in enumerate(step.nodes) if node.outcome == "cut"]
            shown += [Piece(step.nodes[index].text, "cut", at, index) for index in cut]
    return shown


def struck(step: Step, at: int, place: int) -> list[Piece]:
    """What was rejected after that node, with what was rejected after it."""
    here = [index for index, node in enumerate(step.nodes) if node.parent == place and node.outcome == "rejected"]
    return [
        piece
        for index in here
        for piece in (Piece(step.nodes[index].text, "rejected", at, index), *struck(step, at, index))
    ]


def tokens(trace: Trace) -> list[tuple[str, str]]:
    """Text and kind of what is in view."""
    return [(piece.text, piece.kind) for piece in pieces(trace)]


def telling(step: Step) -> int | None:
    """The node that is selected with a step: the rejected one; None is the target's own token."""
    rejected = [index for index, node in enumerate(step.nodes) if node.outcome == "rejected"]
    if rejected or step.last is None:
        return [*rejected, *reversed(step.path)][0]
    return None


def output(trace: Trace) -> str:
    """All committed text, a stop token included."""
    return "".join(text for step in trace.steps for text in step.text)


def untested(trace: Trace) -> int:
    return sum(node.outcome == "untested" for step in trace.steps for node in step.nodes)


def tiles(trace: Trace) -> dict[str, str]:
    """The figures that come from the trace alone, by their names."""
    steps, drafted = len(trace.steps), sum(len(step.nodes) for step in trace.steps)
    accepted = sum(len(step.path) for step in trace.steps)
    return {
        "tokens per pass": f"{len(trace.tokens) / steps:.2f}",
        "acceptance rate": f"{100 * accepted / drafted:.0f} %",
        "acceptance length": f"{1 + accepted / steps:.2f}",
    }


def histogram(trace: Trace) -> list[int]:
    """[j] verify passes with a draft that accepted exactly j draft tokens."""
    counts = Counter(len(step.path) for step in trace.steps if step.nodes)
    return [counts[accepted] for accepted in range(trace.run.gamma + 1)]


def survival(trace: Trace) -> list[float]:
    """[i - 1] share of the drafts that were accepted up to and including position i."""
    counts = histogram(trace)
    return [sum(counts[position:]) / sum(counts) for position in range(1, trace.run.gamma + 1)]


# --- words ---------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """In the text's titles: a sign for what is not seen, and in a blank token for every space."""
    is_blank = all(letter.isspace() or unicodedata.category(letter)[0] in "ZC" for letter in text)
    return f"“{''.join(_sign(letter) if is_blank or _is_control(letter) else letter for letter in text)}”"


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Zl", "Zp") or letter in UNSEEN


def _sign(letter: str) -> str:
    return SIGNS.get(letter, f"⟨U+{ord(letter):04X}⟩")


def sentence(step: Step) -> str:
    """The title of a chain's step."""
    return f"Step {step.index + 1}: {_proposal(step)}{_end(step)}.{ENDS[step.cut] if step.cut else ''}"


def _proposal(step: Step) -> str:
    if not step.nodes:
        return "nothing was drafted"
    return f"the drafter proposed {quoted(''.join(node.text for node in step.nodes))}"


def _end(step: Step) -> str:
    own = quoted(step.last.text) if step.last else ""
    if not step.nodes:
        return f"; the target wrote {own}" if own else ""
    accepted = quoted("".join(step.nodes[node].text for node in step.path))
    count = len(step.path)
    clauses = []
    if count == len(step.nodes):
        clauses.append("it was accepted" if count == 1 else f"all {count} were accepted")
    elif count:
        clauses.append(f"{accepted} was accepted")
    clauses += [
        f"{quoted(node.text)} {'rejected' if count else 'was rejected'}"
        for node in step.nodes
        if node.outcome == "rejected"
    ]
    if cut := sum(node.outcome == "cut" for node in step.nodes):
        clauses.append(f"{cut} more cut off")
    if step.last and step.last.kind == "correction":
        return f"; {', '.join(clauses)} and replaced by the target's own {own}"
    if step.last:
        clauses.append(f"and the target added {own} as a bonus")
    return f"; {', '.join(clauses)}"


def spelled(token: int, text: str) -> str:
    """In the card: signs for all that is not seen, runs of one counted, and no more than the beginning of the rest."""
    if not text:
        return f"⟨{token}⟩"
    if re.fullmatch("⟨[0-9A-F ]+⟩", text):
        return text
    shown, room = "", LONGEST
    if unicodedata.category(text[0]).startswith("M"):
        shown = "◌"
    for letter, group in groupby(text, key=lambda each: each if unicodedata.category(each)[0] in "ZC" else ""):
        if room <= 0:
            return f"{shown}…"
        run = "".join(group)
        part = run[:room]
        if letter:
            part = _sign(letter) * len(run) if len(run) <= 4 else f"{_sign(letter)}×{len(run)}"
        shown, room = shown + part, room - len(part)
        if not letter and len(part) < len(run):
            return f"{shown}…"
    return shown


# --- numbers -------------------------------------------------------------------------------------------------


def fixed(value: float, digits: int) -> str:
    """Rounded as JavaScript's toFixed does, halves up."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def percent(share: float) -> str:
    """In tables, with one decimal; what rounds to 0 or 100 without being it says so."""
    return f"{_bounded(share, 100, 1)}\u00a0%"


def percent_in_words(share: float) -> str:
    digits = 0 if 0.0995 <= share < 0.99 else 1
    return f"{in_words(_bounded(share, 100, digits).removesuffix('.0'))}\u00a0%"


def decimals(first: float, second: float) -> tuple[str, str]:
    """With as many decimals as it takes to tell them apart, at least 2."""
    pairs = ((_bounded(first, 1, digits), _bounded(second, 1, digits)) for digits in range(2, 10))
    return next(pair for pair in pairs if pair[0] != pair[1])


def decimal(probability: float) -> str:
    return _bounded(probability, 1, 2)


def quantity(value: float) -> str:
    """Logits or nats."""
    return "<0.01" if 0 < value < 0.005 else fixed(value, 2)


def in_words(number: str) -> str:
    return number.replace("<", "less than ").replace(">", "more than ")


def equation(name: str, number: str) -> str:
    return f"{name} {number[0]} {number[1:]}" if number[0] in "<>" else f"{name} = {number}"


def _bounded(value: float, scale: int, digits: int) -> str:
    if value <= 0 or value >= 1:
        return "0" if value <= 0 else str(scale)
    text = fixed(value * scale, digits)
    unit = 10**-digits
    if float(text) == 0:
        return f"<{unit:.{digits}f}"
    return f">{scale - unit:.{digits}f}" if float(text) == scale else text
