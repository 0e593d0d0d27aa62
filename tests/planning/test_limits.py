"""How long a context may be: what the model reads, where that is known, and never what some class takes by default."""

from __future__ import annotations

import pytest

from specviz.planning.configs import known
from specviz.planning.planner import Drafting, Spec, plan
from specviz.presets import load_pairings

PLENTY = 10**13  # bytes


def planned(id: str, context: int = 2048, **spec):
    target = known(load_pairings()[id].target, offline=True)
    found = Spec(target.config, Drafting("none"), 2, **spec)
    return plan(found, context, 1, 5, available=PLENTY, counter="as given", limit=target.limit)


@pytest.mark.parametrize(
    ("id", "limit"),
    [("smollm2-1.7b", 8192), ("gpt2", 1024), ("qwen3-8b", 40960), ("llama-3.1-8b", 131072), ("gemma-3-4b", 131072)],
)
def test_with_plenty_of_memory_the_model_is_the_limit(id, limit):
    made = planned(id)
    assert made.limit == made.largest_context == limit
    assert made.context_in_words == f"{limit:,} tokens, which is all that the model reads"


def test_where_the_models_limit_is_not_known_memory_alone_counts_and_that_is_said():
    made = planned("mellum2.1-12b-mtp")
    assert made.limit is None and made.largest_context > 1_000_000
    assert made.context_in_words.endswith("tokens, by memory; how much the model reads is not known here")


def test_a_context_that_the_model_does_not_read_is_named():
    assert not any("of no use" in hint for hint in planned("smollm2-1.7b").hints)
    assert "The model reads 8,192 tokens at most" in planned("smollm2-1.7b", 9000).hints[0]


def test_buffers_that_have_just_doubled_are_named_and_those_of_engines_have_no_spare_rows():
    [hint] = [hint for hint in planned("qwen3-8b", 8192).hints if "powers of two" in hint]
    assert "for 8,198 rows they have room for 16,384" in hint and "With 8,186 tokens" in hint
    for made in (planned("qwen3-8b", 8186), planned("qwen3-8b", 8192, windowed=True)):
        assert not any("powers of two" in hint for hint in made.hints)
    assert planned("qwen3-8b", 8192).both.kv == pytest.approx(2 * planned("qwen3-8b", 8186).both.kv)
