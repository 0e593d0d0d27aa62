"""What the controls do to each other: examples, drafters, conversations, the model's state and the memory bar."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import fake_hub
import pytest
import torch
from stage import FORM, SCRIPT, Actor, explorer, headline, is_free, last, pieces, run

from specviz.drafters import COMBINED_MIN, DRAFTERS
from specviz.errors import UserError
from specviz.presets import DrafterPreset, load_pairings
from specviz.prompts import Turn
from specviz.recordings import load_examples, load_recordings
from specviz.ui import controls as module
from specviz.ui import drafting, form, handlers, offer
from specviz.ui.controls import Controls, Talk
from specviz.ui.drafting import Groups, Starts
from specviz.ui.form import Form
from specviz.ui.loading import Models
from specviz.ui.screens import SKIP, Screen

ANN = SimpleNamespace(session_hash="ann")
EXAMPLES, RECORDINGS = load_examples(), load_recordings()


def controls(before=lambda progress: None) -> tuple[Controls, object]:
    stage, loader = explorer(Actor(SCRIPT), before)
    return Controls(stage, EXAMPLES, RECORDINGS), loader


def example(made: Controls, id: str, prompt: str = "", history=()) -> tuple[list[object], Form, Talk, Screen]:
    """What the example's button returns, in parts: kept prompt, form, conversation, screen."""
    values = made.show_example(id, prompt, history, "smollm2-135m", ANN)
    start = 2 + len(Groups._fields)
    end = start + len(Form._fields)
    return values[:2], Form(*values[start:end]), Talk(*values[end : end + 4]), Screen(*values[end + 4 :])


def chosen(made: Controls, title: str, rule: str = "token") -> tuple[Groups, Starts]:
    """What choosing a drafter of the default pairing shows and sets."""
    values = made.choose_drafter("smollm2-135m", title, rule)
    return Groups(*values[: len(Groups._fields)]), Starts(*values[len(Groups._fields) :])


# --- examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", list(EXAMPLES))
def test_an_example_fills_the_form_with_what_its_recording_was_made_with(id):
    made, loader = controls()
    _, values, *_ = example(made, id)
    values = Form(*(each["value"] if isinstance(each, dict) and "value" in each else each for each in values))
    values = values._replace(pairing="smollm2-135m", precision="float32", measure=True)
    ask = form.read(values, load_pairings())
    recorded = RECORDINGS[id].trace.run
    assert (ask.prompt, ask.preset.kind) == (recorded.prompt_text, recorded.drafter)
    named = {name: value for name, value in recorded.drafter_settings.items() if name != "source"}
    assert {**ask.preset.defaults, **ask.drafter_settings}.items() >= named.items()
    settings = ask.settings
    sampler = {"logit_bias": {}} | {name: getattr(settings.sampler, name) for name in EXAMPLES[id].sampler}
    assert sampler == recorded.sampler
    assert (settings.gamma, settings.seed, settings.max_new_tokens) == (
        recorded.gamma,
        recorded.seed,
        recorded.max_new_tokens,
    )
    assert loader.calls == 0


@pytest.mark.parametrize("id", list(EXAMPLES))
def test_an_example_answers_at_once_with_its_recorded_run(id):
    made, _ = controls()
    *_, screen = example(made, id)
    card = json.loads(screen.verdict)
    assert card["source"]["kind"] == "recorded" and "float32" in card["source"]["text"]
    shown = [text for text, kind in pieces(screen.tokens) if kind != "rejected"]
    assert "".join(shown).startswith(RECORDINGS[id].trace.text)
    assert json.loads(screen.race)["recorded"] is True
    assert screen.exchange == (Turn(EXAMPLES[id].prompt, RECORDINGS[id].trace.text),)
    assert screen.stepping is None and screen.run is SKIP


def test_a_typed_prompt_that_an_example_replaces_can_be_had_back():
    made, _ = controls()
    kept, *_ = example(made, "code", "my own words")
    assert kept[0] == ("my own words", ()) and kept[1]["visible"] is True
    talk = (Turn("is it?", "yes"),)
    _, button, prompt, history, *_ = made.bring_back(("my own words", talk), EXAMPLES["code"].prompt, ())
    assert (prompt, history, button["visible"]) == ("my own words", talk, False)
    replaced, button, *_ = made.bring_back(("my own words", ()), "other words", ())
    assert replaced == ("other words", ()) and button["visible"] is True
    kept, *_ = example(made, "code", "", talk)
    assert kept[0] == ("", talk)  # a conversation is as much one's own
    for not_typed in ("", "  \n", EXAMPLES["editing"].prompt, None, "x" * (form.MAX_PROMPT + 1)):
        kept, *_ = example(made, "code", not_typed)
        assert kept[0] is SKIP or kept[0] == SKIP


