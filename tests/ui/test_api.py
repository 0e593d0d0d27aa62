"""The endpoints, called as programs call them: by gradio_client and by plain HTTP, on a server of their own."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import browser as chromium
import gradio as gr
import httpx
import pytest
from browser import wait_until
from gradio_client import Client
from gradio_client.client import Job
from gradio_client.exceptions import AppError
from stage import PAIRING, SCRIPT, Actor, Loader, explorer, made, timeless

from specviz import measure, trace
from specviz.drafters import DRAFTERS, Plain
from specviz.errors import Cancelled, UserError
from specviz.presets import DrafterPreset, load_pairings
from specviz.ui import answers, api, build_demo, form, handlers, versus
from specviz.ui.asked import Settings, read
from specviz.ui.handlers import Explorer
from specviz.ui.visits import Visits
from specviz.ui.work import here

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROMPT = "to be or not to be"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Actor, Loader]]:
    actor = Actor(SCRIPT)
    loader = Loader(actor)
    with chromium.served(build_demo(loader=loader)) as address:
        yield address, actor, loader


@pytest.fixture
def server(served: tuple[str, Actor, Loader]) -> Iterator[tuple[str, Actor, Loader]]:
    """Its address, and the actor ready to start."""
    address, actor, loader = served
    actor.play(SCRIPT)
    yield address, actor, loader
    actor.delay = 0.0
    wait_until(lambda: not loader.loaded.lock.locked())


@contextmanager
def program(address: str) -> Iterator[Client]:
    with closing(Client(address, verbose=False)) as client:
        yield client


@pytest.fixture(scope="module")
def one_client(served: tuple[str, Actor, Loader]) -> Iterator[Client]:
    with program(served[0]) as client:
        yield client


@pytest.fixture
def client(server: tuple[str, Actor, Loader], one_client: Client) -> Client:
    """A program's connection to the server, with the actor ready to start."""
    return one_client


