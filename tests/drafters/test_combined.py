"""Combinations: the first part that proposes something drafts, the others miss nothing, settings find their part."""

from __future__ import annotations

import itertools

import pytest
import torch
from fakes import reference_decode, tiny_model, tiny_target
from tiny_heads import drafter as drafter_with
from tiny_heads import random_head
from torch import Tensor
from trained import GIVEN, medusa_heads

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler, one_hot
from specviz.drafters import Assistant, Combined, Context, DraftModel, Medusa, NGram, Plain, Weights, make_drafter
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
SETTINGS = Settings(gamma=3, max_new_tokens=40, stop_tokens=frozenset())


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


class Fixed:
    """Always proposes the same tokens, at most gamma of them; remembers what it was asked and shown."""

    def __init__(self, kind: str, tokens: list[int], layers: tuple[int, ...] = (), note: str | None = None) -> None:
        self.kind, self.tokens, self.hidden_layers, self.note = kind, tokens, layers, note
        self.asked: list[int] = []
        self.contexts: list[Context] = []
        self.seen: list[Tensor | None] = []

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        self.asked.append(gamma)
        self.contexts.append(ctx)
        self.seen.append(None if ctx.hidden is None else ctx.hidden.clone())
        tokens = self.tokens[:gamma]
        return Draft.chain(tokens, one_hot(tokens, 31), note=self.note) if tokens else Draft.empty(self.note)


def said(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.committed]


def propose(drafter: Combined, gamma: int = 3, tokens: list[int] = PROMPT) -> Draft:
    return drafter.propose(Context(list(tokens), None), gamma, Sampler(), torch.Generator())


# --- who drafts -----------------------------------------------------------------------------------------------------


def test_the_first_that_proposes_something_drafts():
    first, second, third = Fixed("a", []), Fixed("b", [7, 8]), Fixed("c", [9])
    drafter = Combined([first, second, third])
    draft = propose(drafter)
    assert drafter.kind == "a+b+c"
    assert (draft.tokens, draft.by) == ((7, 8), ("b", "b"))
    assert (first.asked, second.asked, third.asked) == ([3], [3], [])


def test_the_second_gamma_bounds_all_parts_but_the_first():
    parts = [Fixed("a", []), Fixed("b", []), Fixed("c", [7, 8, 9])]
    assert propose(Combined(parts, second_gamma=2), 5).tokens == (7, 8)
    assert [part.asked for part in parts] == [[5], [2], [2]]
    assert propose(Combined(parts, second_gamma=2), 1).tokens == (7,)


@pytest.mark.parametrize("second_gamma", [0, 65])
def test_a_second_gamma_that_is_none_is_refused(second_gamma):
    with pytest.raises(UserError, match=f"second_gamma is {second_gamma}; give a whole number from 1 to 64"):
        Combined([Fixed("a", []), Fixed("b", [])], second_gamma)


def test_notes_of_all_that_were_asked_are_kept():
    assert propose(Combined([Fixed("a", [], note="No room."), Fixed("b", [7], note="Late.")])).note == "No room. Late."
    assert propose(Combined([Fixed("a", [], note="No room."), Fixed("b", [])])).note == "No room."
    assert propose(Combined([Fixed("a", []), Fixed("b", [])])).note is None


def test_the_trace_says_who_drafted_each_node(target):
    """The n-gram table drafts just where it would alone."""
    model = tiny_model(seed=1)
    drafter = Combined([NGram(target, ngram_min=2), DraftModel(target, model)], second_gamma=2)
    steps = list(decode(target, drafter, PROMPT, SETTINGS))
    assert said(steps) == reference_decode(target.model, PROMPT, 40)
    tokens = [*PROMPT, *said(steps)]
    alone = NGram(target, ngram_min=2)
    makers = set()
    for step in steps[:-1]:
        expected = alone.propose(Context(tokens[: step.start], None), 3, Sampler(), torch.Generator())
        by = {node.by for node in step.nodes}
        assert by == ({"ngram"} if len(expected) else {"draft-model"})
        makers |= by
    assert makers == {"ngram", "draft-model"}


# --- nothing is missed ----------------------------------------------------------------------------------------------


