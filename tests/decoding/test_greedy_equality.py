"""Greedy speculative decoding says what the target says alone: hundreds of drawn runs against no cache at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from fakes import ARCHITECTURES, VOCAB, SampledTree, TopKTree, reference_decode, tiny_model, tiny_target
from scripted import Replay
from transformers import PreTrainedModel

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, Drafter, DraftModel, EarlyExit, NGram, Plain
from specviz.models.target import Target
from specviz.trace import Step

DRAWS, TREE_DRAWS = 12, 30  # per architecture and drafter
LONGEST = 24  # budget
PROMPTS = 16  # per architecture, so that a reference serves several drafters
CHAINS = ("plain", "ngram recent", "ngram frequent", "early-exit", "draft-model stranger", "draft-model relative")
NOT_RECURRENT = ("draft-model self", "top-k tree", "sampled tree")  # what a hybrid target can't have
TREES = ("top-k tree", "sampled tree")
CASES = [
    (architecture, kind)
    for architecture in ARCHITECTURES
    for kind in (CHAINS if architecture == "hybrid" else CHAINS + NOT_RECURRENT)
]
WIDTHS = [(2,), (3, 2), (2, 2, 1), (1, 3, 1, 1), (4, 1, 2), (2, 1, 1, 1, 1, 1)]


@cache
def target(architecture: str) -> Target:
    return tiny_target(architecture)


@cache
def relative(architecture: str, noise: float) -> PreTrainedModel:
    """The target with disturbed weights: it often has the target's favourite among its first few."""
    model = tiny_model("llama" if architecture == "hybrid" else architecture)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                scale = noise * parameter.std()
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def drawn_prompt(rng: random.Random) -> list[int]:
    """1 to 40 tokens; some repeat a motif, some a single token."""
    length = rng.choice([1, 2, 3, rng.randint(4, 40), rng.randint(4, 40)])
    alphabet = rng.choice([1, 3, VOCAB])
    if rng.random() < 0.4:
        motif = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
        return (motif * length)[:length]
    return [rng.randrange(alphabet) for _ in range(length)]


@cache
def prompts(architecture: str) -> list[tuple[list[int], list[int]]]:
    """Prompts and what the target says after them, decoded without a cache."""
    rng = random.Random(f"prompts for {architecture}")
    drawn = [[rng.randrange(VOCAB)], *(drawn_prompt(rng) for _ in range(PROMPTS - 1))]
    return [(prompt, reference_decode(target(architecture).model, prompt, LONGEST)) for prompt in drawn]


@dataclass(frozen=True)
class Draw:
    """One run: all that is needed to see it again."""

    architecture: str
    kind: str
    prompt: tuple[int, ...]
    gamma: int
    budget: int
    stop: frozenset[int]
    settings: tuple[tuple[str, object], ...]  # the drafter's


def drawn_run(architecture: str, kind: str, rng: random.Random) -> tuple[Draw, list[int]]:
    prompt, reference = rng.choice(prompts(architecture))
    budget = rng.choice([0, 1, 2, LONGEST, LONGEST, rng.randint(3, LONGEST), rng.randint(3, LONGEST)])
    stop = rng.choice(
        [
            frozenset(),
            frozenset({rng.choice(reference)}),
            frozenset(rng.sample(range(VOCAB), rng.randint(1, 4))),
            frozenset({reference[-1], prompt[-1]}),
        ]
    )
    settings: dict[str, object] = {}
    if kind.startswith("ngram"):
        shortest = rng.randint(1, 3)
        settings = {"ngram_min": shortest, "ngram_max": rng.randint(shortest, 4), "pick": kind.split()[1]}
    elif kind == "early-exit":
        settings = {"exit_layer": rng.randint(1, 3)}
    elif kind == "draft-model stranger":
        settings = {"seed": rng.randint(1, 3)}
    elif kind in ("draft-model relative", *TREES):
        settings = {"noise": rng.choice([0.05, 0.15, 0.4])}
    if kind in TREES:
        settings["widths"] = rng.choice(WIDTHS)
    if kind == "sampled tree":
        settings["temperature"] = rng.choice([0, 1])
    gamma = rng.randint(0, 8)
    draw = Draw(architecture, kind, tuple(prompt), gamma, budget, stop, tuple(settings.items()))
    return draw, cut_by_hand(reference, budget, stop)


def cut_by_hand(reference: list[int], budget: int, stop: frozenset[int]) -> list[int]:
    kept: list[int] = []
    for token in reference[:budget]:
        kept.append(token)
        if token in stop:
            break
    return kept


