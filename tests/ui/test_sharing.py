"""The handlers without a browser: stopping, waiting, leaving, and what is kept of visitors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

from stage import FORM, SCRIPT, Actor, explorer, headline, is_free, is_ready, last, pieces, run, words

from specviz.ui.screens import SKIP, Screen
from specviz.ui.visits import MAX_VISITS, POLL_SECONDS, Visits


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
    for number, screens in results.items():
        asked = FORM._replace(prompt=f"visitor {number}", seed=number, temperature=1.0, measure=False)
        assert pieces(last(screens, "tokens")) == pieces(last(run(alone, asked), "tokens"))
        assert len({json.loads(str(s.tokens).splitlines()[0])["view"] for s in screens if s.tokens is not SKIP}) == 1
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


def test_invented_visitors_do_not_pile_up():
    visits = Visits()
    first = visits.arrive("0")
    for number in range(1, MAX_VISITS + 50):
        visits.arrive(str(number))
    assert len(visits) == MAX_VISITS
    assert first.is_set() and not visits.stop("0") and visits.stop(str(MAX_VISITS + 49))


def test_with_the_last_screen_there_is_nothing_left_to_stop():
    stage, _ = explorer()
    ann = SimpleNamespace(session_hash="ann")
    stage.arrive(ann)
    screens = stage.run(ann, (), *FORM)
    assert next(screen for screen in screens if screen.stop is not SKIP).stop["value"] == "Stop"
    assert len(stage.visits) == 0 and is_ready(stage.stop(ann))
    screens.close()
