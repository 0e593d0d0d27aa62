"""Suites by name and from files, and samples of them."""

from __future__ import annotations

from collections import Counter

import pytest

from specviz.errors import UserError
from specviz.workloads.prompts import WORKLOADS, Prompt, load_prompts
from specviz.workloads.suites import SUITES, Suite, load_suite, sample


def test_the_own_suite_has_every_prompt_and_a_workloads_those_of_its_kind():
    assert ("own", *WORKLOADS) == SUITES
    own = load_suite("own")
    assert own == Suite("own", tuple(load_prompts().values()))
    for name in WORKLOADS:
        assert load_suite(name) == Suite(name, tuple(prompt for prompt in own.prompts if prompt.workload == name))


def test_a_files_suite_is_called_like_the_file(tmp_path):
    file = tmp_path / "tea.txt"
    file.write_text("Black or green?\n")
    expected = Suite("tea", (Prompt("line-1", "prompts", ("Black or green?",)),))
    assert load_suite(str(file)) == expected


def test_a_file_called_like_a_suite_keeps_its_suffix(tmp_path):
    file = tmp_path / "question.txt"
    file.write_text("Why?")
    assert load_suite(str(file)).name == "question.txt"


def test_what_can_not_be_found_or_read_is_named(tmp_path):
    for name in ("opera", str(tmp_path), "", "x" * 5000, "a\0b"):
        with pytest.raises(UserError, match=r"There is no suite and no file .*; choose one of own, chat, .*csv"):
            load_suite(name)
    with pytest.raises(UserError, match=r"tea\.txt has no prompts"):
        empty = tmp_path / "tea.txt"
        empty.write_text("")
        load_suite(str(empty))


def suite_of(**sizes: int) -> Suite:
    """A suite with so many prompts of each workload: a0, a1 ..."""
    prompts = (Prompt(f"{name}{i}", name, ("x",)) for name, size in sizes.items() for i in range(size))
    return Suite("made", tuple(prompts))


@pytest.mark.parametrize(
    ("count", "ids"),
    [
        (1, "a3"),
        (2, "a3 b1"),
        (3, "a3 b1 c0"),
        (4, "a1 a4 b1 c0"),
        (7, "a0 a2 a3 a5 b0 b1 c0"),  # b and c have no more
        (9, "a0 a1 a2 a3 a4 a5 b0 b1 c0"),
        (10, "a0 a1 a2 a3 a4 a5 b0 b1 c0"),
    ],
)
def test_a_sample_is_spread_over_the_workloads_and_within_them(count, ids):
    assert sample(suite_of(a=6, b=2, c=1), count) == Suite(
        "made", tuple(Prompt(id, id[0], ("x",)) for id in ids.split())
    )


def test_a_sample_keeps_the_suites_order_where_workloads_are_mixed():
    mixed = Suite("made", tuple(Prompt(f"{i}", "ab"[i % 2], ("x",)) for i in range(6)))
    assert [prompt.id for prompt in sample(mixed, 4).prompts] == ["0", "1", "4", "5"]


def test_a_sample_of_the_own_suite_has_every_workload():
    counts = Counter(prompt.workload for prompt in sample(load_suite("own"), 2 * len(WORKLOADS)).prompts)
    assert counts == dict.fromkeys(WORKLOADS, 2)


def test_a_sample_of_nothing_is_refused():
    with pytest.raises(UserError, match="at least 1 prompt, not 0"):
        sample(suite_of(a=1), 0)
