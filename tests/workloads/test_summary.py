"""Figures by hand: pooled acceptance, medians, quartiles, what was promised, and who is best."""

import json

import pytest
from suites import HEADER, answer, result

from specviz.comparison import Divergence
from specviz.workloads import summary, table
from specviz.workloads.arms import Arm
from specviz.workloads.summary import Place, best, by_workload, rows

ONE, TWO, PLAIN = Arm("ngram", {"ngram_max": 3}, 1), Arm("ngram", {"ngram_max": 3}, 2), Arm("plain", {}, 1)


def test_acceptance_is_weighted_by_steps_and_by_requests_and_speed_is_a_median():
    results = [
        result(ONE, "a", 1.0, (0, 0, 0, 0)),
        result(ONE, "b", 4.0, (3,)),
        result(ONE, "c", 1.25, (1, 0)),
    ]
    [row] = rows(results)
    assert row.acceptance_interval is row.request_interval is row.speedup_interval is None, "three prompts are few"
    assert row.prompts == 3 and row.speedup == 1.25 and row.quartiles == (1.0, 4.0)
    assert row.acceptance_length == 1 + 4 / 7
    assert row.request_acceptance_length == pytest.approx((1 + 4 + 1.5) / 3)
    assert row.tokens_per_pass == (4 + 4 + 3) / 7 and row.acceptance_rate == 4 / 28
    assert row.survival == (2 / 7, 1 / 7, 1 / 7, 0.0) and row.acceptance_length_drafted == row.acceptance_length
    undrafted = result(ONE, "d", answers=(answer(0, 0, gamma=0), answer(3)), turns=2)
    [drafted] = rows([undrafted])
    assert (drafted.acceptance_length, drafted.acceptance_length_drafted) == (2.0, 4.0)
    assert row.total_speedup == pytest.approx(11 / (4 + 1 + 3 / 1.25))
    assert results[1].acceptance_length == 4.0
    [row] = rows([result(ONE, str(n), 1 + n / 8, (n % 4, 1)) for n in range(8)])
    for middle, (low, high) in (
        (row.acceptance_length, row.acceptance_interval),
        (row.request_acceptance_length, row.request_interval),
        (row.speedup, row.speedup_interval),
    ):
        assert 1 <= low < middle < high <= 3


def test_without_times_and_without_drafts_there_are_no_figures_of_them():
    undrafted = result(PLAIN, "a", None, answers=(answer(0, 0, gamma=0),))
    [row] = rows([undrafted])
    assert row.speedup is row.quartiles is row.verdict is row.total_speedup is row.predicted is row.outside is None
    assert row.acceptance_length_drafted is row.acceptance_rate is None and row.survival == ()
    assert row.acceptance_length == 1.0
    assert row.acceptance_interval is None, "one prompt tells nothing of others"
    assert (row.identical, row.compared) == (0, 0)
    text = table.render(HEADER, [undrafted])
    assert "n/a" in text and "token by token" not in text


def test_promise_and_share_of_it():
    [row] = rows([result(ONE, "a", 1.2), result(ONE, "b", 1.5), result(ONE, "c", 1.35)])
    assert row.predicted == pytest.approx(1.5) and row.of_predicted == pytest.approx(0.9)
    assert row.cost_ratio == 0.1 and row.verify_cost == 1.2 and row.gamma_used == 2.0 and row.outside == 0.04
    [row] = rows([result(PLAIN, "a", 1.0, c=None, outside=None)])
    assert row.predicted is row.of_predicted is row.cost_ratio is row.outside is None


@pytest.mark.parametrize(
    ("speedups", "quartiles", "verdict"),
    [
        ((0.9, 1.1, 1.2, 1.3, 1.4) * 4, (1.1, 1.3), "faster"),
        ((0.8, 0.9, 1.1, 1.2, 1.3) * 4, (0.9, 1.2), "no clear difference"),
        ((0.5, 0.6, 0.7, 0.8, 1.4) * 4, (0.6, 0.8), "slower"),
        ((0.9, 1.1, 1.2, 1.3, 1.4), (1.1, 1.3), "no clear difference"),  # five are few: the interval holds 1
        ((1.5,), (1.5, 1.5), "too few prompts"),
        ((1.5, 1.5, 1.5, 1.6), (1.5, 1.525), "too few prompts"),
    ],
)
def test_a_verdict_takes_five_prompts_and_quartiles_and_interval_on_one_side_of_one(speedups, quartiles, verdict):
    [row] = rows([result(ONE, str(index), speedup) for index, speedup in enumerate(speedups)])
    assert row.quartiles == pytest.approx(quartiles) and row.verdict == verdict


