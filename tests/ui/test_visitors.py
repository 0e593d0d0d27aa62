"""Several visitors in browsers: they take turns, see their own runs only, and free the model when they leave."""

from __future__ import annotations

import time
from contextlib import ExitStack

import expected
import pytest
from browser import (
    headline,
    saved_trace,
    settle,
    tokens,
    visit,
    wait_for_steps,
    wait_for_text,
    wait_until,
    wait_until_ready,
)
from stage import made, timeless

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("moment", ["decoding", "measuring"])
def test_closing_the_tab_frees_the_model_within_a_step(browser, stage, moment):
    address, actor, loader = stage
    actor.delay = 0.02
    with visit(browser, address) as page:
        settle(page, prompt="to be", budget=50)
        page.click("#run")
        wait_for_text(page, moment)
        actor.delay = 0.2  # slow enough that neither the run nor a repeat could end by itself
        wait_until(loader.loaded.lock.locked)
    passes = actor.passes
    wait_until(lambda: not loader.loaded.lock.locked())
    assert actor.passes <= passes + 2  # the one under way, and one while the news travels
    time.sleep(2 * actor.delay)  # nothing goes on in secret
    assert not loader.loaded.lock.locked()


def test_two_visitors_take_turns_and_see_their_own_tokens_only(browser, stage):
    address, actor, loader = stage
    actor.play(None, delay=0.05)
    with visit(browser, address) as ann, visit(browser, address) as ben:
        for page, prompt in ((ann, "ann says"), (ben, "ben says")):
            settle(page, prompt=prompt, budget=30, measure=False)
        ann.click("#run")
        wait_for_steps(ann, 2)
        ben.click("#run")
        wait_for_text(ben, "Waiting: another run is using the model, you are next")
        wait_until_ready(ann)
        actor.delay = 0.0
        wait_for_steps(ben, 1)
        wait_until_ready(ben)
        runs = [made(loader.loaded, prompt, max_new_tokens=30) for prompt in ("ann says", "ben says")]
        for page, trace in zip((ann, ben), runs, strict=True):
            assert tokens(page) == expected.tokens(trace)
            assert timeless(saved_trace(page)) == timeless(trace)
        assert tokens(ann) != tokens(ben)


def test_who_no_longer_waits_makes_room_for_the_next(browser, stage):
    address, actor, loader = stage
    actor.delay = 0.3
    with ExitStack() as visits:
        ann, ben, cay = (visits.enter_context(visit(browser, address)) for _ in range(3))
        for page in (ann, ben, cay):
            settle(page, prompt="to be", measure=False)
        ann.click("#run")
        wait_for_steps(ann, 1)
        ben.click("#run")
        wait_for_text(ben, "you are next")
        cay.click("#run")
        wait_for_text(cay, "with 1 other before you")
        ben.click("#stop")
        wait_until_ready(ben)
        assert headline(ben) == "Stopped before the first token"
        wait_for_text(cay, "you are next")
        ben.click("#run")
        wait_for_text(ben, "with 1 other before you")
        cay.context.close()
        wait_for_text(ben, "you are next")
        ann.click("#stop")
        actor.delay = 0.0
        wait_until_ready(ben)
        assert tokens(ben) == expected.tokens(made(loader.loaded, "to be"))
