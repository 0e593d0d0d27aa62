"""The view of the text in a browser: choosing tokens in every way, strip and player, and text that stays text."""

from __future__ import annotations

from collections.abc import Iterator

import cards
import expected
import pytest
from browser import has_focus, run, selected, settle, tokens, visit, wait_for_steps, wait_until_ready
from playwright.sync_api import Browser, Page
from stage import HOSTILE, Actor, Loader, made

from specviz.trace import Trace

pytestmark = pytest.mark.browser

PROMPT = "to be or not"
SCRIPT = "to be, or not to be: that is the question"


@pytest.fixture(scope="module")
def shown(browser: Browser, served_actor: tuple[str, Actor, Loader]) -> Iterator[tuple[Page, Trace]]:
    """A page after a run, and the trace of that run; for tests that only look at it."""
    address, actor, loader = served_actor
    actor.play(SCRIPT)
    with visit(browser, address) as page:
        settle(page, prompt=PROMPT, measure=False)
        run(page)
        yield page, made(loader.loaded, PROMPT)


def check_selected(page: Page, trace: Trace, step: int, node: int | None) -> None:
    """Text, strip, player and card have this token, and no other."""
    assert selected(page) == {step + 1}
    places = [place for place, piece in enumerate(expected.pieces(trace)) if (piece.step, piece.node) == (step, node)]
    is_selected = "tokens => tokens.flatMap((token, place) => token.classList.contains('sv-selected') ? [place] : [])"
    assert page.locator(".sv-flow .sv-token").evaluate_all(is_selected) == places
    spoken = "tokens => tokens.flatMap((token, place) => token.ariaSelected === 'true' ? [place] : [])"
    assert page.locator(".sv-flow .sv-token").evaluate_all(spoken) == places
    cells = page.locator(".sv-cell.sv-selected").evaluate_all("cells => cells.map(cell => cell.dataset.node)")
    assert cells == ["null" if node is None else str(node)]
    subject = cards.Subject(trace, trace.steps[step], None if node is None else trace.steps[step].nodes[node])
    cards.check(cards.read(page), subject)


def check_step(page: Page, trace: Trace, step: int) -> None:
    check_selected(page, trace, step, expected.telling(trace.steps[step]))


# --- choosing tokens -----------------------------------------------------------------------------------------


def test_a_click_on_a_token_selects_it(shown):
    page, trace = shown
    pieces = expected.pieces(trace)
    assert tokens(page) == expected.tokens(trace)
    assert {piece.kind for piece in pieces} >= {"accepted", "rejected", "correction", "bonus", "plain"}
    for place in range(0, len(pieces), 2):
        page.locator(".sv-flow .sv-token").nth(place).click()
        check_selected(page, trace, pieces[place].step, pieces[place].node)


def test_the_keyboard_reaches_every_token_and_the_text_is_one_tab_stop(shown):
    page, trace = shown
    pieces = expected.pieces(trace)
    page.locator("button.sv-tile").last.focus()
    page.keyboard.press("Tab")
    assert has_focus(page, ".sv-hide input")
    page.keyboard.press("Tab")
    assert has_focus(page, ".sv-flow .sv-token")
    page.keyboard.press("Home")
    for piece in pieces:
        check_selected(page, trace, piece.step, piece.node)
        page.keyboard.press("ArrowRight")
    check_selected(page, trace, pieces[-1].step, pieces[-1].node)  # the arrow at the end leads nowhere
    page.keyboard.press("ArrowLeft")
    check_selected(page, trace, pieces[-2].step, pieces[-2].node)
    page.keyboard.press("Home")
    for step in range(1, 4):
        page.keyboard.press("ArrowDown")
        check_step(page, trace, step)
    page.keyboard.press("ArrowUp")
    check_step(page, trace, 2)
    page.keyboard.press("End")
    check_selected(page, trace, pieces[-1].step, pieces[-1].node)
    assert page.evaluate("document.activeElement.textContent") == pieces[-1].text
    page.keyboard.press("Tab")
    assert has_focus(page, ".sv-why-chip")
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
    assert has_focus(page, ".sv-tile")


