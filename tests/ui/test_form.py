"""The limits hold on the server too, whatever a browser or another client sends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from stage import FORM, explorer, headline, is_ready, run

from specviz.decoding.sampling import Sampler
from specviz.drafters import DRAFTERS
from specviz.errors import UserError
from specviz.presets import DrafterPreset, load_pairings
from specviz.ui import form
from specviz.ui.screens import SKIP


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": ""}, "The prompt is empty; type something, or choose an example."),
        ({"prompt": " \n\t"}, "The prompt is empty; type something, or choose an example."),
        ({"prompt": None}, "The prompt is empty; type something, or choose an example."),
        ({"prompt": "x" * 8001}, "The prompt has 8,001 characters; this page takes 8,000, so shorten it."),
        ({"prompt": "a\ud800"}, "Character 2 of the prompt is only half a character; delete it."),
        ({"pairing": "gpt-9"}, "Choose a pairing of the list."),
        ({"pairing": ["smollm2-135m"]}, "Choose a pairing of the list."),
        ({"drafter": "EAGLE"}, "Choose a drafter that is offered for SmolLM2 135M Instruct."),
        ({"gamma": 17}, "The draft length is 17; give a whole number from 0 to 16."),
        ({"gamma": -1}, "The draft length is -1; give a whole number from 0 to 16."),
        ({"gamma": 2.5}, "The draft length is 2.5; give a whole number from 0 to 16."),
        ({"gamma": True}, "The draft length is True; give a whole number from 0 to 16."),
        ({"temperature": 2.1}, "The temperature is 2.1; give a number from 0 to 2."),
        ({"temperature": float("nan")}, "The temperature is nan; give a number from 0 to 2."),
        ({"temperature": float("inf")}, "The temperature is inf; give a number from 0 to 2."),
        ({"gamma": 10**5000}, "The draft length is far out of range; give a whole number from 0 to 16."),
        ({"temperature": "hot"}, "The temperature is hot; give a number from 0 to 2."),
        ({"max_new_tokens": 0}, "The number of new tokens is 0; give a whole number from 1 to 512."),
        ({"max_new_tokens": 513}, "The number of new tokens is 513; give a whole number from 1 to 512."),
        ({"seed": None}, "The seed is missing; give a whole number from 0 to 2,147,483,647."),
        ({"seed": -1}, "The seed is -1; give a whole number from 0 to 2,147,483,647."),
        ({"seed": 0.5}, "The seed is 0.5; give a whole number from 0 to 2,147,483,647."),
        ({"seed": -1.0}, "The seed is -1; give a whole number from 0 to 2,147,483,647."),
        ({"ngram_min": 0.6}, "The shortest match is 0.6; give a whole number from 1 to 16."),
        ({"ngram_max": 1.5}, "The longest match is 1.5; give a whole number from 1 to 16."),
        ({"ngram_min": 0}, "The shortest match is 0; give a whole number from 1 to 16."),
        ({"ngram_max": 17}, "The longest match is 17; give a whole number from 1 to 16."),
        ({"ngram_min": 4}, "The shortest match (4) is longer than the longest (3); swap them."),
        ({"pick": "best"}, "Choose which match to follow: recent or frequent."),
        ({"rule": "greedy"}, "Choose an acceptance rule: token, block, typical."),
        ({"rule": {}}, "Choose an acceptance rule: token, block, typical."),
        ({"policy": "long"}, "Choose what decides on the draft length: fixed, confidence, adaptive."),
        ({"top_k": 1001}, "Top-k is 1001; give a whole number from 0 to 1,000."),
        ({"top_p": 0}, "Top-p is 0; give a number from 0.05 to 1."),
        ({"min_p": None}, "Min-p is missing; give a number from 0 to 1."),
        ({"penalty": 3}, "The repetition penalty is 3; give a number from 0.5 to 2."),
        ({"stops": ["a"]}, "The stop strings are no text; write one per line."),
        ({"stops": "a\nb\nc\nd\ne"}, "There are 5 stop strings; give at most 4, one per line."),
        ({"stops": "x" * 41}, f"The stop string “{'x' * 40}…” is too long; give at most 40 characters."),
        ({"template": "poem"}, "Choose how the prompt is read: chat or raw."),
        ({"precision": "int2"}, "Choose a number format: default or float32."),
    ],
)
def test_every_limit_is_checked_here_with_one_sentence_and_no_model(change, sentence):
    stage, loader = explorer()
    screens = run(stage, FORM._replace(**change))
    assert [headline(screens), len(screens), loader.calls] == [sentence, 1, 0]
    assert is_ready(screens[0]) and screens[0].tokens is SKIP  # what was shown stays


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 16},
        {"gamma": 0},
        {"temperature": 2},
        {"top_k": 1000},
        {"top_p": 0.05},
        {"min_p": 1},
        {"penalty": 2},
        {"max_new_tokens": 512},
        {"seed": 2**31 - 1},
    ],
)
def test_the_limits_themselves_are_allowed(change):
    form.read(FORM._replace(**change), load_pairings())


def test_settings_of_other_drafters_are_neither_checked_nor_passed_on():
    ask = form.read(FORM._replace(drafter="Early exit", ngram_min=99, exit_layer=3), load_pairings())
    assert ask.drafter_settings == {"exit_layer": 3, "adapter": False}, "as its preset has it"


def test_the_target_itself_and_the_shipped_draft_model_stay_what_they_are():
    for title, source in (("The target itself", "self"), ("Small draft model", "shipped")):
        ask = form.read(FORM._replace(drafter=title), load_pairings())
        assert ask.drafter_settings == {"source": source}


SURE = DrafterPreset("sure", "Sure", {"tree": True, "nodes": 12, "confidence": 0.3, "exit_layer": 2}, "")
BOTH = replace(SURE, kind="ngram+sure", title="Both", defaults={"gamma": 5})


@pytest.fixture
def pairings(monkeypatch):
    """One pairing, with a drafter that has every setting, a combination with it, and plain decoding."""

    def sure(target, tree=False, nodes=8, branches=4, confidence=0.0, exit_layer=1): ...

    monkeypatch.setitem(DRAFTERS, "sure", sure)
    default = load_pairings()["smollm2-135m"]
    plain = next(each for each in default.drafters if each.kind == "plain")
    return {default.id: replace(default, drafters=(plain, SURE, BOTH))}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shape": "bush"}, "Choose the draft's shape: chain or tree."),
        ({"shape": "tree", "nodes": 0}, "The tree's number of nodes is 0; give a whole number from 1 to 64."),
        ({"shape": "tree", "nodes": 65}, "The tree's number of nodes is 65; give a whole number from 1 to 64."),
        ({"shape": "tree", "branches": 17}, "The number of branches is 17; give a whole number from 1 to 16."),
        ({"policy": "confidence", "confidence": 1.1}, "The confidence threshold is 1.1; give a number from 0 to 1."),
        (
            {"shape": "tree", "rule": "block"},
            "Block verification decides over a chain; choose the draft shape chain, or another rule.",
        ),
        (
            {"drafter": "Both", "second_gamma": 0},
            "The second drafter's draft length is 0; give a whole number from 1 to 16.",
        ),
    ],
)
def test_the_drafters_limits_are_checked_with_one_sentence(pairings, change, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        form.read(FORM._replace(drafter="Sure")._replace(**change), pairings)


def test_what_the_controls_say_of_tree_and_confidence_counts_not_the_presets_defaults(pairings):
    chain = form.read(FORM._replace(drafter="Sure", nodes=99, confidence=9), pairings)
    assert chain.drafter_settings == {"exit_layer": 2}
    assert (chain.settings.rule, chain.settings.gamma_policy) == ("token", "fixed")
    asked = FORM._replace(drafter="Sure", shape="tree", policy="confidence", rule="typical")
    tree = form.read(asked, pairings)
    assert tree.drafter_settings == {"exit_layer": 2, "tree": True, "nodes": 8, "branches": 4, "confidence": 0.4}
    assert (tree.settings.rule, tree.settings.gamma_policy) == ("typical", "fixed")  # the drafter itself ends early
    adaptive = form.read(FORM._replace(drafter="Sure", policy="adaptive", rule="block"), pairings)
    assert (adaptive.settings.rule, adaptive.settings.gamma_policy) == ("block", "adaptive")
    both = form.read(FORM._replace(drafter="Both", shape="tree", second_gamma=2), pairings)
    ngram = {"ngram_min": 1, "ngram_max": 3, "pick": "recent"}
    assert both.drafter_settings == {**ngram, "second_gamma": 2, "tree": True, "nodes": 8, "branches": 4}


def test_what_a_preset_sets_for_one_part_is_set_for_that_part_only(pairings):
    defaults = {"sure.tree": True, "sure.nodes": 20, "sure.confidence": 0.2, "sure.exit_layer": 3}
    (id, pairing), title = next(iter(pairings.items())), BOTH.title
    pairings[id] = replace(pairing, drafters=(replace(BOTH, defaults=defaults),))
    asked = FORM._replace(drafter=title, shape="tree", nodes=5, policy="confidence")
    settings = form.read(asked, pairings).drafter_settings
    assert {name: value for name, value in settings.items() if name not in ("ngram_min", "ngram_max", "pick")} == {
        "sure.tree": True,
        "sure.nodes": 5,
        "branches": 4,
        "sure.confidence": 0.4,
        "sure.exit_layer": 3,
        "second_gamma": 4,
    }
    assert "sure.tree" not in form.read(FORM._replace(drafter=title), pairings).drafter_settings
    with pytest.raises(UserError, match="Block verification decides over a chain"):
        form.read(asked._replace(rule="block"), pairings)


def by_part(pairings, **defaults):
    """The tree's settings of a combination of two such drafters, whose preset has these defaults."""
    (id, pairing), settings = next(iter(pairings.items())), {k.replace("__", "."): v for k, v in defaults.items()}
    pairings[id] = replace(pairing, drafters=(replace(BOTH, kind="sure+other", defaults=settings),))
    asked = FORM._replace(drafter=BOTH.title, shape="tree", nodes=5, later_nodes=7, branches=2, later_branches=3)
    found = form.read(asked._replace(policy="confidence", confidence=0.1, later_confidence=0.9), pairings)
    chain = form.read(FORM._replace(drafter=BOTH.title), pairings).drafter_settings
    assert not any(value for name, value in chain.items() if name != "second_gamma" and "exit" not in name)
    return {name: value for name, value in found.drafter_settings.items() if name not in ("second_gamma", "exit_layer")}


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        (
            {"sure__nodes": 6, "other__nodes": 20},
            {"tree": True, "sure.nodes": 5, "other.nodes": 7, "branches": 2, "confidence": 0.1},
        ),
        (
            {"sure__nodes": 6, "other__nodes": 6, "sure__branches": 3, "other__branches": 4},
            {
                **{"tree": True, "sure.nodes": 5, "other.nodes": 5},
                **{"sure.branches": 2, "other.branches": 3, "confidence": 0.1},
            },
        ),
        (
            {"nodes": 6, "other__nodes": 20, "sure__confidence": 0.3, "other__confidence": 0.5},
            {
                **{"tree": True, "nodes": 5, "other.nodes": 7, "branches": 2},
                **{"sure.confidence": 0.1, "other.confidence": 0.9},
            },
        ),
        (
            {"sure__tree": False, "other__tree": True, "other__nodes": 20},
            {"sure.tree": False, "other.tree": True, "other.nodes": 5, "branches": 2, "confidence": 0.1},
        ),
    ],
)
def test_each_part_gets_what_its_control_says(pairings, monkeypatch, defaults, expected):
    monkeypatch.setitem(DRAFTERS, "other", lambda target, tree, nodes, branches, confidence: None)
    assert by_part(pairings, **defaults) == expected