class Spy:
    """Stands before a part and keeps what it proposed, with the context it was asked in."""

    def __init__(self, part) -> None:
        self.part, self.kind, self.hidden_layers = part, part.kind, part.hidden_layers
        self.drafts: list[tuple[list[int], Tensor | None, Draft]] = []

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        draft = self.part.propose(ctx, gamma, sampler, rng)
        self.drafts.append((list(ctx.tokens), None if ctx.hidden is None else ctx.hidden.clone(), draft))
        return draft


class Sometimes(Fixed):
    """Knows what the target says, and proposes it but for a few places: long stretches in which none else is asked."""

    def __init__(self, text: list[int]) -> None:
        super().__init__("ngram", [])
        self.text = text

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        here = len(ctx.tokens)
        self.tokens = [] if here % 16 < 4 else self.text[here : here + gamma]
        return super().propose(ctx, gamma, sampler, rng)


@pytest.mark.parametrize("make", ["draft-model", "medusa", "eagle"])
def test_a_part_that_was_not_asked_for_long_drafts_as_if_it_had_been_alone(target, make):
    def part():
        if make == "medusa":
            return Medusa(target, GIVEN, heads=medusa_heads())
        return drafter_with(target, head) if make == "eagle" else DraftModel(target, model)

    head = random_head(target)
    model = tiny_model(seed=1)
    text = [*PROMPT, *reference_decode(target.model, PROMPT, 60)]
    spy = Spy(part())
    drafter = Combined([Sometimes(text), spy])
    steps = list(decode(target, drafter, PROMPT, Settings(gamma=4, max_new_tokens=60, stop_tokens=frozenset())))
    assert said(steps) == text[len(PROMPT) :]
    asked_at = [len(tokens) for tokens, _, _ in spy.drafts]
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert max(gaps) > 10 and len(asked_at) > 3
    for tokens, hidden, draft in spy.drafts:
        alone = part().propose(Context(tokens, hidden), len(draft), Sampler(), torch.Generator())
        assert alone.tokens == draft.tokens
        torch.testing.assert_close(alone.logits, draft.logits, rtol=1e-4, atol=1e-3)


def test_each_part_sees_the_states_of_its_own_layers(target):
    parts = [Fixed("a", [], (4,)), Fixed("b", [], (1, 3)), Fixed("c", []), Fixed("d", [5, 6], (1, 3))]
    drafter = Combined(parts)
    assert drafter.hidden_layers == (4, 1, 3)
    steps = list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=9, stop_tokens=frozenset())))
    tokens = [*PROMPT, *said(steps)][:-1]
    states = target.model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    for part in (parts[0], parts[1], parts[3]):
        for ctx, seen in zip(part.contexts, part.seen, strict=True):
            expected = torch.cat([states[layer][0] for layer in part.hidden_layers], -1)[: len(seen)]
            torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-3)
            assert ctx is part.contexts[0], "a drafter knows by the context whether a run is new"
        assert len(part.seen[-1]) > len(PROMPT)
    again = list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=9, stop_tokens=frozenset())))
    assert said(again) == said(steps)
    assert parts[1].contexts[-1] is not parts[1].contexts[0], "the next run has a context of its own"


def test_parts_that_read_the_same_states_share_them(target):
    parts = [Fixed("a", [], (4,)), Fixed("b", [5], (4,))]
    drafter = Combined(parts)
    assert drafter.hidden_layers == (4,)
    list(decode(target, drafter, PROMPT, Settings(gamma=2, max_new_tokens=4, stop_tokens=frozenset())))
    assert parts[0].contexts[0] is parts[1].contexts[0]


@pytest.mark.parametrize("settings", [{}, {"ngram_min": 1, "ngram.tree": True}])
def test_greedy_output_is_the_targets(target, settings):
    parts = make_drafter("ngram+early-exit+draft-model", target, {"exit_layer": 2, "confidence": 0.4, **settings}).parts
    drafter = Combined([*parts[:1], Medusa(target, GIVEN, heads=medusa_heads(), tree=True), *parts[1:]])
    steps = list(decode(target, drafter, PROMPT, SETTINGS))
    assert said(steps) == reference_decode(target.model, PROMPT, 40)
    assert {node.by for step in steps for node in step.nodes} == {"ngram", "medusa"}


# --- how it is made -------------------------------------------------------------------------------------------------


