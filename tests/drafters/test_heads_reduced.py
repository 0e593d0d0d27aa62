"""Heads with a vocabulary of their own: the target says what they can't, and the output is its own."""

from __future__ import annotations

import pytest
from fakes import reference_decode
from tiny_heads import COMBINES, drafter, markov_target, random_head

from specviz.decoding.engine import Settings, decode

PROMPT = [3, 4, 5, 3, 4, 5, 3]
DRAFT_IDS = [0, 2, 3, 5, 7]


@pytest.mark.parametrize("shape", [{}, {"tree": True, "nodes": 7, "branches": 3}], ids=["chain", "tree"])
@pytest.mark.parametrize("combine", COMBINES)
def test_greedy_output_is_that_of_the_target_alone(combine, shape):
    target = markov_target(8, memory=0.4)
    reference = reference_decode(target.model, PROMPT, 24)
    assert not set(reference) <= set(DRAFT_IDS), "or nothing would be out of their reach"
    made = drafter(target, random_head(target, combine, draft_ids=DRAFT_IDS), **shape)
    outcomes = set()
    for gamma in (1, 2, 3, 4):
        settings = Settings(gamma=gamma, max_new_tokens=24, stop_tokens=frozenset())
        steps = list(decode(target, made, PROMPT, settings))
        assert [token for step in steps for token in step.committed] == reference
        nodes = [node for step in steps for node in step.nodes]
        assert {node.token for node in nodes} <= set(DRAFT_IDS) and max(node.depth for node in nodes) == gamma
        outcomes |= {node.outcome for node in nodes}
    assert {"accepted", "rejected"} <= outcomes
