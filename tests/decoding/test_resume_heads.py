"""A head's run that is left after each step and gone on with, even by another drafter, is the run made in one go."""

from __future__ import annotations

import pytest
from test_resume import Stepped, told, whole
from tiny_heads import drafter, markov_target, oracle

from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler

PROMPT = [3, 4, 5, 3, 4, 5, 3]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("shape", [{}, {"tree": True, "nodes": 7, "branches": 3}], ids=["chain", "tree"])
@pytest.mark.parametrize("combine", ["wide", "mtp"])
def test_a_run_gone_on_with_is_one_run(combine, shape, temperature):
    target = markov_target(8, memory=0.4)
    settings = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset(), sampler=Sampler(temperature))
    once = whole(target, drafter(target, oracle(target, combine, noise=0.5), **shape), PROMPT, settings)
    assert {"accepted", "rejected"} <= {node.outcome for step in once for node in step.nodes}
    stepped = Stepped(target, drafter(target, oracle(target, combine, noise=0.5), **shape), PROMPT, settings)
    while stepped.step():  # each time from the steps alone
        stepped.drafter = drafter(target, oracle(target, combine, noise=0.5), **shape)
    assert told(stepped.done) == told(once)
