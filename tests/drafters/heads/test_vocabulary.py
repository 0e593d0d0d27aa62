"""Ids and logits go to the target's vocabulary and back."""

from __future__ import annotations

import torch

from specviz.drafters.heads.vocabulary import DraftVocabulary

INF = torch.inf


def test_a_reduced_vocabulary():
    vocabulary = DraftVocabulary(torch.tensor([1, 2, 5]), 7)
    assert len(vocabulary) == 3
    logits = torch.tensor([[0.5, -1.0, 2.0], [3.0, 4.0, 5.0]], dtype=torch.bfloat16)
    assert vocabulary.full(logits).tolist() == [
        [-INF, 0.5, -1.0, -INF, -INF, 2.0, -INF],
        [-INF, 3.0, 4.0, -INF, -INF, 5.0, -INF],
    ]
    assert torch.equal(vocabulary.full(logits[0]), vocabulary.full(logits)[0])
    assert vocabulary.full(logits).dtype == torch.bfloat16
    assert vocabulary.to_target(torch.tensor([[2, 0], [1, 1]])).tolist() == [[5, 1], [2, 2]]
    assert vocabulary.to_draft(torch.arange(7)).tolist() == [-1, 0, 1, -1, -1, 2, -1]


def test_the_targets_own_vocabulary():
    vocabulary = DraftVocabulary(None, 7)
    logits, ids = torch.randn(2, 7), torch.arange(7)
    assert len(vocabulary) == 7
    assert torch.equal(vocabulary.full(logits), logits)
    assert torch.equal(vocabulary.to_target(ids), ids) and torch.equal(vocabulary.to_draft(ids), ids)


def test_gradients_pass_through():
    logits = torch.randn(2, 3, requires_grad=True)
    DraftVocabulary(torch.tensor([1, 2, 5]), 7).full(logits)[:, 5].sum().backward()
    assert logits.grad.tolist() == [[0, 0, 1], [0, 0, 1]]
