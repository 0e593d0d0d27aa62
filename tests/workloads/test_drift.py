"""What has changed between two sets of results: found where there is something, and not where there is nothing."""

import random
from dataclasses import replace

import pytest
from suites import answer, result

from specviz.workloads.arms import Arm
from specviz.workloads.drift import ALL, Difference, compare

EAGLE, NGRAM = Arm("eagle", {"source": "a"}, 3, {"head": "old"}), Arm("ngram", {"ngram_max": 3}, 5)
RETRAINED = Arm("eagle", {"source": "b"}, 3, {"head": "new"})


def results(arm, rate, *, workload="code", speed=1.5, seed=0, prompts=30):
    """Answers of 20 steps each, in which every draft token is accepted with the chance `rate`."""
    rng = random.Random(seed)
    found = []
    for prompt in range(prompts):
        lengths = [next((i for i in range(4) if rng.random() > rate), 4) for _ in range(20)]
        times = {"plain_s": (1.0,), "speculative_s": (1 / (speed * rng.uniform(0.9, 1.1)),)}
        found.append(result(arm, f"{workload}-{prompt}", workload=workload, answers=(answer(*lengths),), **times))
    return found


def beyond_noise(difference: Difference) -> bool:
    return difference.interval is not None and not difference.interval[0] <= 0 <= difference.interval[1]


def test_a_better_head_is_told_from_the_same_one_with_other_luck():
    before = results(EAGLE, 0.5, seed=1)
    same, better = compare(before, results(EAGLE, 0.5, seed=2)), compare(before, results(RETRAINED, 0.7, seed=2))
    assert [(d.workload, d.measure) for d in same] == [(ALL, "acceptance length"), (ALL, "speed-up")]
    assert not any(beyond_noise(difference) for difference in same)
    length, speed = better
    assert beyond_noise(length) and length.after > length.before and length.paired and length.prompts == (30, 30)
    assert length.interval[0] <= length.after - length.before <= length.interval[1]
    assert not beyond_noise(speed)


def test_figures_are_those_of_all_passes_and_of_all_seconds():
    one = [result(NGRAM, "a", 2.0, (1, 1)), result(NGRAM, "b", 1.0, (0,)), result(NGRAM, "c", 1.0, (3, 0, 0))]
    [length, speed] = compare(one, [replace(each, answers=(answer(4),)) for each in one])
    assert (length.before, length.after) == (pytest.approx(1 + 5 / 6), 5.0)
    assert speed.before == pytest.approx((4 + 1 + 6) / (2 + 1 + 6))
    assert speed.after == pytest.approx(15 / (2.5 + 5 + 5))


def test_workloads_and_ways_of_drafting_that_only_one_has_take_no_part():
    one = results(EAGLE, 0.5) + results(EAGLE, 0.5, workload="story") + results(NGRAM, 0.5)
    other = results(EAGLE, 0.5) + results(EAGLE, 0.1, workload="story", seed=4) + results(EAGLE, 0.5, workload="chat")
    found = {(d.workload, d.measure): d for d in compare(one, other)}
    lengths = {workload: d for (workload, measure), d in found.items() if measure == "acceptance length"}
    assert list(lengths) == [ALL, "code", "story"] and all(d.arm == EAGLE for d in found.values())
    assert beyond_noise(lengths["story"]) and not beyond_noise(lengths["code"])
    assert all(length.paired for length in lengths.values()), "the chats that one side has alone take no part"
    assert compare(results(EAGLE, 0.5), results(EAGLE, 0.5, workload="story")) == [], "no workload is shared"
    assert compare(one, results(replace(NGRAM, gamma=2), 0.5)) == []


def test_arms_go_with_themselves_and_two_that_differ_in_weights_are_not_mixed():
    """The small draft model and the target itself are both draft models of gamma 2."""
    small, itself = (
        Arm("draft-model", {"source": "shipped"}, 2, {"small": "a"}),
        Arm("draft-model", {"source": "self"}, 2),
    )
    other = Arm("draft-model", {"source": "elsewhere"}, 2, {"large": "b"})
    before = results(small, 0.3) + results(itself, 0.99)
    [length, _] = compare(before, results(small, 0.3))
    assert length.arm == small and length.prompts == (30, 30) and length.interval == (0.0, 0.0)
    [length, _] = compare(results(small, 0.3), results(other, 0.9))
    assert length.arm == small and beyond_noise(length), "one of the kind on each side: its weights have changed"
    assert compare(before, results(other, 0.9))[0].arm == small, "the target itself is nothing that changes"
    third = replace(other, weights={"third": "c"})
    assert compare(results(small, 0.3) + results(third, 0.4), results(other, 0.9)) == [], "either may be meant"


def test_prompts_that_were_reworded_are_no_pairs_and_too_few_give_no_interval():
    one = results(EAGLE, 0.5, prompts=2)
    other = [replace(each, text="reworded") for each in one]
    length, _ = compare(one, other)
    assert not length.paired and length.interval is None and not beyond_noise(length)


def test_what_was_not_timed_is_compared_by_acceptance_alone():
    one = [replace(each, plain_s=(), speculative_s=()) for each in results(EAGLE, 0.5)]
    assert [difference.measure for difference in compare(one, results(EAGLE, 0.5))] == ["acceptance length"]
