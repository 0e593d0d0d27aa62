"""The commands of a report, read by the real parser, ask for the very same measurement."""

import shlex
from dataclasses import replace

import pytest
from reported import KNOWN
from workloads.suites import result

from specviz.cli import make_parser
from specviz.commands.suite import read_arms, read_plan
from specviz.report.again import OUT, again, shell
from specviz.workloads.arms import Arm
from specviz.workloads.results import digest
from specviz.workloads.suites import load_suite, sample

NGRAM = {"ngram_min": 1, "ngram_max": 3}
JOINED = {"ngram_min": 2, "ngram_max": 3, "second_gamma": 3, "eagle.tree": True, "eagle.nodes": 8}
WAYS = {
    "chains": [Arm("ngram", NGRAM, 1), Arm("ngram", NGRAM, 3), Arm("eagle", {}, 1), Arm("eagle", {}, 3)],
    "other lengths": [Arm("ngram", NGRAM, 5), Arm("eagle", {}, 2), Arm("medusa", {}, 2)],
    "chain and trees": [
        Arm("ngram", NGRAM, 2),
        *(Arm("eagle", {"tree": True, "nodes": nodes}, depth) for nodes in (6, 8) for depth in (2, 3)),
    ],
    "trees alone": [Arm("mtp", {"tree": True, "nodes": 8}, 3)],
    "combined": [Arm("ngram+eagle", JOINED, 5)],
    "settings": [
        Arm("early-exit", {"exit_layer": 24, "adapter": False}, 2),
        Arm("ngram", {**NGRAM, "pick": "frequent"}, 2),
    ],
    "source": [Arm("draft-model", {"source": "true"}, 2)],
    "plain alone": [Arm("plain", {}, 1)],
    "plain beside others": [Arm("plain", {}, 1), Arm("ngram", NGRAM, 2), Arm("eagle", {}, 4)],
}


def result_of(arm, prompt, suite):
    return replace(result(arm, prompt.id, suite=suite, workload=prompt.workload), text=digest(prompt))


def parsed(command):
    words = shlex.split("\n".join(shell(command)).replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "specviz"]
    return make_parser().parse_args(words[3:])


@pytest.mark.parametrize("arms", WAYS.values(), ids=WAYS)
def test_the_commands_ask_for_the_same_ways_of_drafting(arms):
    found = [result_of(arm, prompt, "code") for arm in arms for prompt in load_suite("code").prompts]
    made = again(KNOWN, found)
    asked = [arm for command in made.commands for group in read_arms(parsed(command)) for arm in group.arms]
    assert len(asked) == len(arms) and all(arm in asked for arm in arms)
    assert made.notes[-1] == "The run had 2 threads; OMP_NUM_THREADS=2 gives as many."


def test_the_commands_ask_for_the_same_run():
    drawn = {**KNOWN.sampler, "temperature": 0.7, "top_p": 0.9}
    header = replace(KNOWN, repeats=3, max_new_tokens=48, seed=7, dtype="bfloat16", sampler=drawn)
    suites = [sample(load_suite(name), 3) for name in ("code", "story")]
    found = [result_of(Arm("ngram", NGRAM, 2), prompt, suite.name) for suite in suites for prompt in suite.prompts]
    [command] = again(header, found).commands
    options = parsed(command)
    plan = read_plan(options)
    assert plan.suites == tuple(suites) and plan.repeats == 3 and plan.max_new_tokens == 48 and plan.seed == 7
    assert plan.sampler.temperature == 0.7 and plan.sampler.top_p == 0.9 and plan.sampler.top_k == 0
    assert (options.pairing, options.dtype, str(options.out)) == ("smollm2-135m", "bfloat16", OUT)
    [untimed] = again(replace(header, timed=False), found).commands
    assert read_plan(parsed(untimed)).repeats == 0


def test_whole_suites_are_no_sample():
    found = [result_of(Arm("ngram", NGRAM, 2), prompt, "code") for prompt in load_suite("code").prompts]
    made = again(replace(KNOWN, threads=None), found)
    assert parsed(made.commands[0]).prompts is None and made.notes == ()


@pytest.mark.parametrize(
    ("changed", "arms", "suite", "said"),
    [
        ({}, [Arm("ngram", NGRAM, 2)], "questions", "questions is a file of prompts of your own: give its path."),
        ({}, [Arm("ngram", NGRAM, 2)], "code", "These prompts are not what the suite code gives in this version of"),
        ({"pairing": "own-x"}, [Arm("ngram", NGRAM, 2)], "code", "Give the target's folder or Hub id after --target"),
        ({}, [Arm("eagle", {}, 2, {"a": "1"}), Arm("eagle", {}, 2, {"b": "2"})], "code", "eagle was measured with sev"),
        ({}, [Arm("draft-model", {}, 2, {"a": "1"})], "code", "draft-model was measured with a model of your own"),
        ({}, WAYS["other lengths"], "code", "Run them one after the other"),
    ],
)  # fmt: skip
def test_what_the_commands_leave_open_is_said(changed, arms, suite, said):
    made = again(replace(KNOWN, **changed), [result(arm, "p", suite=suite) for arm in arms])
    assert [note for note in made.notes if note.startswith(said)]
    assert all(parsed(command).suite == [suite] for command in made.commands)


def test_a_setting_that_cannot_be_given_is_said():
    made = again(KNOWN, [result(Arm("draft-model", {"source": "a,b"}, 2), "p")])
    assert "A setting with a comma in it can't be given with --drafters; rename what it names." in made.notes


def test_names_with_line_breaks_start_no_line():
    """A line of three backticks would end the block that the command stands in."""
    [command] = again(KNOWN, [result(Arm("ngram", NGRAM, 2), "p", suite="a\n```\nb")]).commands
    assert [line.split()[0] for line in shell(command)] == [
        "python",
        "--suite",
        "--drafters",
        "--max-new-tokens",
        "--seed",
    ]
