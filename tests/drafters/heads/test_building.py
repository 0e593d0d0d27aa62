"""Building a head: no one else's random numbers, and for one that is read from files no first weights."""

from __future__ import annotations

import pytest
import torch
from fakes import tiny_target
from test_library_block import CONFIGS
from tiny_heads import head_config, random_head

from specviz.drafters.heads.head import Head, HeadConfig

FAMILIES = [None, *CONFIGS]  # None: our own block


def config(block_type: str | None) -> HeadConfig:
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    return head_config(target, "mtp", block_type=block_type, block_config=CONFIGS.get(block_type))


@pytest.mark.parametrize("block_type", FAMILIES)
def test_it_leaves_the_generator_that_all_share_as_it_was(block_type):
    of = config(block_type)
    before = torch.get_rng_state()
    Head(of)
    assert torch.equal(torch.get_rng_state(), before)


def test_its_first_weights_do_not_depend_on_that_generator():
    of, built = config(None), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        built.append(Head(of).state_dict())
    assert all(torch.equal(weight, built[1][name]) for name, weight in built[0].items())
    assert built[0]["fc.weight"].std() > 0


@pytest.mark.parametrize("block_type", FAMILIES)
def test_without_storage_it_draws_nothing_and_computes_all_that_no_file_holds(block_type, monkeypatch):
    target = tiny_target(vocab_size=8, num_hidden_layers=2)
    filled = random_head(target, "mtp", block_type=block_type, block_config=CONFIGS.get(block_type))
    with monkeypatch.context() as patch, torch.device("meta"):
        patch.setattr(torch.random, "fork_rng", None)
        head = Head(filled.config)
    assert {tensor.device.type for tensor in head.state_dict().values()} == {"meta"}
    head.load_state_dict(filled.state_dict(), assign=True)
    tokens, positions = torch.tensor([[3, 1, 4]]), torch.arange(3)[None]
    states = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        outputs = [each.bind(target)(states, tokens, positions) for each in (head, filled)]
    assert torch.equal(*outputs)
