"""The handlers without a browser: what they yield, and that the model is always free again."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

from stage import FORM, SCRIPT, Actor, explorer, headline, is_free, is_ready, last, run, words

from specviz.errors import UserError
from specviz.ui import handlers
from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import POLL_SECONDS

# --- a run from end to end -----------------------------------------------------------------------------------


def test_a_run_ends_with_all_tokens_a_verdict_and_the_buttons_ready():
    stage, loader = explorer()
    screens = run(stage)
    lines = [json.loads(line) for line in str(last(screens, "tokens")).splitlines()]
    shown = [piece for line in lines[1:] for piece in line["tokens"]]
    assert "".join(text for text, kind in shown if kind != "rejected" and kind != "cut") == SCRIPT[:24]
    assert lines[0]["target"] == "tiny actor"
    assert "over 3 repeats" in headline(screens)
    assert json.loads(str(last(screens, "verdict")))["status"] == "Output: identical to plain decoding, all 24 tokens."
    assert "after 24 tokens, the most that were allowed" in str(last(screens, "details"))
    assert is_ready(screens[-1]) and is_free(loader)


def test_the_text_only_ever_grows_and_another_run_has_another_id():
    stage, _ = explorer()
    values = [str(screen.tokens) for screen in run(stage) if screen.tokens is not SKIP]
    assert all(later.startswith(earlier) for earlier, later in pairwise(values))
    assert json.loads(values[0])["run"] != json.loads(str(last(run(stage), "tokens")).splitlines()[0])["run"]


def test_measuring_says_which_repeat_it_is_at():
    stage, _ = explorer()
    said = words(run(stage))
    for now in ("warming up", "repeat 1 of 3", "repeat 2 of 3", "repeat 3 of 3"):
        assert f"measuring against plain decoding: {now}" in said


def test_tokens_come_at_a_moderate_pace_but_the_last_state_always(monkeypatch):
    monkeypatch.setattr(handlers, "YIELD_SECONDS", 1000.0)
    stage, _ = explorer()
    values = [str(screen.tokens) for screen in run(stage) if screen.tokens is not SKIP]
    assert [len(value.splitlines()) for value in values[:2]] == [1, 2]
    assert len(values) == 3 and '"end":"length"' in values[-1]


def test_no_speed_up_is_claimed_where_none_was_measured():
    stage, _ = explorer()
    assert headline(run(stage, FORM._replace(measure=False))).endswith("; speed-up not measured")
    plain = headline(run(stage, FORM._replace(drafter="No drafter")))
    assert plain == "1.0 token per verify pass: plain decoding, with which every drafter is compared"
    assert headline(run(stage, FORM._replace(gamma=0))) == plain


def test_early_exit_runs_with_its_layer_and_says_when_there_is_no_such_layer():
    stage, loader = explorer(Actor(None))
    ask = FORM._replace(drafter="Early exit", measure=False, max_new_tokens=4)
    assert "exit layer 2" in str(last(run(stage, ask), "details"))
    assert "4 layers, so give 1 to 3" in headline(run(stage, ask._replace(exit_layer=4)))
    assert is_free(loader)


def test_the_target_can_be_its_own_drafter():
    stage, _ = explorer(Actor(None))
    ask = FORM._replace(drafter="The target as its own drafter", measure=False, max_new_tokens=10)
    assert headline(run(stage, ask)).startswith("5.0 tokens per verify pass")


def test_sampled_runs_are_not_compared_token_by_token():
    stage, _ = explorer(Actor(None))
    screens = run(stage, FORM._replace(temperature=1.0, max_new_tokens=6))
    assert "Sampled runs differ by chance" in json.loads(str(last(screens, "verdict")))["status"]


# --- errors -----------------------------------------------------------------------------------------------------


def test_a_user_error_while_loading_is_shown_as_it_is():
    def fail(progress):
        raise UserError("The disk is full, so free some space.")

    stage, _ = explorer(before=fail)
    assert headline(run(stage)) == "The disk is full, so free some space."


def test_an_unexpected_error_is_logged_and_nothing_of_it_is_shown(caplog, monkeypatch):
    stage, loader = explorer()
    monkeypatch.setattr(loader.loaded.target, "verify", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        screens = run(stage)
    assert headline(screens) == handlers.UNEXPECTED
    assert "division" not in words(screens) and "ZeroDivisionError" in caplog.text
    assert is_ready(screens[-1]) and is_free(loader)


def test_after_an_error_the_next_run_works(monkeypatch):
    stage, loader = explorer()
    with monkeypatch.context() as patch:
        patch.setattr(loader.loaded.target, "verify", lambda *_: 1 / 0)
        run(stage)
    assert "tokens per verify pass" in headline(run(stage))


def test_loading_says_how_far_it_is_and_is_shared_by_visitors():
    go = threading.Event()

    def slow(progress):
        progress("fetching the weights", 0.25)
        go.wait(10)

    stage, loader = explorer(before=slow)
    first = stage.explore(FORM, threading.Event())
    second = stage.explore(FORM, threading.Event())
    assert any("fetching the weights (25%)" in str(next(first).verdict) for _ in range(3))
    assert "fetching the weights (25%)" in str(next(second).verdict)
    assert loader.calls == 1
    go.set()
    list(first)
    second.close()


# --- stopping and sharing ----------------------------------------------------------------------------------------


def until(screens: Iterator[Screen], output: str, text: str) -> Screen:
    return next(screen for screen in screens if text in str(getattr(screen, output)))


def test_closing_the_generator_anywhere_frees_the_model():
    total = len(run(explorer()[0]))
    for count in range(1, total + 1):
        stage, loader = explorer()
        screens = stage.explore(FORM, threading.Event())
        for _, _screen in zip(range(count), screens, strict=False):
            pass
        screens.close()
        assert is_free(loader), f"closed after {count} of {total}"


def test_stop_keeps_the_text_and_costs_at_most_one_more_step():
    actor = Actor(SCRIPT, delay=0.01)
    stage, loader = explorer(actor)
    stop = threading.Event()
    screens = stage.explore(FORM, stop)
    shown = until(screens, "tokens", '"step":4')
    stop.set()
    passes = actor.passes
    rest = list(screens)
    assert actor.passes <= passes + 1
    assert str(last(rest, "tokens")).startswith(str(shown.tokens))
    assert headline(rest).startswith("Stopped after ") and "tokens, " in headline(rest)
    assert is_ready(rest[-1]) and is_free(loader)
    assert "over 3 repeats" in headline(run(stage))  # and Run works again


def test_stop_while_measuring_keeps_the_figures():
    actor = Actor(SCRIPT, delay=0.005)
    stage, loader = explorer(actor)
    stop = threading.Event()
    screens = stage.explore(FORM, stop)
    until(screens, "verdict", "repeat 2 of 3")
    stop.set()
    passes = actor.passes
    rest = list(screens)
    assert actor.passes <= passes + 1
    assert "over 1 repeat)" in headline(rest)
    assert is_ready(rest[-1]) and is_free(loader)


def test_stop_while_loading_or_waiting_ends_without_a_token():
    stage, loader = explorer()
    stop = threading.Event()
    with loader.loaded.lock:
        screens = stage.explore(FORM, stop)
        until(screens, "verdict", "Waiting: another run is using the model")
        stop.set()
        rest = list(screens)
    assert headline(rest) == "Stopped before the first token" and is_ready(rest[-1])
    assert not stage.turns._lines


def test_visitors_wait_their_turn_in_order_and_see_only_their_own_tokens():
    stage, loader = explorer(Actor(None, delay=0.002))
    results: dict[int, list[Screen]] = {}
    order: list[int] = []

    def visit(number: int) -> None:
        asked = FORM._replace(prompt=f"visitor {number}", seed=number, temperature=1.0, measure=False)
        results[number] = run(stage, asked)
        order.append(number)

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(3)]
    with loader.loaded.lock:
        for number, thread in enumerate(threads):
            thread.start()
            while sum(map(len, stage.turns._lines.values())) <= number:
                time.sleep(0.005)
        time.sleep(2 * POLL_SECONDS)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2]
    alone = explorer(Actor(None))[0]
    for number, screens in results.items():
        asked = FORM._replace(prompt=f"visitor {number}", seed=number, temperature=1.0, measure=False)
        expected = str(last(run(alone, asked), "tokens")).splitlines()[1:]
        assert str(last(screens, "tokens")).splitlines()[1:] == expected
        assert len({json.loads(str(s.tokens).splitlines()[0])["run"] for s in screens if s.tokens is not SKIP}) == 1
    assert "with 1 other before you" in words(results[1]) and "with 2 others before you" in words(results[2])


def test_stop_and_leaving_reach_the_visitors_own_run_only():
    stage, _ = explorer()
    ann, ben = SimpleNamespace(session_hash="ann"), SimpleNamespace(session_hash="ben")
    stage.arrive(ann)
    stage.arrive(ben)
    of_ann, of_ben = stage.visits.begin("ann"), stage.visits.begin("ben")
    assert stage.stop(ann) == Screen() and of_ann.is_set() and not of_ben.is_set()
    stage.leave(ben)
    assert of_ben.is_set()
    assert is_ready(stage.stop(ben))  # nothing to stop: the page is made ready again


def test_a_second_run_stops_the_one_left_behind_and_nothing_is_kept_of_either():
    stage, _ = explorer()
    ann = SimpleNamespace(session_hash="ann")
    stage.arrive(ann)
    first = stage.visits.begin("ann")
    stage.arrive(ann)
    assert first.is_set()
    list(stage.run(ann, *FORM))
    assert len(stage.visits) == 0
