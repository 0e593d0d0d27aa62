"""What a comparison says, and that it is written and read back strictly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specviz.comparison import Comparison, Divergence, Lap, Phases, from_json, to_json
from specviz.errors import UserError

PHASES = Phases(
    draft_s=0.25,
    verify_s=0.5,
    decide_s=0.125,
    plain_verify_s=1.0,
    plain_decide_s=0.0625,
    cost_ratio=0.25,
    verify_cost=1.5,
    gamma_used=2.0,
    acceptance_length=2.5,
)


def lap(total: float, *sizes: int) -> Lap:
    """A lap whose steps committed so many tokens each, at even intervals."""
    seconds = tuple(total * (place + 1) / len(sizes) for place in range(len(sizes)))
    return Lap(seconds, tuple(("é",) * size for size in sizes))


def compared(*pairs: tuple[float, float]) -> Comparison:
    """Four tokens, one by one and two by two; per repeat the seconds of the plain and of the speculative lap."""
    plain, speculative = zip(*pairs, strict=True) if pairs else ((), ())
    return Comparison(4, tuple(lap(s, 1, 1, 1, 1) for s in plain), tuple(lap(s, 2, 2) for s in speculative), True, None)


FULL = replace(
    compared((4.0, 2.0), (4.0, 1.0)), identical=False, divergence=Divergence(3, 7, None, -0.5, True), phases=PHASES
)


def test_times_per_token_and_their_ratios():
    result = compared((4.0, 2.0), (8.0, 2.0), (6.0, 2.0))
    assert result.plain_s == (1.0, 2.0, 1.5) and result.speculative_s == (0.5, 0.5, 0.5)
    assert result.ratios == (2.0, 4.0, 3.0) and result.repeats == 3
    assert result.speedup == 3.0 and result.spread == (2.0, 4.0)
    assert result.plain_tokens_per_s == 1 / 1.5 and result.speculative_tokens_per_s == 2.0


def test_slower_is_said_as_plainly():
    """A drafter that costs more than it brings makes ratios below 1."""
    result = compared((1.0, 2.0), (1.0, 4.0), (1.0, 1.25))
    assert result.speedup == 0.5 and result.spread == (0.25, 0.8)


def test_without_repeats_there_is_no_speed():
    result = compared()
    assert result.repeats == 0 and result.ratios == ()
    assert (result.speedup, result.spread, result.typical) == (None, None, None)
    assert (result.plain_tokens_per_s, result.speculative_tokens_per_s) == (None, None)


@pytest.mark.parametrize(
    ("pairs", "typical"),
    [
        ([(4.0, 2.0), (8.0, 2.0), (6.0, 2.0)], 2),  # the median itself
        ([(8.0, 2.0), (4.0, 2.0), (5.0, 2.0), (6.0, 2.0)], 2),  # 2.5 and 3.0 are equally near to 2.75: the first
        ([(8.0, 2.0)], 0),
    ],
)
def test_the_typical_repeat_is_the_one_nearest_to_the_median(pairs, typical):
    assert compared(*pairs).typical == typical


def test_a_lap():
    assert lap(3.0, 2, 1).tokens == 3 and lap(3.0, 2, 1).total == 3.0
    assert Lap((), ()).tokens == 0 and Lap((), ()).total == 0.0


def test_what_acceptance_promises_and_where_it_breaks_even():
    assert PHASES.promised == 2.5 / (1.5 + 2.0 * 0.25)
    assert PHASES.break_even == (2.5 - 1.5) / 2.0
    assert replace(PHASES, cost_ratio=PHASES.break_even).promised == 1.0
    assert replace(PHASES, acceptance_length=1.2).break_even == pytest.approx(-0.15), "never pays, however cheap"
    assert replace(PHASES, cost_ratio=0.0).promised == 2.5 / 1.5


@pytest.mark.parametrize("unknown", ["acceptance_length", "verify_cost", "gamma_used", "cost_ratio"])
def test_unknown_is_not_zero(unknown):
    phases = replace(PHASES, **{unknown: None})
    assert phases.promised is None
    assert (phases.break_even is None) == (unknown != "cost_ratio")


def test_where_nothing_was_drafted_nothing_breaks_even():
    assert replace(PHASES, gamma_used=0.0).break_even is None


@pytest.mark.parametrize("result", [FULL, compared(), compared((4.0, 3.0))], ids=["full", "empty", "one repeat"])
def test_a_written_comparison_reads_back_identically(result):
    text = to_json(result)
    assert from_json(text, "x") == result
    assert "\n" not in text and set(json.loads(text)) == {"schema", "comparison"}


def changed(path: str, value: object) -> str:
    """The full comparison as JSON with one place changed, or removed by `...`."""
    raw = json.loads(to_json(FULL))
    *way, name = path.split(".")
    place = raw
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if value is ...:
        del place[name]
    else:
        place[int(name) if isinstance(place, list) else name] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema", 2, "no comparison of schema 1"),
        ("schema", True, "no comparison of schema 1"),
        ("schema", ..., "no comparison of schema 1"),
        ("extra", 1, r"unknown keys \['extra'\]"),
        ("comparison.speedup", 3, r"unknown keys \['speedup'\]"),
        ("comparison.phases.draft_s", ..., r"phases: .*missing keys \['draft_s'\]"),
        ("comparison.phases.draft_s", None, "phases, draft_s: None is not what belongs there"),
        ("comparison.tokens", 4.0, "tokens: 4.0 is not what belongs there"),
        ("comparison.identical", 1, "identical: 1 is not what belongs there"),
        ("comparison.divergence.margin", "1", "margin: '1' is not what belongs there"),
        ("comparison.plain.0.seconds", [1.0, "2"], "seconds: '2' is not what belongs there"),
        ("comparison.plain.0.texts", ["ab"], "texts: 'ab' is not what belongs there"),
        ("comparison.tokens", 5, "do not fit together"),
        ("comparison.plain", [], "do not fit together"),
        ("comparison.plain.0.seconds", [1.0, 2.0, 3.0], "do not fit together"),
        ("comparison.plain.0.seconds.3", 2.0, "do not fit together"),
        ("comparison.plain.0.seconds.0", -1.0, "do not fit together"),
        ("comparison.speculative.1.texts.0", ["é"], "do not fit together"),
    ],
)
def test_what_is_no_comparison_is_refused(path, value, named):
    with pytest.raises(UserError, match=f"^a file.*{named}"):
        from_json(changed(path, value), "a file")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"schema": 1, "comparison": NaN}', '"\\ud83d"'])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(UserError, match=r"^a file"):
        from_json(text, "a file")


def test_times_that_are_all_zero_are_refused():
    """They would be divided by."""
    text = to_json(Comparison(1, (Lap((0.0,), (("a",),)),), (Lap((0.0,), (("a",),)),), None, None))
    with pytest.raises(UserError, match="do not fit together"):
        from_json(text, "x")
    text = to_json(Comparison(0, (Lap((1.0,), ((),)),), (Lap((1.0,), ((),)),), None, None))
    with pytest.raises(UserError, match="do not fit together"):
        from_json(text, "x")