def complaint(client: Client, endpoint: str, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(AppError) as refused:
        client.predict(*arguments, api_name=endpoint, **settings)
    return str(refused.value)


def news(job: Job) -> str:
    """What the program has been told so far of how far its run is."""
    return "\n".join(str(told.get("status")) for told in job.outputs())


# --- what programs are told of the endpoints -----------------------------------------------------------------


def test_three_endpoints_are_offered_and_every_part_of_them_is_described(server):
    described = httpx.get(f"{server[0]}gradio_api/info").json()["named_endpoints"]
    assert list(described) == ["/presets", "/run", "/compare"]
    for name, endpoint in described.items():
        assert len(endpoint["description"]) > 60, name
        for part in (*endpoint["parameters"], *endpoint["returns"]):
            assert len(part["python_type"]["description"]) > 20 and part["python_type"]["type"] != "Any", (name, part)


def test_names_types_and_defaults_of_a_run(server):
    info = httpx.get(f"{server[0]}gradio_api/info").json()["named_endpoints"]["/run"]["parameters"]
    shown = [(each["parameter_name"], each["parameter_default"], each["python_type"]["type"]) for each in info]
    assert shown == [
        ("prompt", None, "str"),
        ("pairing", PAIRING, "str"),
        ("drafter", None, "None | str"),
        ("gamma", None, "None | int"),
        ("max_new_tokens", 128, "int"),
        ("temperature", 0, "float"),
        ("top_k", 0, "int"),
        ("top_p", 1, "float"),
        ("min_p", 0, "float"),
        ("repetition_penalty", 1, "float"),
        ("seed", 0, "int"),
        ("stop", "", "str"),
        ("raw_prompt", None, "None | bool"),
        ("exit_layer", None, "None | int"),
        ("ngram_min", None, "None | int"),
        ("ngram_max", None, "None | int"),
        ("ngram_pick", "recent", "str"),
        ("tree", None, "None | bool"),
        ("nodes", None, "None | int"),
        ("branches", None, "None | int"),
        ("second_gamma", None, "None | int"),
        ("gamma_policy", None, "None | str"),
        ("confidence", None, "None | float"),
        ("rule", "token", "str"),
        ("float32", False, "bool"),
        ("measure", True, "bool"),
        ("trace", False, "bool"),
    ]
    assert [each["parameter_has_default"] for each in info] == [False] + [True] * 26


def test_both_runs_of_a_comparison_take_the_settings_of_a_run(server):
    of_run = set(inspect.signature(api.Api.run).parameters) - {"self", "request", "prompt", "measure", "trace"}
    info = httpx.get(f"{server[0]}gradio_api/info").json()["named_endpoints"]["/compare"]["parameters"]
    assert [each["parameter_name"] for each in info] == ["prompt", "first", "second"]
    assert of_run == set(Settings.__annotations__) == set(api.USUAL)
    assert all(set(side["type"]["properties"]) == of_run for side in info[1:])


def test_the_limits_that_are_told_are_those_that_hold(server):
    info = httpx.get(f"{server[0]}gradio_api/info").json()["named_endpoints"]["/run"]["parameters"]
    told = {each["parameter_name"]: each["python_type"]["description"] for each in info}
    limits = {
        "prompt": f"at most {form.MAX_PROMPT:,} characters and {form.MAX_PROMPT_TOKENS:,} tokens",
        "gamma": f"0 to {form.MAX_GAMMA}",
        "max_new_tokens": f"1 to {form.MAX_TOKENS}",
        "temperature": f"up to {form.MAX_TEMPERATURE},",
        "top_k": f"up to {form.MAX_TOP_K:,}",
        "repetition_penalty": f"{form.MIN_PENALTY} to {form.MAX_PENALTY}",
        "stop": f"at most {form.MAX_STOPS} of {form.MAX_STOP} characters",
        "ngram_min": f"1 to {form.MAX_NGRAM}",
        "measure": {3: "three times"}[handlers.REPEATS],
    }
    assert {name: text for name, text in limits.items() if text not in told[name]} == {}
    assert handlers.TURN_SECONDS == 120  # "two minutes"


# --- presets ------------------------------------------------------------------------------------------------


def test_presets_are_the_pairings_of_the_page(client):
    listed = client.predict(api_name="/presets")
    pairings = load_pairings()
    assert [each["id"] for each in listed] == list(pairings)
    default = listed[0]
    assert default["runs_here"] is True and default["reason"] == "" and default["hardware"] == "cpu"
    repo = "HuggingFaceTB/SmolLM2-135M-Instruct"
    target = {"name": "SmolLM2-135M-Instruct", "repo": repo, "licence": "Apache-2.0", "gated": False}
    assert default["target"] == target and default["memory_mb"] == pairings[PAIRING].memory_mb
    ngram = next(each for each in default["drafters"] if each["kind"] == "ngram")
    assert ngram["defaults"] == {"ngram_min": 1, "ngram_max": 3, "gamma": 5} and ngram["model"] is None
    with_models = [each["model"] for pairing in listed for each in pairing["drafters"] if each["model"]]
    assert with_models and all(set(each) == set(target) for each in with_models)


def test_presets_say_what_cannot_run_here_and_running_it_says_the_same(client, monkeypatch):
    monkeypatch.setattr("specviz.memory.available_bytes", lambda device: 10**6)
    listed = client.predict(api_name="/presets")
    first = listed[0]
    assert first["runs_here"] is False and first["reason"].startswith(f"{first['title']} needs ")
    other = next(each for each in listed if each["hardware"] == "cpu" and each["id"] != PAIRING)
    said = complaint(client, "/run", PROMPT, pairing=other["id"])
    assert said == f"{other['reason']} Choose another pairing."


# --- a run --------------------------------------------------------------------------------------------------

KEYS = [
    *("schema", "text", "tokens", "finish_reason", "lossless", "rule", "warnings", "acceptance", "timing"),
    *("cost_ratio", "verify_cost", "memory", "baseline", "run"),
]


def test_a_run_is_the_run_of_the_library_token_by_token(server, client):
    answer = client.predict(PROMPT, max_new_tokens=24, trace=True, api_name="/run")
    expected = made(server[2].loaded, PROMPT, max_new_tokens=24)
    assert timeless(trace.parse(answer["trace"].split("\n"))) == timeless(expected)
    assert list(answer) == [*KEYS, "trace"]
    assert answer["text"] == expected.text == SCRIPT[:24] and answer["tokens"] == list(expected.tokens)
    assert answer["acceptance"]["accepted"] == sum(step.num_accepted for step in expected.steps) > 0
    assert answer["warnings"] == [] and answer["memory"]["estimated"] > 0


def test_a_run_is_measured_against_plain_decoding_unless_that_is_switched_off(client):
    answer = client.predict(PROMPT, max_new_tokens=24, api_name="/run")
    baseline = answer["baseline"]
    assert baseline["repeats"] == 3 and baseline["identical"] is True and baseline["first_divergence"] is None
    assert baseline["spread"][0] <= baseline["speedup"] <= baseline["spread"][1] and baseline["tokens_per_s"] > 0
    assert answer["cost_ratio"] > 0 and "trace" not in answer
    alone = client.predict(PROMPT, max_new_tokens=24, measure=False, api_name="/run")
    assert alone["baseline"] is None and alone["cost_ratio"] is None and alone["tokens"] == answer["tokens"]


def test_every_setting_reaches_the_run(server, client):
    server[1].play(None)
    sampler = {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.25}
    ngram = {"ngram_min": 2, "ngram_max": 4, "ngram_pick": "frequent"}
    settings = {"gamma": 3, "max_new_tokens": 9, "seed": 7, "stop": "one\nt\\two", "raw_prompt": True}
    run = client.predict(PROMPT, measure=False, **sampler, **ngram, **settings, api_name="/run")["run"]
    assert run["sampler"] == {**sampler, "logit_bias": {}}
    assert run["drafter"] == "ngram"
    assert run["drafter_settings"] == {"ngram_min": 2, "ngram_max": 4, "pick": "frequent"}
    assert [run[name] for name in ("gamma", "max_new_tokens", "seed")] == [3, 9, 7]
    assert run["stop_strings"] == ["one", "t\two"] and run["chat_template"] is False
    exits = client.predict(PROMPT, drafter="Early exit", exit_layer=2, max_new_tokens=2, measure=False, api_name="/run")
    assert exits["run"]["drafter_settings"] == {"exit_layer": 2, "adapter": False}
    assert exits["run"]["gamma"] == 2  # its own default


def test_where_nothing_is_given_the_drafter_has_its_own_defaults():
    pairings = load_pairings()
    ask = read("x", api.USUAL, pairings, measure=True)
    assert (ask.preset.kind, ask.settings.gamma, ask.dtype, ask.measure) == ("ngram", 5, None, True)
    ask = read("x", {**api.USUAL, "drafter": "early-exit", "float32": True}, pairings, measure=False)
    assert (ask.preset.title, ask.settings.gamma, ask.dtype, ask.measure) == (
        "Early exit with adapter",
        2,
        "float32",
        False,
    )
    assert ask.drafter_settings == {"exit_layer": 15}
    assert read("x", {**api.USUAL, "gamma": 0}, pairings, measure=True).settings.gamma == 0
    raw = {id: read("x", {**api.USUAL, "pairing": id}, pairings, measure=True).raw for id in pairings}
    assert raw == {id: not pairing.chat for id, pairing in pairings.items()} and len(set(raw.values())) == 2
    chosen = {**api.USUAL, "pairing": next(id for id in raw if raw[id]), "raw_prompt": False}
    assert read("x", chosen, pairings, measure=True).raw is False


def test_rule_policy_and_tree_arrive_or_are_the_drafters_own(monkeypatch):
    def sure(target, tree=False, nodes=8, branches=4, confidence=0.0): ...

    monkeypatch.setitem(DRAFTERS, "sure", sure)
    default = load_pairings()[PAIRING]
    preset = DrafterPreset("sure", "Sure", {"tree": True, "nodes": 12, "confidence": 0.3}, "")
    pairings = {PAIRING: replace(default, drafters=(preset,))}

    def asked(**settings):
        return read("x", {**api.USUAL, **settings}, pairings, measure=True)

    assert asked().drafter_settings == {"tree": True, "nodes": 12, "branches": 4, "confidence": 0.3}
    assert asked(tree=False, gamma_policy="fixed", rule="block").drafter_settings == {}
    assert asked(confidence=0.9, nodes=3).drafter_settings == {
        "tree": True,
        "nodes": 3,
        "branches": 4,
        "confidence": 0.9,
    }
    adaptive = asked(gamma_policy="adaptive", rule="typical")
    assert (adaptive.settings.gamma_policy, adaptive.settings.rule) == ("adaptive", "typical")
    assert "confidence" not in adaptive.drafter_settings


@pytest.mark.parametrize(
    ("drafter", "settings", "sentence"),
    [
        ("plain", {"rule": "garbage"}, "No drafter has no use for rule; leave it out, or choose another drafter."),
        ("plain", {"gamma_policy": "garbage"}, "No drafter has no use for gamma_policy; "),
        ("plain", {"confidence": "abc"}, "No drafter has no use for confidence; "),
        ("plain", {"ngram_pick": "frequent"}, "No drafter has no use for ngram_pick; "),
        ("ngram", {"exit_layer": 7}, "N-gram lookup has no use for exit_layer; "),
        ("ngram", {"second_gamma": 3}, "N-gram lookup has no use for second_gamma; "),
        ("ngram", {"nodes": "abc"}, "nodes shapes a tree, and a chain is drafted; set tree to true, or leave it out."),
        ("ngram", {"branches": 2, "tree": False}, "branches shapes a tree, and a chain is drafted; "),
        ("ngram", {"nodes": "abc", "tree": True}, "The tree's number of nodes is abc; give a whole number from 1 to "),
        ("early-exit", {"nodes": 4}, "{title} has no use for nodes; "),
        ("early-exit", {"ngram_min": 1}, "{title} has no use for ngram_min; "),
        ("early-exit", {"confidence": []}, "The confidence threshold is []; give a number from 0 to 1."),
        ("early-exit", {"confidence": {}}, "The confidence threshold is {{}}; give a number from 0 to 1."),
        ("early-exit", {"confidence": False}, "The confidence threshold is False; give a number from 0 to 1."),
        ("early-exit", {"confidence": ""}, "The confidence threshold is missing; give a number from 0 to 1."),
        (
            "early-exit",
            {"confidence": 0.5, "gamma_policy": "fixed"},
            "confidence is of the policy confidence, not fixed; leave one of them out.",
        ),
        ("early-exit", {"confidence": 0, "gamma_policy": "adaptive"}, "confidence is of the policy confidence, not "),
        ("early-exit", {"confidence": 0.5, "gamma_policy": ["fixed"]}, "Choose what decides on the draft length: "),
    ],
)
def test_a_setting_that_is_given_in_vain_is_refused(drafter, settings, sentence):
    pairings = load_pairings()
    title = next(preset.title for preset in pairings[PAIRING].drafters if preset.kind == drafter)
    with pytest.raises(UserError) as refused:
        read("x", {**api.USUAL, "drafter": drafter, **settings}, pairings, measure=True)
    assert str(refused.value).startswith(sentence.format(title=title)) and "\n" not in str(refused.value)


def test_every_drafter_takes_what_it_has_a_use_for():
    pairings = load_pairings()
    for pairing in pairings.values():
        for preset in pairing.drafters:
            known = {"pairing": pairing.id, "drafter": preset.title, "rule": "token", "tree": False}
            assert read("x", {**api.USUAL, **known}, pairings, measure=True).preset == preset

    def asked(drafter: str, **settings: Any) -> dict[str, Any]:
        return read("x", {**api.USUAL, "drafter": drafter, **settings}, pairings, measure=True).drafter_settings

    assert asked("early-exit", confidence=0.5, gamma_policy="confidence")["confidence"] == 0.5
    assert "confidence" not in asked("early-exit", confidence=0)
    assert (
        asked("ngram+eagle", ngram_max=4, second_gamma=1, tree=True, nodes=5, confidence=0.2).items()
        >= {
            "ngram_max": 4,
            "second_gamma": 1,
            "nodes": 5,
            "confidence": 0.2,
        }.items()
    )


def test_a_number_is_for_all_parts_and_each_keeps_its_own_where_none_is_given(monkeypatch):
    def sure(target, tree=False, nodes=8, branches=4): ...

    monkeypatch.setitem(DRAFTERS, "sure", sure)
    default, own = load_pairings()[PAIRING], {"tree": True, "ngram.nodes": 6, "sure.nodes": 20}
    pairings = {PAIRING: replace(default, drafters=(DrafterPreset("ngram+sure", "Both", own, ""),))}
    for nodes, expected in ((None, own), (9, {**own, "ngram.nodes": 9, "sure.nodes": 9})):
        settings = read("x", {**api.USUAL, "nodes": nodes}, pairings, measure=True).drafter_settings
        assert {name: settings[name] for name in own} == expected


def test_a_run_by_plain_http_tells_how_far_it_is_and_ends_with_the_answer(server):
    address, actor, loader = server
    actor.delay = 0.2
    asked = {"prompt": PROMPT, "max_new_tokens": 20, "measure": False}
    id = httpx.post(f"{address}gradio_api/call/v2/run", json=asked).json()["event_id"]
    events = httpx.get(f"{address}gradio_api/call/run/{id}", timeout=60).text.strip().split("\n\n")
    told = [json.loads(event.partition("data: ")[2])[0] for event in events if event.startswith("event: generating")]
    assert any(re.match(r"decoding: \d+ of at most 20 tokens", each.get("status", "")) for each in told[:-1])
    assert told[-1]["tokens"] == list(made(loader.loaded, PROMPT, max_new_tokens=20).tokens)
    assert events[-1].startswith("event: complete")
    assert json.loads(events[-1].partition("data: ")[2])[0] == told[-1]


# --- two runs compared --------------------------------------------------------------------------------------


def test_two_drafters_are_compared_with_plain_decoding_and_with_each_other(server, client):
    server[1].play(None, delay=0.005)  # every verify pass costs the same, so that passes decide
    of_each = {"max_new_tokens": 20}
    answer = client.predict(
        PROMPT, {"drafter": "ngram", **of_each}, {"drafter": "The target itself", **of_each}, api_name="/compare"
    )
    first, second = answer["first"], answer["second"]
    of_both = ["speed_ratio", "spread", "repeats", "tokens", "identical", "first_divergence", "notes"]
    assert list(answer) == ["first", "second", *of_both]
    assert list(first) == list(second) == KEYS
    assert (first["run"]["drafter"], second["run"]["drafter"]) == ("ngram", "draft-model")
    assert second["acceptance"]["steps"] == 4 and first["acceptance"]["steps"] > 10
    assert [side["baseline"]["repeats"] for side in (first, second)] == [3, 3]
    assert first["baseline"]["identical"] is True is second["baseline"]["identical"]
    assert answer["repeats"] == 3 and answer["tokens"] == 20
    assert answer["spread"][0] <= answer["speed_ratio"] <= answer["spread"][1]
    assert answer["speed_ratio"] > 1.2
    assert answer["identical"] is True and answer["first_divergence"] is None and answer["notes"] == []


def side_by_side(first: dict[str, Any], second: dict[str, Any], stage: Explorer) -> dict[str, Any]:
    """Two runs compared without a server."""
    asks = [read(PROMPT, {**api.USUAL, **settings}, stage.pairings, measure=False) for settings in (first, second)]
    work = versus.compared(*asks, stage, threading.Event())
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def test_the_ratio_is_that_of_the_seconds_per_token_in_the_same_repeat(monkeypatch):
    stage, _ = explorer()
    kept = []
    speeds = versus.summary.speeds
    monkeypatch.setattr(versus.summary, "speeds", lambda *sides: kept.extend(sides) or speeds(*sides))
    answer = side_by_side({"max_new_tokens": 12}, {"gamma": 1, "max_new_tokens": 12}, stage)
    ratios = [slow / fast for slow, fast in zip(kept[0].speculative_s, kept[1].speculative_s, strict=True)]
    assert len(ratios) == 3 and answer["speed_ratio"] == median(ratios)
    assert answer["spread"] == [min(ratios), max(ratios)]


def test_first_second_and_plain_are_timed_in_turns_to_the_same_number_of_tokens(monkeypatch):
    stage, _ = explorer()
    order: list[tuple[str, int, bool]] = []
    decode = measure.decode

    def noted(target, drafter, prompt, settings, **how):
        name = "plain" if isinstance(drafter, Plain) else f"gamma {settings.gamma}"
        order.append((name, settings.max_new_tokens, how["phases"]))
        return decode(target, drafter, prompt, settings, **how)

    monkeypatch.setattr(measure, "decode", noted)
    answer = side_by_side({"gamma": 1, "max_new_tokens": 20}, {"gamma": 2, "max_new_tokens": 9}, stage)
    names = [name for name, _, _ in order]
    one, two, plain = "gamma 1", "gamma 2", "plain"
    assert names[:4] == [one, two, plain, plain]  # to warm up
    assert names[4:8] == [plain, one, plain, two]
    assert names[8:12] == [two, plain, one, plain]
    assert names[12:16] == [plain, one, plain, two]
    assert Counter(names[16:]) == {plain: 2, one: 1, two: 1} and all(phases for _, _, phases in order[16:])
    assert {tokens for _, tokens, _ in order} == {9} == {answer["tokens"]}


def test_outputs_of_other_settings_are_not_compared_and_that_is_said():
    stage, _ = explorer()
    answer = side_by_side({"max_new_tokens": 20}, {"max_new_tokens": 9}, stage)
    assert answer["identical"] is None is answer["first_divergence"] and answer["repeats"] == 3
    assert answer["notes"] == [
        "The runs differ in more than their drafting. So the outputs are not compared.",
        "Both were timed, and compared with plain decoding, over 9 tokens.",
    ]
    sampled = {"temperature": 1.0, "max_new_tokens": 5}
    answer = side_by_side(sampled, sampled, stage)
    assert answer["identical"] is None and "differs by chance" in answer["notes"][0]


def test_outputs_under_a_lossy_rule_are_not_compared():
    stage, _ = explorer()
    answer = side_by_side({"max_new_tokens": 5}, {"max_new_tokens": 5, "rule": "typical"}, stage)
    assert answer["notes"] == ["Typical acceptance is lossy. So the outputs are not compared."]
    answer = side_by_side({"max_new_tokens": 5}, {"max_new_tokens": 5, "rule": "block"}, stage)
    assert answer["notes"] == [] and answer["identical"] is True


def test_where_greedy_outputs_part_is_told(monkeypatch):
    actor = Actor("to be x")
    stage, _ = explorer(actor)
    run = Explorer.made

    def made_up(self, ask, history, stop):
        """A rule that is not lossless would do this."""
        actor.play({1: "to be x", 2: "to be y"}[ask.settings.gamma])
        return (yield from run(self, ask, history, stop))

    monkeypatch.setattr(Explorer, "made", made_up)
    answer = side_by_side({"gamma": 1, "max_new_tokens": 7}, {"gamma": 2, "max_new_tokens": 7}, stage)
    x, y = (actor.tokenizer.encode(letter)[0] for letter in "xy")
    assert answer["identical"] is False
    # The target now says y, with a logit of 20, and x has one of -20.
    parting = {"index": 6, "first": x, "second": y, "margin": -40.0, "near_tie": False}
    assert answer["first_divergence"] == parting


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"pairing": "smollm2-360m"}, r"^first has the target SmolLM2-135M-Instruct and second has SmolLM2-360M-"),
        ({"float32": True}, "^The two runs have different number formats"),
        ({"raw_prompt": True}, "^The two runs read the prompt differently"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(second, why):
    stage, loader = explorer()
    with pytest.raises(UserError, match=why):
        side_by_side({}, second, stage)
    assert loader.calls == 0


def test_where_every_run_has_a_gpu_of_its_own_nothing_is_compared():
    stage, loader = explorer()
    stage = Explorer(stage.pairings, stage.models, worker=lambda *run: here(*run))
    with pytest.raises(UserError, match="ZeroGPU lends a GPU for one run at a time"):
        side_by_side({}, {}, stage)
    assert loader.calls == 0


# --- limits and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompt": ["a", "list"]}, "The prompt is no text; give a string."),
        ({"prompt": " "}, "The prompt is empty; type something, or choose an example."),
        ({"prompt": "x" * 8001}, "The prompt has 8,001 characters; this page takes 8,000, so shorten it."),
        ({"prompt": "é" * 1100}, "The prompt has 2,200 tokens; this page takes 2,048, so shorten it."),
        ({"max_new_tokens": 10**9}, "The number of new tokens is 1000000000; give a whole number from 1 to 512."),
        ({"gamma": 2.5}, "The draft length is 2.5; give a whole number from 0 to 16."),
        ({"temperature": "hot"}, "The temperature is hot; give a number from 0 to 2."),
        ({"seed": True}, "The seed is True; give a whole number from 0 to 2,147,483,647."),
        ({"stop": ["a"]}, "The stop strings are no text; write one per line."),
        ({"ngram_pick": {}}, "Choose which match to follow: recent or frequent."),
        ({"rule": {}}, "Choose an acceptance rule: token, block, typical."),
        ({"gamma_policy": "long"}, "Choose what decides on the draft length: fixed, confidence, adaptive."),
        ({"tree": 1}, "tree is 1; give true or false."),
        ({"drafter": "No drafter", "tree": True}, "No drafter drafts chains only; leave tree out, or choose another"),
        ({"float32": "yes"}, "float32 is 'yes'; give true or false."),
        ({"measure": 1}, "measure is 1; give true or false."),
        ({"trace": None}, "trace is None; give true or false."),
        ({"pairing": {"id": PAIRING}}, "There is no pairing {'id': 'smollm2-135m'}; choose one of: smollm2-135m, "),
        ({"pairing": "/etc"}, "There is no pairing '/etc'; choose one of: smollm2-135m, "),
        ({"drafter": "magic"}, "SmolLM2 135M Instruct has no drafter 'magic'; choose one of: No drafter, N-gram "),
        ({"confidence": 0.5}, "N-gram lookup has no use for confidence; leave it out, or choose another drafter."),
        ({"drafter": "Early exit", "exit_layer": 4}, "The exit layer is 4; this target has 4 layers, so give 1 to 3."),
    ],
)
def test_what_is_wrong_with_a_run_comes_as_one_sentence(client, settings, sentence):
    said = complaint(client, "/run", **{"prompt": PROMPT, **settings})
    assert said.startswith(sentence) and said.count("\n") == 0


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ([], {}, "first holds no settings; give them by name, "),
        ({}, None, "second holds no settings; give them by name, "),
        ({}, {"gama": 3}, "second has the unknown setting 'gama'; there are: pairing, drafter, gamma, "),
        ({"prompt": "another"}, {}, "first has the unknown setting 'prompt'; there are: "),
        ({}, {"gamma": 99}, "second: The draft length is 99; give a whole number from 0 to 16."),
    ],
)
def test_what_is_wrong_with_a_comparison_says_with_which_run(client, first, second, sentence):
    assert complaint(client, "/compare", PROMPT, first, second).startswith(sentence)