def test_rejected_tokens_can_be_hidden_and_the_arrows_then_pass_them_by(shown):
    page, trace = shown
    pieces = expected.pieces(trace)
    kept = [piece for piece in pieces if piece.kind != "rejected"]
    place = next(index for index, piece in enumerate(pieces) if piece.kind == "rejected")
    page.locator(".sv-flow .sv-token").nth(place).click()
    switch = page.get_by_label("Hide rejected tokens")
    switch.focus()
    page.keyboard.press("Space")
    assert switch.is_checked()
    assert page.locator(".sv-flow .sv-token:visible").count() == len(kept) < len(pieces)
    check_selected(page, trace, *pieces[place][2:])  # still chosen, and its card still there
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == pieces[place + 1].text
    page.keyboard.press("Home")
    for piece in kept:
        check_selected(page, trace, piece.step, piece.node)
        page.keyboard.press("ArrowRight")
    check_selected(page, trace, kept[-1].step, kept[-1].node)
    page.keyboard.press("Home")
    for step in range(1, len(trace.steps)):
        page.keyboard.press("ArrowDown")
        assert selected(page) == {step + 1}
        assert page.evaluate("document.activeElement.checkVisibility()")
    page.get_by_role("button", name="First step").click()  # chooses a rejected one: the text marks its step alone
    check_step(page, trace, 0)
    switch.click()
    assert page.locator(".sv-flow .sv-token:visible").count() == len(pieces)


def test_a_finger_selects_tokens_and_steps(browser, stage):
    address, actor, loader = stage
    actor.play(SCRIPT)
    with visit(browser, address, width=375, height=812, has_touch=True) as page:
        settle(page, prompt=PROMPT, measure=False)
        run(page)
        trace = made(loader.loaded, PROMPT)
        pieces = expected.pieces(trace)
        for place in range(0, len(pieces), 7):
            page.locator(".sv-flow .sv-token").nth(place).tap()
            check_selected(page, trace, pieces[place].step, pieces[place].node)
        for step in (0, 6, 3):
            page.locator(".sv-column").nth(step).tap()
            check_step(page, trace, step)
        page.locator(".sv-why-chip").last.tap()
        check_selected(page, trace, 3, None)


def test_choosing_while_the_run_goes_on_is_not_undone_by_what_comes(browser, stage):
    address, actor, loader = stage
    actor.play(SCRIPT, delay=0.05)
    with visit(browser, address) as page:
        settle(page, prompt=PROMPT, measure=False)
        page.click("#run")
        wait_for_steps(page, 3)
        page.locator(".sv-flow .sv-token").nth(1).click()
        wait_until_ready(page)
        actor.delay = 0.0
        trace = made(loader.loaded, PROMPT)
        assert tokens(page) == expected.tokens(trace)
        check_selected(page, trace, *expected.pieces(trace)[1][2:])


# --- strip and player ----------------------------------------------------------------------------------------


def test_the_strip_selects_by_click_drag_and_keys(shown):
    page, trace = shown
    strip, columns = page.locator(".sv-strip"), page.locator(".sv-column")
    step = next(index for index, step in enumerate(trace.steps) if len(step.path) > 1)
    columns.nth(step).locator("[data-node='1']").click()
    check_selected(page, trace, step, 1)
    columns.nth(step).locator(".sv-own").click()
    check_selected(page, trace, step, None)
    first, last = (columns.nth(index).bounding_box() for index in (1, 8))
    page.mouse.move(first["x"] + 3, first["y"] + 3)
    page.mouse.down()
    assert selected(page) == {2}
    page.mouse.move(last["x"] + 3, last["y"] + 3, steps=10)
    check_step(page, trace, 8)
    page.mouse.up()
    count = len(trace.steps)
    for key, index in (("Home", 0), ("ArrowRight", 1), ("PageUp", 11), ("ArrowLeft", 10), ("End", count - 1)):
        strip.press(key)
        check_step(page, trace, index)
        assert strip.get_attribute("aria-valuetext") == expected.sentence(trace.steps[index])
    assert strip.get_attribute("aria-valuemax") == str(count)


def test_the_strip_draws_every_draft_token_by_its_outcome(shown):
    page, trace = shown
    script = "columns => columns.map(column => [...column.children].map(cell => cell.className.split(' ')[1].slice(3)))"
    own = [expected.kind_of_own(step) if step.last else "none" for step in trace.steps]
    drafts = [[node.outcome for node in step.nodes] for step in trace.steps]
    drawn = page.locator(".sv-column").evaluate_all(script)
    assert drawn == [[kind, *draft] for kind, draft in zip(own, drafts, strict=True)]


def test_the_player_moves_and_plays_to_the_end(shown):
    page, trace = shown
    count = len(trace.steps)
    assert page.locator(".sv-place").inner_text().endswith(f" of {count}")
    for button, index in (("First step", 0), ("Next step", 1), ("Next step", 2), ("Previous step", 1)):
        page.get_by_role("button", name=button).click()
        check_step(page, trace, index)
    page.locator(".sv-range").press("End")
    check_step(page, trace, count - 1)
    page.locator(".sv-range").fill("4")
    check_step(page, trace, 3)
    page.get_by_label("Speed", exact=True).select_option("as measured")
    page.locator(".sv-range").press("End")
    page.locator(".sv-play").click()  # from the end it begins again
    page.wait_for_function("document.querySelector('.sv-play').innerText === 'Play'")
    check_step(page, trace, count - 1)
    assert page.locator(".sv-later").count() == 0


