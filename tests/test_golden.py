"""Golden curves: what they imply, and how measurements compare; values worked out by hand or by enumeration."""

from __future__ import annotations

from itertools import product
from statistics import fmean

import pytest

from specviz.errors import UserError
from specviz.golden import (
    OVERALL,
    STATUSES,
    Curve,
    Golden,
    Measured,
    compare,
    counts,
    differences,
    from_first_position,
    implied_survival,
    worst,
)

QWEN = Curve("qwen3.5", "thinking_on", dict(enumerate((1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21), 1)))
DEEPSEEK = Curve("deepseek-v4", "thinking_on", dict(enumerate((1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58), 1)))
DSPARK = Curve("dspark", "thinking_on", dict(enumerate((1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47), 1)))


def test_survival_is_what_each_position_adds():
    assert implied_survival(QWEN) == pytest.approx((0.93, 0.80, 0.66, 0.58, 0.44, 0.39, 0.24, 0.17))
    assert 1 + sum(implied_survival(QWEN)) == pytest.approx(5.21)


def test_rises_in_the_wrong_order_take_their_mean_so_that_the_length_stays():
    """Of the rises .79 .48 .22 .05 .01 .00 -.01 .04 the last four become .01 each."""
    survival = implied_survival(DEEPSEEK)
    assert survival == pytest.approx((0.79, 0.48, 0.22, 0.05, 0.01, 0.01, 0.01, 0.01))
    assert 1 + sum(survival) == pytest.approx(2.58)


def test_a_falling_curve_is_cut_at_nothing():
    survival = implied_survival(DSPARK)
    assert survival == pytest.approx((0.84, 0.67, 0.50, 0.35, 0.25, 0.16, 0, 0))
    assert list(survival) == sorted(survival, reverse=True)


@pytest.mark.parametrize("rises", list(product((-0.2, 0.1, 0.5, 1.0), repeat=4)))
def test_survival_is_the_nearest_that_never_rises(rises: tuple[float, ...]):
    """Checked against the min-max formula of isotonic regression (Robertson et al. 1988), cut to 0 and 1."""
    lengths = {k: 1 + sum(rises[:k]) for k in range(1, 5)}
    nearest = [min(max(fmean(rises[i : j + 1]) for j in range(k, 4)) for i in range(k + 1)) for k in range(4)]
    expected = [min(1.0, max(0.0, share)) for share in nearest]
    assert implied_survival(Curve("", "", lengths)) == pytest.approx(expected)


def test_positions_within_a_gap_are_unknown_and_still_bound_the_others():
    assert implied_survival(Curve("", "", {1: 1.5, 3: 2.1, 4: 2.3})) == (0.5, None, None, pytest.approx(0.2))
    assert implied_survival(Curve("", "", {7: 3.67})) == (None,) * 7
    # Two positions of .1 each stand before one of .4, so that all three have .2.
    assert implied_survival(Curve("", "", {2: 1.2, 3: 1.6})) == (None, None, pytest.approx(0.2))


def test_independent_draws_promise_more_than_was_measured():
    assert from_first_position(QWEN)[8] == pytest.approx(6.85, abs=0.005)
    assert from_first_position(DEEPSEEK)[8] == pytest.approx(4.19, abs=0.005)
    assert from_first_position(QWEN)[1] == pytest.approx(1.93)
    assert from_first_position(Curve("", "", {1: 2.0, 3: 3.0})) == {1: 2.0, 3: 4.0}  # alpha 1
    assert from_first_position(Curve("", "", {1: 1.0, 2: 1.1})) == {1: 1.0, 2: 1.0}  # alpha 0
    assert from_first_position(Curve("", "", {2: 1.1})) is None


@pytest.mark.parametrize(
    ("measured", "status"),
    [
        (Measured(2.1), "within"),  # on the edge of 5 %
        (Measured(2.11), "can't tell"),  # too few prompts for an interval
        (Measured(2.11, 2.11, 2.11), "above"),
        (Measured(1.9), "within"),
        (Measured(1.89), "can't tell"),
        (Measured(1.89, 1.89, 1.89), "below"),
        (Measured(2.3, 2.09, 2.5), "can't tell"),  # noise could explain it, and need not
        (Measured(2.05, 1.5, 2.6), "within"),
        (Measured(2.3, 1.5, 3.1), "can't tell"),
        (Measured(2.3, 2.11, 2.5), "above"),
        (Measured(1.7, 1.6, 1.91), "can't tell"),
        (Measured(1.7, 1.6, 1.89), "below"),
    ],
)
def test_a_measurement_is_outside_only_with_its_whole_interval(measured: Measured, status: str):
    (verdict,) = compare(Curve("", "", {1: 2.0}), {1: measured})
    assert (verdict.status, verdict.golden, verdict.measured) == (status, 2.0, measured)
    assert verdict.deviation == pytest.approx(measured.length / 2 - 1)


def test_every_draft_length_has_its_verdict():
    verdicts = compare(Curve("", "", {1: 1.8, 3: 2.5}), {1: Measured(1.8), 2: Measured(2.2)})
    assert [(verdict.k, verdict.status, verdict.off_by) for verdict in verdicts] == [
        (1, "within", "+0.0%"),
        (2, "no golden value", "n/a"),
        (3, "not measured", "n/a"),
    ]


