"""The limits hold on the server too, whatever a browser or another client sends."""

from __future__ import annotations

import pytest
from stage import FORM, explorer, headline, is_ready, run

from specviz.decoding.sampling import Sampler
from specviz.presets import load_pairings
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
    assert ask.drafter_settings == {"exit_layer": 3}


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
