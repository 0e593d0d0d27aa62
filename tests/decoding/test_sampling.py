"""The sampler against a naive one in plain Python, its limits, and draws at the extremes."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SampledTree, tiny_model, tiny_target

from specviz.decoding import sampling
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import NUCLEUS_HEAD, Sampler, draw, one_hot, residual, uniform
from specviz.drafters import DraftModel, NGram
from specviz.errors import UserError
from specviz.trace import Step


def naive(logits: list[float], seen: set[int], sampler: Sampler) -> list[float]:
    """The same settings, one token at a time, in double precision."""
    scores = [score + sampler.logit_bias.get(token, 0.0) for token, score in enumerate(logits)]
    for token in seen:
        penalty = sampler.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    if sampler.temperature == 0:
        best = scores.index(max(scores))
        return [float(token == best) for token in range(len(scores))]
    p = normed([math.exp((score - max(scores)) / sampler.temperature) for score in scores])
    if 0 < sampler.top_k < len(p):
        p = kept(p, sorted(p, reverse=True)[sampler.top_k - 1])
    if sampler.top_p < 1:
        mass = 0.0
        for edge in sorted(p, reverse=True):
            mass += edge
            if mass >= sampler.top_p:
                break
        p = kept(p, edge)
    return kept(p, sampler.min_p * max(p))


def kept(p: list[float], edge: float) -> list[float]:
    return normed([x if x >= edge else 0.0 for x in p])


def normed(weights: list[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def logits_of(*p: float) -> torch.Tensor:
    """[1, V] logits whose softmax is p."""
    return torch.tensor([p], dtype=torch.float64).log().float()


def random_logits(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- probabilities ------------------------------------------------------------------------------------------

GRID = list(
    itertools.product([0.0, 0.5, 1.0, 1.7], [0, 1, 4], [1.0, 0.8], [0.0, 0.1], [1.0, 1.3, 0.7], [{}, {2: 3.0, 5: -4.0}])
)


def test_every_combination_of_settings_equals_the_naive_sampler():
    logits, seen = random_logits(1, 12), [2, 5, 7, 7]
    for temperature, top_k, top_p, min_p, penalty, bias in GRID:
        sampler = Sampler(temperature, top_k, top_p, min_p, penalty, bias)
        expected = torch.tensor([naive(logits[0].tolist(), set(seen), sampler)])
        torch.testing.assert_close(sampler.probs(logits, seen), expected, atol=1e-6, rtol=1e-5, msg=str(sampler))


def test_nothing_set_at_temperature_1_is_softmax():
    logits = random_logits(5, 40)
    draft = Draft.chain([1, 2, 3, 4], torch.zeros(4, 40))
    assert torch.equal(Sampler(temperature=1).probs(logits, [0], draft), torch.softmax(logits, -1))


def test_bias_comes_before_the_penalty():
    sampler = Sampler(temperature=1, repetition_penalty=2.0, logit_bias={0: -2.0})
    # 1 - 2 = -1, a negative logit, so the penalty multiplies; penalty first would give 1/2 - 2 = -1.5
    assert sampler.scores(torch.tensor([[1.0, 0.0]]), [0]).tolist() == [[-2.0, 0.0]]


def test_the_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens_only():
    scores = Sampler(repetition_penalty=2.0).scores(torch.tensor([[3.0, -3.0, 0.0, 3.0, -3.0]]), [0, 1, 2, 0])
    assert scores.tolist() == [[1.5, -6.0, 0.0, 3.0, -3.0]]


def test_temperature_comes_before_top_p():
    # at temperature 1 the first token alone holds 0.6; at 2 it takes the second to reach that
    p = Sampler(temperature=2, top_p=0.55).probs(logits_of(0.6, 0.3, 0.1), [])
    assert (p > 0).tolist() == [[True, True, False]]


def test_top_k_comes_before_top_p():
    # of (0.4, 0.3) the first holds 0.57 and suffices; without top-k first, 0.4 would not
    p = Sampler(temperature=1, top_k=2, top_p=0.5).probs(logits_of(0.4, 0.3, 0.2, 0.1), [])
    assert p.tolist() == [[1, 0, 0, 0]]


def test_top_p_comes_before_min_p():
    # min-p 0.5 leaves (0.4, 0.3), of which top-p 0.5 would keep the first; the other way round both stay
    p = Sampler(temperature=1, top_p=0.5, min_p=0.5).probs(logits_of(0.4, 0.3, 0.15, 0.15), [])
    torch.testing.assert_close(p, torch.tensor([[4 / 7, 3 / 7, 0, 0]]))


def test_a_chain_row_is_penalised_for_the_prefix_and_the_drafts_before_it_only():
    logits, prefix = torch.ones(4, 8), [0]
    draft = Draft.chain([3, 4, 3], torch.zeros(3, 8))
    scores = Sampler(repetition_penalty=2.0).scores(logits, prefix, draft)
    assert [(row == 0.5).nonzero().flatten().tolist() for row in scores] == [[0], [0, 3], [0, 3, 4], [0, 3, 4]]


def test_a_tree_row_is_penalised_for_its_ancestors_and_not_for_its_siblings():
    draft = Draft((1, 2, 3, 4, 5), (ROOT, ROOT, 0, 1, 2), torch.zeros(5, 8))
    scores = Sampler(repetition_penalty=2.0).scores(torch.ones(6, 8), [7], draft)
    penalised = [(row == 0.5).nonzero().flatten().tolist() for row in scores]
    assert penalised == [[7], [1, 7], [2, 7], [1, 3, 7], [2, 4, 7], [1, 3, 5, 7]]


def test_rows_of_a_draft_equal_one_call_per_prefix():
    sampler = Sampler(0.8, top_k=6, top_p=0.9, min_p=0.02, repetition_penalty=1.3, logit_bias={1: 1.0})
    draft = Draft((1, 2, 3, 2), (ROOT, ROOT, 0, 2), torch.zeros(4, 9))
    logits, prefix = random_logits(5, 9), [8, 0]
    rows = sampler.probs(logits, prefix, draft)
    for row, path in enumerate(([], [1], [2], [1, 3], [1, 3, 2])):
        torch.testing.assert_close(rows[row], sampler.probs(logits[row][None], prefix + path)[0])
        torch.testing.assert_close(rows[row], torch.tensor(naive(logits[row].tolist(), {*prefix, *path}, sampler)))


def test_temperature_0_is_one_hot_on_the_first_of_the_largest():
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0], [7.0, 7.0, 7.0, 7.0], [0.0, 1.0, 2.0, 3.0]])
    draft = Draft.chain([0, 0], torch.zeros(2, 4))
    p = Sampler(top_k=2, top_p=0.1, min_p=1.0).probs(logits, [], draft)
    assert p.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert p.dtype == torch.float32


def test_temperature_0_obeys_bias_and_penalty():
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    assert Sampler(logit_bias={2: 2.5}).probs(logits, [0]).argmax() == 2
    assert Sampler(repetition_penalty=2.0).probs(logits, [0]).argmax() == 1


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-40, 5e-324])
def test_a_temperature_just_above_0_gives_no_nan(temperature):
    p = Sampler(temperature).probs(torch.tensor([[10.0, -3.0, 9.0, -torch.inf]]), [])
    assert p.tolist() == [[1, 0, 0, 0]]


def test_ties_at_the_edge_of_top_k_are_kept():
    p = Sampler(temperature=1, top_k=2).probs(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), [])
    assert (p > 0).tolist() == [[True, True, True, False]]


def test_ties_at_the_edge_of_top_p_are_kept():
    p = Sampler(temperature=1, top_p=0.6).probs(logits_of(0.5, 0.2, 0.2, 0.1), [])
    assert (p > 0).tolist() == [[True, True, True, False]]


def test_ties_at_the_edge_of_min_p_are_kept():
    p = Sampler(temperature=1, min_p=1.0).probs(torch.tensor([[2.0, 2.0, 1.0]]), [])
    assert p.tolist() == [[0.5, 0.5, 0]]


def test_top_p_keeps_the_token_that_reaches_the_mass_and_no_more():
    p = Sampler(temperature=1, top_p=0.75).probs(logits_of(0.5, 0.3, 0.15, 0.05), [])
    torch.testing.assert_close(p, torch.tensor([[0.625, 0.375, 0, 0]]))


def test_top_k_beyond_the_vocabulary_changes_nothing():
    logits = random_logits(1, 6)
    assert torch.equal(Sampler(1.0, top_k=1000).probs(logits, []), Sampler(1.0).probs(logits, []))


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_nucleus_found_in_the_first_candidates_and_one_that_needs_them_all(top_p):
    vocab = 3 * NUCLEUS_HEAD
    peaked, flat = random_logits(1, vocab, 6.0), random_logits(1, vocab, 0.1, seed=1)
    sampler = Sampler(1.0, top_p=top_p)
    sizes = []
    for logits in (peaked, flat):
        p = sampler.probs(logits, [])
        sizes.append(int((p > 0).sum()))
        expected = torch.tensor([naive(logits[0].tolist(), set(), sampler)])
        torch.testing.assert_close(p, expected, atol=1e-8, rtol=1e-3)  # a token more or less shows as 1e-4
        assert torch.equal(p > 0, expected > 0)
    assert top_p == 0.3 or sizes[0] < NUCLEUS_HEAD < sizes[1]  # both stages were used
    both = sampler.probs(torch.cat([peaked, flat]), [], Draft.chain([0], torch.zeros(1, vocab)))
    torch.testing.assert_close(both, torch.cat([sampler.probs(peaked, []), sampler.probs(flat, [])]))


def test_a_nucleus_that_ends_exactly_where_the_first_candidates_end():
    vocab = 2 * NUCLEUS_HEAD  # a power of two, so that the sums are exact
    for size in (NUCLEUS_HEAD - 1, NUCLEUS_HEAD, NUCLEUS_HEAD + 1):
        logits = torch.zeros(1, vocab)
        logits[:, size:] = -20.0
        p = Sampler(1.0, top_p=0.9999).probs(logits, [])
        assert int((p > 0).sum()) == size


def test_rows_sum_to_1():
    logits = random_logits(4, 5000)
    draft = Draft.chain([1, 2, 3], torch.zeros(3, 5000))
    for sampler in (Sampler(), Sampler(1.0), Sampler(0.3, 50, 0.9, 0.01, 1.2, {3: 5.0})):
        torch.testing.assert_close(sampler.probs(logits, [0], draft).sum(-1), torch.ones(4), atol=2e-6, rtol=0)


def test_half_precision_logits_are_computed_in_float32():
    logits = random_logits(1, 50).bfloat16()
    p = Sampler(0.7, top_p=0.9).probs(logits, [])
    assert p.dtype == torch.float32
    assert torch.equal(p, Sampler(0.7, top_p=0.9).probs(logits.float(), []))


def test_masked_tokens_stay_at_0_through_all_processors():
    logits = torch.tensor([[1.0, -torch.inf, 0.5, -torch.inf]])
    p = Sampler(1.5, top_k=3, top_p=0.99, min_p=0.01, repetition_penalty=1.5).probs(logits, [1, 2])
    assert p[0, [1, 3]].tolist() == [0, 0] and p.isfinite().all()


def test_the_logits_are_not_changed():
    logits = random_logits(1, 9)
    before = logits.clone()
    Sampler(0.8, 4, 0.9, 0.1, 1.3, {1: 1.0}).probs(logits, [1, 2])
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"temperature": -0.1}, "Temperature is -0.1; give a number from 0 to 10"),
        ({"temperature": math.nan}, "Temperature is nan"),
        ({"temperature": math.inf}, "Temperature is inf"),
        ({"temperature": 10.5}, "Temperature is 10.5"),
        ({"top_k": -1}, "Top-k is -1"),
        ({"top_k": 2.5}, "Top-k is 2.5; give a whole number"),
        ({"top_p": 0}, "top-p must be above 0"),
        ({"top_p": -0.5}, "Top-p is -0.5"),
        ({"top_p": 1.01}, "Top-p is 1.01"),
        ({"top_p": math.nan}, "Top-p is nan"),
        ({"min_p": 1.5}, "Min-p is 1.5"),
        ({"min_p": math.nan}, "Min-p is nan"),
        ({"repetition_penalty": 0}, "Repetition penalty is 0"),
        ({"repetition_penalty": math.inf}, "Repetition penalty is inf"),
        ({"logit_bias": {3: math.nan}}, "logit bias of token 3 is nan"),
        ({"logit_bias": {3: -math.inf}}, "logit bias of token 3 is -inf"),
        ({"logit_bias": {-1: 1.0}}, "token -1"),
    ],
)
def test_values_out_of_range_are_refused(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        Sampler(**settings)


def test_the_limits_themselves_are_allowed():
    logits = random_logits(1, 9)
    for sampler in (Sampler(10.0, min_p=1.0, repetition_penalty=10.0), Sampler(1.0, top_p=1e-9, logit_bias={8: 100.0})):
        assert sampler.probs(logits, [0]).sum() == pytest.approx(1)


def test_a_bias_on_a_token_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="names token 9; the vocabulary has 9"):
        Sampler(logit_bias={0: 1.0, 9: 1.0}).probs(random_logits(1, 9), [])


# --- draws --------------------------------------------------------------------------------------------------


def test_one_hot_takes_tensors_and_lists():
    expected = [[0, 0, 1], [1, 0, 0]]
    assert one_hot([2, 0], 3).tolist() == one_hot(torch.tensor([2, 0]), 3).tolist() == expected
    assert one_hot([], 3).shape == (0, 3)


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = counts.sum() * p
    return float((((counts - expected) ** 2)[p > 0] / expected[p > 0]).sum())


def test_draws_follow_p():
    p = torch.tensor([0.0, 0.4, 0.1, 0.0, 0.25, 0.05, 0.2, 0.0])
    generator = rng(1)
    counts = np.bincount([draw(p, generator) for _ in range(10_000)], minlength=8)
    assert counts[p.numpy() == 0].sum() == 0
    assert chi_square(counts, p.numpy()) < 18.5  # the 0.999 quantile at 4 degrees of freedom
    assert chi_square(counts, np.array([0, 0.42, 0.1, 0, 0.25, 0.05, 0.18, 0])) > 18.5  # a small error is found


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (math.nextafter(1, 0), 4)]
)
def test_a_draw_inverts_the_distribution_function(monkeypatch, u, token):
    monkeypatch.setattr(sampling, "uniform", lambda generator: u)
    assert draw(torch.tensor([0, 0.25, 0, 0.5, 0.25, 0]), rng()) == token


@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, math.nextafter(1, 0)])
def test_extreme_draws_never_take_an_impossible_token(monkeypatch, u):
    monkeypatch.setattr(sampling, "uniform", lambda generator: u)
    for seed in range(50):
        p = Sampler(1.0, top_k=20).probs(random_logits(1, 3000, seed=seed), [])[0]
        p[[0, -1]] = 0
        for scale in (1, 0.3, 1e-30):  # rows need not be normalised, and rounding must not run past the end
            assert p[draw(p * scale, rng())] > 0


def test_a_rare_token_at_the_end_of_a_row_can_be_drawn(monkeypatch):
    monkeypatch.setattr(sampling, "uniform", lambda generator: 1 - 1e-10)
    assert draw(torch.tensor([0.5, 0.5, 1e-9]), rng()) == 2  # float32 sums would end at token 1


def test_a_one_hot_row_is_always_drawn():
    assert {draw(one_hot([3], 8)[0], rng(seed)) for seed in range(50)} == {3}


def test_the_residual_is_what_p_has_more_of():
    p, q = torch.tensor([0.5, 0.3, 0.2, 0.0]), torch.tensor([0.2, 0.5, 0.1, 0.2])
    torch.testing.assert_close(residual(p, q), torch.tensor([0.75, 0.0, 0.25, 0.0]))


def test_the_residual_of_a_one_hot_draft_is_p_without_its_token():
    p = torch.tensor([0.5, 0.3, 0.2])
    torch.testing.assert_close(residual(p, one_hot([0], 3)[0]), torch.tensor([0.0, 0.6, 0.4]))


def test_where_nothing_is_left_the_residual_is_p_itself():
    p = torch.tensor([0.5, 0.3, 0.2])
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(one_hot([1], 3)[0], one_hot([1], 3)[0]), one_hot([1], 3)[0])


def test_the_residual_leaves_its_inputs_alone():
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    residual(p, q)
    assert p.tolist() == [0.5, 0.5] and q.tolist() == pytest.approx([0.9, 0.1])


def test_uniform_draws_are_uniform_and_fine_grained():
    generator = rng()
    values = [uniform(generator) for _ in range(5000)]
    assert all(0 <= value < 1 for value in values)
    counts = np.bincount([int(10 * value) for value in values], minlength=10)
    assert chi_square(counts, np.full(10, 0.1)) < 27.9  # the 0.999 quantile at 9 degrees of freedom
    assert any(value * 2**24 % 1 for value in values)  # finer than float32


def global_states() -> tuple[object, ...]:
    state = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), state[1].tolist(), state[2]


def test_a_whole_decode_neither_reads_nor_moves_the_global_generators():
    target = tiny_target(num_hidden_layers=1)
    drafter = DraftModel(target, tiny_model(seed=1, num_hidden_layers=1))
    settings = Settings(gamma=3, max_new_tokens=20, sampler=Sampler(1.0), seed=5)
    outputs = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        random.seed(global_seed)
        np.random.seed(global_seed)
        before = global_states()
        outputs.append([step.committed for step in decode(target, drafter, [1, 2, 3], settings)])
        assert global_states() == before
    assert outputs[0] == outputs[1]


def test_a_whole_number_is_a_logit_bias_too():
    p = Sampler(temperature=1.0, logit_bias={1: -100}).probs(torch.zeros(1, 3), [])
    assert p[0].tolist() == pytest.approx([0.5, 0.0, 0.5])


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_one_hot_is_float32_whatever_the_default(default):
    torch.set_default_dtype(default)
    try:
        rows = [one_hot([1, 0], 3), Draft.empty().q]
    finally:
        torch.set_default_dtype(torch.float32)
    assert [row.dtype for row in rows] == [torch.float32] * 2
    assert rows[0].tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0, 20, 0.95, 0.01, 1.1, {3: 0.5})], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["n-gram", "draft model", "tree"])
def test_a_run_does_not_depend_on_torchs_default_dtype(kind, sampler):
    """A model that is being loaded sets it, for all threads."""
    target, settings = tiny_target(), Settings(4, 40, sampler, stop_tokens=frozenset())
    drafter = {
        "n-gram": NGram(target, 1, 2),
        "draft model": DraftModel(target, tiny_model(seed=1)),
        "tree": SampledTree(tiny_model(seed=1), (2, 2)),
    }[kind]

    def steps() -> list[Step]:
        run = decode(target, drafter, [3, 4, 5, 3, 4], settings, detail=True)
        return [replace(step, seconds=None, prefill_s=None) for step in run]

    expected = steps()
    assert any(step.nodes for step in expected)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert steps() == expected
    finally:
        torch.set_default_dtype(torch.float32)
