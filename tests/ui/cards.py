"""The card that says why a token is there: read from the page, and worked out anew from the trace of a chain."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from expected import (
    decimal,
    decimals,
    equation,
    fixed,
    in_words,
    kind_of_own,
    percent,
    percent_in_words,
    quantity,
    spelled,
)
from playwright.sync_api import Page

from specviz.trace import Decision, LastToken, Node, Step, Trace

NEAR_TIE = 0.25  # logits
LEAST, RESIDUALS = 0.0005, 5  # the smallest share of what p has left that is shown, and how many are
QUESTIONS = {
    "accepted": "Why was “{}” accepted?",
    "rejected": "Why was “{}” rejected?",
    "untested": "Why was “{}” not tested?",
    "cut": "Why was “{}” cut?",
}
STOPS = {
    "stop_token": "The stop token ends the run.",
    "stop_string": "It completes a stop string, which ends the run.",
    "length": "The token budget ends the run here.",
}
READ = """card => {
  const texts = (parent, selector) => [...parent.querySelectorAll(selector)].map((each) => each.textContent);
  const sections = [...card.querySelectorAll("section")];
  const titled = (...starts) => sections.find((each) => starts.some((start) => texts(each, "h3")[0].startsWith(start)));
  const rows = (section) => [...(section?.querySelectorAll(".sv-why-row") || [])].map((row) => [
    ...texts(row, ".sv-why-token"),
    ...texts(row, ".sv-why-numbers > span > span"),
  ]);
  const bars = [...card.querySelectorAll(".sv-why-candidates .sv-why-row")];
  const width = (row) => parseFloat(row.querySelector(".sv-why-bars .sv-why-p")?.style.width || 0);
  const draw = titled("The draw");
  const pairs = titled("Two favourites", "The target's favourite");
  return {
    title: texts(card, "h2")[0],
    where: texts(card, ".sv-why-where")[0],
    sentence: texts(card, ".sv-why-sentence")[0],
    draft: texts(card, ".sv-why-chip"),
    pressed: texts(card, ".sv-why-chip[aria-pressed=true]"),
    candidates: rows(sections[0]),
    widths: bars.map(width),
    notes: texts(sections[0], "p.sv-why-muted"),
    draw: draw ? texts(draw, "h3, p") : [],
    marks: draw ? [...draw.querySelectorAll(".sv-why-mark")].map((mark) => parseFloat(mark.style.left)) : [],
    pairs: Object.fromEntries([...(pairs?.querySelectorAll("dl > div") || [])].map((pair) => texts(pair, "dt, dd"))),
    residual: rows(titled("Replaced from", "What p had left")),
  };
}"""


def read(page: Page) -> dict[str, Any]:
    card: dict[str, Any] = page.locator(".sv-why").evaluate(READ)
    return card


class Subject(NamedTuple):
    """A token of a chain's run; without a node it is the target's own."""

    trace: Trace
    step: Step
    node: Node | None

    @property
    def kind(self) -> str:
        return self.node.outcome if self.node else kind_of_own(self.step)

    @property
    def place(self) -> int:
        """The node after which it stands."""
        return self.node.parent if self.node else (self.step.path[-1] if self.step.path else -1)

    @property
    def decision(self) -> Decision | None:
        return next((each for each in self.step.decisions if each.node == self.place), None)

    @property
    def drafted(self) -> Node | None:
        """The draft token of this place, which may be the token itself."""
        return next((node for node in self.step.nodes if node.parent == self.place), None)

    @property
    def own(self) -> LastToken:
        assert self.step.last is not None
        return self.step.last

    @property
    def is_greedy(self) -> bool:
        return bool(self.trace.run.sampler["temperature"] == 0)

    @property
    def is_undecided(self) -> bool:
        return self.kind in ("untested", "cut")

    @property
    def favourite(self) -> tuple[str, float]:
        """The target's, in a greedy run: how it is called, and its share at temperature 1."""
        assert self.decision is not None
        best = next(each for each in self.decision.p if each.prob == 1)
        assert best.raw is not None
        return word(best), best.raw


