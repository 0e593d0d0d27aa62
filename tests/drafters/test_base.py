"""What all drafters share: the context's hidden rows, and chains that end where the drafter is unsure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specviz.decoding.sampling import Sampler
from specviz.drafters.base import Context, draft_chain

# --- hidden rows ------------------------------------------------------------------------------------------------


def rows(first: int, count: int, width: int = 3) -> Tensor:
    return torch.arange(first, first + count, dtype=torch.bfloat16)[:, None].expand(count, width)


def test_the_rows_of_the_path_are_added_in_its_order():
    ctx = Context([1, 2, 3], rows(0, 2))
    ctx.commit([7, 8, 9], rows(10, 6), (1, 4))  # row 0 is of the last committed token, row i+1 of node i
    assert ctx.tokens == [1, 2, 3, 7, 8, 9]
    assert ctx.hidden is not None and ctx.hidden.dtype == torch.bfloat16
    assert ctx.hidden[:, 0].tolist() == [0, 1, 10, 12, 15]
    ctx.commit([5], rows(20, 3), ())
    assert ctx.hidden[:, 2].tolist() == [0, 1, 10, 12, 15, 20]
    assert len(ctx.hidden) == len(ctx.tokens) - 1


def test_after_a_prompt_of_one_token_there_are_no_rows_yet():
    ctx = Context([1], rows(0, 0))
    ctx.commit([2], rows(5, 1), ())
    assert ctx.hidden is not None and ctx.hidden[:, 0].tolist() == [5]


def test_without_hidden_rows_only_tokens_are_kept():
    ctx = Context([1], None)
    ctx.commit([2, 3], None, (0,))
    assert (ctx.tokens, ctx.hidden) == ([1, 2, 3], None)


def test_rows_are_not_copied_at_every_step_and_those_read_before_stay():
    ctx = Context(list(range(101)), rows(0, 100))
    places, kept = [], []
    for token in range(300):
        ctx.commit([token], rows(100 + token, 4), ())
        assert ctx.hidden is not None
        places.append(ctx.hidden.data_ptr())
        kept.append(ctx.hidden)
    assert len(set(places)) == 2  # 202 rows, then twice as many
    assert all(torch.equal(view, rows(0, 101 + index)) for index, view in enumerate(kept))


# --- confidence ---------------------------------------------------------------------------------------------------

TABLE = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).log()  # after token 0, 1, 2


def chain(table: Tensor, tokens: list[int], confidence: float, sampler: Sampler, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    return draft_chain(lambda token: table[token], Context(tokens, None), 6, sampler, rng, confidence)


@pytest.mark.parametrize(
    ("start", "confidence", "length"), [(0, 0.0, 6), (0, 0.69, 6), (0, 0.71, 1), (2, 0.55, 1), (2, 0.45, 6)]
)
def test_a_chain_ends_after_a_token_of_too_little_confidence(start, confidence, length):
    draft = chain(TABLE, [start], confidence, Sampler())
    assert draft.tokens == (start,) * length
    assert len(draft.q) == len(draft.logits) == length


def test_the_token_that_ends_a_sampled_chain_stays_and_the_rest_is_as_without():
    sampler, lengths = Sampler(1.0), set()
    for seed in range(50):
        whole, cut = (chain(TABLE, [0], confidence, sampler, seed) for confidence in (0.0, 0.35))
        assert cut.tokens == whole.tokens[: len(cut)]
        assert torch.equal(cut.q, whole.q[: len(cut)])
        sure = [float(cut.q[node, token]) >= 0.35 for node, token in enumerate(cut.tokens)]
        assert all(sure[:-1]) and (len(cut) == 6 or not sure[-1])
        lengths.add(len(cut))
    assert {1, 2, 6} <= lengths


def test_confidence_is_the_drafters_own_whatever_the_sampler_makes_of_it():
    """At temperature 0 and after top-k the token drawn has q = 1; the drafter gives it 0.7."""
    for sampler in (Sampler(), Sampler(1.0, top_k=1), Sampler(0.1, top_k=1)):
        assert len(chain(TABLE, [0], 0.71, sampler)) == 1
        assert len(chain(TABLE, [0], 0.69, sampler)) == 6


def test_without_a_threshold_no_confidence_is_worked_out(monkeypatch):
    expected = chain(TABLE, [0], 0.0, Sampler()).tokens
    monkeypatch.setattr(torch, "softmax", lambda *_: pytest.fail("worked out for nothing"))
    assert chain(TABLE, [0], 0.0, Sampler()).tokens == expected