def test_a_number_that_is_none_is_refused(server):
    asked = f'{{"prompt": "{PROMPT}", "temperature": NaN}}'
    headers = {"content-type": "application/json"}
    id = httpx.post(f"{server[0]}gradio_api/call/v2/run", content=asked, headers=headers).json()["event_id"]
    assert (
        "The temperature is nan; give a number from 0 to 2." in httpx.get(f"{server[0]}gradio_api/call/run/{id}").text
    )


def test_of_an_unexpected_error_the_log_has_the_details_and_the_program_a_sentence(server, client, monkeypatch, caplog):
    loader = server[2]
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(loader.loaded.target, "verify", lambda *_: 1 / 0)
        assert complaint(client, "/run", PROMPT) == answers.FAILED
    assert "ZeroDivisionError" in caplog.text
    assert client.predict(PROMPT, measure=False, api_name="/run")["text"] == SCRIPT


def test_a_run_that_takes_longer_than_a_turn_ends_and_says_so(server, client, monkeypatch):
    server[1].delay = 0.05
    monkeypatch.setattr(handlers, "TURN_SECONDS", 0.3)
    answer = client.predict(PROMPT, gamma=0, api_name="/run")
    assert answer["finish_reason"] == "cancelled" and answer["baseline"] is None
    assert re.match(r"The time limit of 0 s ended the run after \d+ steps?\.$", answer["warnings"][0])
    monkeypatch.setattr(handlers, "TURN_SECONDS", 0.6)
    answer = client.predict(PROMPT, max_new_tokens=6, gamma=1, api_name="/run")
    assert answer["finish_reason"] == "length"
    assert re.match(r"The time limit of 1 s ended the measuring after \d of 3 repeats\.$", answer["warnings"][0])
    two = client.predict(PROMPT, {"gamma": 0}, {"gamma": 0}, api_name="/compare")
    assert two["speed_ratio"] is None is two["identical"] and two["repeats"] == 0
    assert two["notes"] == ["A run was ended by the time limit. So the outputs are not compared."]