def test_during_a_run_of_ones_own_an_example_changes_the_form_only():
    made, _ = controls()
    made.explorer.arrive(ANN)
    _, values, _, screen = example(made, "code")
    assert values.prompt == EXAMPLES["code"].prompt
    assert screen == Screen()


def test_a_recorded_run_keeps_its_drafters_name_whatever_pairing_is_chosen():
    made, _ = controls()
    here = json.loads(example(made, "translation")[3].verdict)
    assert here["source"]["text"].startswith("Early exit · gamma 3 · SmolLM2-135M-Instruct")
    elsewhere = made.show_example("translation", "", (), "smollm2-360m", ANN)[-len(Screen._fields) :]
    shown = json.loads(Screen(*elsewhere).verdict)
    assert shown["source"] == here["source"]
    assert shown["status"].startswith("Recorded with SmolLM2-135M-Instruct; Run uses SmolLM2-360M-Instruct.")


def test_a_drafter_of_the_pairing_before_changes_nothing():
    made, _ = controls()
    assert set(map(str, made.choose_drafter("qwen3-8b", "Early exit", "token"))) == {str(SKIP)}


def test_without_recordings_an_example_fills_the_form_only():
    stage, _ = explorer()
    _, values, _, screen = example(Controls(stage, EXAMPLES, {}), "code")
    assert values.prompt == EXAMPLES["code"].prompt and screen == Screen()


# --- conversations ------------------------------------------------------------------------------------------------


def test_a_follow_up_goes_on_from_what_was_said():
    stage, loader = explorer(Actor("yes"))
    made = Controls(stage, EXAMPLES, RECORDINGS)
    asked = FORM._replace(prompt="is it?", measure=False)
    exchange = last(run(stage, asked), "exchange")
    assert exchange == (Turn("is it?", "yes"),)
    prompt, *talk = made.follow_up(exchange)
    assert prompt == "" and talk[0] == exchange
    assert json.loads(talk[1])["lines"] == [["You", "is it?"], ["Target", "yes"]]
    screens = list(stage.explore(asked._replace(prompt="sure?"), threading.Event(), exchange))
    header = json.loads(str(last(screens, "tokens")).split("\n")[1])["run"]
    tokenizer = loader.loaded.target.tokenizer
    said = [("user", "is it?"), ("assistant", "yes"), ("user", "sure?")]
    messages = [{"role": role, "content": content} for role, content in said]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert header["prompt"] == list(whole)
    assert last(screens, "exchange") == (*exchange, Turn("sure?", "yes"))
    assert made.start_over().history == ()


def test_raw_text_is_continued_as_it_stands():
    stage, loader = explorer(Actor("no more"))
    asked = FORM._replace(prompt="once upon", template="raw", measure=False)
    exchange = last(run(stage, asked), "exchange")
    screens = list(stage.explore(asked._replace(prompt=" a time"), threading.Event(), exchange))
    header = json.loads(str(last(screens, "tokens")).split("\n")[1])["run"]
    assert header["chat_template"] is False
    assert loader.loaded.target.tokenizer.decode(header["prompt"]) == "once uponno more a time"


# --- drafters and pairings ----------------------------------------------------------------------------------------


def test_a_drafter_brings_its_settings():
    made, _ = controls()
    groups, starts = chosen(made, "Early exit")
    assert (groups.ngram["visible"], groups.exit["visible"], groups.rules["visible"]) == (False, True, True)
    assert starts.exit_layer == 24 and starts.gamma["value"] == 2
    groups, starts = chosen(made, "No drafter")
    assert starts.gamma["interactive"] is False and groups.rules["visible"] is False


