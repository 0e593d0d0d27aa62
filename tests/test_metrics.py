"""Numbers by value from hand-written steps, and identities on random trees."""

import json
from dataclasses import asdict, fields
from fractions import Fraction
from random import Random

import pytest
from traces import random_step, step, trace

from specviz.metrics import DEFINITIONS, LONGEST_LIST, Acceptance, Outcomes, Timing, acceptance, outcomes, timing
from specviz.trace import Step

THIRD = 1 / 3


def test_mixed_chain_by_value():
    run = trace("aaaa", "aaru", "ruuu", "")
    assert acceptance(run) == Acceptance(
        steps=4,
        undrafted_steps=1,
        drafted=12,
        accepted=6,
        acceptance_length=2.5,
        acceptance_length_drafted=3.0,
        tokens_per_pass=2.5,
        acceptance_rate=0.5,
        tested_rate=0.75,
        histogram=(1, 0, 1, 0, 1),
        survival=(2 / 3, 2 / 3, THIRD, THIRD),
        conditional=(2 / 3, 1.0, 0.5, 1.0),
    )
    assert outcomes(run.steps) == Outcomes(accepted=6, rejected=2, untested=4, cut=0)


def test_nothing_accepted():
    numbers = acceptance(trace("ruuu", "ruuu"))
    assert (numbers.accepted, numbers.acceptance_rate, numbers.tested_rate) == (0, 0.0, 0.0)
    assert numbers.acceptance_length == numbers.acceptance_length_drafted == numbers.tokens_per_pass == 1.0
    assert numbers.histogram == (2, 0, 0, 0, 0)
    assert numbers.survival == (0.0, 0.0, 0.0, 0.0)
    assert numbers.conditional == (0.0, None, None, None)


def test_everything_accepted():
    numbers = acceptance(trace("aaaa", "aaaa"))
    assert (numbers.accepted, numbers.acceptance_rate, numbers.tested_rate) == (8, 1.0, 1.0)
    assert numbers.acceptance_length == numbers.acceptance_length_drafted == numbers.tokens_per_pass == 5.0
    assert numbers.histogram == (0, 0, 0, 0, 2)
    assert numbers.survival == numbers.conditional == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("letters", "accepted", "rate"),
    [(("ruuu",), 0, 0.0), (("aaaa",), 4, 1.0), (("aaru", "aaaa"), 6, 0.75), (("a", "r"), 1, 0.5)],
)
def test_public_case_59_rate_stays_within_0_and_1_and_the_bonus_is_not_accepted(letters, accepted, rate):
    """Engines have shown rates above 1, counted the bonus, or been off by one: SGLang #11572, #23530 and #24965
    (https://github.com/sgl-project/sglang/pull/11572), vLLM #17908 (https://github.com/vllm-project/vllm/pull/17908)
    and #42508 (https://github.com/vllm-project/vllm/issues/42508)."""
    numbers = acceptance(trace(*letters))
    assert (numbers.accepted, numbers.acceptance_rate) == (accepted, rate)
    assert sum(len(s.committed) for s in trace(*letters).steps) == accepted + len(letters)


def test_public_case_60_drafted_and_tested_are_two_counts():
    """One counter for both hides what was discarded untested: https://github.com/ggml-org/llama.cpp/pull/14104."""
    run = trace("aruu", "aaaa", step("ac", cut="stop_token"))
    numbers, counts = acceptance(run), outcomes(run.steps)
    assert numbers.drafted == 10
    assert counts == Outcomes(accepted=6, rejected=1, untested=2, cut=1)
    assert (numbers.acceptance_rate, numbers.tested_rate) == (0.6, 6 / 7)


def test_block_verification_tests_all_of_a_draft():
    """So nothing is untested, and the tested rate is the acceptance rate; what is said per position stays the same."""
    block, token = acceptance(trace("arrr", "aaaa", "rrrr")), acceptance(trace("aruu", "aaaa", "ruuu"))
    assert (block.tested_rate, block.acceptance_rate) == (5 / 12, 5 / 12)
    assert token.tested_rate == 5 / 7
    assert (block.histogram, block.survival, block.conditional) == (token.histogram, token.survival, token.conditional)
    assert "block" in DEFINITIONS["tested_rate"] and "block" in DEFINITIONS["untested"]


def test_empty_trace_has_no_rates():
    numbers = acceptance(trace(gamma=2))
    assert numbers == Acceptance(0, 0, 0, 0, *[None] * 5, (0, 0, 0), (None, None), (None, None))
    assert timing(trace()) == Timing(*[None] * 6)


def test_plain_decoding_has_passes_but_no_drafts():
    numbers = acceptance(trace("", "", gamma=0))
    assert numbers == Acceptance(2, 2, 0, 0, 1.0, None, 1.0, None, None, (0,), (), ())


def test_tree_counts_nodes_but_its_histogram_counts_the_path():
    #   first try fails, its sibling is kept; below that one, again; two nodes lie off the path
    tree = step("rauraau", parents=(-1, -1, 0, 1, 1, 4, 2))
    numbers = acceptance(trace(tree))
    assert tree.path == (1, 4, 5) and tree.gamma_used == 3
    assert (numbers.drafted, numbers.accepted, numbers.acceptance_rate, numbers.tested_rate) == (7, 3, 3 / 7, 0.6)
    assert numbers.histogram == (0, 0, 0, 1, 0)
    assert numbers.survival == (1.0, 1.0, 1.0, 0.0)
    assert numbers.conditional == (1.0, 1.0, 1.0, None)


