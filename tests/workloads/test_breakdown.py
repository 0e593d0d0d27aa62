"""Acceptance by the place in the output and by the prompt's length, counted by hand."""

from suites import answer, result

from specviz.workloads.arms import Arm
from specviz.workloads.breakdown import by_output_position, by_prompt_tokens

NGRAM = Arm("ngram", {}, 4)


def test_a_step_counts_where_it_begins():
    # Steps begin after 0, 4, 8 and 9 tokens; the second answer's after 0, 1 and 6.
    results = [result(NGRAM, "a", accepted=(3, 3, 0, 2)), result(NGRAM, "b", accepted=(0, 4, 1))]
    first, second = by_output_position(results)
    assert (first.name, first.prompts, first.steps, first.acceptance_length) == ("0-7", 2, 5, 1 + 11 / 5)
    assert (second.name, second.prompts, second.steps, second.acceptance_length) == ("8-15", 1, 2, 2.0)
    assert first.interval is None, "two prompts are too few"


def test_each_turn_begins_its_own_output_and_has_its_own_prompt():
    turns = (answer(3, 3, prompt_tokens=60), answer(0, 1, prompt_tokens=70))
    [result_of_two] = [result(NGRAM, "a", answers=turns, turns=2)]
    [only] = by_output_position([result_of_two])
    assert (only.name, only.steps, only.acceptance_length) == ("0-7", 4, 1 + 7 / 4)
    short, longer = by_prompt_tokens([result_of_two])
    assert (short.name, short.steps, short.acceptance_length) == ("0-63", 2, 4.0)
    assert (longer.name, longer.steps, longer.acceptance_length) == ("64-127", 2, 1.5)


def test_the_last_part_has_no_upper_bound_and_intervals_come_with_enough_prompts():
    results = [result(NGRAM, str(n), answers=(answer(n % 5, prompt_tokens=9000),)) for n in range(10)]
    [only] = by_prompt_tokens(results)
    assert only.name == "4096+" and only.end is None and only.acceptance_length == 3.0
    low, high = only.interval
    assert 1 <= low < 3 < high <= 5
    assert by_output_position([]) == [] and only.steps == 10
