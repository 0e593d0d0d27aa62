"""The Memory tab's handlers: from the values of its controls to what it shows."""

import gradio as gr
import pytest

from specviz import loaded
from specviz.models import sources
from specviz.planning import configs
from specviz.presets import load_pairings
from specviz.ui.controls import Controls
from specviz.ui.handlers import Explorer
from specviz.ui.loading import Models
from specviz.ui.memory import HERE, KNOWN_DEVICES, OTHER, chooser, gamma_chooser, memory_tab, opening, shower

PAIRINGS = load_pairings()
QWEN = opening(PAIRINGS["qwen3-8b"])._replace(budget=OTHER, gigabytes=24)


@pytest.fixture
def show(monkeypatch):
    monkeypatch.setattr(configs.hub, "look_up", pytest.fail)  # no network because somebody picks a pairing
    monkeypatch.setattr(sources.fetch, "fetch_wheel", pytest.fail)
    return shower(PAIRINGS, "cpu")


def test_a_pair_is_planned_by_its_parts(show):
    shown = show(*QWEN)
    assert "✓ Fits: it needs 22.17 GB of 24.00 GB" in shown.verdict, "whole buffers, and no libraries: another machine"
    assert all(size in shown.parts for size in ("16.38 GB", "1.19 GB", "17.57 GB"))
    assert "147,456 B target, 114,688 B drafter" in shown.facts and "1.78x" in shown.facts
    assert [trace.name for trace in shown.figure.data][:2] == ["weights", "KV cache"]


def test_what_does_not_fit_is_said_with_the_numbers_and_what_helps(show):
    shown = show(*QWEN._replace(gigabytes=12))
    assert "✗ Does not fit" in shown.verdict and "12.00 GB" in shown.verdict and 'role="alert"' in shown.verdict
    assert "Quantised to 4bit" in shown.facts and "none fits" in shown.facts
    small = show(*QWEN._replace(gigabytes=12, quantisation="4bit"))
    assert "✓ Fits" in small.verdict and "4.5 bits per weight" in small.facts


def test_budgets_are_this_machines_a_known_devices_or_typed(show):
    assert "available by the system" in show(*QWEN._replace(budget=HERE)).facts
    for name, size in KNOWN_DEVICES.items():
        assert f"{size}.00 GB" in show(*QWEN._replace(budget=name)).facts
    assert "7.50 GB: as you typed it" in show(*QWEN._replace(gigabytes=7.5)).facts


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": 1},
        {"context": 10**9},
        {"context": None},
        {"context": "many"},
        {"batch": 0},
        {"batch": True},
        {"gamma": -1},
        {"gamma": float("nan")},
        {"gigabytes": 0},
        {"gigabytes": "<b>"},
        {"budget": "<b>"},
        {"dtype": ["16 bits"]},
        {"quantisation": "2bit"},
        {"kv_dtype": None},
        {"caches": "none"},
        {"pairing": "<b>"},
        {"pairing": ["qwen3-8b"]},
        {"drafter": "<b>"},
    ],
)
def test_whatever_a_page_sends_becomes_one_sentence(show, wrong):
    shown = show(*QWEN._replace(**wrong))
    assert "sv-problem" in shown.verdict and "<b>" not in shown.verdict
    assert shown.parts == shown.facts == "" and not shown.figure.data


def test_a_configuration_that_is_not_here_is_said(show, monkeypatch):
    monkeypatch.setattr(configs, "_shapes", lambda: {"models": {}, "heads": {}})
    shown = show(*QWEN)
    assert "The configuration of Qwen3-8B is not on this machine" in shown.verdict and not shown.figure.data


def test_a_pairing_brings_its_drafters_and_a_drafter_its_draft():
    drafters, gamma = chooser(PAIRINGS)("qwen3-8b")
    assert drafters["value"] == QWEN.drafter and drafters["choices"][0] and gamma == QWEN.gamma
    assert chooser(PAIRINGS)("nothing") == [gr.skip(), gr.skip()]
    choose = gamma_chooser(PAIRINGS)
    assert choose("smollm2-135m", "No drafter") == 0 and choose("smollm2-135m", "Medusa heads") == 8
    assert choose("smollm2-135m", "nothing") == gr.skip()


def test_the_tab_is_made_and_none_of_its_events_is_public():
    models = Models(loaded.load, device="cpu", dtype="auto", offline=True)
    with gr.Blocks() as demo:
        memory_tab(Controls(Explorer(dict(PAIRINGS), models), {}, {}))
    assert demo.fns and all(event.api_visibility == "private" for event in demo.fns.values())
