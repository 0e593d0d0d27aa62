"""Figures by hand: pooled acceptance, medians, quartiles, what was promised, and who is best."""

import json

import pytest

from specviz.comparison import Divergence, Phases
from specviz.workloads import summary, table
from specviz.workloads.arms import Arm
from specviz.workloads.results import Header, Result
from specviz.workloads.summary import best, by_prompt_kind, rows

ONE, TWO, PLAIN = Arm("ngram", {"ngram_max": 3}, 1), Arm("ngram", {"ngram_max": 3}, 2), Arm("plain", {}, 1)
HEADER = Header("own", "tiny", "abc", "cpu, 1 thread", "float32", 1, {}, 100, 1, "2026-01-01", (0.5, 0.25, 0.0))


def result(arm, prompt, speedup, accepted=50, steps=50, kind="code", c=0.1, v=1.2, length=2.1, **changed) -> Result:
    """100 tokens, plain at one second each; what acceptance promises is 2.1 / (1.2 + 2 * 0.1) = 1.5."""
    phases = Phases(0.1, 0.2, 0.3, 0.4, 0.5, cost_ratio=c, verify_cost=v, gamma_used=2.0, acceptance_length=length)
    values = {"outside": 0.04, "divergence": None, **changed}
    return Result(arm, prompt, prompt, kind, 100, steps, accepted, (1.0,), (1 / speedup,), phases, **values)


def test_acceptance_is_pooled_and_speed_is_a_median():
    results = [result(ONE, "a", 1.0, 0, 100), result(ONE, "b", 4.0, 75, 25), result(ONE, "c", 1.25, 20, 80)]
    [row] = rows(results)
    assert row.prompts == 3 and row.speedup == 1.25 and row.quartiles == (1.0, 4.0)
    assert row.acceptance_length == 1 + 95 / 205 and row.tokens_per_pass == 300 / 205
    assert row.total_speedup == pytest.approx(300 / (100 + 25 + 80) * 1.0)
    assert results[1].acceptance_length == 4.0


def test_promise_and_share_of_it():
    [row] = rows([result(ONE, "a", 1.2), result(ONE, "b", 1.5), result(ONE, "c", 1.35)])
    assert row.predicted == pytest.approx(1.5) and row.of_predicted == pytest.approx(0.9)
    assert row.cost_ratio == 0.1 and row.verify_cost == 1.2 and row.gamma_used == 2.0 and row.outside == 0.04
    [row] = rows([result(PLAIN, "a", 1.0, c=None, outside=None)])
    assert row.predicted is row.of_predicted is row.cost_ratio is row.outside is None


@pytest.mark.parametrize(
    ("speedups", "quartiles", "verdict"),
    [
        ((0.9, 1.1, 1.2, 1.3, 1.4), (1.1, 1.3), "faster"),
        ((0.8, 0.9, 1.1, 1.2, 1.3), (0.9, 1.2), "no clear difference"),
        ((0.5, 0.6, 0.7, 0.8, 1.4), (0.6, 0.8), "slower"),
        ((1.5,), (1.5, 1.5), "faster"),
        ((0.9, 1.5, 1.6), (0.9, 1.6), "no clear difference"),
    ],
)
def test_quartiles_on_both_sides_of_one_are_no_clear_difference(speedups, quartiles, verdict):
    [row] = rows([result(ONE, str(index), speedup) for index, speedup in enumerate(speedups)])
    assert row.quartiles == pytest.approx(quartiles) and row.verdict == verdict


def test_the_best_setting_of_each_kind_and_what_it_brings_on_each_kind_of_prompt():
    results = [
        result(ONE, "a", 1.1),
        result(TWO, "a", 1.3, 30, 70),
        result(PLAIN, "a", 1.0, 0, 100),
        result(ONE, "b", 1.2),
        result(TWO, "b", 1.5, 60, 40),
        result(TWO, "c", 1.1, 10, 90, kind="story"),
    ]
    chosen = best(rows(results))
    assert [(name, row.arm) for name, row in chosen.items()] == [("ngram (ngram_max 3)", TWO), ("plain", PLAIN)]
    assert by_prompt_kind(results, TWO) == [("code", 2, 1 + 90 / 110, 1.4), ("story", 1, 1 + 10 / 90, 1.1)]


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
    assert list(said["best"]) == list(said["by_prompt_kind"]) == list(best_ones)
    assert "kind  early-exit (exit_layer 15)  early-exit (exit_layer 24)  draft-model" in table.render(HEADER, results)


def test_table_and_report_say_the_same():
    parted = Divergence(3, 1, 2, 0.0, near_tie=True)
    results = [result(ONE, "a", 1.2), result(TWO, "a", 1.5, divergence=parted), result(PLAIN, "a", 1.0, c=None)]
    text = table.render(HEADER, results)
    assert "gamma 1  2.00  2.00      0.100  1.20  1.20      1.20-1.20  1.50       0.80   4.0%     faster" in text
    assert "2 of 3 outputs are plain decoding's, token by token; 1 part from it at a near tie" in text
    assert "Load averages at the start: 0.50, 0.25, 0.00." in text and "n/a" in text
    said = json.loads(json.dumps(summary.report(HEADER, results), allow_nan=False))
    assert [row["speedup"] for row in said["rows"]] == pytest.approx([1.2, 1.5, 1.0])
    [(name, chosen), _] = said["best"].items()
    assert name == "ngram (ngram_max 3)" and chosen["arm"]["gamma"] == 2 and chosen["verdict"] == "faster"
    assert set(said["rows"][0]) - {"arm", "prompts", "verdict"} == set(summary.DEFINITIONS)
    assert said["by_prompt_kind"][name] == [
        {"kind": "code", "prompts": 1, "acceptance_length": 2.0, "speedup": pytest.approx(1.5)}
    ]
