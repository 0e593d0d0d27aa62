"""The project's own prompts: enough of every kind, none that training has seen, and read strictly."""

from collections import Counter
from pathlib import Path

import pytest

from specviz.errors import UserError
from specviz.training import prompts as training
from specviz.workloads.prompts import KINDS, load_prompts


def test_at_least_eight_kinds_with_at_least_three_prompts_each():
    prompts = load_prompts()
    counts = Counter(prompt.kind for prompt in prompts.values())
    assert set(counts) == set(KINDS) and len(counts) >= 8 and min(counts.values()) >= 3
    assert len({prompt.text for prompt in prompts.values()}) == len(prompts)
    lengths = sorted(len(prompt.text) for prompt in prompts.values())
    assert lengths[0] < 80 and lengths[-1] > 600, "short ones and long ones"


def test_no_prompt_is_among_those_that_training_starts_from():
    source = Path(training.__file__).read_text(encoding="utf-8")
    beginnings = {start.strip() for starts in training.BEGINNINGS.values() for start in starts}
    for prompt in load_prompts().values():
        assert prompt.text not in source and prompt.text.strip() not in beginnings, prompt.id


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{id: a, kind: opera, text: x}", "unknown kind 'opera'"),
        ("{id: a, kind: code, text: '  '}", "its text is empty"),
        ("{id: a, kind: code}", "lacks 'text'"),
        ("{id: a, kind: code, text: x}, {id: a, kind: code, text: y}", "two prompts with the id 'a'"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, entry, words):
    file = tmp_path / "prompts.yaml"
    file.write_text(f"schema: 1\nprompts: [{entry}]\n")
    with pytest.raises(UserError, match=words):
        load_prompts(file)
