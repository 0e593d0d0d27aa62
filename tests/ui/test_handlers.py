"""The handlers without a browser: what they yield, and that the model is always free again."""

from __future__ import annotations

import json
import logging
import threading
from itertools import pairwise

from stage import FORM, SCRIPT, Actor, explorer, headline, is_free, is_ready, last, pieces, run, words

from specviz.errors import UserError
from specviz.ui import handlers
from specviz.ui.screens import SKIP

# --- a run from end to end -----------------------------------------------------------------------------------


def test_a_run_ends_with_all_tokens_a_verdict_and_the_buttons_ready():
    stage, loader = explorer()
    screens = run(stage)
    shown = pieces(last(screens, "tokens"))
    assert "".join(text for text, kind in shown if kind != "rejected") == SCRIPT[:24]
    assert json.loads(str(last(screens, "tokens")).splitlines()[1])["run"]["target"] == "tiny actor"
    assert "over 3 repeats" in headline(screens)
    card = json.loads(str(last(screens, "verdict")))
    assert card["equality"]["label"] == "identical to plain decoding" and card["source"]["kind"] == "live"
    lanes = json.loads(str(last(screens, "race")))["lanes"]
    assert ["".join(text for _, texts in lane["steps"] for text in texts) for lane in lanes] == [SCRIPT[:24]] * 2
    assert "after 24 tokens, the most that were allowed" in str(last(screens, "details"))
    assert is_ready(screens[-1]) and is_free(loader)


def test_the_text_only_ever_grows_and_another_run_has_another_id():
    stage, _ = explorer()
    values = [str(screen.tokens) for screen in run(stage) if screen.tokens is not SKIP]
    assert all(later.startswith(earlier) for earlier, later in pairwise(values))
    assert (
        json.loads(values[0].splitlines()[0])["view"]
        != json.loads(str(last(run(stage), "tokens")).splitlines()[0])["view"]
    )


def test_measuring_says_which_repeat_it_is_at():
    stage, _ = explorer()
    said = words(run(stage))
    repeats = [f"repeat {number} of 3" for number in (1, 2, 3)]
    for now in ("warming up (1 of 2)", "warming up (2 of 2)", *repeats, "where the time goes"):
        assert f"measuring against plain decoding: {now}" in said


def test_tokens_come_at_a_moderate_pace_but_the_last_state_always(monkeypatch):
    monkeypatch.setattr(handlers, "YIELD_SECONDS", 1000.0)
    stage, _ = explorer()
    values = [str(screen.tokens) for screen in run(stage) if screen.tokens is not SKIP]
    assert len(values[0].splitlines()) == 3
    assert len(values) == 2 and '"cut":"length"' in values[-1]


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
    ask = FORM._replace(drafter="The target itself", measure=False, max_new_tokens=10)
    assert headline(run(stage, ask)).startswith("5.0 tokens per verify pass")


def test_sampled_runs_are_not_compared_token_by_token():
    stage, _ = explorer(Actor(None))
    screens = run(stage, FORM._replace(temperature=1.0, max_new_tokens=6))
    assert "sampled runs differ by chance" in json.loads(str(last(screens, "verdict")))["equality"]["text"]


# --- errors -----------------------------------------------------------------------------------------------------


def test_a_user_error_while_loading_is_shown_as_it_is():
    def fail(progress):
        raise UserError("The disk is full, so free some space.")

    stage, _ = explorer(before=fail)
    assert headline(run(stage)) == "The disk is full, so free some space."


def test_an_error_before_the_first_token_leaves_the_run_before_in_view(monkeypatch):
    def fail(*_):
        raise UserError("The prompt is too long, so shorten it.")

    stage, loader = explorer()
    for place in ("prepare", "prefill"):
        with monkeypatch.context() as patch:
            owner = handlers.runs if place == "prepare" else loader.loaded.target
            patch.setattr(owner, place, lambda *_, **__: fail())
            screens = run(stage)
        assert headline(screens) == "The prompt is too long, so shorten it."
        shown = [(screen.tokens, screen.details, screen.race, screen.histogram) for screen in screens]
        assert all(value is SKIP for values in shown for value in values)
        assert "earlier" in json.loads(str(screens[-1].verdict)) and is_ready(screens[-1]) and is_free(loader)


def test_an_error_after_the_first_token_is_of_this_run(monkeypatch):
    stage, loader = explorer()
    verify = loader.loaded.target.verify
    passes = iter(range(3))
    monkeypatch.setattr(loader.loaded.target, "verify", lambda *a: verify(*a) if next(passes) < 2 else 1 / 0)
    screens = run(stage)
    assert last(screens, "details") == "" and "earlier" not in json.loads(str(screens[-1].verdict))


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