# --- stopping, leaving, waiting ----------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["decoding", "measuring"])
def test_cancelling_the_job_frees_the_model_within_a_step(server, client, moment):
    _, actor, loader = server
    actor.delay = 0.03
    job = client.submit(PROMPT, max_new_tokens=50, api_name="/run")
    wait_until(lambda: moment in news(job))
    actor.delay = 0.3
    wait_until(loader.loaded.lock.locked)
    passes = actor.passes
    job.cancel()
    wait_until(lambda: not loader.loaded.lock.locked())
    assert actor.passes <= passes + 2  # the one under way, and one while the news travels
    time.sleep(2 * actor.delay)
    assert not loader.loaded.lock.locked()


def test_a_program_that_is_killed_stops_its_run(server):
    address, actor, loader = server
    actor.play(None, delay=0.1)
    call = f"Client({address!r}).predict({PROMPT!r}, max_new_tokens=500, api_name='/run')"
    killed = subprocess.Popen([sys.executable, "-c", f"from gradio_client import Client; {call}"])
    try:
        wait_until(lambda: actor.passes > 3)
    finally:
        killed.kill()
    killed.wait()
    passes = actor.passes
    wait_until(lambda: not loader.loaded.lock.locked())
    assert actor.passes <= passes + 3 * answers.NEWS_SECONDS / actor.delay