def test_the_space_bar_plays_and_pauses_and_what_is_to_come_is_pale(shown):
    page, trace = shown
    page.get_by_label("Speed", exact=True).select_option("1 step/s")
    page.locator(".sv-flow .sv-token").nth(0).click()
    page.keyboard.press("Space")
    moment = page.wait_for_function(
        """() => {
          const groups = [...document.querySelectorAll(".sv-step")];
          const step = groups.findIndex((group) => group.classList.contains("sv-current"));
          return step > 0 && {step, pale: groups.map((group) => group.classList.contains("sv-later"))};
        }"""
    ).json_value()
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.sv-play').innerText === 'Play'")
    count = len(trace.steps)
    assert moment["pale"] == [index > moment["step"] for index in range(count)]
    (step,) = selected(page)
    assert moment["step"] < step < count
    check_step(page, trace, step - 1)
    assert page.locator(".sv-later").count() == 0


# --- text that stays text ------------------------------------------------------------------------------------

STRANGE = "".join(HOSTILE) + "🙂 語\n\té\u05e9\u05dc\u05d5\u05dd"  # CJK, an accent, Hebrew; every token is a byte
OWN = ":is(#tokens, #details, #conversation, #verdict)"


def test_hostile_tokens_are_shown_as_the_text_that_they_are(browser, stage):
    address, actor, loader = stage
    actor.play(STRANGE)
    prompt = f"{STRANGE} {''.join(reversed(HOSTILE))}"  # so that some are drafted rightly, and some wrongly
    with visit(browser, address) as page:
        settle(page, prompt=prompt, budget=60, measure=False)
        run(page)
        trace = made(loader.loaded, prompt, max_new_tokens=60)
        assert expected.output(trace) == f"{STRANGE}</s>"
        assert tokens(page) == expected.tokens(trace)
        drafted = [node for step in trace.steps for node in step.nodes]
        assert set(HOSTILE) <= {node.text for node in drafted}
        assert set(HOSTILE) & {node.text for node in drafted if node.outcome == "rejected"}
        titles = page.locator(".sv-step").evaluate_all("steps => steps.map(step => step.getAttribute('aria-label'))")
        assert titles == [expected.sentence(step) for step in trace.steps]
        for index, column in enumerate(page.locator(".sv-column").all()):
            column.hover()
            assert column.get_attribute("title") == titles[index]
        page.locator(".sv-strip").press("Home")
        for step in trace.steps:
            for place, subject in enumerate(cards.subjects(trace, step)):
                page.locator(".sv-why-chip").nth(place).press("Enter")
                cards.check(cards.read(page), subject)
            page.locator(".sv-strip").press("ArrowRight")
        page.click("#follow-up")
        page.wait_for_selector("#conversation dd")
        assert page.locator(f"{OWN} :is(img, script, iframe, style, a)").count() == 0
        assert page.locator(":is(.sv-flow, .sv-why, #conversation) b").count() == 0


def test_half_characters_wait_for_their_other_half_and_say_so(browser, stage):
    address, actor, _ = stage
    actor.play("🙂é語")
    with visit(browser, address) as page:
        settle(page, prompt="x", drafter="No drafter")
        run(page)
        assert tokens(page) == [("🙂", "plain"), ("é", "plain"), ("語", "plain"), ("</s>", "plain")]
        parts = [page.locator(".sv-token", has_text=text).last.get_attribute("data-parts") for text in "🙂é語"]
        assert parts == ["4", "2", "3"]
        title = page.locator(".sv-token", has_text="🙂").get_attribute("title")
        assert title == "4 tokens make this one character: plain, plain, plain, plain"
        page.locator(".sv-column").nth(1).click()  # half of the face: its token shows the whole
        assert page.locator(".sv-token.sv-selected").inner_text() == "🙂"
        assert cards.read(page)["title"] == "Where does “⟨9F⟩” come from?"


def test_what_is_copied_is_the_output_and_nothing_else(browser, stage):
    address, actor, _ = stage
    actor.play(STRANGE)
    with visit(browser, address, permissions=["clipboard-read", "clipboard-write"]) as page:
        settle(page, prompt=STRANGE[10:], budget=60, measure=False)
        run(page)
        assert "rejected" in {kind for _, kind in tokens(page)}
        signs = page.locator(".sv-flow .sv-sign").evaluate_all("signs => signs.map(sign => sign.dataset.sign)")
        assert {"␣", "⏎", "⇥", "⟨U+200B⟩", "⟨U+202E⟩"} <= set(signs)
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.sv-flow'))")
        page.keyboard.press("Control+c")
        assert page.evaluate("navigator.clipboard.readText()") == f"{STRANGE}</s>"
