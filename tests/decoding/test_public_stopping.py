"""Bugs reported in other engines (stopping and length, text and prompts), one test each; the docstring says where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import (
    VOCAB,
    byte_tokenizer,
    reference_decode,
    tiny_target,
)
from public_cases import PROMPT, SAMPLED, SETTINGS, every_drafter, every_kind, run, timeless, tokens
from scripted import Replay, ScriptedTarget
from traces import RUN

from specviz.decoding.stopping import Ending
from specviz.drafters import DraftModel, NGram, Plain
from specviz.errors import UserError
from specviz.models.text import TextStream
from specviz.models.text import decode as decoded
from specviz.prompts import encode
from specviz.trace import Trace


@pytest.mark.parametrize("place", range(16))
def test_a_stop_token_accepted_inside_a_draft_ends_the_run(place):
    """transformers#47912, transformers#48981: generation went on after an end token in the middle of a block."""
    target = tiny_target("gpt2")
    reference = reference_decode(target.model, PROMPT, 16)
    stop = frozenset({reference[place]})
    expected = reference[: reference.index(reference[place]) + 1]
    steps = run(target, DraftModel(target, target.model), replace(SETTINGS, gamma=6, stop_tokens=stop))
    assert tokens(steps) == expected and steps[-1].cut == "stop_token"
    left_over = [node for node in steps[-1].nodes if node.depth > len(steps[-1].committed)]
    assert all(node.outcome == "cut" for node in left_over)


@pytest.mark.parametrize("budget", range(1, 4 + 3))
def test_the_budget_is_never_exceeded(budget):
    """transformers#47195: prompt lookup went beyond max_new_tokens. Budgets 1 to gamma + 2."""
    target = tiny_target("mixed")
    prompt = [3, 7, 7, 7, 7]
    steps = run(target, NGram(target), replace(SETTINGS, max_new_tokens=budget), prompt)
    assert tokens(steps) == reference_decode(target.model, prompt, budget)
    assert steps[-1].cut == "length"


@pytest.mark.parametrize("named", [None, 12, [12, 20], []])
def test_a_model_may_name_no_end_token_one_or_several(named):
    """transformers#46790: a crash where the model has no end token."""
    target = tiny_target()
    reference = reference_decode(target.model, PROMPT, 16)
    assert 12 in reference, "choose an end token that the target says"
    target.model.generation_config.eos_token_id = named
    steps = run(target, NGram(target), replace(SETTINGS, stop_tokens=None))
    assert tokens(steps) == (reference[: reference.index(12) + 1] if named else reference)
    assert steps[-1].cut == ("stop_token" if named else "length")


def test_a_stop_token_copied_from_the_prompt_ends_nothing_unless_the_target_says_it():
    """transformers#31301: lookup copied the end token from an earlier turn, and what followed it."""
    target = tiny_target()
    reference = reference_decode(target.model, [1, 2, 12, 1, 2], 16)
    unsaid = next(token for token in range(VOCAB) if token not in reference)
    for stop in (12, unsaid):
        prompt = [1, 2, stop, 1, 2, stop, 1, 2]
        expected = reference_decode(target.model, prompt, 16, frozenset({stop}))
        steps = run(target, NGram(target), replace(SETTINGS, stop_tokens=frozenset({stop})), prompt)
        assert steps[0].nodes[0].token == stop, "the end token should have been drafted"
        assert tokens(steps) == expected


@pytest.mark.parametrize(
    ("cap", "kept", "reason"), [(5, 3, "stop_token"), (3, 3, "stop_token"), (2, 2, "length"), (6, 3, "stop_token")]
)
def test_the_earliest_end_within_the_budget_wins(cap, kept, reason):
    """sglang#31599, sglang#33758: the cap was checked before the stop, so tokens leaked and the reason was wrong."""
    stop = 30
    burst = [10, 11, stop, 20, 21, 22]
    cut = Ending(TextStream(None, []), cap, frozenset({stop}), ()).cut(burst)
    assert list(cut.committed) == burst[:kept] and cut.reason == reason
    target = ScriptedTarget(burst, 2)
    steps = run(target, Replay(burst, 2), replace(SETTINGS, max_new_tokens=cap, stop_tokens=frozenset({stop})), [1, 2])
    assert tokens(steps) == burst[:kept] and steps[-1].cut == reason


