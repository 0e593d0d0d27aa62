"""Prediction layers out of a folder draft as those in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import reference_decode, tiny_target
from tiny_heads import drafter, random_head

from specviz.decoding.engine import Settings, decode
from specviz.drafters import make_drafter
from specviz.drafters.base import Weights
from specviz.drafters.heads.files import describe_target
from specviz.drafters.heads.layouts import write_head

PROMPT = [3, 4, 5, 3, 4, 5, 3]
VARIANTS = {
    "as MiMo's": {"combine": "mtp-reversed", "zero_first_embedding": True},
    "as Qwen's": {"combine": "mtp"},
    "with its output fed back as it is": {"combine": "mtp", "feedback": "output"},
    "with a vocabulary of its own": {"combine": "mtp", "draft_ids": [0, 3, 4, 5, 7]},
}


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_layer_out_of_a_folder_drafts_as_it_did_in_memory(tmp_path, variant, tree):
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    write_head(random_head(target, **variant).bind(target), tmp_path, "mtp", describe_target(target))
    weights = Weights(tmp_path, "my layer", "sha256:1")
    made = make_drafter("mtp", target, {"tree": tree, "nodes": 5, "branches": 2}, weights)
    assert (made.kind, made.name, made.hidden_layers) == ("mtp", "my layer", (2,))
    settings = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset())
    runs = []
    for layer in (made, drafter(target, random_head(target, **variant), tree=tree, nodes=5, branches=2)):
        steps = decode(target, layer, PROMPT, settings)
        runs.append([replace(step, seconds=None, prefill_s=None) for step in steps])
    assert runs[0] == runs[1]
    assert [token for step in runs[0] for token in step.committed] == reference_decode(target.model, PROMPT, 20)
