"""Synthetic acceptance: an acceptance length that is told instead of measured, as engines replay it in benchmarks.

They agree on the mean and not on the spread. What comes out is no model's output, so runs made here say that they are
synthetic wherever they are shown. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Literal, get_args

from specviz import theory
from specviz.errors import UserError
from specviz.trace import LARGEST, LastToken, Node, Outcome, Run, Step, Trace

Law = Literal["minimum-variance", "clamped-normal", "geometric"]
LAWS: tuple[Law, ...] = get_args(Law)
ABOUT: dict[Law, str] = {
    "minimum-variance": "As many draft tokens as the length holds are always accepted, and one more with the chance of "
    "what is left: vLLM's synthetic acceptance, ATOM, TensorRT-LLM, and SGLang's match-expected.",
    "clamped-normal": "A normal draw around the length with standard deviation 1, cut to what is possible and rounded: "
    "SGLang's method called multinomial. The cut moves the mean, so it misses the length that was asked for.",
    "geometric": "Each draft token is accepted with the same chance p, whichever it is, so that p + p^2 + ... is the "
    "length less 1: llama.cpp.",
}
MOST_GAMMA = 64
MOST_STEPS = 2_000  # of a synthetic run; a file of so many has some MB
MOST_COST, LEAST_VERIFY = 100.0, 0.01  # of drafting a token and of a verify pass, in plain steps
WATERMARK = "Synthetic acceptance: no model drafted or verified anything here, and the text is a placeholder."
SGLANG_METHODS: dict[Law, str] = {"minimum-variance": "match-expected", "clamped-normal": "multinomial"}
# environ.py has "fixed" as the default; the version is InferenceX's, which pins its images by it.
TOKEN_MODE = (
    "SGLang: real-draft-token, there since 0.5.16, lets accepted draft tokens stand, and needs "
    "--speculative-eagle-topk 1. Without it every token of the output is token 100, which changes what is drafted next "
    "and which experts run."
)
PIECE = "synthetic "  # the text of every token
TOKEN = 0


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many draft tokens a step accepts, exactly."""

    law: Law
    asked: float  # the acceptance length that was told
    shares: tuple[float, ...]  # [j] chance of exactly j accepted draft tokens, j from 0 to gamma

    @property
    def gamma(self) -> int:
        return len(self.shares) - 1

    @property
    def survival(self) -> tuple[float, ...]:
        """[i - 1]: the chance that position i and all before it are accepted. vLLM calls these acceptance rates."""
        return tuple(math.fsum(self.shares[position:]) for position in range(1, len(self.shares)))

    @property
    def length(self) -> float:
        """The mean tokens per step, the one that ends it included: what was asked for, or what the law makes of it."""
        return theory.length_of(self.survival)

    @property
    def variance(self) -> float:
        """Of the tokens per step."""
        accepted = self.length - 1
        return math.fsum(share * (count - accepted) ** 2 for count, share in enumerate(self.shares))


def distribution(law: Law, length: float, gamma: int) -> Distribution:
    """What the law makes of an acceptance length for drafts of `gamma` tokens.

    Raises UserError where there can be no such length: it goes from 1, nothing accepted, to gamma + 1.
    """
    if not 0 <= gamma <= MOST_GAMMA:
        raise UserError(f"gamma is {gamma}; give a draft length from 0 to {MOST_GAMMA}.")
    if not 1 <= length <= gamma + 1:  # nor is it if it is not a number
        raise UserError(f"Drafts of {gamma} tokens can't have an acceptance length of {length}; give 1 to {gamma + 1}.")
    if law not in LAWS:
        raise UserError(f"There is no law {law!r}; give one of: {', '.join(LAWS)}.")
    if law == "clamped-normal":
        return Distribution(law, length, _clamped_normal(length, gamma))
    survival = _first_positions(length, gamma) if law == "minimum-variance" else _same_chance(length, gamma)
    shares = tuple(max(0.0, before - after) for before, after in pairwise((1.0, *survival, 0.0)))
    return Distribution(law, length, shares)


def _first_positions(length: float, gamma: int) -> list[float]:
    """Survival that spends the length on the earliest positions, which leaves it the least variance."""
    return [min(1.0, max(0.0, length - 1 - position)) for position in range(gamma)]


def _same_chance(length: float, gamma: int) -> list[float]:
    p = theory.alpha_of(length, gamma) if gamma else 0.0
    return [p**position for position in range(1, gamma + 1)]


def _clamped_normal(length: float, gamma: int) -> tuple[float, ...]:
    """Shares of the rounded draw: each whole number takes what lies within a half of it, the outer ones all beyond."""
    below = [0.0, *(NormalDist(length).cdf(tokens + 0.5) for tokens in range(1, gamma + 1)), 1.0]
    return tuple(after - before for before, after in pairwise(below))


def draw(distribution: Distribution, steps: int, seed: int) -> list[int]:
    """Accepted draft tokens of as many steps, the same for the same seed. Raises UserError for what no run can have."""
    if not 0 <= seed < LARGEST:
        raise UserError(f"The seed is {seed!r:.30}; give a whole number from 0 to {LARGEST - 1}.")
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"A synthetic run of {steps} steps can't be made; give 1 to {MOST_STEPS}.")
    return random.Random(seed).choices(range(len(distribution.shares)), distribution.shares, k=steps)


