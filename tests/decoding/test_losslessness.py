"""Speculative decoding is distributed exactly as the target alone, and the test that says so finds those that are not.

The exact joint distribution of three tokens is summed up over all continuations, then compared with many sampled
decodes by chi-square, and with every outcome of the engine where those can be counted. Seeds are fixed. The negative
controls are mistakes that real engines have made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import heads_on_disk
import numpy as np
import pytest
import tiny_heads
import torch
from fakes import SampledTree, TopKTree, reference_logits, tiny_model, tiny_target
from tiny_heads import random_head
from torch import Tensor

from specviz.decoding import verify
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.decoding.verify import Verdict
from specviz.drafters import Context, Drafter, DraftModel, EarlyExit, Medusa, NGram, Plain, base
from specviz.drafters.base import draft_chain
from specviz.drafters.combined import Combined
from specviz.drafters.heads.adapter import ExitAdapter
from specviz.drafters.heads.medusa import MedusaHeads
from specviz.models.target import Target
from specviz.trace import Step

VOCAB, TOKENS, GAMMA = 8, 3, 2
PROMPT = [3, 1, 4, 3, 1]  # repeats itself, so that n-grams match
DECODES = 1000  # per comparison, mistakes included
REAL_DECODES = 250  # the same with real models
ALPHA = 1e-3

SAMPLERS = {
    "temperature 0.5": Sampler(0.5),
    "temperature 1": Sampler(1.0),
    "temperature 1.5": Sampler(1.5),
    "top-k": Sampler(1.0, top_k=3),
    "top-p": Sampler(1.5, top_p=0.8),
    "min-p": Sampler(1.0, min_p=0.15),
    "repetition penalty": Sampler(0.7, repetition_penalty=1.5),
}


# --- a target and drafters that look their logits up ----------------------------------------------------------


def table(seed: int, spread: float = 1.5) -> Tensor:
    """[V, V, V]: logits after each two tokens."""
    return spread * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))


class TableTarget:
    """What the engine asks of a target, at the cost of a look-up."""

    name, tokenizer, stop_tokens, max_tokens = "table", None, frozenset(), None
    device, dtype, vocab_size = torch.device("cpu"), torch.float32, VOCAB

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def prefill(self, tokens: Sequence[int], hidden_layers: tuple[int, ...] = (), *_: object) -> None:
        self.read = list(tokens)

    def verify(self, last: int, draft: Draft) -> tuple[Tensor, None]:
        self.pending = [last, *draft.tokens]
        before = [self.read[-1], *(self.pending[parent + 1] for parent in draft.parents)]
        return self.logits[before, self.pending], None

    def keep(self, path: Sequence[int]) -> int:
        self.read += [self.pending[node + 1] for node in (ROOT, *path)]
        return 0

    def after(self, tokens: list[int]) -> Tensor:
        return self.logits[tokens[-2], tokens[-1]]


class Chain:
    """A draft model in the form of a table."""

    kind, hidden_layers = "draft-model", ()

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        before = ctx.tokens[-2]

        def step(token: int) -> Tensor:
            nonlocal before
            row, before = self.logits[before, token], token
            return row

        return draft_chain(step, ctx, gamma, sampler, rng)


class ConfidentChain(Chain):
    """Stops at a token it was not sure of, and keeps that token."""

    keeps_trigger = True

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        draft = super().propose(ctx, gamma, sampler, rng)
        for node, token in enumerate(draft.tokens):
            if draft.q[node, token] < 0.5:
                end = node + self.keeps_trigger
                return Draft.chain(draft.tokens[:end], draft.q[:end])
        return draft


class OnTable:
    """Gives the tree drafters a table for a model."""

    model: Tensor

    def _logits(self, tokens: list[int]) -> Tensor:
        return self.model[tokens[-2], tokens[-1]]


class TableSampledTree(OnTable, SampledTree):
    pass


class TableTopKTree(OnTable, TopKTree):
    pass


P, Q = table(0), table(0) + table(1, spread=1.0)  # a drafter that resembles its target
UNLIKE = table(5, spread=3.0)  # one that does not, and is sure of it
DRAFTERS: dict[str, Callable[[TableTarget], Drafter]] = {
    "chain": lambda target: Chain(Q),
    "confident chain": lambda target: ConfidentChain(Q),
    "ngram": lambda target: NGram(target),
    "sampled tree": lambda target: TableSampledTree(Q, (2, 2)),
    "top-k tree": lambda target: TableTopKTree(Q, (2, 2)),
}


# --- distributions --------------------------------------------------------------------------------------------


def exact_joint(logits_after: Callable[[list[int]], Tensor], sampler: Sampler) -> np.ndarray:
    """[V, V, V]: the distribution of what the target alone says after the prompt."""
    joint = np.ones((VOCAB,) * TOKENS)
    for length in range(TOKENS):
        for said in np.ndindex(*(VOCAB,) * length):
            tokens = [*PROMPT, *said]
            p = sampler.probs(logits_after(tokens)[None], tokens)[0].double().numpy()
            joint[said] *= (p / p.sum()).reshape(VOCAB, *(1,) * (TOKENS - length - 1))
    return joint


def settings(sampler: Sampler, seed: int = 0, budget: int = TOKENS, **asked: object) -> Settings:
    return Settings(**{"gamma": GAMMA, "max_new_tokens": budget, "sampler": sampler, "seed": seed, **asked})


def said(steps: Iterable[Step]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.committed)


def sampled(
    target, drafter: Drafter, sampler: Sampler, decodes: int = DECODES, budget: int = TOKENS, **asked: object
) -> np.ndarray:
    """[V, V, V]: how often each continuation came up; asked: further settings."""
    counts = np.zeros((VOCAB,) * TOKENS)
    for seed in range(decodes):
        steps = decode(target, drafter, PROMPT, settings(sampler, seed, budget, **asked), detail=False)
        counts[said(steps)[:TOKENS]] += 1
    return counts


def counted(target, drafter: Drafter, sampler: Sampler, every_outcome, **asked: object) -> np.ndarray:
    """[V, V, V]: the exact distribution of what the engine says, from every outcome of every step."""
    joint = np.zeros((VOCAB,) * TOKENS)
    reached = {(): 1.0}
    for length in range(TOKENS):
        for start in [start for start in reached if len(start) == length]:
            prompt, budget = [*PROMPT, *start], TOKENS - length

            def first_step(prompt=prompt, budget=budget) -> tuple[int, ...]:
                steps = decode(target, drafter, prompt, settings(sampler, budget=budget, **asked), detail=False)
                return next(steps).committed

            for probability, committed in every_outcome(first_step):
                end = (*start, *committed)
                reached[end] = reached.get(end, 0.0) + reached[start] * probability
    for end, probability in reached.items():
        if len(end) == TOKENS:
            joint[end] = probability
    return joint


def p_value(counts: np.ndarray, p: np.ndarray) -> float:
    """Pearson's chi-square; continuations expected fewer than 5 times are taken together."""
    counts, expected = counts.ravel(), counts.sum() * p.ravel()
    if counts[expected == 0].any():
        return 0.0  # the impossible happened
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2), torch.tensor(statistic / 2)))