def word(token: Any) -> str:
    return spelled(token.token, token.text)


def subjects(trace: Trace, step: Step) -> list[Subject]:
    """Every token of a step, in the order of the card's draft: the draft's, then the target's own."""
    return [Subject(trace, step, node) for node in step.nodes] + ([Subject(trace, step, None)] if step.last else [])


def check(card: dict[str, Any], subject: Subject) -> None:
    """All that the trace tells of the token, against what the card says."""
    name = word(subject.node or subject.own)
    assert card["title"] == QUESTIONS.get(subject.kind, "Where does “{}” come from?").format(name)
    assert card["where"] == _where(subject)
    assert card["draft"] == [word(each.node or each.own) for each in subjects(subject.trace, subject.step)]
    assert card["pressed"] == [name]
    for said in _said(subject):
        assert said in card["sentence"]
    _check_bars(card, subject)
    assert card["residual"] == _residual(subject)
    assert card["draw"] == _draw(subject)
    node = _tested(subject)
    assert card["marks"] == ([] if node is None else [pytest.approx(100 * (node.r or 0), abs=0.01)])
    assert card["pairs"] == _pairs(subject)


def _where(subject: Subject) -> str:
    at, accepted = f"step {subject.step.index + 1}", len(subject.step.path)
    if subject.node:
        return f"{at}, draft position {subject.node.depth} of {subject.step.gamma_used}"
    if subject.kind == "plain":
        return f"{at}, nothing drafted"
    return f"{at}, {subject.kind} after {accepted or 'no'} accepted draft {'token' if accepted == 1 else 'tokens'}"


# --- bars ----------------------------------------------------------------------------------------------------


def _check_bars(card: dict[str, Any], subject: Subject) -> None:
    """The draft token's p, q and ranks, and every other candidate's p, as a number and as a length."""
    rows = {name: (shares, width) for (name, *shares), width in zip(card["candidates"], card["widths"], strict=True)}
    drafted = subject.drafted
    if drafted:
        p, q = (drafted.p, drafted.q) if not subject.is_greedy else (drafted.p_raw, drafted.q_raw or drafted.q)
        assert p is not None and q is not None
        assert rows[word(drafted)] == ([percent(p), percent(q)], pytest.approx(100 * p, abs=0.01))
        assert _ranks(drafted) in card["notes"]
    if subject.decision is None:
        return
    listed = {name: share for name, share in _candidates(subject).items() if name in rows}
    assert listed or drafted
    for name, share in listed.items():
        assert rows[name][0][0] == percent(share) and rows[name][1] == pytest.approx(100 * share, abs=0.01)
    assert [name for name in rows if name in listed] == sorted(listed, key=lambda name: -listed[name])


def _candidates(subject: Subject) -> dict[str, float]:
    """p of those recorded besides the draft token, largest first; a name that several share tells nothing."""
    assert subject.decision is not None
    shares = [(word(each), each.raw if subject.is_greedy else each.prob) for each in subject.decision.p]
    names = [name for name, _ in shares] + ([word(subject.drafted)] if subject.drafted else [])
    return {name: share for name, share in shares if share is not None and names.count(name) == 1}


def _ranks(node: Node) -> str:
    ranks = [f"target's rank {node.rank_p:,}"] + ([] if node.rank_q is None else [f"drafter's rank {node.rank_q:,}"])
    return f"“{word(node)}”: {', '.join(ranks)}."


def _residual(subject: Subject) -> list[list[str]]:
    """Name and share of the largest that p had left where a draft token was rejected, the drawn one with them."""
    decision = subject.decision
    if subject.is_greedy or decision is None or subject.kind not in ("rejected", "correction"):
        return []
    own = subject.own
    shown = [each for each in decision.residual if each.prob >= LEAST or each.token == own.token][:RESIDUALS]
    rows = [[word(each), percent(each.prob)] for each in shown]
    if all(each.token != own.token for each in shown):
        rows = [*rows[: RESIDUALS - 1], [word(own), percent(own.p or 0)]]
    return rows


