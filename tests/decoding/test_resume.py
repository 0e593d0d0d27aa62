"""A run made one step at a time, left and gone on with after each, is the run made in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes import byte_tokenizer, tiny_model, tiny_target
from scripted import Replay, ScriptedTarget

from specviz import runs
from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, Drafter, DraftModel, EarlyExit, NGram, Plain
from specviz.loaded import Loaded
from specviz.models.target import Target
from specviz.presets import pairing
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
OTHER = [9, 8, 7, 9, 8]
ASKED = Settings(gamma=3, max_new_tokens=14, stop_tokens=frozenset())
KINDS = ("plain", "ngram", "early-exit", "draft-model")
SAMPLERS = {
    "sampled": Sampler(temperature=1.0),
    "hot, top-p": Sampler(temperature=1.5, top_p=0.8),
    "penalty": Sampler(temperature=1.0, repetition_penalty=1.4),
}


def drafter(kind: str, target: Target) -> Drafter:
    if kind == "plain":
        return Plain()
    if kind == "ngram":
        return NGram(target)
    if kind == "early-exit":
        return EarlyExit(target, 3)
    related = tiny_model("llama")
    with torch.no_grad():
        related.lm_head.weight.add_(0.5 * torch.randn(related.lm_head.weight.shape))
    return DraftModel(target, related)


class Stepped:
    """A run of which nothing is kept between two steps but the steps themselves and the generator's state."""

    def __init__(self, target: Any, drafter: Drafter, prompt: Sequence[int], settings: Settings) -> None:
        self.target, self.drafter, self.prompt, self.settings = target, drafter, list(prompt), settings
        self.done: list[Step] = []
        self.state = torch.Generator().manual_seed(settings.seed).get_state()

    def step(self, restore: bool = True) -> bool:
        """Make one step; whether there was one to make."""
        rng = torch.Generator().manual_seed(self.settings.seed)
        if restore:
            rng.set_state(self.state)
        run = decode(self.target, self.drafter, self.prompt, self.settings, done=tuple(self.done), rng=rng)
        step = next(run, None)
        run.close()
        self.state = rng.get_state()
        self.done += [step] if step else []
        return step is not None

    def all(self, restore: bool = True) -> list[Step]:
        for _ in range(self.settings.max_new_tokens + 1):  # a run that never ends is told by its steps
            if not self.step(restore):
                break
        return self.done


def whole(target: Any, drafter: Drafter, prompt: Sequence[int], settings: Settings) -> list[Step]:
    return list(decode(target, drafter, prompt, settings))


