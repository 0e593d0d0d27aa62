"""The tab with the commands for other engines: its answers, and the tab as a visitor sees it."""

from __future__ import annotations

from typing import Any

import browser as chromium
import gradio as gr
import pytest
from browser import wait_for_text, watched
from playwright.sync_api import Browser

from specviz.presets import load_pairings
from specviz.serving import ENGINES
from specviz.ui.serving import Settings, answer, serving_tab
from specviz.ui.serving_cards import Card

PAIRINGS = load_pairings()
CLIPBOARD = ["clipboard-read", "clipboard-write"]
LLAMA = Settings("llama-3.1-8b", "EAGLE-3 head", 4, True, 8, 2, "token", 0.0, 0, 1)


def answered(settings: Settings) -> tuple[dict[str, Any], dict[str, Card]]:
    """The update of the problem, and those of the cards by engine."""
    trouble, *rest = answer(PAIRINGS, settings)
    size = len(Card._fields)
    cards = [Card(*rest[place : place + size]) for place in range(0, len(rest), size)]
    return trouble, dict(zip(ENGINES, cards, strict=True))


def test_every_engine_has_its_card():
    trouble, cards = answered(LLAMA._replace(context=4096, tensor_parallel=2))
    assert trouble["visible"] is False
    command = cards["sglang"].command
    assert command["visible"] and "--speculative-num-draft-tokens 9" in command["value"]
    assert "--speculative-eagle-topk 2" in command["value"] and "--tp-size 2" in command["value"]
    assert cards["sglang"].request_fold["label"] == "Example request, POST /v1/chat/completions"
    assert "--max-model-len 4096" in cards["vllm"].command["value"]


def test_what_can_not_be_launched_shows_why_and_nothing_else():
    _, cards = answered(LLAMA)
    transformers = cards["transformers"]
    assert "Can&#x27;t be launched" in transformers.verdict["value"]
    shown = [transformers.command, transformers.request_fold, transformers.differs]
    assert not any(update["visible"] for update in shown)


def test_a_tree_that_is_switched_off_is_a_chain():
    _, cards = answered(LLAMA._replace(tree=False))
    assert "--speculative-eagle-topk 1" in cards["sglang"].command["value"]


def test_what_is_unverified_stands_out():
    _, cards = answered(LLAMA)
    assert "<li><b>Unverified: </b>" in cards["tensorrt-llm"].differs["value"]


@pytest.mark.parametrize(
    "wrong",
    [{"context": -1}, {"context": None}, {"tensor_parallel": 0}, {"nodes": 10**9}, {"gamma": "x"}, {"rule": "<b>"}],
)
def test_a_wrong_value_is_named_and_leaves_the_cards_alone(wrong):
    trouble, *rest = answer(PAIRINGS, LLAMA._replace(**wrong))
    assert trouble["visible"] and 'role="alert"' in trouble["value"] and "<b>" not in trouble["value"]
    assert len(rest) == len(ENGINES) * len(Card._fields)
    assert all(update == gr.skip() for update in rest)


@pytest.mark.browser
def test_a_visitor_chooses_and_copies(browser: Browser):
    with gr.Blocks(analytics_enabled=False) as demo:
        serving_tab({id: PAIRINGS[id] for id in ("smollm2-135m", "llama-3.1-8b")})
    vllm = "#launch-vllm-command .cm-content"
    complaints: list[str] = []
    with chromium.served(demo) as address, browser.new_context(permissions=CLIPBOARD) as context:
        page = watched(context, address, complaints)
        page.goto(address)
        wait_for_text(page, '"method": "ngram"', vllm)
        page.locator("#launch-pairing input").click()
        page.get_by_role("option", name="Llama 3.1 8B Instruct").click()
        wait_for_text(page, "meta-llama/Llama-3.1-8B-Instruct", vllm)
        assert not page.locator("#launch-nodes").is_visible()  # a chain has no size
        page.get_by_label("EAGLE-3 head").check()
        wait_for_text(page, '"method": "eagle3"', vllm)
        assert page.locator("#launch-nodes input").input_value() == "16"
        wait_for_text(page, "Can't be launched there", "#launch-transformers")
        assert not page.locator("#launch-transformers-command").is_visible()
        page.locator("#launch-gpus input").fill("0")
        wait_for_text(page, "The number of GPUs is 0", "#launch-trouble")
        page.locator("#launch-gpus input").fill("4")
        wait_for_text(page, "--tensor-parallel-size 4", vllm)
        page.locator("#launch-vllm-command button").first.click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("vllm serve meta-llama") and "\\\n" in copied
    assert complaints == []