# --- what decided --------------------------------------------------------------------------------------------


def _tested(subject: Subject) -> Node | None:
    """The draft token whose test decided, in a sampled run."""
    drafted = subject.drafted
    if subject.is_greedy or drafted is None or subject.is_undecided:
        return None
    return drafted if subject.node or drafted.outcome == "rejected" else None


def _draw(subject: Subject) -> list[str]:
    node = _tested(subject)
    if node is None:
        return []
    assert node.accept_prob is not None and node.r is not None and subject.decision is not None
    limit, draw = decimals(node.accept_prob, node.r)
    rule = f"accept if r < p/q, {in_words(limit)}" if limit[0] in "<>" else f"accept if r < p/q = {limit}"
    rule = {1: "p ≥ q, so it is always accepted", 0: "p = 0, so it can't be accepted"}.get(node.accept_prob, rule)
    title = "The draw" if node is subject.node else f"The draw for “{word(node)}”"
    odds = in_words(decimal(subject.decision.overlap or 0))
    overlap = f"A token drafted here is accepted with probability {odds} (the overlap of p and q)."
    return [title, f"{rule}; {equation('r', draw)}", overlap]


def _pairs(subject: Subject) -> dict[str, str]:
    decision = subject.decision
    if not subject.is_greedy or decision is None or subject.is_undecided:
        return {}
    assert decision.margin is not None and decision.entropy is not None
    name, share = subject.favourite
    pairs = {"target": f"“{name}” {percent(share)}"}
    if subject.drafted:
        pairs["drafter"] = f"“{word(subject.drafted)}”, copied from the text"
    margin = quantity(decision.margin)
    is_near = decision.margin < NEAR_TIE
    pairs["margin"] = f"only {margin} logits, a near tie" if is_near else f"{margin} logits over the runner-up"
    choices = math.exp(decision.entropy)
    equally = fixed(choices, 1 if choices < 9.95 else 0)
    return {**pairs, "entropy": f"{quantity(decision.entropy)} nats, as of {equally} equally likely tokens"}


def _said(subject: Subject) -> list[str]:
    """What the sentence must hold: tokens, their shares, the draw, and why the run ended."""
    step, node = subject.step, subject.node
    is_last = node is None if step.last else bool(step.path) and node is step.nodes[step.path[-1]]
    return [*_reasons(subject), *([STOPS[step.cut]] if is_last and step.cut else [])]


def _reasons(subject: Subject) -> list[str]:
    if subject.kind == "untested":
        rejected = next(node for node in subject.step.nodes if node.outcome == "rejected")
        return [f"It follows a rejected token, “{word(rejected)}”"]
    if subject.kind == "cut":
        return ["The run ended before it"]
    if subject.is_greedy:
        name, share = subject.favourite
        favourite = f"“{name}” ({percent_in_words(share)})"
        if subject.kind != "rejected":
            return [favourite] if subject.node or subject.kind == "correction" else [f"“{name}”, its favourite"]
        assert subject.node is not None and subject.node.p_raw is not None
        share_of_own = percent_in_words(subject.node.p_raw)
        return [favourite, f"“{word(subject.node)}”", f"number {subject.node.rank_p:,} ({share_of_own})"]
    if subject.node is None:
        return [f"“{word(subject.own)}”", percent_in_words(subject.own.p or 0)]
    return _tests(subject, subject.node)


def _tests(subject: Subject, node: Node) -> list[str]:
    assert node.p is not None and node.q is not None and node.accept_prob is not None and node.r is not None
    shares = [f"“{word(node)}” {percent_in_words(node.q)}", percent_in_words(node.p)]
    replaced = [f"own token instead: “{word(subject.own)}”"] if node.outcome == "rejected" else []
    if node.accept_prob in (0, 1):
        return [*shares, "always accepted" if node.accept_prob else "can't be accepted", *replaced]
    limit, draw = map(in_words, decimals(node.accept_prob, node.r))
    return [*shares, f"is accepted with probability {limit}, and the draw was {draw}", *replaced]
