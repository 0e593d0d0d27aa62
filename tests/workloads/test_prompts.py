"""The project's own prompts: enough of every workload and length, none that training has seen, and read strictly."""

from collections import Counter
from pathlib import Path

import pytest

from specviz.errors import UserError
from specviz.training import prompts as training
from specviz.workloads.prompts import LENGTHS, WORKLOADS, Prompt, load_prompts


def test_at_least_six_prompts_of_each_workload_and_two_of_each_length():
    prompts = load_prompts().values()
    counts = Counter((prompt.workload, prompt.length) for prompt in prompts)
    assert {workload for workload, _ in counts} == set(WORKLOADS)
    for workload in WORKLOADS:
        of_length = [counts[workload, length] for length in LENGTHS]
        assert sum(of_length) >= 6 and min(of_length) >= 2, (workload, of_length)
    assert sum(len(prompt.text) > 5000 for prompt in prompts) >= 3, "some are much longer than others"


def test_only_multi_turn_prompts_have_several_turns_and_all_texts_differ():
    prompts = load_prompts().values()
    for prompt in prompts:
        assert len(prompt.turns) in ((2, 3) if prompt.workload == "multi-turn" else (1,)), prompt.id
        assert prompt.id.startswith(prompt.workload)
    turns = [turn for prompt in prompts for turn in prompt.turns]
    assert len(set(turns)) == len(turns)


def test_no_prompt_is_among_those_that_training_starts_from():
    source = Path(training.__file__).read_text(encoding="utf-8")
    beginnings = {start.strip() for starts in training.BEGINNINGS.values() for start in starts}
    for prompt in load_prompts().values():
        for turn in prompt.turns:
            assert turn not in source and turn.strip() not in beginnings, prompt.id


def test_the_text_is_all_turns_and_the_length_is_that_of_their_characters():
    assert Prompt("a", "chat", ("One?", "Two?", "Three?")).text == "One?\n\nTwo?\n\nThree?"
    for characters, length in ((0, "short"), (199, "short"), (200, "medium"), (799, "medium"), (800, "long")):
        half = characters // 2
        assert Prompt("a", "chat", ("x" * half, "x" * (characters - half))).length == length


def write(folder: Path, entries: str) -> Path:
    file = folder / "prompts.yaml"
    file.write_text(f"schema: 1\nprompts: [{entries}]\n")
    return file


def test_an_entry_has_a_text_or_turns(tmp_path):
    file = write(tmp_path, "{id: a, workload: code, text: x}, {id: b, workload: multi-turn, turns: [x, y]}")
    assert load_prompts(file) == {"a": Prompt("a", "code", ("x",)), "b": Prompt("b", "multi-turn", ("x", "y"))}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{id: a, workload: opera, text: x}", r"prompt 1 \(a\): unknown workload 'opera', so make it one of: chat, "),
        ("{id: a, workload: code, text: '  '}", r"prompt 1 \(a\): a turn is empty or no text"),
        ("{id: a, workload: multi-turn, turns: [x, ' ']}", "a turn is empty or no text"),
        ("{id: a, workload: multi-turn, turns: [x, 5]}", "a turn is empty or no text"),
        ("{id: a, workload: multi-turn, turns: [x]}", "'turns' must list at least two"),
        ("{id: a, workload: multi-turn, turns: []}", "'turns' must list at least two"),
        ("{id: a, workload: code}", "needs either 'text' .* or 'turns'"),
        ("{id: a, workload: code, text: x, turns: [x, y]}", "needs either 'text' .* or 'turns'"),
        ("{id: a, kind: code, text: x}", "lacks 'workload'"),
        ("{id: a, workload: code, text: x}, {id: a, workload: code, text: y}", "two prompts with the id 'a'"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, entry, words):
    with pytest.raises(UserError, match=words):
        load_prompts(write(tmp_path, entry))
