"""The race in a browser: it shows the laps that were measured, and plays them."""

from __future__ import annotations

import json
import re
from statistics import median

import expected
import pytest
from browser import headline, run, settle, visit
from playwright.sync_api import Page
from stage import made

from specviz.recordings import RECORDINGS

pytestmark = pytest.mark.browser


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
    recorded = json.loads((RECORDINGS / "editing.comparison.json").read_text(encoding="utf-8"))["comparison"]
    pairs = list(zip(recorded["plain"], recorded["speculative"], strict=True))
    ratios = [plain["seconds"][-1] / fast["seconds"][-1] for plain, fast in pairs]
    typical = min(range(len(ratios)), key=lambda repeat: abs(ratios[repeat] - median(ratios)))
    with visit(browser, address) as page:
        shown = lanes(page)
        slowest = max(lap["seconds"][-1] for lap in pairs[typical])
        decimals = 3 if slowest < 0.5 else 2 if slowest < 50 else 1
        for lane, lap in zip(shown, pairs[typical], strict=True):
            seconds, text = lap["seconds"][-1], "".join(text for step in lap["texts"] for text in step)
            passes, count = len(lap["texts"]), sum(map(len, lap["texts"]))
            assert lane["finish"].startswith(f"done in {seconds:.{decimals}f} s")
            speed = count / seconds
            assert lane["facts"] == f"{passes} passes · {speed:.{1 if speed < 100 else 0}f} tokens/s"
            assert lane["count"] == f"{count} of {count} tokens" and count == recorded["tokens"]
            assert lane["text"].split() == text.split()
        assert written(page) == ["".join(text for step in lap["texts"] for text in step) for lap in pairs[typical]]
        assert [lane["name"] for lane in shown] == ["plain decoding", "N-gram lookup"]
        ratio = max(ratios[typical], 1 / ratios[typical])
        assert f"takes {ratio:.2f}× as long." in page.inner_text(".sv-race-sentence")
        assert page.inner_text("#race .sv-pill").split() == ["●", "recorded"]


def test_a_race_plays_to_the_end_and_can_be_scrubbed(browser, stage):
    address, actor, loader = stage
    actor.play("to be or not to be; to be or not to be", delay=0.004)
    with visit(browser, address) as page:
        settle(page, prompt="to be or not to be")
        run(page)
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
    times = [float(re.match(r"done in ([\d.]+) s", finish)[1]) for finish in finishes]
    ratio = float(re.search(r"([\d.]+)× as long", page.inner_text(".sv-race-sentence"))[1])
    assert ratio == pytest.approx(max(times) / min(times), rel=0.05)
    claimed = re.search(r"([\d.]+)×", headline(page))
    assert claimed is None or float(claimed[1]) == pytest.approx(times[0] / times[1], rel=0.05)
    assert claimed or "too busy" in headline(page)


def test_there_is_no_race_where_nothing_was_measured(browser, stage):
    address, actor, _ = stage
    with visit(browser, address) as page:
        assert page.locator("#race").is_visible()  # the recorded one
        settle(page, prompt="to be", measure=False)
        run(page)
        assert not page.locator("#race").is_visible()
        actor.play(None)
        settle(page, measure=True, heat=1, budget=12)
        run(page)
        assert page.locator("#race").is_visible()
        assert "their texts may differ" in page.inner_text(".sv-race-note")