# --- lossless -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_decodes_follow_the_target(name, sampler):
    target = TableTarget(P)
    counts = sampled(target, DRAFTERS[name](target), sampler)
    assert p_value(counts, exact_joint(target.after, sampler)) > ALPHA


@pytest.mark.parametrize(
    ("name", "settings_name"),
    [
        ("chain", "temperature 1.5"),
        ("chain", "repetition penalty"),
        ("confident chain", "top-k"),
        ("ngram", "top-p"),
        ("sampled tree", "top-k"),
        ("top-k tree", "temperature 1"),
        ("top-k tree", "repetition penalty"),
    ],
)
def test_every_outcome_of_the_engine_adds_up_to_the_target(name, settings_name, every_outcome):
    target, sampler = TableTarget(P), SAMPLERS[settings_name]
    joint = counted(target, DRAFTERS[name](target), sampler, every_outcome)
    assert joint.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(joint, exact_joint(target.after, sampler), atol=1e-6)  # float32 probabilities


@pytest.mark.parametrize("gamma", [1, 2, 4, 6])
@pytest.mark.parametrize(
    ("name", "settings_name"),
    [("chain", "temperature 1"), ("chain", "top-p"), ("confident chain", "temperature 1.5"), ("ngram", "top-k")],
)
def test_block_verification_follows_the_target(name, settings_name, gamma):
    target, sampler = TableTarget(P), SAMPLERS[settings_name]
    asked = {"rule": "block", "gamma": gamma, "budget": max(TOKENS, gamma + 1)}
    counts = sampled(target, DRAFTERS[name](target), sampler, **asked)
    assert p_value(counts, exact_joint(target.after, sampler)) > ALPHA


