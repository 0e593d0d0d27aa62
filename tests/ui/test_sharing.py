"""The handlers without a browser: stopping, waiting, leaving, and what is kept of visitors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from stage import FORM, SCRIPT, Actor, explorer, headline, is_free, is_ready, last, pieces, run, words

from specviz.ui import handlers, screens
from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import MAX_VISITS, POLL_SECONDS, Turn, Turns, Visits


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
    shown = until(screens, "tokens", '"index":3')
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
    assert headline(rest).endswith("; measuring was stopped after 1 of 3 repeats")
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
    assert not any(line.waiting for line in stage.turns._lines.values())


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
            while sum(len(line.waiting) for line in stage.turns._lines.values()) <= number:
                time.sleep(0.005)
        time.sleep(2 * POLL_SECONDS)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2]
    alone = explorer(Actor(None))[0]
    for number, shown in results.items():
        asked = FORM._replace(prompt=f"visitor {number}", seed=number, temperature=1.0, measure=False)
        assert pieces(last(shown, "tokens")) == pieces(last(run(alone, asked), "tokens"))
        assert len({json.loads(str(s.tokens).splitlines()[0])["view"] for s in shown if s.tokens is not SKIP}) == 1
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
    list(stage.run(ann, (), *FORM))
    assert len(stage.visits) == 0


def test_invented_visitors_neither_pile_up_nor_stop_a_run_that_has_begun():
    visits = Visits()
    visits.arrive("ann")
    running = visits.begin("ann")
    first = visits.arrive("0")
    for number in range(1, MAX_VISITS + 50):
        visits.arrive(str(number))
    assert len(visits) == MAX_VISITS + 1
    assert first.is_set() and not visits.stop("0") and visits.stop(str(MAX_VISITS + 49))
    assert not running.is_set() and visits.is_running("ann")


def test_run_and_step_pressed_at_once_leave_one_run_that_can_be_stopped():
    """Both say that they arrive before either begins; the one that begins first has to give way."""
    visits = Visits()
    visits.arrive("ann")
    visits.arrive("ann")
    first, second = visits.begin("ann"), visits.begin("ann")
    assert first.is_set() and not second.is_set()
    visits.end("ann", first)
    assert visits.stop("ann") and second.is_set()
    visits.end("ann", second)
    assert len(visits) == 0 and not visits._begun


def test_with_the_last_screen_there_is_nothing_left_to_stop():
    stage, _ = explorer()
    ann = SimpleNamespace(session_hash="ann")
    stage.arrive(ann)
    screens = stage.run(ann, (), *FORM)
    assert next(screen for screen in screens if screen.stop is not SKIP).stop["value"] == "Stop"
    assert len(stage.visits) == 0 and is_ready(stage.stop(ann))
    screens.close()


def test_the_wait_is_guessed_from_the_turns_before():
    turns, lock = Turns(), threading.Lock()
    with turns.queue(lock) as first, turns.queue(lock) as second, turns.queue(lock) as third:
        assert first.expected_seconds is None  # nobody has had a turn yet
        line = first._line
        line.seconds.extend([4.0, 6.0])
        assert first.take(0)
        line.since = time.monotonic() - 2
        assert second.ahead == 0 and abs(second.expected_seconds - 3) < 0.5
        assert third.ahead == 1 and abs(third.expected_seconds - 8) < 0.5
        line.since = time.monotonic() - 60  # one that takes longer than any before
        assert second.expected_seconds is None is third.expected_seconds
        second.leave()
        assert third.ahead == 0
    assert not lock.locked() and len(line.seconds) == 3 and line.since is None


def test_what_is_said_while_waiting():
    assert 'another run is using the model, you are next"' in screens.waiting(0, None)
    assert "with 2 others before you, about 12 s" in screens.waiting(2, 12.4)
    assert "about 1 s" in screens.waiting(0, 0.0)


def test_those_who_wait_see_their_text_before_others_are_measured():
    actor = Actor(SCRIPT, delay=0.004)
    stage, _ = explorer(actor)
    seen: list[tuple[str, str]] = []
    started = threading.Event()

    def visit(name: str) -> None:
        for screen in stage.explore(FORM, threading.Event()):
            said = str(screen.verdict)
            if screen.tokens is not SKIP and (name, "text") not in seen:
                seen.append((name, "text"))
                started.set()
            for moment in ("waiting to measure", "warming up", "faster", "slower", "no clear difference"):
                if moment in said and (name, moment) not in seen:
                    seen.append((name, moment))

    ann = threading.Thread(target=visit, args=("ann",))
    ben = threading.Thread(target=visit, args=("ben",))
    ann.start()
    started.wait(10)
    ben.start()
    ann.join(60)
    ben.join(60)
    assert seen.index(("ben", "text")) < seen.index(("ann", "warming up"))
    assert ("ann", "waiting to measure") in seen


def test_stop_while_waiting_to_measure_keeps_the_run(monkeypatch):
    stage, loader = explorer()
    stop = threading.Event()
    shown = stage.explore(FORM, stop)
    until(shown, "tokens", '"cut":"')
    monkeypatch.setattr(Turn, "take", lambda turn: False)  # somebody else is always faster
    until(shown, "verdict", "waiting to measure the speed-up: another run is using the model")
    stop.set()
    rest = list(shown)
    assert headline(rest).endswith("; measuring was stopped before the first repeat was complete")
    assert is_ready(rest[-1]) and is_free(loader)


@pytest.mark.parametrize(("seconds", "ending"), [(0.02, "Out of time after "), (0.5, "; out of time ")])
def test_no_turn_lasts_longer_than_the_limit(monkeypatch, seconds, ending):
    monkeypatch.setattr(handlers, "TURN_SECONDS", seconds)
    actor = Actor(SCRIPT, delay=0.02 if seconds < 0.1 else 0.01)
    stage, loader = explorer(actor)
    screens_shown = run(stage)
    assert ending in headline(screens_shown)
    assert is_ready(screens_shown[-1]) and is_free(loader)
