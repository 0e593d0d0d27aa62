"""The race in a browser: it shows the laps that were measured, and plays them."""

from __future__ import annotations

import json
import re
from statistics import median
from typing import Any

import expected
import pytest
from browser import headline, run, run_measured, settle, visit
from playwright.sync_api import Page
from stage import HOSTILE, made

from specviz.recordings import RECORDINGS, load_examples

pytestmark = pytest.mark.browser

EXAMPLES = load_examples()
NOISY = 1.6  # with ratios so far apart, nothing is claimed


def lanes(page: Page) -> list[dict[str, str]]:
    """What each lane says, and the text that can be seen in it."""
    script = """lanes => lanes.map((lane) => {
      const said = (part) => lane.querySelector(`.sv-lane-${part}`).textContent;
      const text = lane.querySelector(".sv-lane-text").innerText;
      return {name: said("name"), count: said("count"), facts: said("facts"), finish: said("finish"), text};
    })"""
    found: list[dict[str, str]] = page.locator(".sv-lane").evaluate_all(script)
    return found


def written(page: Page) -> list[str]:
    """The text of each lane as far as it is written."""
    script = """lanes => lanes.map(lane => [...lane.children].map(pass =>
      getComputedStyle(pass).visibility === "visible" ? pass.textContent : "").join(""))"""
    texts: list[str] = page.locator(".sv-lane-text").evaluate_all(script)
    return texts


def test_a_recorded_race_shows_the_laps_of_its_file(browser, stage):
    address, _, _ = stage
    with visit(browser, address) as page:
        for id, example in reversed(EXAMPLES.items()):  # the first one is in view already
            recorded = json.loads((RECORDINGS / f"{id}.comparison.json").read_text(encoding="utf-8"))["comparison"]
            pairs = list(zip(recorded["plain"], recorded["speculative"], strict=True))
            ratios = [plain["seconds"][-1] / fast["seconds"][-1] for plain, fast in pairs]
            typical = min(range(len(ratios)), key=lambda repeat: abs(ratios[repeat] - median(ratios)))
            texts = ["".join(text for step in lap["texts"] for text in step) for lap in pairs[typical]]
            page.get_by_role("button", name=example.title, exact=True).click()
            page.wait_for_function("text => document.querySelector('.sv-lane-text').textContent === text", arg=texts[0])
            assert written(page) == texts
            for lane, lap in zip(lanes(page), pairs[typical], strict=True):
                check_lane(lane, lap, longest=max(lap["seconds"][-1] for lap in pairs[typical]))
            check_sentence(page, ratios, ratios[typical])
            assert page.inner_text("#race .sv-pill").split() == ["●", "recorded"]
            assert page.inner_text(".sv-race-note").startswith(f"Timed: the median of {len(ratios)} repeats; ")


def check_lane(lane: dict[str, str], lap: dict[str, Any], longest: float) -> None:
    """Time, speed, passes and tokens of a lap as its file has them; `longest`: seconds, for the number of decimals."""
    seconds, passes, count = lap["seconds"][-1], len(lap["texts"]), sum(map(len, lap["texts"]))
    decimals = 3 if longest < 0.5 else 2 if longest < 50 else 1
    assert lane["finish"].startswith(f"done in {seconds:.{decimals}f} s")
    assert lane["facts"] == f"{passes} passes · {count / seconds:.{1 if count / seconds < 100 else 0}f} tokens/s"
    assert lane["count"] == f"{count} of {count} tokens"


def check_sentence(page: Page, ratios: list[float], typical: float) -> None:
    """Who wins, and how clearly: only if all repeats agree."""
    low, high = round(min(ratios), 2), round(max(ratios), 2)
    names = [name[0].upper() + name[1:] for name in page.locator(".sv-lane-name").all_inner_texts()]
    sentence = page.inner_text(".sv-race-sentence")
    if low <= 1 <= high or max(ratios) > NOISY * min(ratios):
        assert sentence.startswith("No clear winner.")
        return
    loser, winner = names if low > 1 else reversed(names)
    assert sentence == f"{winner} wins. {loser} takes {max(typical, 1 / typical):.2f}× as long."


def test_a_race_plays_to_the_end_and_can_be_scrubbed(browser, stage):
    address, actor, loader = stage
    actor.play("to be or not to be", delay=0.01)
    with visit(browser, address) as page:
        settle(page, prompt="to be or not to be")
        run_measured(page)
        actor.delay = 0.0
        trace = made(loader.loaded, "to be or not to be")
        text, count, passes = expected.output(trace), len(trace.tokens), len(trace.steps)
        plain, fast = lanes(page)
        assert plain["count"] == fast["count"] == f"{count} of {count} tokens"
        assert plain["facts"].startswith(f"{count} passes · ") and fast["facts"].startswith(f"{passes} passes · ")
        assert plain["text"] == fast["text"] == text
        assert page.inner_text("#race .sv-pill").split() == ["●", "live"]
        check_ratio(page, plain["finish"], fast["finish"])
        page.locator(".sv-race-player-slider").press("Home")
        assert written(page) == ["", ""]
        assert [lane["count"] for lane in lanes(page)] == [f"0 of {count} tokens"] * 2
        page.locator(".sv-race-player-slider").press("ArrowRight")  # to the first pass that is done
        assert max(len(lane) for lane in written(page)) == 1
        page.locator(".sv-race-player-slider").fill("5000")
        assert all(text.startswith(lane) for lane in written(page))
        assert len(written(page)[0]) < len(written(page)[1]) <= len(text)  # half the time: drafts are ahead
        page.get_by_role("button", name="To the start").click()
        page.click(".sv-race-play")
        page.wait_for_function("document.querySelector('.sv-race-play').innerText === 'Pause'")
        page.wait_for_function("document.querySelector('.sv-race-play').innerText === 'Play'")
        assert written(page) == [text, text]
        assert lanes(page) == [plain, fast]


def check_ratio(page: Page, *finishes: str) -> None:
    """The race is the repeat that the verdict claims."""
    plain, fast = (float(re.match(r"done in ([\d.]+) s", finish)[1]) for finish in finishes)
    claimed = float(re.search(r"([\d.]+)× faster", headline(page))[1])
    assert claimed == pytest.approx(plain / fast, rel=0.02)  # the times are rounded
    assert f"takes {claimed:.2f}× as long" in page.inner_text(".sv-race-sentence")


def test_hostile_tokens_are_text_in_the_race_as_well(browser, stage):
    address, actor, _ = stage
    actor.play("".join(HOSTILE), delay=0.01)
    with visit(browser, address) as page:
        settle(page, prompt="".join(HOSTILE))
        run_measured(page)
        assert written(page) == ["".join(HOSTILE) + "</s>"] * 2
        assert page.locator("#race :is(b, img, script)").count() == 0


def test_there_is_no_race_where_nothing_was_measured(browser, stage):
    address, actor, _ = stage
    with visit(browser, address) as page:
        assert page.locator("#race").is_visible()  # the recorded one
        settle(page, prompt="to be", measure=False)
        run(page)
        assert not page.locator("#race").is_visible()
        actor.play(None, delay=0.01)
        settle(page, measure=True, heat=1, budget=8)
        run_measured(page)
        assert "their texts may differ" in page.inner_text(".sv-race-note")