@pytest.mark.parametrize("offset", range(10))
def test_a_stop_string_early_in_a_long_accepted_run_is_found(offset):
    """sglang#23802: only the end of the new text was searched. Every offset, across the step boundary too."""
    text = "." * offset + "STOP" + "." * 10
    script = list(byte_tokenizer().encode(text))
    target = ScriptedTarget(script, 1, byte_tokenizer())
    steps = run(target, Replay(script, 1, target.vocab_size), replace(SETTINGS, gamma=6, stop_strings=("STOP",)), [65])
    assert steps[-1].cut == "stop_string" and len(steps) <= 3
    assert "".join(piece for step in steps for piece in step.text) == text[: offset + 4]


@every_kind
def test_ids_text_and_trace_end_at_the_same_place(kind):
    """vllm#47616: the text was trimmed at a stop string, token ids and log probabilities were not."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    prompt = list(byte_tokenizer().encode("abcabc"))
    full = tokens(run(target, Plain(), SETTINGS, prompt))
    for place in range(1, len(full) - 1):
        stop = decoded(byte_tokenizer(), full[place : place + 1])
        if "\ufffd" in stop:
            continue
        steps = run(target, every_drafter(target)[kind], replace(SETTINGS, stop_strings=(stop,)), prompt)
        assert "".join(piece for step in steps for piece in step.text) == decoded(byte_tokenizer(), tokens(steps))
        end, count = steps[-1], len(tokens(steps))
        assert end.cut == "stop_string" and count <= place + 1
        assert tokens(steps) == full[:count] and full[count - 1] == full[place]
        assert len(end.text) == len(end.committed)
        assert len(end.decisions) == len(end.committed), "a decision is shown for a token that was cut away"
        assert sum(node.outcome == "accepted" for node in end.nodes) + bool(end.last) == len(end.committed)


@every_kind
@pytest.mark.parametrize("settings", [SETTINGS, SAMPLED])
def test_what_follows_a_stopped_run_equals_a_fresh_start(kind, settings):
    """onnxruntime-genai#2528: random state, cache and counters must go back to the token that was kept."""
    target = tiny_target()
    drafter = every_drafter(target)[kind]
    said = tokens(run(target, drafter, settings))
    stopped = run(target, drafter, replace(settings, stop_tokens=frozenset({said[5]})))
    turn = [*PROMPT, *tokens(stopped), 9, 8]
    going_on = timeless(run(target, drafter, settings, turn))
    afresh = tiny_target()
    fresh = timeless(run(afresh, every_drafter(afresh)[kind], settings, turn))
    assert [step.committed for step in going_on] == [step.committed for step in fresh]
    assert [[node.outcome for node in step.nodes] for step in going_on] == [
        [node.outcome for node in step.nodes] for step in fresh
    ]


@pytest.mark.parametrize("gamma", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("shift", range(5))
def test_characters_split_by_an_accept_boundary_or_a_rollback_are_never_shown_broken(gamma, shift):
    """dynamo#12630: replacement characters from decoding token by token."""
    text = "안녕 👩‍💻 é한글 😀"
    script = list(byte_tokenizer().encode(text))
    target = ScriptedTarget(script, 2, byte_tokenizer())
    wrong = frozenset(range(shift, len(script), 5))  # rejections inside characters
    settings = replace(SETTINGS, gamma=gamma, max_new_tokens=len(script))
    steps = run(target, Replay(script, 2, target.vocab_size, wrong), settings, [65, 66])
    pieces = [piece for step in steps for piece in step.text]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text == decoded(byte_tokenizer(), tokens(steps))
    assert Trace(RUN, tuple(steps)).text == text
    assert "" in pieces, "no character was split, so nothing was shown"


def test_an_empty_prompt_is_refused():
    """No public report: prompt lookup needs two tokens, a page may send none."""
    target = tiny_target(tokenizer=byte_tokenizer(), vocab_size=259)
    with pytest.raises(UserError, match="The prompt is empty; give it at least one token"):
        run(target, NGram(target), SETTINGS, [])
    for nothing, raws in (("", (True, False)), ("  \n\t", (False,))):  # white space is a prompt of its own if raw
        for raw in raws:
            with pytest.raises(UserError, match="The prompt is empty; type something"):
                encode(target, nothing, raw=raw)


@every_kind
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mixed"])
def test_a_prompt_of_one_token_works(architecture, kind):
    """No public report: there is nothing to prefill, and nothing to look up."""
    target = tiny_target(architecture)
    steps = run(target, every_drafter(target)[kind], SETTINGS, [7])
    assert tokens(steps) == reference_decode(target.model, [7], 16)