def test_a_drafter_brings_its_shape_its_policy_and_its_threshold_and_the_rule_stays(monkeypatch):
    def sure(target, tree=False, nodes=8, branches=4, confidence=0.0): ...

    monkeypatch.setitem(DRAFTERS, "sure", sure)
    made, _ = controls()
    default = made.pairings["smollm2-135m"]
    tree = DrafterPreset("sure", "Tree", {"tree": True, "nodes": 12, "branches": 3, "confidence": 0.3}, "")
    both = DrafterPreset("ngram+sure", "Both", {"gamma": 6, "second_gamma": 3}, "")
    made.pairings["smollm2-135m"] = replace(default, drafters=(*default.drafters, tree, both))
    groups, starts = chosen(made, "Tree", rule="typical")
    assert (groups.shape["visible"], groups.tree["visible"], groups.second["visible"]) == (True, True, False)
    assert (starts.shape, starts.nodes["value"], starts.branches["value"]) == ("tree", 12, 3)
    assert starts.nodes["label"] == "Nodes at most" and not (starts.later_nodes["visible"] or groups.later["visible"])
    assert (starts.policy["value"], starts.confidence["value"]) == ("confidence", 0.3)
    assert starts.confidence["visible"] is True and starts.rule["value"] == "typical"
    assert chosen(made, "Tree", rule="block")[1].rule["value"] == "token"  # which trees don't have
    groups, starts = chosen(made, "Both", rule="block")
    assert (groups.shape["visible"], groups.tree["visible"], groups.second["visible"]) == (True, False, True)
    assert (starts.shape, starts.gamma["value"], starts.second_gamma) == ("chain", 6, 3)
    assert starts.ngram_min == COMBINED_MIN, "one token alone says too little where another drafter could draft"
    assert (starts.policy["value"], starts.confidence["visible"], starts.rule["value"]) == ("fixed", False, "block")


@pytest.fixture
def by_part(monkeypatch):
    """The controls, and a way to offer a combination of two drafters that know trees and confidence."""

    def sure(target, tree=False, nodes=8, branches=4, confidence=0.0): ...

    for kind in ("one", "other"):
        monkeypatch.setitem(DRAFTERS, kind, sure)
    made, _ = controls()
    default = made.pairings["smollm2-135m"]

    def offer(**defaults):
        settings = {name.replace("__", "."): value for name, value in defaults.items()}
        both = DrafterPreset("one+other", "Both", settings, "")
        made.pairings["smollm2-135m"] = replace(default, drafters=(*default.drafters, both))
        return chosen(made, "Both")

    return offer


def labelled(control):
    return control["label"], control["value"], control["visible"]


def test_parts_that_differ_have_a_control_each(by_part):
    groups, starts = by_part(tree=True, one__nodes=6, other__nodes=20, one__confidence=0.2, other__confidence=0.5)
    assert starts.shape == "tree" and groups.tree["visible"] is True
    assert labelled(starts.nodes) == ("Nodes at most: one", 6, True)
    assert labelled(starts.later_nodes) == ("Nodes at most: other", 20, True)
    assert labelled(starts.branches) == ("Branches per node", 4, True) and not starts.later_branches["visible"]
    assert labelled(starts.confidence) == ("Confidence threshold: one", 0.2, True)
    assert labelled(starts.later_confidence) == ("Confidence threshold: other", 0.5, True)
    assert (groups.later["visible"], starts.policy["value"]) == (True, "confidence")


def test_parts_that_agree_share_one_that_says_so(by_part):
    groups, starts = by_part(one__tree=True, other__tree=True, one__nodes=6, other__nodes=6, one__confidence=0.2)
    assert starts.shape == "tree" and labelled(starts.nodes) == ("Nodes at most: one and other", 6, True)
    assert not (starts.later_nodes["visible"] or groups.later["visible"])
    assert labelled(starts.confidence) == ("Confidence threshold: one", 0.2, True)


def test_a_number_for_all_is_that_of_the_parts_without_their_own(by_part):
    _, starts = by_part(tree=True, nodes=6, other__nodes=20)
    assert labelled(starts.nodes) == ("Nodes at most: one", 6, True)
    assert labelled(starts.later_nodes) == ("Nodes at most: other", 20, True)
    _, starts = by_part(tree=True, nodes=6)
    assert labelled(starts.nodes) == ("Nodes at most", 6, True) and not starts.later_nodes["visible"]


def test_both_thresholds_are_shown_by_confidence_alone():
    assert [each["visible"] for each in drafting.choose_policy("confidence")] == [True, True]
    assert [each["visible"] for each in drafting.choose_policy("adaptive")] == [False, False]


def test_what_does_not_go_together_is_not_offered():
    shown, rule = drafting.choose_shape("tree", "block")
    assert shown["visible"] is True
    assert (rule["choices"], rule["value"]) == ([("token by token", "token"), ("typical: lossy", "typical")], "token")
    shown, rule = drafting.choose_shape("chain", "typical")
    assert shown["visible"] is False
    assert [value for _, value in rule["choices"]] == ["token", "block", "typical"] and rule["value"] == "typical"
    plain = next(each for each in load_pairings()["smollm2-135m"].drafters if each.kind == "plain")
    assert [value for _, value in drafting.policies(plain, "fixed")["choices"]] == ["fixed", "adaptive"]


