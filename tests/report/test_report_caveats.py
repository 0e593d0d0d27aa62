"""Each caveat is there for its reason, and without the reason it is not."""

from dataclasses import replace

import pytest
from reported import EAGLE, KNOWN, NGRAM, PLAIN, results
from workloads.suites import answer, result

from specviz.comparison import Divergence
from specviz.report.caveats import caveats
from specviz.workloads.summary import rows

CALM = replace(KNOWN, load=(0.25, 0.0, 0.0), threads=2, repeats=3)
MANY = [result(EAGLE, str(i)) for i in range(12)]  # one way of drafting, on enough prompts, all of it undisturbed


def told(header=CALM, found=MANY):
    return caveats(header, found, rows(found))


def parted(near_tie):
    return result(EAGLE, "p", identical=False, divergence=Divergence(3, 1, 2, 0.0, near_tie))


def test_without_a_reason_there_is_what_always_holds():
    assert told() == (
        "One sequence at a time (batch 1), which flatters speculation: a batch leaves less of a pass unused.",
        "One machine and one target: elsewhere drafting and verifying cost other shares of a plain pass.",
    )


@pytest.mark.parametrize(
    ("header", "found", "said"),
    [
        (replace(CALM, timed=False), MANY, "Nothing was timed. Acceptance alone does not tell whether drafting pays"),
        (CALM, [*MANY, result(NGRAM, "1")], "figures are of different prompts: ngram, gamma 2 (1)."),
        (CALM, [*MANY, parted(True)], "1 of 13 outputs part from plain decoding's at a near tie, where rounding in fl"),
        (CALM, [*MANY, parted(False)], "1 of 13 outputs part from plain decoding's where the target is not near a"),
        (replace(CALM, load=()), MANY, "How busy the machine was with other work is not known."),
        (replace(CALM, load=(1.25, 0.5, 0.0)), MANY, "a load average of 1.25 over the minute before, where the r"),
        (CALM, [*MANY, result(PLAIN, "1", 0.98)], "against itself came to 0.98x (quartiles 0.98-0.98)"),
        (replace(CALM, repeats=1), MANY, "Every prompt was timed once"),
        (CALM, MANY[:11], "All of this is of 11 prompts"),
        (CALM, [*MANY, result(EAGLE, "x", workload="story")], "so without an interval: story."),
        (CALM, results(), "Which of the 3 ways of drafting is best, and which setting of each drafter, was found out"),
        (CALM, [*MANY, result(NGRAM, "1")], "Which of the 2 ways of drafting is best was found out on the same prom"),
        (CALM, [*MANY, result(EAGLE, "1", suite="code")], "1 prompt of one suite stand in another too and count twice"),
        (CALM, [*MANY, result(EAGLE, "x", answers=(answer(*(1,) * 50),))], "1 of 13 answers came to the limit of 100"),
        (CALM, [*MANY, result(EAGLE, "x", turns=2)], "Cut short, as the target could hold no more turns: x."),
    ],
)  # fmt: skip
def test_a_reason_brings_its_caveat(header, found, said):
    assert [sentence for sentence in told(header, found) if said in sentence]
    assert not [sentence for sentence in told() if said in sentence]


def test_sampled_output_is_not_compared():
    drawn = replace(CALM, sampler={**CALM.sampler, "temperature": 1.0})
    found = [replace(each, identical=None) for each in MANY]
    assert told(drawn, found)[0].startswith("Output was sampled, so it can't be compared with plain decoding's")


def test_long_lists_are_cut():
    found = [result(EAGLE, str(i), workload=f"w{i}") for i in range(11)]
    [said] = [sentence for sentence in told(found=found) if "without an interval" in sentence]
    assert said.endswith("w6, w7 and 3 more.")
