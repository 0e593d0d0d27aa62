"""What the suite's options ask for, and what is measured for it."""

import argparse
import subprocess
import sys

import pytest

from specviz.errors import UserError
from specviz.presets import DrafterPreset, pairing
from specviz.workloads.arms import Arm, arms, usual_settings
from specviz.workloads.options import Choice, add_arguments, numbers


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_defaults_leave_the_race_against_transformers_as_it_was():
    options = parse()
    assert (
        options.suite is None
        and options.temperature == 0
        and options.against == "transformers"
        and options.repeats is None
    )
    assert options.gammas == (1, 2, 3, 5) and options.trees == () and options.depths == (3,)


def test_drafters_are_named_with_settings():
    options = parse("--drafters", "ngram:ngram_max=4,pick=frequent", "ngram+eagle:tree=true,eagle.confidence=.3")
    assert options.drafters == [
        Choice("ngram", {"ngram_max": 4, "pick": "frequent"}),
        Choice("ngram+eagle", {"tree": True, "eagle.confidence": 0.3}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("oracle", "unknown kind 'oracle', so make it one of: plain, ngram"),
        ("ngram+oracle", "unknown kind 'oracle'"),
        ("ngram:ngram_max", "'ngram_max' is not SETTING=VALUE"),
        ("ngram:ngram_max=[1", "'\\[1' is no value"),
        ("ngram:ngram_max={}", "must be a number, a text or true/false"),
    ],
)
def test_a_drafter_that_there_is_not_gives_one_sentence(text, words):
    with pytest.raises(UserError, match=words) as caught:
        parse("--drafters", text)
    assert "\n" not in str(caught.value)


def test_lists_of_numbers():
    assert numbers("5,1,2,1") == (1, 2, 5)
    for wrong in ("", "0", "1,x", "-1,2"):
        with pytest.raises(argparse.ArgumentTypeError):
            numbers(wrong)


def test_chains_of_every_length_and_trees_of_every_budget_and_depth():
    found = arms("ngram", {"ngram_max": 2}, (1, 3), (4, 8), (2,))
    assert [(arm.gamma, arm.title) for arm in found] == [
        (1, "gamma 1"),
        (3, "gamma 3"),
        (2, "4 nodes, depth 2"),
        (2, "8 nodes, depth 2"),
    ]
    assert found[2].settings == {"ngram_max": 2, "tree": True, "nodes": 4}
    assert arms("plain", {}, (1, 3), (4,), (2,)) == [Arm("plain", {}, 1)]
    assert arms("eagle", {"tree": True}, (1, 3), (4,), (2, 3)) == [Arm("eagle", {"tree": True}, d) for d in (2, 3)]


def test_a_part_of_a_combination_may_ask_for_a_tree():
    settings = {"eagle.tree": True, "eagle.nodes": 6, "ngram_max": 3}
    [arm] = arms("ngram+eagle", settings, (1, 2), (), (3,))
    assert arm.gamma == 3 and arm.is_tree and arm.title == "6 nodes, depth 3"
    assert arm.name == "ngram+eagle (ngram_max 3)"
    offered = (DrafterPreset("ngram+eagle", "Both", {**settings, "gamma": 4}, ""),)
    assert usual_settings("ngram+eagle", offered) == {"ngram_max": 3}


def test_a_drafter_is_called_by_what_is_not_tried_in_turn():
    settings = {"source": "self", "gamma": 2, "tree": False, "nodes": 4}
    assert Arm("draft-model", settings, 2).name == "draft-model (source self)"
    assert Arm("draft-model", settings, 2, {"Small": "abc"}).name == "draft-model (Small)"


def test_what_a_pairing_recommends_holds_except_for_what_is_tried_in_turn():
    offered = pairing("smollm2-135m").drafters
    settings = usual_settings("ngram", offered)
    assert settings["ngram_max"] == 3 and "gamma" not in settings
    assert usual_settings("library", ()) == {}


def test_options_and_results_do_without_torch():
    script = (
        "import sys, specviz.workloads.options, specviz.workloads.table; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
