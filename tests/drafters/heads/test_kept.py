"""Heads that were read lately are at hand again, for as long as folder and target are the same, and no longer."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from weakref import ref

import pytest
import torch
from fakes import tiny_target
from tiny_heads import random_head

from specviz.decoding.engine import Settings, decode
from specviz.drafters.base import Weights
from specviz.drafters.eagle import Eagle
from specviz.drafters.heads import kept
from specviz.drafters.heads.kept import MOST, bound_head
from specviz.drafters.heads.layouts import write_head
from specviz.errors import UserError
from specviz.models.pack import is_packed
from specviz.models.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(num_hidden_layers=8, vocab_size=8)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(kept, "_kept", [])


def written(folder: Path, target: Target, seed: int = 0) -> Path:
    write_head(random_head(target, "wide", seed).bind(target), folder, "eagle3", {})
    return folder


def test_a_head_is_read_once(tmp_path, target, monkeypatch):
    read = []
    monkeypatch.setattr(
        kept, "read_head", lambda *of, _read=kept.read_head, **said: read.append(of) or _read(*of, **said)
    )
    first = bound_head(written(tmp_path, target), target)
    assert bound_head(tmp_path, target) is first and len(read) == 1
    assert is_packed(first) and not first.training


def test_a_file_that_was_replaced_is_read_anew(tmp_path, target):
    first = bound_head(written(tmp_path, target), target)
    weights = tmp_path / "model.safetensors"
    later = weights.stat().st_mtime_ns + 10**9
    written(tmp_path, target, seed=1)
    os.utime(weights, ns=(later, later))
    second = bound_head(tmp_path, target)
    weight = second.embedding_norm.weight
    assert torch.equal(weight, random_head(target, "wide", 1).embedding_norm.weight)
    assert not torch.equal(weight, first.embedding_norm.weight)


def test_other_targets_number_formats_and_answers_have_their_own(tmp_path, target):
    first = bound_head(written(tmp_path, target), target)
    assert bound_head(tmp_path, target, norm_before_residual=True) is not first
    again = tiny_target(num_hidden_layers=8, vocab_size=8)
    assert bound_head(tmp_path, again).embeddings is again.model.get_input_embeddings()
    again.model.bfloat16()
    assert bound_head(tmp_path, again).embedding_norm.weight.dtype == torch.bfloat16


def test_another_folder_is_another_head_even_if_its_files_look_alike(tmp_path, target):
    first = bound_head(written(tmp_path / "a", target), target)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # with their times
    assert bound_head(tmp_path / "b", target) is not first
    assert bound_head(tmp_path / "b" / ".." / "a", target) is first


def test_only_the_last_few_stay(tmp_path, target):
    folders = [written(tmp_path / str(number), target, number) for number in range(MOST + 1)]
    heads = [ref(bound_head(folder, target)) for folder in folders]
    gc.collect()
    assert [head() is None for head in heads] == [True] + [False] * MOST
    assert bound_head(folders[1], target) is heads[1](), "and it counts as used just now"
    bound_head(folders[0], target)
    gc.collect()
    assert [head() is None for head in heads] == [True, False, True]


def test_they_go_with_their_target(tmp_path):
    target = tiny_target(num_hidden_layers=8, vocab_size=8)
    model, head = ref(target.model), ref(bound_head(written(tmp_path, target), target))
    del target
    gc.collect()
    assert head() is None and model() is None and not kept._kept


def test_a_head_that_can_not_be_bound_is_not_kept(tmp_path, target):
    written(tmp_path, target)
    with pytest.raises(UserError, match="was made for another target"):
        bound_head(tmp_path, tiny_target(num_hidden_layers=8, vocab_size=9))
    assert not kept._kept


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_drafters_that_share_a_head_do_not_share_rows(tmp_path, target, tree):
    """Two runs, one step of each at a time, are the runs made one after the other."""
    weights = Weights(written(tmp_path, target), "my head")
    prompts = ([3, 4, 5, 3, 4, 5, 3], [1, 6, 1])
    settings = Settings(gamma=3, max_new_tokens=16, stop_tokens=frozenset())
    other = tiny_target(num_hidden_layers=8, vocab_size=8)  # the same, with a cache of its own
    first, second = Eagle(target, weights, tree=tree, nodes=5), Eagle(target, weights, tree=tree, nodes=5)
    assert first.head is second.head
    apart = [[step.committed for step in decode(target, first, prompt, settings)] for prompt in prompts]
    runs = decode(target, first, prompts[0], settings), decode(other, second, prompts[1], settings)
    together: tuple[list[list[int]], ...] = [], []
    going = True
    while going:
        steps = [next(run, None) for run in runs]
        going = any(steps)
        for step, told in zip(steps, together, strict=True):
            told.extend([step.committed] if step else [])
    assert list(together) == apart
