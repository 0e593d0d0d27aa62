"""Synthetic acceptance: the three laws against values that were worked out independently."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from specviz import metrics, replay, synthetic, trace
from specviz.errors import UserError
from specviz.synthetic import LAWS, Law, distribution, draw, knobs, synthetic_trace, to_tensorrt

# Of 2.6 over 3 draft tokens: one always, a second with .6.
BY_HAND = {"length": 2.6, "gamma": 3, "survival": (1.0, 0.6, 0.0), "shares": (0.0, 0.4, 0.6, 0.0)}


def test_least_variance_accepts_the_whole_tokens_always_and_one_more_by_chance():
    made = distribution("minimum-variance", 2.6, 3)
    assert made.survival == pytest.approx(BY_HAND["survival"]) and made.shares == pytest.approx(BY_HAND["shares"])
    assert (made.length, made.variance) == (pytest.approx(2.6), pytest.approx(0.6 * 0.4))
    known = distribution("minimum-variance", 3.78, 7)
    assert known.shares == pytest.approx((0, 0, 0.22, 0.78, 0, 0, 0, 0))


@pytest.mark.parametrize(("length", "gamma"), [(2.6, 3), (1.25, 1), (3.78, 7), (5.5, 5)])
def test_no_law_has_less_variance(length: float, gamma: int):
    """Among all distributions with this mean the least variance is that of the two whole numbers around it."""
    part = length % 1
    variances = [distribution(law, length, gamma).variance for law in LAWS if law != "clamped-normal"]
    assert variances[0] == pytest.approx(part * (1 - part)) and variances[0] <= variances[1] + 1e-12


def test_the_geometric_law_accepts_every_token_with_the_same_chance():
    made = distribution("geometric", 3.78, 7)
    p = made.survival[0]
    assert p == pytest.approx(0.767, abs=0.0005)
    assert sum(p**position for position in range(1, 8)) == pytest.approx(2.78)
    assert made.shares == pytest.approx([*(p**count * (1 - p) for count in range(7)), p**7])
    assert distribution("geometric", 1.75, 2).survival == pytest.approx((0.5, 0.25))  # .5 + .25 = .75


def test_the_clamped_normal_is_what_the_engine_draws_and_misses_the_mean():
    """Against a million draws, each clamped and rounded; the tolerance is five standard errors."""
    made = distribution("clamped-normal", 1.5, 4)
    drawn = np.rint(np.clip(np.random.default_rng(0).normal(1.5, 1.0, 1_000_000), 1, 5)).astype(int) - 1
    for count, share in enumerate(made.shares):
        assert np.mean(drawn == count) == pytest.approx(share, abs=5 * np.sqrt(0.25 / 1e6))
    assert np.mean(drawn) + 1 == pytest.approx(made.length, abs=0.005)
    assert made.length == pytest.approx(1.683, abs=0.0005) and made.asked == 1.5
    assert distribution("clamped-normal", 2.5, 3).length == pytest.approx(2.5)  # in the middle nothing is lost


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("length", "gamma"), [(1.0, 0), (1.0, 4), (5.0, 4), (3.3, 4), (1.5, 1), (65.0, 64)])
def test_every_law_is_a_distribution_whose_survival_sums_to_its_length(law: Law, length: float, gamma: int):
    made = distribution(law, length, gamma)
    assert len(made.shares) == gamma + 1 and min(made.shares) >= 0
    assert sum(made.shares) == pytest.approx(1)
    assert 1 + sum(count * share for count, share in enumerate(made.shares)) == pytest.approx(made.length)
    assert list(made.survival) == pytest.approx(sorted(made.survival, reverse=True))
    second = sum((count + 1) ** 2 * share for count, share in enumerate(made.shares))
    assert made.variance == pytest.approx(second - made.length**2, abs=1e-9)
    if law != "clamped-normal":
        assert made.length == pytest.approx(length)
    if law != "clamped-normal" and length in (1, gamma + 1):  # alpha 0 and alpha 1 leave nothing to chance
        assert max(made.shares) == pytest.approx(1) and made.variance == pytest.approx(0)


@pytest.mark.parametrize(
    ("length", "gamma"), [(0.9, 3), (4.1, 3), (1.1, 0), (float("nan"), 3), (float("inf"), 3), (1.0, -1), (1.0, 65)]
)
@pytest.mark.parametrize("law", LAWS)
def test_a_length_that_cannot_be_is_refused(law: Law, length: float, gamma: int):
    with pytest.raises(UserError, match="give"):
        distribution(law, length, gamma)


def test_a_law_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="minimum-variance, clamped-normal, geometric"):
        distribution("uniform", 2.0, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_the_law_and_their_seed(law: Law):
    made = distribution(law, 3.3, 4)
    drawn = draw(made, 2000, seed=1)
    assert drawn == draw(made, 2000, seed=1) != draw(made, 2000, seed=2)
    error = 4 * (made.variance / 2000) ** 0.5
    assert 1 + sum(drawn) / 2000 == pytest.approx(made.length, abs=error)
    assert set(drawn) <= {count for count, share in enumerate(made.shares) if share}
    for steps in (0, 2001):
        with pytest.raises(UserError, match="give 1 to 2000"):
            draw(made, steps, 0)


def test_one_engine_leaves_out_the_last_token():
    assert to_tensorrt(3.5) == 2.5 and to_tensorrt(3.78) == pytest.approx(2.78)
    assert knobs(distribution("minimum-variance", 3.5, 4))["TensorRT-LLM"].endswith("ACCEPTED_TOKENS=2.5")
    assert "can't be told: 0" in knobs(distribution("minimum-variance", 1.0, 4))["TensorRT-LLM"]


def test_engines_are_told_the_law_that_was_chosen_or_named_as_having_another():
    sglang = "SGLANG_SIMULATE_ACC_LEN=1.75 SGLANG_SIMULATE_ACC_METHOD={}"
    sglang += " SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token"
    vllm = '--speculative-config \'{{..., "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", {}}}\''
    least, normal, geometric = (
        knobs(distribution(law, 1.75, 2)) for law in ("minimum-variance", "clamped-normal", "geometric")
    )
    assert least["SGLang"] == sglang.format("match-expected") and normal["SGLang"] == sglang.format("multinomial")
    assert least["vLLM"] == vllm.format('"synthetic_acceptance_length": 1.75')
    assert geometric["vLLM"] == vllm.format('"synthetic_acceptance_rates": [0.5, 0.25]')
    # What a draw around 1.75 has above 1.5 and above 2.5: the normal distribution's share above -.25 and above .75.
    assert normal["vLLM"] == vllm.format('"synthetic_acceptance_rates": [0.598706, 0.226627]')
    assert geometric["llama.cpp"] == "--spec-synthetic-acceptance-length 1.75"
    assert least["ATOM"] == "--spec-decode-acceptance-length 1.75"
    refused = {
        law: [engine for engine, told in found.items() if told.startswith("can't be told this law")]
        for law, found in (("least", least), ("normal", normal), ("geometric", geometric))
    }
    assert refused == {
        "least": ["llama.cpp"],
        "normal": ["TensorRT-LLM", "ATOM", "llama.cpp"],
        "geometric": ["SGLang", "TensorRT-LLM", "ATOM"],
    }


@pytest.mark.parametrize(("gamma", "length"), [(3, 2.6), (0, 1.0)])
def test_a_synthetic_run_counts_as_what_was_drawn_and_says_what_it_is(gamma: int, length: float, tmp_path: Path):
    made = distribution("minimum-variance", length, gamma)
    drawn = draw(made, 40, seed=3)
    run = synthetic_trace(made, 40, seed=3)
    numbers = metrics.acceptance(run)
    assert numbers.histogram == (tuple(drawn.count(count) for count in range(gamma + 1)) if gamma else (0,))
    assert numbers.acceptance_length == pytest.approx(1 + sum(drawn) / 40)
    assert numbers.tokens_per_pass == pytest.approx(1 + sum(drawn) / 40)
    assert run.finish_reason == "length" and len(run.tokens) == run.run.max_new_tokens
    assert [step.start for step in run.steps[:3]] == [0, drawn[0] + 1, drawn[0] + drawn[1] + 2]
    assert metrics.timing(run).decode_s is None
    header = run.run
    assert (header.mode, header.device, header.dtype, header.lossless) == ("synthetic", "none", "none", False)
    assert synthetic.WATERMARK in run.warnings
    trace.write(run, tmp_path / "run.jsonl")
    assert trace.read(tmp_path / "run.jsonl") == run


def test_a_synthetic_run_is_replayed_as_synthetic():
    out = io.StringIO()
    replay.play(synthetic_trace(distribution("geometric", 2.6, 3), 5, seed=0), out)
    shown = out.getvalue()
    assert shown.startswith("Synthetic acceptance\ntarget none (synthetic acceptance), drafter synthetic")
    assert "NOT lossless" in shown and f"note: {synthetic.WATERMARK}" in shown
    assert shown.count("synthetic␣") >= 20  # every token of every step