def test_a_short_branch_that_ends_in_a_bonus_refused_nothing_deeper():
    branch = step("rau", parents=(-1, -1, 0))  # depth 2, but not below the accepted node
    assert branch.gamma_used == 2 and branch.last.kind == "bonus"
    numbers = acceptance(trace(branch, gamma=2))
    assert numbers.survival == (1.0, 0.0)
    assert numbers.conditional == (1.0, None)


def test_what_a_stop_cuts_is_drafted_but_not_accepted():
    run = trace("aaaa", step("aacc", cut="stop_token"))
    numbers = acceptance(run)
    assert (numbers.drafted, numbers.accepted, numbers.acceptance_rate, numbers.tested_rate) == (8, 6, 0.75, 1.0)
    assert numbers.acceptance_length == 4.0
    assert numbers.tokens_per_pass == 3.5  # the cut step has no token of the target's own
    assert numbers.histogram == (0, 0, 1, 0, 1)
    assert numbers.conditional == (1.0, 1.0, 0.5, 1.0)


def test_lists_go_to_gamma_or_to_the_deepest_draft():
    assert len(acceptance(trace("a", gamma=3)).histogram) == 4
    assert len(acceptance(trace("aaaaa", gamma=3)).histogram) == 6
    absurd = acceptance(trace(step("ar", gamma_used=10**12), gamma=10**12))
    assert (len(absurd.histogram), len(absurd.survival)) == (LONGEST_LIST + 1, LONGEST_LIST)


@pytest.mark.parametrize("seed", range(50))
def test_identities_on_random_trees(seed):
    rng = Random(seed)
    last = rng.random() < 0.5
    steps = [random_step(rng) for _ in range(rng.randint(0, 12))] + ([random_step(rng, ends=True)] if last else [])
    run = trace(*steps, gamma=rng.randint(0, 6))
    numbers, counts = acceptance(run), outcomes(run.steps)
    drafted_steps = numbers.steps - numbers.undrafted_steps

    assert sum(numbers.histogram) == drafted_steps == sum(1 for s in steps if s.nodes)
    assert sum(j * count for j, count in enumerate(numbers.histogram)) == numbers.accepted == counts.accepted
    assert numbers.accepted == sum(s.num_accepted for s in steps)
    assert numbers.drafted == sum(counts) == sum(len(s.nodes) for s in steps)
    assert len(numbers.survival) == len(numbers.conditional) == len(numbers.histogram) - 1
    if drafted_steps:
        assert numbers.acceptance_length_drafted == pytest.approx(1 + sum(numbers.survival))
        assert list(numbers.survival) == sorted(numbers.survival, reverse=True)
    else:
        assert numbers.acceptance_length_drafted is None and set(numbers.survival) <= {None}
    if steps:
        own = sum(s.last is not None for s in steps)
        assert numbers.tokens_per_pass == (numbers.accepted + own) / len(steps)
        assert numbers.acceptance_length - numbers.tokens_per_pass == pytest.approx(1 - own / len(steps))  # cut steps
    rates = [numbers.acceptance_rate, numbers.tested_rate, *numbers.survival, *numbers.conditional]
    assert all(rate is None or 0 <= rate <= 1 for rate in rates)
    for position in range(1, len(numbers.histogram)):
        assert numbers.conditional[position - 1] == _conditional(steps, position)


def _conditional(steps: list[Step], position: int) -> float | None:
    """The definition, word for word: look at the draft below the accepted path of the given length."""
    met = kept = 0
    for one in steps:
        if len(one.path) < position - 1:
            continue
        before = one.path[position - 2] if position > 1 else -1
        if any(node.parent == before for node in one.nodes):
            met += 1
            kept += len(one.path) >= position
    return float(Fraction(kept, met)) if met else None


def test_damaged_traces_never_bring_a_rate_above_1():
    liar = step("r", path=(0, 5, 9, 11), committed=(1, 2, 3, 4, 5))
    numbers = acceptance(trace(liar))
    assert (numbers.accepted, numbers.acceptance_rate, numbers.histogram[0]) == (0, 0.0, 1)


def test_timing_adds_the_steps():
    phases = {"draft_s": 0.25, "verify_s": 0.5, "decide_s": 0.125}
    run = trace(step("aaaa", seconds=1.0, prefill_s=4.0, **phases), step("r", seconds=0.5, **phases))
    assert timing(run) == Timing(4.0, 1.5, 4.0, 0.5, 1.0, 0.25)


def test_times_that_some_step_lacks_are_not_added_up():
    run = trace(step("a", seconds=1.0, draft_s=0.5), step("a", seconds=1.0))
    assert timing(run) == Timing(None, 2.0, 2.0, None, None, None)
    assert timing(trace(step("a", seconds=1.0), "a")).decode_s is None
    assert timing(trace(step("a", seconds=0.0))).tokens_per_s is None


def test_every_number_is_defined_and_named_as_the_command_line_has_it():
    names = [field.name for kind in (Acceptance, Timing) for field in fields(kind)]
    assert set(DEFINITIONS) == {*names, *Outcomes._fields}
    assert all(text.endswith(".") and "  " not in text for text in DEFINITIONS.values())
    assert " ".join(names) == (
        "steps undrafted_steps drafted accepted acceptance_length acceptance_length_drafted tokens_per_pass "
        "acceptance_rate tested_rate histogram survival conditional "
        "prefill_s decode_s tokens_per_s draft_s verify_s decide_s"
    )
    assert json.loads(json.dumps(asdict(acceptance(trace("ar")))))["histogram"] == [0, 1, 0, 0, 0]