def test_each_part_takes_the_settings_it_knows(target):
    settings = {"ngram_max": 5, "confidence": 0.3, "exit_layer": 2, "second_gamma": 3}
    drafter = make_drafter("ngram+early-exit", target, settings)
    first, second = drafter.parts
    assert drafter.kind == "ngram+early-exit" and drafter.second_gamma == 3
    assert (first.ngram_min, first.ngram_max) == (2, 5)
    assert (second.exit_layer, second.confidence) == (2, 0.3)


@pytest.mark.parametrize(
    ("settings", "smallest"),
    [({"ngram_min": 1}, 1), ({"ngram.ngram_min": 3}, 3), ({"ngram_min": 1, "ngram.ngram_min": 3}, 3), ({}, 2)],
)
def test_n_grams_that_go_first_match_two_tokens_unless_told_otherwise(target, settings, smallest):
    assert make_drafter("ngram+draft-model", target, settings).parts[0].ngram_min == smallest


def test_a_longest_match_of_one_token_goes_before(target):
    assert make_drafter("ngram+draft-model", target, {"ngram_max": 1}).parts[0].ngram_min == 1


def test_n_grams_that_go_second_match_as_they_do_alone(target):
    assert make_drafter("early-exit+ngram", target, {"exit_layer": 2}).parts[1].ngram_min == 1


def test_a_setting_can_be_for_one_part_alone(target):
    settings = {"confidence": 0.3, "draft-model.confidence": 0.6, "exit_layer": 1}
    _, early_exit, model = make_drafter("ngram+early-exit+draft-model", target, settings).parts
    assert (early_exit.confidence, model.confidence) == (0.3, 0.6)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("ngram+draft-model", {"warp": 1}, r"ngram\+draft-model has no setting 'warp'"),
        ("ngram+draft-model", {"ngram.warp": 1}, r"ngram has no setting 'warp'"),
        ("ngram+draft-model", {"eagle.nodes": 1}, r"ngram\+draft-model has no setting 'eagle.nodes'"),
        ("ngram+draft-model", {"draft-model.tree": True}, "draft-model drafts chains only"),
        ("ngram+draft-model", {"target": 1}, "no setting 'target'"),
        ("ngram", {"second_gamma": 2}, "ngram has no setting 'second_gamma'"),
        ("ngram", {"target": 1}, "ngram has no setting 'target'"),
        ("ngram+plain", {}, r"ngram\+plain can't be combined"),
        ("ngram+ngram", {}, r"ngram\+ngram can't be combined"),
        ("ngram+psychic", {}, "no drafter 'psychic'"),
        ("ngram+", {}, "no drafter ''"),
    ],
)
def test_what_can_not_be_is_refused(target, kind, settings, said):
    with pytest.raises(UserError, match=said):
        make_drafter(kind, target, settings)


@pytest.mark.parametrize(
    ("kind", "trained_as"),
    [("eagle", "eagle3"), ("medusa", "medusa"), ("mtp", "mtp"), ("ngram+eagle", "eagle3")],
)
def test_without_weights_the_way_to_some_is_told(target, kind, trained_as):
    with pytest.raises(UserError, match=rf"for tiny llama is at hand; .*--drafter-path.*specviz train {trained_as}`"):
        make_drafter(kind, target, {})


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mtp", "early-exit"])
def test_a_language_model_is_no_head(target, kind):
    model = Assistant(target.model, None, "Tiny-1B")
    with pytest.raises(UserError, match=f"Tiny-1B is a language model, and {kind} drafts with trained weights"):
        make_drafter(kind, target, {}, model)


def test_a_head_is_no_model_for_the_library(target):
    with pytest.raises(UserError, match="ours is a trained head"):
        make_drafter("library", target, {}, Weights(GIVEN.path, "ours"))


def test_a_model_goes_to_the_part_that_can_take_one(target):
    model = Assistant(tiny_model(seed=1), None, "Tiny-1B", "sha256:1")
    drafter = make_drafter("ngram+early-exit+draft-model", target, {"exit_layer": 1}, model)
    assert [getattr(part, "name", "") for part in drafter.parts] == ["", "", "Tiny-1B"]


def test_a_draft_model_that_was_not_loaded_is_named(target):
    with pytest.raises(UserError, match="The drafter some/model has not been loaded; name its folder or Hub id"):
        make_drafter("draft-model", target, {"source": "some/model"})


def test_plain_takes_no_settings(target):
    assert isinstance(make_drafter("plain", target, {}), Plain)
    with pytest.raises(UserError, match="plain drafts chains only"):
        make_drafter("plain", target, {"tree": True})