@pytest.mark.parametrize(
    ("name", "settings_name"),
    [("chain", "temperature 1.5"), ("chain", "repetition penalty"), ("confident chain", "top-k"), ("ngram", "top-p")],
)
def test_every_outcome_of_block_verification_adds_up_to_the_target(name, settings_name, every_outcome):
    target, sampler = TableTarget(P), SAMPLERS[settings_name]
    joint = counted(target, DRAFTERS[name](target), sampler, every_outcome, rule="block")
    assert joint.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(joint, exact_joint(target.after, sampler), atol=1e-6)  # float32 probabilities


@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_adaptive_draft_length_follows_the_target(rule):
    """It goes by what earlier drafts came to, as after 8 tokens here."""
    target, sampler = TableTarget(P), SAMPLERS["temperature 1"]
    start = TOKENS + 5
    counts = np.zeros((VOCAB,) * TOKENS)
    for seed in range(DECODES):
        asked = settings(sampler, seed, start + TOKENS, gamma=4, rule=rule, gamma_policy="adaptive")
        counts[said(decode(target, Chain(Q), PROMPT, asked, detail=False))[start:]] += 1
    assert p_value(counts, joint_later(target, sampler, start)) > ALPHA


def joint_later(target: TableTarget, sampler: Sampler, start: int) -> np.ndarray:
    """[V, V, V]: the distribution of what the target alone says from the `start`-th token on."""
    rows = [sampler.probs(target.logits[before], [0]).double().numpy() for before in range(VOCAB)]
    steps = np.stack([row / row.sum(-1, keepdims=True) for row in rows])  # [V, V, V]: the next after any two
    pair = np.zeros((VOCAB, VOCAB))
    pair[PROMPT[-2], PROMPT[-1]] = 1
    for _ in range(start):
        pair = np.einsum("ab,abc->bc", pair, steps)
    return np.einsum("ab,abc,bcd,cde->cde", pair, steps, steps, steps)