def test_of_three_parts_that_differ_the_third_stays_as_it_is_and_is_off_with_the_others(pairings, monkeypatch):
    for kind in ("other", "third"):
        monkeypatch.setitem(DRAFTERS, kind, lambda target, tree, nodes, confidence: None)
    (id, pairing), kinds = next(iter(pairings.items())), ("sure", "other", "third")
    defaults = {f"{kind}.confidence": value for kind, value in zip(kinds, (0.3, 0.5, 0.7), strict=True)}
    pairings[id] = replace(pairing, drafters=(replace(BOTH, kind="+".join(kinds), defaults=defaults),))
    asked = FORM._replace(drafter=BOTH.title, policy="confidence", confidence=0.1, later_confidence=0.9)
    settings = form.read(asked, pairings).drafter_settings
    assert [settings[f"{kind}.confidence"] for kind in kinds] == [0.1, 0.9, 0.7]
    assert form.read(asked._replace(policy="fixed"), pairings).drafter_settings == {"second_gamma": 4}


def test_a_setting_that_the_preset_has_for_the_one_part_that_takes_it_follows_its_control(pairings):
    (id, pairing), defaults = next(iter(pairings.items())), {"ngram.ngram_min": 2, "sure.exit_layer": 2}
    pairings[id] = replace(pairing, drafters=(replace(BOTH, defaults=defaults),))
    asked = FORM._replace(drafter=BOTH.title, ngram_min=3, ngram_max=4)
    settings = form.read(asked, pairings).drafter_settings
    assert settings == {"ngram.ngram_min": 3, "ngram_max": 4, "pick": "recent", "sure.exit_layer": 2, "second_gamma": 4}


