"""Which way of drafting is best where, and what choosing gains: worked out by hand."""

import random
from statistics import fmean

import pytest
from suites import result

from specviz.workloads.arms import Arm
from specviz.workloads.choice import choose

COPY, HEAD = Arm("ngram", {}, 5), Arm("eagle", {}, 3)


def test_the_best_of_each_workload_and_what_choosing_gains():
    speeds = {("code", COPY.kind): 4.0, ("code", HEAD.kind): 2.0, ("story", COPY.kind): 1.0, ("story", HEAD.kind): 2.0}
    results = [
        result(arm, f"{workload}-{n}", speeds[workload, arm.kind], workload=workload)
        for arm in (COPY, HEAD)
        for workload in ("code", "story")
        for n in range(3)
    ]
    found = choose(results)
    assert found.timed and found.prompts == 6
    assert found.single == HEAD and found.single_speed == pytest.approx(2.0), "0.5 a token; copying takes 0.625"
    assert [
        (best.place.workload, best.arm, best.speed, best.next_arm, best.next_speed) for best in found.by_workload
    ] == [
        ("code", COPY, pytest.approx(4.0), HEAD, pytest.approx(2.0)),
        ("story", HEAD, pytest.approx(2.0), COPY, pytest.approx(1.0)),
    ]
    assert found.gain == pytest.approx(0.5 / 0.375)


def test_luck_with_a_prompt_is_no_gain():
    """Two ways that are the same but for noise: chosen with hindsight one would always seem to gain."""
    rng = random.Random(0)
    gains, hindsight = [], []
    for _ in range(200):
        results = [
            result(arm, f"{workload}-{n}", rng.uniform(1, 2), workload=workload)
            for arm in (COPY, HEAD)
            for workload in ("code", "story", "chat")
            for n in range(4)
        ]
        found = choose(results)
        gains.append(found.gain)
        hindsight.append(fmean(best.speed for best in found.by_workload) / found.single_speed)
    assert fmean(hindsight) > 1.02 and fmean(gains) <= 1.0


def test_untimed_results_are_chosen_by_tokens_per_pass_and_say_so():
    results = [result(COPY, "a", None, (3,)), result(HEAD, "a", None, (1,))]
    found = choose(results)
    assert not found.timed and found.single == COPY and found.single_speed == 4.0 and found.gain is None


def test_only_prompts_that_all_were_measured_on_count():
    results = [result(COPY, "a", 1.0), result(COPY, "b", 9.0), result(HEAD, "a", 2.0)]
    found = choose(results)
    assert found.prompts == 1 and found.single == HEAD and found.gain is None
    assert choose([]) is None
    assert choose([result(COPY, "a"), result(HEAD, "b")]) is None
