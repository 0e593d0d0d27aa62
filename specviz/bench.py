"""Our loop against transformers' own assisted generation: same target, same drafter kind, same gamma, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from specviz.decoding.engine import Settings, decode
from specviz.drafters import Drafter
from specviz.models.devices import synchronise
from specviz.models.target import Target

# How transformers is told to do what our drafter of that kind does, with a draft length that stays fixed.
GENERATE: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "plain": lambda drafter, gamma: {},
    "ngram": lambda drafter, gamma: {
        "prompt_lookup_num_tokens": gamma,
        "max_matching_ngram_size": drafter.ngram_max,
    },
    "early-exit": lambda drafter, gamma: {
        "assistant_early_exit": drafter.exit_layer,
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    },
}


@dataclass(frozen=True, slots=True)
class Timed:
    """One way of decoding a prompt: seconds per token over the repeats, prefill included, and what came out."""

    name: str
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    passes: int  # forward passes of the target, those of an early exit's drafts included

    @property
    def milliseconds(self) -> float:
        return 1e3 * median(self.seconds)


def against_transformers(
    target: Target,
    rival: PreTrainedModel,
    drafter: Drafter,
    prompt: Sequence[int],
    gamma: int,
    tokens: int,
    repeats: int,
) -> Iterator[list[Timed]]:
    """Greedy decoding of exactly `tokens` tokens three ways: ours with the trace, ours without, transformers'.

    `rival` is the same target as transformers loads it. Each way warms up once; then the three take turns, in an
    order that rotates. Yields what there is after each round; the first value holds no times.
    """
    settings = Settings(gamma=gamma, max_new_tokens=tokens, stop_tokens=frozenset())
    generate = GENERATE[drafter.kind](drafter, gamma)
    ways: dict[str, Callable[[], list[int]]] = {
        "specviz, trace on": lambda: _ours(target, drafter, prompt, settings, True),
        "specviz, trace off": lambda: _ours(target, drafter, prompt, settings, False),
        "transformers": lambda: _theirs(rival, prompt, tokens, generate),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    passes, outputs = {}, {}
    for name, way in ways.items():
        with _counted(rival if name == "transformers" else target.model) as calls:
            outputs[name] = tuple(way())
        passes[name] = len(calls)
    names = list(ways)
    for turn in range(repeats + 1):
        yield [Timed(name, tuple(seconds[name]), outputs[name], passes[name]) for name in ways]
        if turn == repeats:
            return
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            synchronise(target.device)
            started = perf_counter()
            produced = ways[name]()
            synchronise(target.device)
            seconds[name].append((perf_counter() - started) / len(produced))


def summary(timed: Sequence[Timed]) -> dict[str, Any]:
    """The three ways and their ratios, round by round: above 1 is faster than transformers."""
    traced, untraced, theirs = timed
    ratios = [b / a for a, b in zip(traced.seconds, theirs.seconds, strict=True)]
    gains = [a / b - 1 for a, b in zip(traced.seconds, untraced.seconds, strict=True)]
    return {
        "ms_per_token": {way.name: way.milliseconds for way in timed},
        "passes": {way.name: way.passes for way in timed},
        "identical": traced.tokens == theirs.tokens,
        "ratio": median(ratios),
        "spread": [min(ratios), max(ratios)],
        "trace_off_gain": median(gains),
        "repeats": len(ratios),
    }


@contextmanager
def _counted(model: PreTrainedModel) -> Iterator[list[None]]:
    """Grows by one for every forward pass through the model's first layer."""
    calls: list[None] = []
    embedding = model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        hook.remove()


def _ours(target: Target, drafter: Drafter, prompt: Sequence[int], settings: Settings, detail: bool) -> list[int]:
    return [token for step in decode(target, drafter, prompt, settings, detail=detail) for token in step.committed]


def _theirs(model: PreTrainedModel, prompt: Sequence[int], tokens: int, options: dict[str, Any]) -> list[int]:
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    produced: list[int] = output[0, len(prompt) :].tolist()
    return produced