def to_tensorrt(length: float) -> float:
    """The value of TensorRT-LLM's variable for an acceptance length: it leaves out the token that ends a step.

    There 0 forces nothing at all, so that a length of 1 can't be asked for.
    """
    return length - 1


def check_costs(cost_ratio: float, verify_cost: float) -> None:
    """Raises UserError for costs that no machine has: speed-ups that follow from them would mean nothing."""
    if not (0 <= cost_ratio <= MOST_COST and LEAST_VERIFY <= verify_cost <= MOST_COST):  # nor if they are no numbers
        raise UserError(
            f"c is {cost_ratio:g} and v is {verify_cost:g}; give c from 0 to {MOST_COST:g} and v from "
            f"{LEAST_VERIFY:g} to {MOST_COST:g}."
        )


def knobs(made: Distribution) -> dict[str, str]:
    """How each engine is told this law and length, for drafts of at least one token; by its name, or why it can't be.

    Sources: vllm/config/speculative.py, SGLang's environ.py and speculative/spec_utils.py, TensorRT-LLM's _torch/
    speculative/interface.py, ROCm/ATOM#1948, ggml-org/llama.cpp#27711.
    """
    least = made.law == "minimum-variance"
    told = f"{made.asked:g}"
    forced = f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={to_tensorrt(made.asked):g}"
    nothing_forced = "can't be told: 0 accepted draft tokens force nothing there"
    other_law = "can't be told this law: its own is minimum-variance"
    return {
        "vLLM": _vllm(made),
        "SGLang": _sglang(made) if made.law in SGLANG_METHODS else "can't be told this law",
        "TensorRT-LLM": other_law if not least else forced if made.asked > 1 else nothing_forced,
        "ATOM": f"--spec-decode-acceptance-length {told}" if least else other_law,
        "llama.cpp": f"--spec-synthetic-acceptance-length {told}"
        if made.law == "geometric"
        else "can't be told this law: a length means the geometric one there",
    }


def _vllm(made: Distribution) -> str:
    """By its length, which means the law of least variance, or position by position, which gives any law."""
    rates: dict[str, float | list[float]] = {"synthetic_acceptance_length": made.asked}
    if made.law != "minimum-variance":
        rates = {"synthetic_acceptance_rates": [round(min(1.0, share), 6) for share in made.survival]}
    shown = json.dumps({"num_speculative_tokens": made.gamma, "rejection_sample_method": "synthetic", **rates})
    return f"--speculative-config '{{..., {shown[1:]}'"


def _sglang(made: Distribution) -> str:
    method = f"SGLANG_SIMULATE_ACC_LEN={made.asked:g} SGLANG_SIMULATE_ACC_METHOD={SGLANG_METHODS[made.law]}"
    return f"{method} SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token"


def synthetic_trace(distribution: Distribution, steps: int, seed: int) -> Trace:
    """A run in which steps accept as many draft tokens as the law draws; everything else in it is a placeholder.

    Its mode is `synthetic`, and its target, title, notes and text say so too.
    """
    counts = draw(distribution, steps, seed)
    tokens = sum(counts) + steps
    run = Run(
        target="none (synthetic acceptance)",
        drafter="synthetic",
        drafter_settings={"law": distribution.law, "acceptance_length": distribution.asked},
        gamma=distribution.gamma,
        sampler={"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
        seed=seed,
        max_new_tokens=tokens,
        prompt=(),
        prompt_text="",
        chat_template=False,
        device="none",
        dtype="none",
        threads=None,
        synchronised=False,
        rule="synthetic",
        lossless=False,  # what is forced is not the target's own
        mode="synthetic",
        title="Synthetic acceptance",
        notes=(WATERMARK,),
    )
    starts = accumulate((accepted + 1 for accepted in counts), initial=0)
    made = (
        _step(index, start, accepted, run.gamma)
        for index, (start, accepted) in enumerate(zip(starts, counts, strict=False))
    )
    *others, last = made
    return Trace(run, (*others, replace(last, cut="length")))


def _step(index: int, start: int, accepted: int, gamma: int) -> Step:
    """A chain of `gamma` tokens of which the first `accepted` are kept; nothing is known of any probability."""
    made: list[Outcome] = ["accepted" if place < accepted else "untested" for place in range(gamma)]
    if accepted < gamma:
        made[accepted] = "rejected"
    unknown = {name: None for name in ("p", "q", "p_trial", "accept_prob", "r", "p_raw", "q_raw", "rank_p", "rank_q")}
    nodes = tuple(
        Node(TOKEN, PIECE, parent=place - 1, depth=place + 1, outcome=outcome, **unknown)
        for place, outcome in enumerate(made)
    )
    return Step(
        index=index,
        start=start,
        gamma_asked=gamma,
        gamma_used=gamma,
        nodes=nodes,
        path=tuple(range(accepted)),
        last=LastToken(TOKEN, PIECE, "bonus" if accepted == gamma else "correction", None),
        committed=(TOKEN,) * (accepted + 1),
        text=(PIECE,) * (accepted + 1),
        cut=None,
        seconds=None,
    )