class OwnTemperature(SampledTree):
    """Drafts at a temperature of its own, whatever the target does."""

    def __init__(self, model: PreTrainedModel, widths: tuple[int, ...], temperature: float) -> None:
        super().__init__(model, widths)
        self.sampler = Sampler(temperature=temperature)

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        return super().propose(ctx, gamma, self.sampler, rng)


def drafter_maker(kind: str) -> Callable[..., Drafter]:
    return {
        "plain": lambda target: Plain(),
        "ngram recent": NGram,
        "ngram frequent": NGram,
        "early-exit": EarlyExit,
        "draft-model stranger": lambda target, seed: DraftModel(target, tiny_model("llama", seed)),
        "draft-model relative": lambda target, noise: DraftModel(target, relative(target.name.split()[1], noise)),
        "draft-model self": lambda target: DraftModel(target, target.model),
        "top-k tree": lambda target, noise, widths: TopKTree(relative(target.name.split()[1], noise), widths),
        "sampled tree": lambda target, noise, widths, temperature: OwnTemperature(
            relative(target.name.split()[1], noise), widths, temperature
        ),
    }[kind]


def check_bookkeeping(steps: list[Step], draw: Draw, expected: list[int]) -> None:
    """What the trace says of a run is what happened in it."""
    committed: list[int] = []
    for step in steps:
        assert step.start == len(draw.prompt) + len(committed), draw
        assert step.gamma_used <= step.gamma_asked == draw.gamma, draw
        path = [step.nodes[node] for node in step.path]
        assert all(node.outcome == "accepted" for node in path), draw
        assert sum(node.outcome == "accepted" for node in step.nodes) == len(path) == step.num_accepted, draw
        assert [node.parent for node in path] == [-1, *step.path][: len(path)], draw
        own = [step.last.token] if step.last else []
        assert step.committed == (*(node.token for node in path), *own), draw
        assert bool(step.last) or step.cut, f"a step without a token of the target's own was not cut: {draw}"
        assert all(node.depth > len(path) for node in step.nodes if node.outcome == "cut"), draw
        committed.extend(step.committed)
        assert len(committed) <= draw.budget, draw
    assert committed == expected, f"{draw}\nsaid     {committed}\nexpected {expected}"
    assert [step.cut for step in steps[:-1]] == [None] * (len(steps) - 1), draw
    if expected:
        reason = "stop_token" if expected[-1] in draw.stop else "length"
        assert steps[-1].cut == reason, draw
    else:
        assert draw.budget == 0 and not steps, draw


def seen_in(step: Step) -> Counter[str]:
    """What happened in a step, for the test that everything happened."""
    seen: Counter[str] = Counter()
    seen["steps"] += 1
    seen["accepted"] += step.num_accepted
    seen["rejected"] += sum(node.outcome == "rejected" for node in step.nodes)
    seen["cut with tokens left over"] += any(node.outcome == "cut" for node in step.nodes)
    seen["ended by a draft token"] += bool(step.cut and step.last is None)
    seen["bonus"] += bool(step.nodes and step.last and step.last.kind == "bonus")
    parents = [node.parent for node in step.nodes]
    seen["branching"] += len(set(parents)) < len(parents)
    seen["accepted after a rejected sibling"] += any(
        step.nodes[sibling].parent == step.nodes[node].parent and step.nodes[sibling].outcome == "rejected"
        for node in step.path
        for sibling in range(node)
    )
    return seen


@cache
def run_draws(architecture: str, kind: str) -> Counter[str]:
    """Decode and check every draw of a case; what was seen in them."""
    rng = random.Random(f"{architecture} with {kind}")
    seen: Counter[str] = Counter()
    for _ in range(TREE_DRAWS if kind in TREES else DRAWS):
        draw, expected = drawn_run(architecture, kind, rng)
        drafter = drafter_maker(kind)(target(architecture), **dict(draw.settings))
        settings = Settings(gamma=draw.gamma, max_new_tokens=draw.budget, stop_tokens=draw.stop)
        steps = list(decode(target(architecture), drafter, draw.prompt, settings, detail=False))
        check_bookkeeping(steps, draw, expected)
        seen["draws"] += 1
        seen[f"gamma {draw.gamma}"] += 1
        seen[f"budget {draw.budget}"] += 1
        seen["one-token prompt"] += len(draw.prompt) == 1
        for step in steps:
            seen.update(seen_in(step))
            seen[f"ended by {step.cut}"] += 1
    return seen


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_greedy_output_equals_decoding_without_a_cache(architecture, kind):
    assert run_draws(architecture, kind)["draws"] >= DRAWS