def test_the_best_setting_of_each_kind_and_what_it_brings_on_each_workload():
    results = [
        result(ONE, "a", 1.1),
        result(TWO, "a", 1.3, (3, 0)),
        result(PLAIN, "a", 1.0, (0,)),
        result(ONE, "b", 1.2),
        result(TWO, "b", 1.5, (4, 2)),
        result(TWO, "c", 1.1, (1, 0, 0), "story"),
        result(TWO, "a", 0.9, (0, 1), suite="other"),
    ]
    chosen = best(rows(results))
    assert [(name, row.arm) for name, row in chosen.items()] == [("ngram (ngram_max 3)", TWO), ("plain", PLAIN)]
    found = {
        place: {row.arm.title: (row.prompts, row.acceptance_length, row.speedup) for row in each}
        for place, each in by_workload(results).items()
    }
    assert list(found) == [Place("own", "code"), Place("own", "story"), Place("other", "code")]
    assert found["own", "code"]["gamma 2"] == (2, 1 + 9 / 4, 1.4) and found["own", "code"]["-"] == (1, 1.0, 1.0)
    assert found["own", "story"] == {"gamma 2": (1, 1 + 1 / 3, 1.1)}
    assert found["other", "code"] == {"gamma 2": (1, 1.5, pytest.approx(0.9))}
    untimed = [result(ONE, "a", None, (1,)), result(TWO, "a", None, (2,))]
    assert [row.arm for row in best(rows(untimed)).values()] == [TWO], "acceptance decides where nothing was timed"


def test_two_drafters_of_one_kind_each_keep_their_best():
    def exits(layer: int, gamma: int) -> Arm:
        return Arm("early-exit", {"exit_layer": layer}, gamma)

    def models(name: str) -> Arm:
        return Arm("draft-model", {}, 2, {name: "abc"})

    measured = [(exits(15, 1), 1.3), (exits(15, 2), 1.2), (exits(24, 1), 0.7), (exits(24, 2), 0.8)]
    measured += [(models("135M"), 1.1), (models("360M"), 1.0)]
    results = [result(arm, "a", speedup) for arm, speedup in measured]
    best_ones = {
        "early-exit (exit_layer 15)": exits(15, 1),
        "early-exit (exit_layer 24)": exits(24, 2),
        "draft-model (135M)": models("135M"),
        "draft-model (360M)": models("360M"),
    }
    assert {name: row.arm for name, row in best(rows(results)).items()} == best_ones
    said = summary.report(HEADER, results)
    assert list(said["best"]) == list(best_ones)
    header = "workload  early-exit (exit_layer 15)  early-exit (exit_layer 24)  draft-model"
    assert header in table.render(HEADER, results)


def test_table_and_report_say_the_same():
    parted = Divergence(3, 1, 2, 0.0, near_tie=True)
    results = [
        result(ONE, "a", 1.2),
        result(TWO, "a", 1.5, identical=False, divergence=parted),
        result(PLAIN, "a", 1.0, c=None),
    ]
    text = table.render(HEADER, results)
    line = "gamma 1  2.00  n/a   2.00           2.00        0.100  1.20  1.20      1.20-1.20  1.50       0.80   4.0%"
    assert f"{line}     too few prompts" in text
    assert "2 of 3 outputs are plain decoding's, token by token; 1 part from it at a near tie" in text
    assert "Tiny, float32 on cpu, 1 thread; greedy, answers of at most 100 tokens, every prompt timed once" in text
    assert "Load averages at the start: 0.50, 0.25, 0.00." in text and "n/a" in text
    said = json.loads(json.dumps(summary.report(HEADER, results), allow_nan=False))
    assert [row["speedup"] for row in said["rows"]] == pytest.approx([1.2, 1.5, 1.0])
    [(name, chosen), _] = said["best"].items()
    assert name == "ngram (ngram_max 3)" and chosen["arm"]["gamma"] == 2 and chosen["verdict"] == "too few prompts"
    assert set(said["rows"][0]) - {"arm", "prompts", "verdict"} == set(summary.DEFINITIONS)
    assert [(row["suite"], row["workload"], row["speedup"]) for row in said["by_workload"]] == [
        ("own", "code", pytest.approx(speedup)) for speedup in (1.2, 1.5, 1.0)
    ]


def test_a_conversation_that_was_cut_short_is_named():
    whole, cut = result(ONE, "a", turns=1), result(ONE, "b", turns=3)
    text = table.render(HEADER, [whole, cut])
    assert "Cut short, as the target could hold no more turns: b." in text
    assert "Cut short" not in table.render(HEADER, [whole])
