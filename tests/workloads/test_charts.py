"""From results built by hand to the figures' values, and to the same as tables and sentences."""

from dataclasses import replace

import pytest
from suites import HEADER, answer, result

from specviz.workloads import charts, sheets, summary
from specviz.workloads.arms import Arm
from specviz.workloads.choice import choose
from specviz.workloads.summary import Place

ONE, TWO = Arm("ngram", {"ngram_max": 3}, 1), Arm("ngram", {"ngram_max": 3}, 2)
EAGLE, OTHER = Arm("eagle", {}, 2, {"a/eagle": "x"}), Arm("eagle", {}, 2, {"b/eagle": "y"})
RESULTS = [
    result(arm, prompt, speed, accepted, workload)
    for arm, prompt, speed, accepted, workload in (
        (ONE, "a", 1.5, (1, 0), "code"),
        (ONE, "b", 1.5, (1,), "code"),
        (ONE, "c", 0.5, (0,), "story"),
        (ONE, "d", 0.5, (0, 0), "story"),
        (EAGLE, "a", 1.0, (1,), "code"),
        (EAGLE, "b", 1.0, (2, 2), "code"),
        (EAGLE, "c", 2.0, (2,), "story"),
        (EAGLE, "d", 2.0, (2, 0), "story"),
    )
]


def test_names_say_what_sets_drafters_apart():
    assert charts.names_of([ONE, TWO, EAGLE]) == [("ngram", "gamma 1"), ("ngram", "gamma 2"), ("eagle", "gamma 2")]
    assert charts.names_of([EAGLE, OTHER]) == [("eagle (a/eagle)", "gamma 2"), ("eagle (b/eagle)", "gamma 2")]
    assert charts.name_of(TWO, [ONE, TWO]) == "ngram, gamma 2"


def test_suites_are_named_where_workloads_alone_would_not_tell():
    places = [Place("own", "code"), Place("mine", "code"), Place("story", "story")]
    assert list(charts.place_names(places).values()) == ["own: code", "mine: code", "story"]
    assert charts.place_names(places[:1]) == {places[0]: "code"}


def test_a_heat_map_has_all_prompts_first_and_says_both_means():
    info = charts.heat_map(RESULTS, [ONE, EAGLE, TWO], "acceptance length")
    assert info.workloads == ("all prompts", "code", "story")
    values = [[cell and cell.value for cell in line] for line in info.cells]
    assert values == [[1 + 2 / 6, 1 + 9 / 6, None], [1 + 2 / 3, 1 + 5 / 3, None], [1.0, 1 + 4 / 3, None]]
    assert info.cells[0][0].hover[1:3] == ("1.33 step-weighted", "1.38 request-weighted")
    assert info.cells[0][0].mark == "" and info.cells[0][0].hover[-1] == "4 prompts"


def test_intervals_come_with_enough_prompts():
    results = [result(ONE, f"{n}", accepted=(n % 2,)) for n in range(8)]
    [[cell]] = charts.heat_map(results, [ONE], "acceptance length").cells
    [row] = summary.rows(results)
    assert cell.interval == row.acceptance_interval and 1 <= cell.interval[0] < 1.5 < cell.interval[1] <= 2
    low, high = row.request_interval
    assert cell.hover[2] == f"1.50 ({low:.2f}–{high:.2f}) request-weighted"
    [[five], [four]] = (charts.heat_map(results[:n], [ONE], "acceptance length").cells[0] for n in (5, 4))
    assert five.interval is not None and four.interval is None
    assert four.hover[1] == "1.50 step-weighted"


def test_a_heat_map_of_speed_marks_the_verdict():
    info = charts.heat_map(RESULTS, [ONE, EAGLE], "speed-up")
    assert [[cell.mark + str(cell.value) for cell in line] for line in info.cells] == [
        ["?1.0", "?1.5"],
        ["?1.5", "?1.0"],
        ["?0.5", "?2.0"],
    ], "two prompts of each workload are too few"
    enough = [replace(each, prompt=f"{each.prompt}-{n}") for each in RESULTS for n in range(5)]
    marks = [[cell.mark for cell in line] for line in charts.heat_map(enough, [ONE, EAGLE], "speed-up").cells]
    assert marks == [["≈", "≈"], ["▲", "≈"], ["▼", "▲"]]
    untimed = [result(ONE, "a", None)]
    assert charts.heat_map(untimed, [ONE], "speed-up").cells == ((None,),)
    assert charts.heat_map(untimed, [ONE], "acceptance length").cells[0][0].hover[-2:] == ("not timed", "1 prompt")


def test_best_settings_are_fastest_or_accept_most():
    results = [result(ONE, "a", 2.0, (0,)), result(TWO, "a", 1.0, (2,))]
    assert charts.best_arms(results) == [ONE] and charts.all_arms(results) == [ONE, TWO]
    assert charts.best_arms([result(ONE, "a", None, (0,)), result(TWO, "a", None, (2,))]) == [TWO]