TREE = {"tree": True, "nodes": 3, "branches": 2}
LAYERS = {"num_hidden_layers": 2, "vocab_size": VOCAB, "spread": 2.5}
REAL: dict[str, tuple[Callable[..., Drafter], Sampler]] = {
    "plain": (lambda target: Plain(), SAMPLERS["temperature 1"]),
    "draft-model": (lambda target: DraftModel(target, draft_model()), SAMPLERS["top-p"]),
    "ngram": (lambda target: NGram(target), SAMPLERS["repetition penalty"]),
    "early-exit": (lambda target: EarlyExit(target, 1), SAMPLERS["temperature 1.5"]),
    "sampled tree": (lambda target: SampledTree(draft_model(), (2, 1)), SAMPLERS["top-k"]),
    "top-k tree": (lambda target: TopKTree(draft_model(), (2, 1)), SAMPLERS["min-p"]),
    "eagle": (lambda target: tiny_heads.drafter(target, random_head(target)), SAMPLERS["temperature 1"]),
    "eagle tree": (lambda target: tiny_heads.drafter(target, random_head(target), **TREE), SAMPLERS["top-k"]),
    "mtp": (lambda target: tiny_heads.drafter(target, random_head(target, "mtp")), SAMPLERS["top-p"]),
    "mtp tree": (lambda target: tiny_heads.drafter(target, random_head(target, "mtp"), **TREE), SAMPLERS["min-p"]),
    "medusa": (lambda target: Medusa(target, tiny_heads.WEIGHTS, heads=heads(target)), SAMPLERS["temperature 1"]),
    "medusa tree": (
        lambda target: Medusa(target, tiny_heads.WEIGHTS, heads=heads(target), **TREE),
        SAMPLERS["temperature 1.5"],
    ),
    "early exit with an adapter": (
        lambda target: EarlyExit(target, 1, tiny_heads.WEIGHTS, adapter=adapter(target)),
        SAMPLERS["temperature 1"],
    ),
    "ngram tree": (lambda target: NGram(target, **TREE), SAMPLERS["temperature 1"]),
    "ngram+eagle": (
        lambda target: Combined([NGram(target, 2), tiny_heads.drafter(target, random_head(target))]),
        SAMPLERS["temperature 1"],
    ),
}


def heads(target: Target) -> MedusaHeads:
    torch.manual_seed(5)
    return heads_on_disk.filled(MedusaHeads(GAMMA, 1, int(target.config.hidden_size), VOCAB, own_lm_heads=True))


def adapter(target: Target) -> ExitAdapter:
    torch.manual_seed(5)
    return heads_on_disk.filled(ExitAdapter(1, int(target.config.hidden_size), 16, VOCAB, eps=1e-6))


def draft_model():
    return tiny_model(seed=2, **{**LAYERS, "num_hidden_layers": 1})


@pytest.fixture(scope="module")
def real_target() -> Target:
    return tiny_target(**LAYERS)


def logits_of(target: Target) -> Callable[[list[int]], Tensor]:
    return lambda tokens: reference_logits(target.model, tokens)[-1]


@pytest.mark.parametrize("name", REAL)
def test_sampled_decodes_of_a_real_model_follow_it(name, real_target):
    make, sampler = REAL[name]
    counts = sampled(real_target, make(real_target), sampler, REAL_DECODES)
    assert p_value(counts, exact_joint(logits_of(real_target), sampler)) > ALPHA


# --- negative controls: mistakes that must be found -------------------------------------------------------------


class TakesArgmax:
    """Takes its likeliest token and reports the softmax as if it had drawn."""

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "draw", lambda q, generator: int(q.argmax()))
            return super().propose(ctx, gamma, sampler, rng)


class ArgmaxChain(TakesArgmax, Chain):
    pass


class ArgmaxDraftModel(TakesArgmax, DraftModel):
    pass


class RawChain(Chain):
    """Draws from processed probabilities and reports the raw ones."""

    def propose(self, ctx: Context, gamma: int, sampler: Sampler, rng: torch.Generator) -> Draft:
        draft = super().propose(ctx, gamma, sampler, rng)
        return replace(draft, q=torch.softmax(draft.logits, -1)) if len(draft) else draft


class UnsureTokensDropped(ConfidentChain):
    """Whether a sampled token survives depends on its value."""

    keeps_trigger = False


class SoftmaxTopKTree(TableTopKTree):
    """Chooses its children and reports the softmax as if they had been drawn."""

    def _children(self, q: Tensor, width: int, rng: torch.Generator) -> list[tuple[int, Tensor]]:
        return [(token, q) for token, _ in super()._children(q, width, rng) if q[token] > 0]


class UnnormalisedTree(TableSampledTree):
    """Draws without replacement and reports the distribution of the first draw for all."""

    def _children(self, q: Tensor, width: int, rng: torch.Generator) -> list[tuple[int, Tensor]]:
        return [(token, q) for token, _ in super()._children(q, width, rng)]