def test_a_tolerance_is_a_share():
    curve = Curve("", "", {1: 1.8})
    assert compare(curve, {1: Measured(1.9, 1.9, 1.9)}, 0.0)[0].status == "above"
    for tolerance in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="give a share"):
            compare(curve, {}, tolerance)


def test_one_word_for_all():
    curve = Curve("", "", {1: 1.8, 2: 2.3})

    def word(*lengths: float) -> str:
        return worst(compare(curve, {k: Measured(length, length, length) for k, length in enumerate(lengths, 1)}))

    assert [word(), word(1.8), word(2.0, 2.3), word(2.0, 2.0)] == ["not measured", "within", "above", "below"]
    unsure = Measured(2.0, 1.8, 2.2)
    verdicts = compare(curve, {1: unsure, 2: Measured(2.3), 3: Measured(2.9)})
    assert worst(verdicts) == "can't tell" and worst(compare(curve, {1: unsure, 2: Measured(2.0, 2.0, 2.0)})) == "below"
    assert counts(verdicts) == {"within": 1, "can't tell": 1, "no golden value": 1}
    assert set(OVERALL) == set(STATUSES) - {"no golden value"}


def test_conditions_that_differ_are_named_and_those_that_one_side_knows_alone_are_not():
    comments = (
        "# temperature: 0 | top_p: 1 | dtype: float32 | chat_template: true",
        "# weights: abc",
        "# weights of head: 12",
        "# dataset: own, other",
    )
    curve = Curve("Tiny + eagle (head)", "own", {1: 1.5})
    own = {"model": "Tiny", "drafter": "eagle (head)", "temperature": "0", "top_p": "1.0", "dtype": "float32"}
    own |= {"weights": "abc", "weights of head": "12", "dataset": "own", "rule": "block"}
    file = Golden("tiny", (curve,), comments)
    assert differences(file, curve, own) == []
    for what, there, here in (
        ("model", "Tiny", "Large"),
        ("drafter", "eagle (head)", "eagle"),
        ("temperature", "0", "0.7"),
        ("dtype", "float32", "bfloat16"),
        ("weights", "abc", "abd"),
        ("weights of head", "12", "13"),
        ("dataset", "own, other", "own, third"),
    ):
        assert differences(file, curve, {**own, what: here}) == [(what, there, here)]
    (found,) = differences(file, curve, {**own, "temperature": "0.7"})
    assert str(found) == "temperature: 0 in the golden file, 0.7 in what was measured"


def test_a_published_curve_states_its_sampling_by_mode():
    comments = (
        "# on sampling: temperature 0.6, top_p 0.95",
        "# off sampling: temperature 0.7, top_p 0.95",
        "# method: eagle3 | device: B300",
    )
    on, off = Curve("m", "on", {1: 1.5}), Curve("m", "off", {1: 1.5})
    measured = {"model": "M", "method": "eagle", "temperature": "0.6", "top_p": "0.950"}
    file = Golden("some", (on, off), comments)
    assert differences(file, on, measured) == []
    assert differences(file, off, {**measured, "method": "mtp"}) == [
        ("method", "eagle3", "mtp"),
        ("temperature", "0.7", "0.6"),
    ]


def test_comments_say_where_a_curve_comes_from():
    comments = (
        "# Source GitHub Actions run: https://example.org/runs/1",
        "# Lengths measured with a suite.",
        "# dataset: coding | top_p: 0.95 | output_len: 4096",
        '# thinking_on : temp 0.6 | chat_template_kwargs: {"thinking": true}',
        "# speculative-config: method=dspark | draft_sample_method=probabilistic",
        "# thinking_on k=3: AR=0.5; accepted=12; proposed=24; drafts=8.",
        "# AL = 1 + 12 / 8",
        "# {",
        '#   "SEED": "0"',
        "# }",
    )
    golden = Golden("some", (QWEN,), comments)
    assert golden.provenance == {
        "Source GitHub Actions run": "https://example.org/runs/1",
        "dataset": "coding",
        "top_p": "0.95",
        "output_len": "4096",
        "thinking_on": "temp 0.6",
        "chat_template_kwargs": '{"thinking": true}',
        "speculative-config": "method=dspark",
        "method": "dspark",
        "draft_sample_method": "probabilistic",
        "thinking_on k=3": "AR=0.5; accepted=12; proposed=24; drafts=8.",
    }
    assert (golden.source, golden.method, golden.status) == ("https://example.org/runs/1", "dspark", None)


@pytest.mark.parametrize(
    ("comment", "method"),
    [
        ("# Measured on some-model (B300, vLLM EAGLE3), per num_speculative_tokens.", "eagle3"),
        ("# Measured on mtp-model (B300, vLLM), per num_speculative_tokens.", "mtp"),
        ("# Measured on a model (B300, vLLM).", None),
        ("# method: medusa", "medusa"),
    ],
)
def test_the_method_is_told_in_either_way(comment: str, method: str | None):
    assert Golden("some", (), (comment,)).method == method


def test_a_curve_is_found_by_as_much_of_its_name_as_is_needed():
    off = Curve("qwen3.5", "thinking_off", {1: 1.9})
    golden = Golden("some", (QWEN, off))
    assert golden.curve("thinking_off") is golden.curve("qwen3.5/thinking_off") is off
    assert Golden("some", (off,)).curve() is off
    for name in (None, "qwen3.5", "other"):
        with pytest.raises(UserError, match=r"name one of: qwen3\.5/thinking_on, qwen3\.5/thinking_off"):
            golden.curve(name)
