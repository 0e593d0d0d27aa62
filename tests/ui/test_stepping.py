"""Step: one live verify pass per click, the same run as Run makes, with no model held between the clicks."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
from stage import FORM, Actor, explorer, headline, is_free, is_ready, last, pieces, run

from specviz.trace import parse
from specviz.ui.handlers import Explorer, Stepping
from specviz.ui.screens import SKIP, Screen

ANN = SimpleNamespace(session_hash="ann")


def click(stage: Explorer, stepping: Stepping | None, form=FORM, history=()) -> list[Screen]:
    stage.arrive_to_step(ANN)
    return list(stage.step(ANN, stepping, history, *form))


def decisions(lines: list[str]) -> list[tuple[object, ...]]:
    """All of a trace that rounding can't touch: a prompt read anew may change the last digits of probabilities."""
    steps = parse(lines[1:]).steps
    nodes = [[(node.token, node.parent, node.outcome, node.r) for node in step.nodes] for step in steps]
    rest = [(step.index, step.start, step.path, step.committed, step.text, step.cut) for step in steps]
    return list(zip(nodes, rest, strict=True))


def step_to_the_end(stage: Explorer, form=FORM) -> tuple[list[Screen], int]:
    stepping, clicks, screens = None, 0, []
    while stepping is None or stepping.steps[-1].cut is None:
        screens = click(stage, stepping, form)
        stepping = last(screens, "stepping")
        clicks += 1
        assert clicks <= 40 and len(stepping.steps) == clicks
    return screens, clicks


@pytest.mark.parametrize("change", [{}, {"temperature": 1.0, "seed": 3, "drafter": "Early exit", "exit_layer": 2}])
def test_step_by_step_is_the_run_that_run_makes(change):
    form = FORM._replace(measure=False, **change)
    stage, loader = explorer(Actor(None))
    screens, clicks = step_to_the_end(stage, form)
    whole = run(stage, form)
    stepped = str(last(screens, "tokens")).split("\n")
    expected = str(last(whole, "tokens")).split("\n")
    made, wanted = decisions(stepped), decisions(expected)
    assert made == wanted
    assert clicks == len(wanted) > 3
    assert is_free(loader) and len(stage.visits) == 0


def test_a_click_shows_one_more_step_and_says_how_it_goes_on():
    stage, loader = explorer()
    first = click(stage, None)
    assert json.loads(str(last(first, "tokens")).split("\n")[0])["follow"] is True
    assert headline(first) == "1 verify pass, 1 token so far" and is_ready(first[-1]) and is_free(loader)
    second = click(stage, last(first, "stepping"))
    assert str(last(second, "tokens")).startswith(str(last(first, "tokens")))
    assert json.loads(str(last(second, "verdict")))["source"]["kind"] == "step"
    assert not any(screen.verdict is not SKIP and "Starting" in str(screen.verdict) for screen in second)


@pytest.mark.parametrize("change", [{"seed": 1}, {"prompt": "another"}, {"gamma": 1}])
def test_with_other_settings_step_starts_anew(change):
    stage, _ = explorer()
    before = last(click(stage, None), "stepping")
    after = last(click(stage, before, FORM._replace(**change)), "stepping")
    assert len(after.steps) == 1 and after.text.split("\n")[0] != before.text.split("\n")[0]
    assert len(last(click(stage, before, FORM._replace(measure=False)), "stepping").steps) == 2


def test_after_the_end_step_starts_anew():
    stage, _ = explorer()
    screens, _ = step_to_the_end(stage)
    assert headline(screens).endswith("; speed-up not measured")
    said = [text for text, kind in pieces(last(screens, "tokens")) if kind != "rejected"]
    assert last(screens, "exchange")[-1].assistant == "".join(said)
    assert len(last(click(stage, last(screens, "stepping")), "stepping").steps) == 1


def test_run_ends_the_stepping():
    stage, _ = explorer()
    assert last(run(stage), "stepping") is None


def test_two_visitors_who_step_in_turns_do_not_disturb_each_other():
    form = FORM._replace(temperature=1.0, drafter="Early exit", exit_layer=2, measure=False)
    stage, _ = explorer(Actor(None))
    alone = {seed: pieces(last(run(stage, form._replace(seed=seed)), "tokens")) for seed in (1, 2)}
    steps: dict[int, Stepping | None] = {1: None, 2: None}
    for _ in range(40):
        for seed, before in steps.items():
            if before is None or before.steps[-1].cut is None:
                steps[seed] = last(click(stage, before, form._replace(seed=seed)), "stepping")
    assert {seed: pieces(stepping.text) for seed, stepping in steps.items() if stepping} == alone
    assert alone[1] != alone[2]


def test_a_step_that_cannot_be_made_loses_nothing():
    stage, _ = explorer()
    before = last(click(stage, None), "stepping")
    stop = threading.Event()
    wrong = list(stage.one_step(FORM._replace(seed=0.5), stop, before))
    assert headline(wrong).startswith("The seed is 0.5") and all(screen.stepping is SKIP for screen in wrong)
    assert len(last(click(stage, before), "stepping").steps) == 2