def always(draft: Draft, p: Tensor, rng: torch.Generator) -> Verdict:
    return Verdict(tuple(range(len(draft))), verify.draw(p[-1], rng), "bonus", (), tuple(p))


MISTAKES: dict[str, tuple[Drafter, Sampler, dict[str, object], str]] = {
    "argmax drafted, softmax reported": (ArgmaxChain(Q), SAMPLERS["temperature 1"], {}, "token"),
    "top-k drafted, raw q reported": (RawChain(Q), SAMPLERS["top-k"], {}, "token"),
    "temperature ignored in q": (RawChain(Q), SAMPLERS["temperature 0.5"], {}, "token"),
    "correction drawn from p": (Chain(Q), SAMPLERS["top-k"], {"verify.residual": lambda p, q: p}, "token"),
    "top-k tree with its softmax": (SoftmaxTopKTree(Q, (2, 2)), SAMPLERS["temperature 1"], {}, "token"),
    "siblings not renormalised": (UnnormalisedTree(UNLIKE, (2,)), SAMPLERS["temperature 1"], {}, "token"),
    "unsure tokens dropped": (UnsureTokensDropped(Q), SAMPLERS["top-k"], {}, "token"),
    "all drafts accepted": (Chain(Q), SAMPLERS["top-k"], {"engine.RULES": {"token": always}}, "token"),
    "typical acceptance": (Chain(Q), SAMPLERS["top-k"], {}, "typical"),
    "typical acceptance of a tree": (TableTopKTree(Q, (2, 2)), SAMPLERS["temperature 1"], {}, "typical"),
    "unsure tokens dropped before block verification": (UnsureTokensDropped(Q), SAMPLERS["top-k"], {}, "block"),
    "block verification with the last place's chance everywhere": (
        Chain(Q),
        SAMPLERS["temperature 1"],
        {"verify._block_chances": lambda draft, p, reach: reach[1:]},
        "block",
    ),
    "block verification, correction drawn from p": (
        Chain(Q),
        SAMPLERS["top-k"],
        {"verify.residual": lambda p, q: p},
        "block",
    ),
}


@pytest.fixture
def mistake(monkeypatch, request) -> tuple[Drafter, Sampler, str]:
    drafter, sampler, patches, rule = MISTAKES[request.param]
    for place, wrong in patches.items():
        monkeypatch.setattr(f"specviz.decoding.{place}", wrong)
    return drafter, sampler, rule


@pytest.mark.parametrize("mistake", MISTAKES, indirect=True)
def test_mistakes_are_found(mistake, every_outcome):
    drafter, sampler, rule = mistake
    target = TableTarget(P)
    right = exact_joint(target.after, sampler)
    counts = sampled(target, drafter, sampler, rule=rule)
    assert p_value(counts, right) <= ALPHA
    wrong = counted(target, drafter, sampler, every_outcome, rule=rule)
    assert p_value(counts, wrong) > ALPHA  # so what follows are samples of the same mistake
    assert refuted(wrong, right, DECODES) >= 99


def test_a_mistake_is_found_at_the_sample_size_of_the_real_models(real_target, every_outcome):
    drafter, sampler = ArgmaxDraftModel(real_target, draft_model()), Sampler(1.5, top_k=4)
    right = exact_joint(logits_of(real_target), sampler)
    assert p_value(sampled(real_target, drafter, sampler, REAL_DECODES), right) <= ALPHA
    assert refuted(counted(real_target, drafter, sampler, every_outcome), right, REAL_DECODES) >= 99


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_the_right_distribution_is_hardly_ever_refuted(sampler):
    right = exact_joint(TableTarget(P).after, sampler)
    assert refuted(right, right, DECODES) <= 2
    assert refuted(right, right, REAL_DECODES) <= 2


