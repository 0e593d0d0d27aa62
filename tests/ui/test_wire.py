"""The lines that the token view draws."""

from __future__ import annotations

import json
from typing import Any

from specviz.trace import LastToken, Node, Outcome, Step
from specviz.ui import wire


def node(text: str, outcome: Outcome, parent: int = -1, depth: int = 1) -> Node:
    return Node(0, text, parent, depth, outcome, *[None] * 9)


def step(nodes: list[Node], path: tuple[int, ...], text: tuple[str, ...], last: LastToken | None, **more: Any) -> Step:
    committed = tuple(range(len(text)))
    return Step(2, 9, len(nodes), len(nodes), tuple(nodes), path, last, committed, text, more.get("cut"), None)


CORRECTION = LastToken(7, "own", "correction", 0.5)


def test_what_was_struck_out_stands_right_before_what_replaced_it():
    chain = [node("a", "accepted"), node("b", "rejected", 0, 2), node("c", "untested", 1, 3)]
    assert wire.tokens(step(chain, (0,), ("a", "own"), CORRECTION)) == [
        ("a", "accepted"),
        ("b", "rejected"),
        ("own", "correction"),
    ]


def test_in_a_tree_rejected_siblings_stand_before_the_one_that_was_taken():
    tree = [
        node("a", "rejected"),
        node("b", "accepted"),
        node("x", "untested", 0, 2),
        node("y", "rejected", 1, 2),
        node("z", "rejected", 1, 2),
    ]
    assert wire.tokens(step(tree, (1,), ("b", "own"), CORRECTION)) == [
        ("a", "rejected"),
        ("b", "accepted"),
        ("y", "rejected"),
        ("z", "rejected"),
        ("own", "correction"),
    ]


def test_a_cut_step_may_have_no_token_of_the_targets_own():
    chain = [node("a", "accepted"), node("</s>", "accepted", 0, 2), node("c", "cut", 1, 3)]
    assert wire.tokens(step(chain, (0, 1), ("a", "</s>"), None, cut="stop_token")) == [
        ("a", "accepted"),
        ("</s>", "accepted"),
        ("c", "cut"),
    ]


def test_the_running_text_is_shown_not_each_tokens_own():
    chain = [node("⟨F0⟩", "accepted"), node("⟨9F⟩", "accepted", 0, 2)]
    last = LastToken(7, "⟨99 82⟩", "bonus", 0.5)
    shown = wire.tokens(step(chain, (0, 1), ("", "", "🙂"), last))
    assert shown == [("", "accepted"), ("", "accepted"), ("🙂", "bonus")]


def test_where_nothing_was_drafted_the_targets_own_token_is_plain():
    assert wire.tokens(step([], (), ("own",), LastToken(7, "own", "bonus", 0.5))) == [("own", "plain")]


def test_a_line_counts_steps_from_one_and_ends_itself():
    chain = [node("a", "accepted"), node("b", "rejected", 0, 2), node("c", "untested", 1, 3)]
    line = wire.line(step(chain, (0,), ("a\n", "own"), CORRECTION))
    assert line.endswith("\n") and line.count("\n") == 1
    assert json.loads(line) == {
        "step": 3,
        "drafted": 3,
        "accepted": 1,
        "untested": 1,
        "tokens": [["a\n", "accepted"], ["b", "rejected"], ["own", "correction"]],
        "end": None,
    }
