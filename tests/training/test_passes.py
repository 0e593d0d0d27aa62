"""A head is trained on exactly what it will compute when it drafts."""

from __future__ import annotations

import pytest
import torch
from fakes import tiny_target

from specviz.drafters.heads.head import Head, HeadConfig
from specviz.models.cache import GrowingLayer
from specviz.models.target import Target
from specviz.training.passes import passes

LENGTH, DEPTH = 9, 4


def head_for(target: Target, **settings: object) -> Head:
    width = int(target.config.hidden_size)
    usual: dict[str, object] = {
        "hidden_size": width,
        "intermediate_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 64,
        "hidden_layers": (1, 2, 4),
        "target_hidden_size": width,
        "vocab_size": target.vocab_size,
        "feedback": "normed",
    }
    head = Head(HeadConfig(**{**usual, **settings}))  # type: ignore[arg-type]
    rng = torch.Generator().manual_seed(1)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=rng) * 0.3 + (parameter.dim() == 1)
    return head.bind(target)


KINDS = {
    "eagle3": {"combine": "wide", "input_norm": False},
    "eagle3, raw feedback": {"combine": "wide", "input_norm": False, "feedback": "output"},
    "joined": {"combine": "joined"},
    "mtp": {"combine": "mtp-reversed", "hidden_layers": (4,), "zero_first_embedding": True},
    "eagle": {
        "combine": "concat",
        "hidden_layers": (4,),
        "input_norm": False,
        "final_norm": False,
        "feedback": "output",
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [1, 4])
def test_pass_k_is_the_kth_drafted_row(kind: str, start: int) -> None:
    """Row i of pass k equals a draft that began k-1 rows before it, fed with the true tokens."""
    target = tiny_target("llama")
    head = head_for(target, **KINDS[kind])
    rng = torch.Generator().manual_seed(2)
    states = torch.randn(2, LENGTH, len(head.config.hidden_layers) * head.config.hidden_size, generator=rng)
    tokens = torch.randint(target.vocab_size, (2, LENGTH), generator=rng)
    with torch.inference_mode():
        found = list(passes(head, states, tokens, DEPTH, start))
        for sequence in range(2):
            for row in range(LENGTH):
                for depth in range(1, DEPTH + 1):
                    begin = row - depth + 1  # the last true row
                    if begin < 0 or (depth > 1 and row < max(start, depth - 1) + depth - 2):
                        continue
                    expected = drafted(head, states[sequence], tokens[sequence], begin, depth)
                    torch.testing.assert_close(found[depth - 1][sequence, row], expected, atol=1e-4, rtol=1e-3)


def test_there_are_no_passes_without_rows() -> None:
    """Pass k has rows from k-1 on, and from `start` on."""
    target = tiny_target("llama")
    head = head_for(target, **KINDS["mtp"])
    states, tokens = torch.zeros(1, LENGTH, head.config.hidden_size), torch.zeros(1, LENGTH, dtype=torch.long)
    assert [len(list(passes(head, states, tokens, 99, start))) for start in (1, LENGTH - 1, LENGTH)] == [LENGTH, 2, 1]


def drafted(head: Head, states: torch.Tensor, tokens: torch.Tensor, begin: int, depth: int) -> torch.Tensor:
    """What the LM head reads for the depth-th token of a draft after true rows up to `begin`, one row at a time."""
    rows = GrowingLayer()
    features = head.fuse(states)
    for row in range(begin + depth):
        feature = features[row] if row <= begin else head.feedback(output)[0, 0]  # noqa: F821 -- set in the row before
        output = head(feature[None, None], tokens[None, row : row + 1], torch.tensor([[row]]), rows)
    return head.normed(output)[0, 0]