def refuted(truth: np.ndarray, claim: np.ndarray, size: int) -> int:
    """Of 100 sets of independent decodes, each distributed as `truth`, how many refute `claim`."""
    sets = np.random.default_rng(0).multinomial(size, truth.ravel() / truth.sum(), size=100)
    return sum(p_value(counts, claim) <= ALPHA for counts in sets)


# --- seeds and state ------------------------------------------------------------------------------------------


def untimed(steps: Iterable[Step]) -> list[Step]:
    return [replace(step, seconds=None, prefill_s=None) for step in steps]


@pytest.mark.parametrize("name", REAL)
def test_a_seed_fixes_the_whole_trace_whatever_ran_before(name, real_target):
    make, sampler = REAL[name]
    drafter = make(real_target)
    first = untimed(decode(real_target, drafter, PROMPT, settings(sampler, 1, 12)))
    other = untimed(decode(real_target, drafter, [5, 2], settings(sampler, 2, 12)))
    abandoned = decode(real_target, drafter, PROMPT, settings(sampler, 3, 12))
    next(abandoned)
    abandoned.close()
    assert untimed(decode(real_target, drafter, PROMPT, settings(sampler, 1, 12))) == first
    twin = tiny_target(**LAYERS)
    assert untimed(decode(twin, make(twin), PROMPT, settings(sampler, 1, 12))) == first
    assert said(first) != said(other)


@pytest.mark.parametrize("name", REAL)
def test_different_seeds_differ_and_greedy_ignores_them(name, real_target):
    make, sampler = REAL[name]
    drafter = make(real_target)
    assert len({said(decode(real_target, drafter, PROMPT, settings(sampler, seed, 12))) for seed in range(6)}) >= 4
    assert len({said(decode(real_target, drafter, PROMPT, settings(Sampler(), seed, 12))) for seed in range(3)}) == 1


# --- what the trace says about acceptance ---------------------------------------------------------------------


def places_tried(drafter_name: str, sampler: Sampler) -> list[tuple[float, float, float, bool]]:
    """Overlap, p(x), acceptance probability and outcome of each first child that was tried."""
    target = TableTarget(P)
    drafter = DRAFTERS[drafter_name](target)
    places = []
    for seed in range(25):
        for step in decode(target, drafter, PROMPT, settings(sampler, seed, 60)):
            for decision in step.decisions:
                tried = [node for node in step.nodes if node.parent == decision.node and node.r is not None]
                if tried:
                    kept = tried[0].outcome == "accepted"
                    places.append((decision.overlap, tried[0].p, tried[0].accept_prob, kept))
    return places


def z_score(chances: np.ndarray, kept: np.ndarray) -> float:
    return float((kept - chances).sum() / np.sqrt((chances * (1 - chances)).sum()))


@pytest.mark.parametrize("sampler", [SAMPLERS["temperature 1"], SAMPLERS["top-p"]], ids=["temperature 1", "top-p"])
@pytest.mark.parametrize("name", ["chain", "sampled tree"])
def test_the_overlap_is_how_often_a_sampled_token_is_accepted(name, sampler):
    overlap, p, accept_prob, kept = np.array(places_tried(name, sampler), dtype=float).T
    assert len(kept) > 1000
    assert abs(z_score(overlap, kept)) < 4
    assert abs(z_score(accept_prob, kept)) < 4
    assert abs(z_score(p, kept)) > 4  # p of the token is not the chance, and would be noticed


@pytest.mark.parametrize("name", ["ngram", "top-k tree"])
def test_the_overlap_of_a_chosen_token_is_its_p_and_its_chance(name):
    overlap, p, accept_prob, kept = np.array(places_tried(name, SAMPLERS["temperature 1"]), dtype=float).T
    np.testing.assert_allclose(overlap, p, atol=1e-7)
    np.testing.assert_allclose(accept_prob, p, atol=1e-7)
    assert p.max() - p.min() > 0.3
    assert abs(z_score(overlap, kept)) < 4