def test_so_does_a_program_without_a_session_that_hangs_up(server):
    """Nothing tells that it has gone but that nobody takes the news any more."""
    address, actor, loader = server
    actor.play(None, delay=0.1)
    asked = {"prompt": PROMPT, "max_new_tokens": 500}
    id = httpx.post(f"{address}gradio_api/call/v2/run", json=asked).json()["event_id"]
    with httpx.stream("GET", f"{address}gradio_api/call/run/{id}", timeout=60) as told:
        next(line for line in told.iter_lines() if "decoding" in line)
    passes = actor.passes
    wait_until(lambda: not loader.loaded.lock.locked())
    assert actor.passes <= passes + 3 * answers.NEWS_SECONDS / actor.delay


def test_two_programs_take_turns_and_get_their_own_tokens_only(server):
    address, actor, loader = server
    actor.play(None, delay=0.1)
    settings = {"max_new_tokens": 30, "measure": False, "api_name": "/run"}
    with program(address) as ann, program(address) as ben:
        of_ann = ann.submit("ann says", **settings)
        wait_until(lambda: "decoding" in news(of_ann))
        of_ben = ben.submit("ben says", **settings)
        wait_until(lambda: "Waiting: another run is using the model, you are next" in news(of_ben))
        actor.delay = 0.0
        answers = [job.result()["tokens"] for job in (of_ann, of_ben)]
    expected = [made(loader.loaded, f"{name} says", max_new_tokens=30) for name in ("ann", "ben")]
    assert answers == [list(each.tokens) for each in expected] and answers[0] != answers[1]