def test_the_draws_cover_what_can_happen():
    every = {case: run_draws(*case) for case in CASES}
    total = sum(every.values(), Counter())
    assert total["draws"] >= 500
    for event in ("cut with tokens left over", "ended by a draft token", "bonus", "one-token prompt"):
        assert total[event] >= 10, event
    for event in ("ended by stop_token", "ended by length", "budget 0", "budget 1", *(f"gamma {g}" for g in range(9))):
        assert total[event] >= 10, event
    for architecture in ARCHITECTURES:
        seen = sum((counts for case, counts in every.items() if case[0] == architecture), Counter())
        assert seen["accepted"] >= 20 and seen["rejected"] >= 20, architecture
        assert (seen["accepted after a rejected sibling"] > 0) == (architecture != "hybrid"), architecture
    for kind in CHAINS + NOT_RECURRENT:
        seen = sum((counts for case, counts in every.items() if case[1] == kind), Counter())
        assert (seen["accepted"] > 0) == (kind != "plain"), kind
        assert (seen["rejected"] > 0) == (kind not in ("plain", "draft-model self")), kind
        assert (seen["branching"] > 0) == (seen["accepted after a rejected sibling"] > 0) == (kind in TREES), kind


# --- hidden states and the cache, step by step ----------------------------------------------------------------


class Watched:
    """A drafter that reads hidden states, and checks the context and the target's cache whenever it is asked."""

    kind = "watched"
    hidden_layers = (0, 2, 4)

    def __init__(self, inner: Drafter, target: Target) -> None:
        self.inner, self.target, self.checked = inner, target, 0

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        assert len(self.target.cache) == len(ctx.tokens) - 1
        expected = fresh_hidden(self.target, ctx.tokens[:-1], self.hidden_layers)
        assert ctx.hidden is not None and ctx.hidden.shape == expected.shape
        torch.testing.assert_close(ctx.hidden, expected, rtol=1e-4, atol=1e-3)
        self.checked += 1
        return self.inner.propose(ctx, gamma, sampler, rng)


def fresh_hidden(target: Target, tokens: list[int], layers: tuple[int, ...]) -> torch.Tensor:
    """[len(tokens), len(layers) * D] from one forward pass without a cache: row i after tokens[:i+1]."""
    if not tokens:
        return torch.empty(0, len(layers) * target.config.hidden_size)
    output = target.model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return torch.cat([output.hidden_states[layer][0] for layer in layers], -1)


@pytest.mark.parametrize("prompt", [[7], [3, 4, 5, 3, 4, 5, 3]])
@pytest.mark.parametrize(
    ("architecture", "kind", "settings"),
    [
        ("llama", "replay", {}),
        ("llama", "draft-model relative", {"noise": 0.15}),
        ("llama", "early-exit", {"exit_layer": 2}),
        ("llama", "top-k tree", {"noise": 0.15, "widths": (3, 2, 1)}),
        ("gpt2", "top-k tree", {"noise": 0.15, "widths": (2, 2, 1)}),
        ("mixed", "top-k tree", {"noise": 0.15, "widths": (2, 2, 1)}),
        ("hybrid", "replay", {}),
        ("hybrid", "early-exit", {"exit_layer": 3}),
    ],
)
def test_hidden_rows_and_cache_belong_to_the_committed_tokens(architecture, kind, settings, prompt):
    reference = reference_decode(target(architecture).model, prompt, 20)
    if kind == "replay":
        drafter: Drafter = Replay(reference, len(prompt), wrong=frozenset({1, 6, 11, 12}))
    else:
        drafter = drafter_maker(kind)(target(architecture), **settings)
    watched = Watched(drafter, target(architecture))
    run = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset())
    steps, tokens = [], list(prompt)
    for step in decode(target(architecture), watched, prompt, run, detail=False):
        tokens.extend(step.committed)
        if step.cut is None:
            assert len(target(architecture).cache) == len(tokens) - 1
        steps.append(step)
    assert watched.checked == len(steps) > 3
    assert any(step.num_accepted for step in steps), "nothing was accepted, so nothing was shown"
    assert any(node.outcome == "rejected" for step in steps for node in step.nodes)
    assert tokens[len(prompt) :] == reference


def test_the_hidden_check_notices_rows_that_are_off_by_one():
    watched = Watched(Plain(), target("llama"))
    tokens = [3, 4, 5, 6]
    target("llama").prefill(tokens[:-1])
    shifted = fresh_hidden(target("llama"), tokens[1:], watched.hidden_layers)
    with pytest.raises(AssertionError):
        watched.propose(Context(tokens, shifted), 3, Sampler(), torch.Generator())