def test_plain_decoding_has_neither_rule_nor_policy(pairings):
    plain = form.read(FORM._replace(drafter="No drafter", rule="typical", policy="confidence"), pairings)
    assert (plain.drafter_settings, plain.settings.rule) == ({}, "token")


def test_a_policy_that_the_drafter_has_not_is_refused(pairings, monkeypatch):
    monkeypatch.setitem(DRAFTERS, "sure", lambda target, exit_layer=1: None)
    sentence = "Sure is never more or less sure of a token; choose another draft length policy."
    with pytest.raises(UserError, match=f"^{sentence}$"):
        form.read(FORM._replace(drafter="Sure", policy="confidence"), pairings)
    assert form.read(FORM._replace(drafter="Sure", shape="tree"), pairings).drafter_settings == {"exit_layer": 2}


def test_every_setting_of_the_sampler_arrives():
    asked = FORM._replace(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, penalty=1.1, seed=7)
    settings = form.read(asked, load_pairings()).settings
    assert settings.sampler == Sampler(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1)
    assert settings.seed == 7


def test_stop_strings_are_lines_and_may_hold_new_lines():
    ask = form.read(FORM._replace(stops="END\n\n\\n\\n\na\\tb"), load_pairings())
    assert ask.settings.stop_strings == ("END", "\n\n", "a\tb")
    assert form.read(FORM._replace(stops=None), load_pairings()).settings.stop_strings == ()


def test_the_prompts_form_and_the_number_format_arrive():
    ask = form.read(FORM._replace(template="raw", precision="float32"), load_pairings())
    assert ask.raw and ask.dtype == "float32"
    ask = form.read(FORM, load_pairings())
    assert not ask.raw and ask.dtype is None
