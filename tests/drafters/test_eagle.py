"""EAGLE heads out of a folder draft as those in memory, and those of other targets are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import reference_decode, tiny_target
from tiny_heads import drafter, markov_target, oracle, random_head

from specviz.decoding.engine import Settings, decode
from specviz.drafters import make_drafter
from specviz.drafters.base import Context, Weights
from specviz.drafters.eagle import Eagle
from specviz.drafters.heads.files import describe_target
from specviz.drafters.heads.layouts import write_head
from specviz.errors import UserError
from specviz.models.target import Target
from specviz.trace import Step

PROMPT = [3, 4, 5, 3, 4, 5, 3]
LAYOUTS = {"eagle": "concat", "eagle3": "wide"}  # layout and kind of head


def written(folder: Path, target: Target, layout: str, about: dict[str, object] | None = None) -> Weights:
    head = random_head(target, LAYOUTS[layout]).bind(target)
    write_head(head, folder, layout, {**describe_target(target), **(about or {})})
    return Weights(folder, "my head", "sha256:1", ("fetched from elsewhere",))


def run(target: Target, eagle: Eagle) -> list[Step]:
    settings = Settings(gamma=3, max_new_tokens=20, stop_tokens=frozenset())
    return [replace(step, seconds=None, prefill_s=None) for step in decode(target, eagle, PROMPT, settings)]


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_out_of_a_folder_drafts_as_it_did_in_memory(tmp_path, layout, tree):
    target = tiny_target(vocab_size=8, num_hidden_layers=8)
    made = make_drafter("eagle", target, {"tree": tree, "nodes": 5, "branches": 2}, written(tmp_path, target, layout))
    assert (made.kind, made.name, made.weights) == ("eagle", "my head", "sha256:1")
    assert made.notes == ("fetched from elsewhere",)
    steps = run(target, made)
    assert steps == run(target, drafter(target, random_head(target, LAYOUTS[layout]), tree=tree, nodes=5, branches=2))
    assert [token for step in steps for token in step.committed] == reference_decode(target.model, PROMPT, 20)
    assert any(len(step.nodes) == 5 for step in steps) == tree


def test_which_states_it_reads_the_head_says():
    target = tiny_target(num_hidden_layers=8)
    assert drafter(target, random_head(target, "concat")).hidden_layers == (8,)
    assert drafter(target, random_head(target, "wide", hidden_layers=(2, 4, 5))).hidden_layers == (2, 4, 5)


def test_a_head_for_other_weights_of_the_target_is_used_with_a_note(tmp_path):
    target = tiny_target(vocab_size=8, num_hidden_layers=8)
    target.weights = "sha256:here"
    eagle = Eagle(target, written(tmp_path, target, "eagle3", {"target_weights": "sha256:there"}))
    assert eagle.notes == (
        "fetched from elsewhere",
        "This drafter was made for other weights of tiny llama; it may be accepted a little less often.",
    )


def test_a_head_for_another_target_is_refused(tmp_path):
    target = tiny_target(vocab_size=8, num_hidden_layers=8)
    weights = written(tmp_path, target, "eagle3", {"target": "huge llama", "target_hidden_size": 4096})
    with pytest.raises(UserError, match=r"made for huge llama, whose hidden size is another .*\(4096, here 32\)"):
        Eagle(target, weights)


def test_a_drafted_token_is_what_the_row_of_the_last_committed_one_says():
    """Row i reads the state after token i and token i+1, and stands at position i."""
    target = markov_target()
    eagle = drafter(target, oracle(target, "concat"))
    read: list[list[int]] = []
    eagle.head.register_forward_pre_hook(lambda _, args: read.extend([args[1].tolist()[0], args[2].tolist()[0]]))
    with torch.inference_mode():
        ctx = Context(list(PROMPT), target.prefill(PROMPT[:-1], eagle.hidden_layers))
        draft = eagle.propose(ctx, 2, Settings().sampler, torch.Generator())
    known = len(PROMPT)
    assert read == [PROMPT[1:], list(range(known - 1)), [draft.tokens[0]], [known - 1]]
    assert list(draft.tokens) == reference_decode(target.model, PROMPT, 2)