def test_a_client_has_one_run_at_a_time(server, client):
    server[1].delay = 0.1
    first = client.submit(PROMPT, max_new_tokens=50, api_name="/run")
    wait_until(lambda: "decoding" in news(first))
    second = client.submit(PROMPT, max_new_tokens=12, measure=False, api_name="/run")
    with pytest.raises(AppError, match=re.escape(answers.STOPPED)):
        first.result()
    assert second.result()["text"] == SCRIPT[:12]


# --- how an answer is made ----------------------------------------------------------------------------------


def answered(work: Callable[[threading.Event], answers.Work]) -> list[answers.Answer]:
    """What a caller is told, asked for in a context of its own."""

    async def ask() -> list[answers.Answer]:
        ASKER.set("ann")
        with ThreadPoolExecutor(1) as threads:
            return [told async for told in answers.answers(work, Visits(), "ann", threads)]

    with ThreadPoolExecutor(1) as other:  # in this thread a loop may be running, that of the browser
        return other.submit(asyncio.run, ask()).result()


ASKER: ContextVar[str] = ContextVar("whose request it is", default="nobody")


def test_the_work_knows_whose_request_it_is():
    def work(stop: threading.Event) -> answers.Work:
        yield from ()
        return {"asker": ASKER.get()}

    assert answered(work) == [{"asker": "ann"}]


def test_a_run_that_ends_before_its_first_token_is_no_fault_of_the_caller():
    def work(stop: threading.Event) -> answers.Work:
        yield from ()
        raise Cancelled

    with pytest.raises(gr.Error) as refused:
        answered(work)
    assert refused.value.message == answers.CUT_SHORT and not refused.value.print_exception


# --- the README ---------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_script_of_the_readme_runs_against_the_app(capsys):
    script = re.search(r"<!-- the client -->\n```python\n(.*?)```", README, re.DOTALL)
    assert script is not None, "the README has no script after its marker"
    assert len(script[1].splitlines()) <= 10
    with chromium.served(build_demo(device="cpu", dtype="float32")) as address:
        local = script[1].replace("http://127.0.0.1:7860/", address)
        assert local != script[1]
        exec(compile(local, "the script of the README", "exec"), {})
    said = capsys.readouterr().out
    assert re.match(r"Runs here: \['smollm2-135m'", said)
    assert re.search(r"at \d+\.\d+ times the speed", said)
    assert re.search(r"Early exit over n-gram lookup: \d+\.\d+, same output: True", said)
