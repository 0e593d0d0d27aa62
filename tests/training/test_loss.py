"""The fused loss is cross-entropy, and so is its gradient."""

from __future__ import annotations

import pytest
import torch

from specviz.training import loss as fused
from specviz.training.loss import LmHead, soft_loss

ROWS, WIDTH, VOCAB, TOP = 11, 6, 17, 4


def inputs() -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(ROWS, WIDTH, generator=rng, requires_grad=True)
    weight = torch.randn(VOCAB, WIDTH, generator=rng)
    ids = torch.stack([torch.randperm(VOCAB, generator=rng)[:TOP] for _ in range(ROWS)])
    probs = torch.softmax(torch.randn(ROWS, TOP, generator=rng), -1)
    probs[3] = 0  # nothing of the target's distribution can be drafted here
    best = ids[:, 0].clone()
    best[5] = -1
    return states, weight, ids, probs, best


@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradient_equal_plain_cross_entropy(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states, weight, ids, probs, best = inputs()
    bias = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) if biased else None
    logits = torch.nn.functional.linear(states, weight, bias)
    logs = torch.log_softmax(logits, -1)
    plain = -(logs.gather(-1, ids) * probs).sum() / (ROWS - 1)
    expected = torch.autograd.grad(3 * plain, states)[0]
    monkeypatch.setattr(fused, "ROWS", 4)  # several chunks, the last one short
    found = soft_loss(states, LmHead(weight, bias), ids, probs, best)
    torch.testing.assert_close(found.mean, plain)
    torch.testing.assert_close(torch.autograd.grad(3 * found.mean, states)[0], expected)
    assert found.rows == ROWS
    assert found.agreed == int((logits.argmax(-1) == best).sum())


def test_rows_that_cannot_be_drafted_have_no_gradient() -> None:
    states, weight, ids, probs, best = inputs()
    gradient = torch.autograd.grad(soft_loss(states, LmHead(weight, None), ids, probs, best).mean, states)[0]
    assert not gradient[3].any()
    assert gradient[4].any()