BIG = replace(load_pairings()["smollm2-135m"], id="big", title="Big", memory_mb=10**9)
GPU = replace(load_pairings()["smollm2-135m"], id="gpu", title="Fast", hardware="accelerator")


def test_every_pairing_is_listed_and_those_that_need_more_than_a_cpu_say_so():
    stage, _ = explorer()
    stage.models.device = "cpu"
    listed = {id: words for words, id in offer.choices(stage.pairings, stage.models)}
    assert list(listed) == list(load_pairings()) and len(listed) >= 12
    for id, pairing in stage.pairings.items():
        assert listed[id] == pairing.title + (" (needs a GPU)" if pairing.hardware == "accelerator" else "")
        lines = offer.facts(pairing)
        assert [name for name, _ in lines] == ["Target", *["Drafts"] * len({m.id for m in pairing.models[1:]}), "Needs"]
        assert all(model.licence in text for (_, text), model in zip(lines, pairing.models, strict=False))


def test_there_is_room_on_all_gpus_together_and_where_models_can_give_way(monkeypatch):
    stage, _ = explorer()
    qwen = stage.pairings["qwen3-8b"]
    needed, places = qwen.memory_mb * 10**6, [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(offer, "pick_device", lambda name: places[0])
    free = {place: needed // 2 for place in places}
    monkeypatch.setattr(offer, "free_memory", lambda device: free)
    assert offer.obstacle(qwen, stage.models) == ("", "")
    free[places[1]] -= 10**6
    assert offer.obstacle(qwen, stage.models).short == "needs 25.00 GB"
    monkeypatch.setattr(Models, "held_bytes", 10**6)
    assert offer.obstacle(qwen, stage.models) == ("", "")


def test_a_server_that_may_not_fetch_says_what_is_missing(monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path)
    stage, _ = explorer()
    stage.models.device, stage.models.offline = "cpu", True
    gpt2 = stage.pairings["gpt2"]
    words = dict((id, words) for words, id in offer.choices(stage.pairings, stage.models))
    assert words["gpt2"] == f"{gpt2.title} (not on this machine)"
    assert "may not fetch it (--offline)" in offer.obstacle(gpt2, stage.models).sentence


def test_what_is_large_waits_for_run(monkeypatch, tmp_path):
    fake_hub.use(monkeypatch, fake_hub.DEAD, tmp_path)
    made, loader = controls()
    made.explorer.models.device = "cpu"
    [status] = [json.loads(value) for value in made.watch("gpt2", "DistilGPT2", "default")]
    assert (status["state"], status["text"]) == ("waiting", "Run downloads GPT-2 first.") and loader.calls == 0


def test_a_base_model_is_given_raw_text_and_its_own_drafter():
    made, _ = controls()
    _, drafters, template, *rest = made.choose_pairing("gpt2", "token")
    assert (drafters["value"], template) == ("DistilGPT2", "raw")
    assert Starts(*rest[len(Groups._fields) :]).gamma["value"] == 2
    assert made.choose_pairing("smollm2-135m", "token")[2] == "chat"


@pytest.mark.parametrize(
    ("pairing", "why", "short"),
    [
        (BIG, "Big needs 1000000.00 GB of memory, and ", "needs 1000000.00 GB"),
        (GPU, "Fast needs a GPU, and this server has none.", "needs a GPU"),
    ],
)
def test_a_pairing_that_cannot_run_says_why_before_run_and_is_refused_after_it(pairing, why, short):
    stage, loader = explorer()
    stage.models.device = "cpu"
    stage.pairings[pairing.id] = pairing
    made = Controls(stage, EXAMPLES, RECORDINGS)
    assert (f"{pairing.title} ({short})", pairing.id) in offer.choices(made.pairings, stage.models)
    [[obstacle, tone]] = json.loads(made.choose_pairing(pairing.id, "token")[0])["headline"]
    assert obstacle.startswith(why) and tone == "error"
    status = [json.loads(value) for value in made.watch(pairing.id, "N-gram lookup", "default")]
    assert [each["state"] for each in status] == ["failed"] and status[0]["text"].startswith(why)
    screens = run(stage, FORM._replace(pairing=pairing.id))
    assert headline(screens).startswith(why) and headline(screens).endswith("Choose another pairing.")
    assert loader.calls == 0
    assert "headline" not in json.loads(made.choose_pairing("smollm2-135m", "token")[0])


# --- the model's state and its memory -----------------------------------------------------------------------------


def test_the_page_says_how_far_the_model_is():
    go = threading.Event()

    def slow(progress):
        progress("fetching the weights", 0.25)
        go.wait(10)

    made, loader = controls(slow)
    states = made.watch("smollm2-135m", "N-gram lookup", "default")
    assert any(json.loads(next(states)) == LOADING for _ in range(3))
    go.set()
    *_, ready = [json.loads(value) for value in states]
    assert ready == {"state": "ready", "text": "tiny actor is ready · float32", "fraction": None, "detail": ""}
    assert loader.calls == 1 and made.explorer.models.there(load_pairings()["smollm2-135m"]) == loader.loaded
    assert list(made.watch("no such", "N-gram lookup", "default")) == []


LOADING = {"state": "loading", "text": "fetching the weights", "fraction": 0.25, "detail": ""}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("The disk is full, so free some space."), "The disk is full, so free some space."),
        (RuntimeError("secret"), "The model can't be loaded; the server's log says why."),
    ],
)
def test_a_model_that_cannot_be_loaded_is_said_in_one_sentence(error, text):
    def fail(progress):
        raise error

    made, _ = controls(fail)
    *_, state = [json.loads(value) for value in made.watch("smollm2-135m", "N-gram lookup", "default")]
    assert (state["state"], state["text"], state["detail"]) == ("failed", text, module.STILL_THERE)