def told(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    """All of the steps that is exact: what was read in other portions differs by rounding in its probabilities."""
    return [
        (
            *(step.index, step.start, step.gamma_asked, step.gamma_used),
            tuple((node.token, node.parent, node.outcome, node.r) for node in step.nodes),
            *(step.path, step.last and (step.last.token, step.last.text, step.last.kind)),
            *(step.committed, step.text, step.cut, step.rerun, step.note, len(step.decisions)),
        )
        for step in steps
    ]


# --- the same run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "sliding", "hybrid"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy(kind, architecture):
    target = tiny_target(architecture)
    expected = whole(target, drafter(kind, target), PROMPT, ASKED)
    assert told(Stepped(target, drafter(kind, target), PROMPT, ASKED).all()) == told(expected)
    assert sum(len(step.committed) for step in expected) == 14 and expected[-1].cut == "length"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", KINDS)
def test_sampled(kind, sampler, seed):
    target = tiny_target()
    settings = replace(ASKED, sampler=SAMPLERS[sampler], seed=seed)
    expected = whole(target, drafter(kind, target), PROMPT, settings)
    assert told(Stepped(target, drafter(kind, target), PROMPT, settings).all()) == told(expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_on_a_recurrent_target(kind, seed):
    target = tiny_target("hybrid")
    settings = replace(ASKED, sampler=SAMPLERS["sampled"], seed=seed)
    expected = whole(target, drafter(kind, target), PROMPT, settings)
    assert told(Stepped(target, drafter(kind, target), PROMPT, settings).all()) == told(expected)


@pytest.mark.parametrize("kind", ["early-exit", "draft-model"])
def test_the_sampled_runs_hold_what_they_are_to_prove(kind):
    """Draft tokens accepted and rejected, and probabilities that agree though they were computed anew."""
    target = tiny_target()
    outcomes = set()
    for seed in range(5):
        settings = replace(ASKED, sampler=SAMPLERS["sampled"], seed=seed)
        expected = whole(target, drafter(kind, target), PROMPT, settings)
        stepped = Stepped(target, drafter(kind, target), PROMPT, settings).all()
        for mine, theirs in zip(stepped, expected, strict=True):
            assert [node.p for node in mine.nodes] == pytest.approx([node.p for node in theirs.nodes], abs=1e-4)
            assert [node.q for node in mine.nodes] == pytest.approx([node.q for node in theirs.nodes], abs=1e-4)
        outcomes |= {node.outcome for step in expected for node in step.nodes}
    assert {"accepted", "rejected", "untested"} <= outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_generators_state_it_is_another_run(kind):
    """The control: each step would draw the same numbers again."""
    target = tiny_target()
    differing = 0
    for seed in range(10):
        settings = replace(ASKED, sampler=Sampler(temperature=1.5), seed=seed)
        expected = whole(target, drafter(kind, target), PROMPT, settings)
        differing += told(Stepped(target, drafter(kind, target), PROMPT, settings).all(restore=False)) != told(expected)
    assert differing == 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_in_one_go(kind):
    target = tiny_target()
    settings = replace(ASKED, sampler=SAMPLERS["sampled"], seed=6)
    expected = whole(target, drafter(kind, target), PROMPT, settings)
    for count in range(len(expected)):
        stepped = Stepped(target, drafter(kind, target), PROMPT, settings)
        for _ in range(count):
            stepped.step()
        rng = torch.Generator()
        rng.set_state(stepped.state)
        rest = decode(target, drafter(kind, target), PROMPT, settings, done=stepped.done, rng=rng)
        assert told([*stepped.done, *rest]) == told(expected), count


def test_without_a_generator_it_begins_with_the_seed():
    target = tiny_target()
    settings = replace(ASKED, sampler=SAMPLERS["sampled"], seed=3)
    done = whole(target, Plain(), PROMPT, settings)[:4]
    first = next(decode(target, Plain(), PROMPT, settings, done=done))
    seeded = next(decode(target, Plain(), PROMPT, settings, done=done, rng=torch.Generator().manual_seed(3)))
    other = next(decode(target, Plain(), PROMPT, settings, done=done, rng=torch.Generator().manual_seed(4)))
    assert told([first]) == told([seeded]) != told([other])


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_in_turns_do_not_disturb_each_other(kind):
    """On one target, with one drafter: the second prompt is read between any two steps of the first."""
    target = tiny_target()
    shared = drafter(kind, target)
    asked = {0: (PROMPT, 1), 1: (OTHER, 2)}
    settings = {key: replace(ASKED, sampler=SAMPLERS["sampled"], seed=seed) for key, (_, seed) in asked.items()}
    expected = {key: whole(target, drafter(kind, target), asked[key][0], settings[key]) for key in asked}
    stepped = {key: Stepped(target, shared, asked[key][0], settings[key]) for key in asked}
    for _ in range(ASKED.max_new_tokens):
        for run in stepped.values():
            run.step()
    for key in asked:
        assert told(stepped[key].done) == told(expected[key])


# --- where it ends -------------------------------------------------------------------------------------------------


def scripted(text: str, break_at: int) -> tuple[ScriptedTarget, Drafter, list[int]]:
    """A target that says the text, byte by byte, and drafts of it with one wrong byte: a step ends with that one."""
    tokenizer = byte_tokenizer()
    prompt, script = tokenizer.encode("Hi"), tokenizer.encode(text)
    target = ScriptedTarget(script, len(prompt), tokenizer)
    return target, Replay(script, len(prompt), len(tokenizer), wrong=frozenset({break_at})), prompt


def test_a_stop_string_that_spans_two_steps():
    text = "one two END three"
    target, draft, prompt = scripted(text, break_at=text.index("N"))
    settings = Settings(gamma=4, max_new_tokens=len(text), stop_strings=("END",))
    expected = whole(target, draft, prompt, settings)
    said = ["".join(step.text) for step in expected]
    assert "".join(said) == "one two END" and not any("END" in piece for piece in said)
    assert expected[-1].cut == "stop_string"
    assert told(Stepped(target, draft, prompt, settings).all()) == told(expected)
    # The control: read as a longer prompt, the beginning of the stop string is forgotten.
    committed = [token for step in expected[:-1] for token in step.committed]
    anew = whole(target, draft, [*prompt, *committed], replace(settings, max_new_tokens=len(text) - len(committed)))
    assert anew[-1].cut == "length"


def test_a_character_whose_bytes_span_two_steps():
    text = "a😀b🎈c"
    target, draft, prompt = scripted(text, break_at=2)  # the second of the four bytes of 😀
    settings = Settings(gamma=4, max_new_tokens=len(text.encode()))
    expected = whole(target, draft, prompt, settings)
    assert ["".join(step.text) for step in expected[:2]] == ["a", "😀b"]
    stepped = Stepped(target, draft, prompt, settings).all()
    assert told(stepped) == told(expected)
    assert "".join(piece for step in stepped for piece in step.text) == text


def test_half_a_character_at_the_end_is_said_at_the_end():
    """What was held back from earlier steps is part of the last step's text."""
    target, draft, prompt = scripted("a😀", break_at=2)
    settings = Settings(gamma=1, max_new_tokens=4)
    expected = whole(target, draft, prompt, settings)
    assert len(expected) > 2 and expected[-1].text[-1] == "\ufffd"
    assert told(Stepped(target, draft, prompt, settings).all()) == told(expected)


def test_a_stop_token_ends_it():
    target = tiny_target()
    output = [token for step in whole(target, Plain(), PROMPT, ASKED) for token in step.committed]
    settings = replace(ASKED, stop_tokens=frozenset({output[6]}))
    expected = whole(target, NGram(target), PROMPT, settings)
    assert expected[-1].cut == "stop_token" and len(expected) > 1
    assert told(Stepped(target, NGram(target), PROMPT, settings).all()) == told(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_context_ends_it(kind):
    target = tiny_target(max_position_embeddings=16)
    settings = replace(ASKED, max_new_tokens=100)
    expected = whole(target, drafter(kind, target), PROMPT, settings)
    assert sum(len(step.committed) for step in expected) == 16 - len(PROMPT) + 1
    assert told(Stepped(target, drafter(kind, target), PROMPT, settings).all()) == told(expected)


def test_after_the_end_there_is_nothing_to_do(monkeypatch):
    target = tiny_target()
    ended = whole(target, NGram(target), PROMPT, ASKED)
    monkeypatch.setattr(target, "prefill", lambda *_: pytest.fail("the prompt was read for nothing"))
    assert list(decode(target, NGram(target), PROMPT, ASKED, done=ended)) == []


# --- what else a resumed run has -----------------------------------------------------------------------------------


def test_the_first_step_after_resuming_reports_what_was_read():
    target = tiny_target()
    done = whole(target, Plain(), PROMPT, ASKED)[:3]
    first, *others = decode(target, Plain(), PROMPT, ASKED, done=done)
    assert first.index == 3 and first.prefill_s is not None and first.prefill_s > 0
    assert others and all(step.prefill_s is None for step in others)


def test_hidden_rows_are_those_of_the_whole_context():
    class Watching:
        kind = "watching"
        hidden_layers = (1, 4)

        def __init__(self) -> None:
            self.seen: list[torch.Tensor] = []

        def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
            assert ctx.hidden is not None and len(ctx.hidden) == len(ctx.tokens) - 1
            self.seen.append(ctx.hidden.clone())
            return Draft.empty()

    target = tiny_target()
    at_once, stepped = Watching(), Watching()
    whole(target, at_once, PROMPT, ASKED)
    Stepped(target, stepped, PROMPT, ASKED).all()
    assert len(at_once.seen) == len(stepped.seen) == 14
    for mine, theirs in zip(stepped.seen, at_once.seen, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_a_prepared_run_goes_on_the_same_way():
    tokenizer = byte_tokenizer()
    target = tiny_target(tokenizer=tokenizer, vocab_size=len(tokenizer))
    loaded = Loaded(pairing("smollm2-135m"), target, ())
    settings = replace(ASKED, sampler=SAMPLERS["sampled"], seed=5)
    prepared = runs.prepare(loaded, "early-exit", {"exit_layer": 3}, "abcab", settings, raw_prompt=True)
    expected = list(prepared.steps())
    rng = torch.Generator().manual_seed(5)
    done: list[Step] = []
    for _ in expected:
        done.append(next(prepared.steps(done=done, rng=rng)))
    assert next(prepared.steps(done=done, rng=rng), None) is None
    assert told(done) == told(expected)
