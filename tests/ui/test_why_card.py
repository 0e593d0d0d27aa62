"""The card in a browser: for every token of a run, what it says is what the trace has."""

from __future__ import annotations

import cards
import expected
import pytest
from browser import choose_drafter, run, saved_trace, settle, tokens, visit
from playwright.sync_api import Page
from stage import made, timeless

from specviz.decoding.sampling import Sampler
from specviz.trace import Trace

pytestmark = pytest.mark.browser


def check_every_card(page: Page, trace: Trace) -> set[str]:
    """Choose each token, those that no text shows as well; returns the kinds that came."""
    assert tokens(page) == expected.tokens(trace)
    kinds = set()
    page.press(".sv-strip", "Home")
    for step in trace.steps:
        for place, subject in enumerate(cards.subjects(trace, step)):
            page.locator(".sv-why-chip").nth(place).press("Enter")
            cards.check(cards.read(page), subject)
            kinds.add(subject.kind)
        page.press(".sv-strip", "ArrowRight")
    return kinds


def test_every_card_of_a_sampled_run_says_what_its_trace_has(browser, stage):
    address, actor, loader = stage
    actor.play(None)
    with visit(browser, address) as page:
        choose_drafter(page, "Early exit", "24 of 30 layers")
        settle(page, prompt="to be", exit_layer=3, gamma=3, heat=1, seed=4, budget=24, measure=False)
        run(page)
        drawn = Sampler(temperature=1.0)
        trace = made(
            loader.loaded,
            "to be",
            "early-exit",
            {"exit_layer": 3, "adapter": False},
            gamma=3,
            sampler=drawn,
            seed=4,
            max_new_tokens=24,
        )
        assert timeless(saved_trace(page)) == timeless(trace)
        assert check_every_card(page, trace) >= {"accepted", "rejected", "untested", "correction", "bonus"}


def test_every_card_of_a_greedy_run_says_what_its_trace_has(browser, stage):
    address, actor, loader = stage
    actor.play("to be or not to be; to be or not to be")
    with visit(browser, address) as page:
        settle(page, prompt="to be or not to be", stops="; to be o", measure=False)
        run(page)
        trace = made(loader.loaded, "to be or not to be", stop_strings=("; to be o",))
        assert timeless(saved_trace(page)) == timeless(trace)
        everything = {"accepted", "rejected", "untested", "cut", "correction", "bonus", "plain"}
        assert check_every_card(page, trace) == everything