def test_survival_and_places():
    info = charts.survival(RESULTS, EAGLE)
    assert info.overall == (5 / 6, 4 / 6, 0.0, 0.0)
    assert [(panel.workload, panel.survival[:2], panel.drafts) for panel in info.panels] == [
        ("code", (1.0, 2 / 3), 3),
        ("story", (2 / 3, 2 / 3), 3),
    ]
    long = [result(ONE, "a", answers=(answer(4, 4, 0, prompt_tokens=70), answer(0, prompt_tokens=100)))]
    [first, second] = charts.over_output(long, ONE).bins
    assert (first.start, first.end, first.passes, first.length) == (0, 8, 3, 1 + 8 / 3)
    assert (second.start, second.end, second.passes, second.length, second.prompts) == (8, 16, 1, 1.0, 1)
    [only] = charts.over_prompt(long, ONE).bins
    assert (only.start, only.end, only.passes, only.interval) == (64, 128, 4, None)


def test_drift_is_of_the_arms_and_the_measure_that_are_shown():
    after = [result(ONE, name, 3.0, (1, 1), workload) for name, workload in (("a", "code"), ("c", "story"))]
    info = charts.drift(RESULTS, after, [ONE, EAGLE], "speed-up", ("old", "new"))
    assert (info.before, info.after) == ("old", "new")
    assert [(each.workload, each.drafter) for each in info.changes] == [
        (workload, "ngram, gamma 1") for workload in ("all prompts", "code", "story")
    ]
    assert (
        info.changes[1].before == pytest.approx(1.5)
        and info.changes[1].after == 3.0
        and info.changes[1].prompts == (2, 1)
    )
    assert charts.drift(RESULTS, after, [EAGLE], "speed-up", ("old", "new")).changes == ()
    assert sheets.drift(info).rows[1] == (
        *("code", "ngram, gamma 1", "1.50", "3.00", "+1.50", "n/a", "2 and 1", "too few prompts to tell"),
    )


def test_tables_hold_the_numbers_of_the_figures():
    numbers = sheets.numbers(RESULTS, [ONE, EAGLE])
    assert len(numbers.rows) == 6 and numbers.rows[0][:4] == ("all prompts", "ngram, gamma 1", "4", "1.33")
    assert numbers.rows[4][-3:] == ("0.50x", "n/a", "too few prompts") and len(numbers.head) == len(numbers.rows[0])
    survival = sheets.survival(charts.survival(RESULTS, EAGLE))
    assert survival.rows[0][:4] == ("all prompts", "6", "83.3%", "66.7%") and survival.rows[1][0] == "code"
    over = sheets.over(charts.over_output(RESULTS, EAGLE))
    assert over.rows == (("0 to 7", "2.50", "n/a", "4", "6"),)


def test_the_choice_by_workload_and_what_it_gains():
    arms = [ONE, EAGLE]
    chosen = choose(RESULTS)
    assert sheets.choice(chosen, arms).rows == (
        ("code", "ngram, gamma 1", "1.50", "eagle, gamma 2", "1.00"),
        ("story", "eagle, gamma 2", "2.00", "ngram, gamma 1", "0.50"),
    )
    # Together eagle takes (1 + 1 + 1/2 + 1/2) / 4 of plain decoding's time, and the best for each 7/12.
    assert sheets.choice_sentence(chosen._replace(prompts=40), arms) == (
        "Over all 40 prompts the best single choice is eagle, gamma 2 (harmonic mean 1.33x). Choosing for each "
        "workload would gain another 28.6%."
    )
    assert sheets.choice_sentence(chosen, arms) == "Which drafter is best can't be told by 4 prompts; it takes 5."


def test_without_times_the_choice_says_what_it_leaves_out():
    untimed = [result(each.arm, each.prompt, None, (1,), each.workload) for each in RESULTS]
    sentence = sheets.choice_sentence(choose(untimed)._replace(prompts=40), [ONE, EAGLE])
    assert "2.00 tokens per pass, by acceptance alone; drafting costs are left out" in sentence
    assert sentence.endswith("Choosing for each workload would gain nothing.")
    assert sheets.UNTIMED in sheets.choice(choose(untimed), [ONE, EAGLE]).caption
    alone = [result(ONE, "a")]
    many = choose(alone)._replace(prompts=9)
    assert "takes two drafters, two workloads and two prompts of each" in sheets.choice_sentence(many, [ONE])
    assert sheets.choice_sentence(choose(alone), [ONE]).startswith("Which drafter is best can't be told by 1 prompt;")


def test_a_choice_that_was_luck_loses():
    sentence = sheets.choice_sentence(choose(RESULTS)._replace(gain=0.97, prompts=40), [ONE, EAGLE])
    assert "would lose 3.0%: " in sentence and "luck with the prompts" in sentence


def test_facts_say_what_was_measured_where():
    facts = dict(sheets.facts(HEADER, RESULTS))
    assert facts["Machine"] == "cpu, 1 thread" and facts["Number format"] == "float32"
    assert facts["Method"] == "timed once, plain and speculative in turns; answers of at most 100 tokens"
    assert facts["Sampler"] == "greedy; seed 0" and facts["Rule"] == "token by token (lossless); batch 1"
    assert facts["Prompts"] == "4 of own; chat template applied" and facts["Load"].startswith("0.50 ")