def test_the_memory_bar_stands_once_the_model_is_there_and_the_form_is_right():
    made, loader = controls()
    assert made.check_memory((), *FORM) == ""
    list(made.watch("smollm2-135m", "N-gram lookup", "default"))
    bar = json.loads(made.check_memory((), *FORM))
    assert bar["fits"] is True and [part["name"] for part in bar["parts"]] == ["target", "drafter", "KV cache", "rest"]
    more = json.loads(made.check_memory((), *FORM._replace(max_new_tokens=512)))
    assert more["parts"][2]["bytes"] > bar["parts"][2]["bytes"]
    wide = json.loads(made.check_memory((), *FORM._replace(shape="tree", nodes=64)))
    chain, tree = (each["parts"][-1]["bytes"] for each in (bar, wide))
    vocabulary = loader.loaded.target.vocab_size
    assert tree - chain >= (64 - FORM.gamma) * vocabulary * 4, "a row of logits for every node"
    assert made.check_memory((), *FORM._replace(prompt="")) == ""


def test_after_a_run_the_state_says_what_is_there_and_loads_nothing():
    made, loader = controls()
    asked = ("smollm2-135m", "N-gram lookup", "default")
    assert made.state(*asked) == SKIP and made.state("no such", *asked[1:]) == SKIP and loader.calls == 0
    list(made.watch(*asked))
    assert json.loads(made.state(*asked))["state"] == "ready" and loader.calls == 1
    assert made.state("smollm2-135m", "N-gram lookup", "float32") == SKIP


def test_stop_gives_a_download_up_for_which_nobody_else_waits():
    gone = threading.Event()

    def endless(progress):
        try:
            while True:
                progress("downloading", 0.5)
                time.sleep(0.01)
        finally:
            gone.set()

    made, _ = controls(endless)
    watching = made.watch("smollm2-135m", "N-gram lookup", "default")
    next(watching)
    for others_wait in (True, False):
        stop = threading.Event()
        screens = made.explorer.explore(FORM, stop)
        assert "downloading" in json.loads(next(screens).verdict)["headline"][0][0]
        stop.set()
        *_, ended = screens
        assert json.loads(str(ended.verdict))["headline"][0][0] == "Stopped before the first token"
        assert gone.wait(0.3 if others_wait else 10) is not others_wait
        watching.close()


def test_a_run_that_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    stage, loader = explorer()
    budget = handlers.runs.budget
    monkeypatch.setattr(handlers.runs, "budget", lambda prepared: replace(budget(prepared), available=0))
    screens = run(stage)
    assert headline(screens).startswith("This run needs about ") and "KV cache" in headline(screens)
    assert json.loads(str(last(screens, "memory")))["fits"] is False
    assert is_free(loader) and all(screen.tokens is SKIP for screen in screens)
