"""What the n-gram table proposes, by value: which match, which continuation, and how far."""

import random

import pytest
import torch
from fakes import VOCAB, reference_decode, tiny_target

from specviz.decoding.draft import Draft
from specviz.decoding.engine import Settings, decode
from specviz.decoding.sampling import Sampler
from specviz.drafters import Context, NGram, make_drafter
from specviz.drafters.ngram import MOST_PLACES
from specviz.errors import UserError

TARGET = tiny_target()


def draft(drafter: NGram, tokens: list[int], gamma: int = 4) -> list[int]:
    proposed: Draft = drafter.propose(Context(list(tokens), None), gamma, Sampler(temperature=1), torch.Generator())
    assert proposed.is_chain and len(proposed) <= gamma
    if len(proposed):
        assert torch.equal(proposed.q, torch.nn.functional.one_hot(torch.tensor(proposed.tokens), VOCAB).float())
    return list(proposed.tokens)


def once(tokens: list[int], gamma: int = 4, **settings: object) -> list[int]:
    return draft(NGram(TARGET, **settings), tokens, gamma)


def test_it_copies_what_followed_the_last_tokens_before():
    assert once([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5, 6]


def test_gamma_bounds_the_copy():
    for gamma in range(5):
        assert once([1, 2, 3, 4, 5, 6, 1, 2], gamma) == [3, 4, 5, 6][:gamma]


def test_the_longest_match_goes_before_a_more_recent_shorter_one():
    tokens = [1, 2, 3, 7, 7, 0, 3, 8, 8, 0, 1, 2, 3]
    assert once(tokens, 2, ngram_max=3) == [7, 7]
    assert once(tokens, 2, ngram_max=1) == [8, 8]


def test_a_longer_match_than_allowed_is_not_looked_for():
    """Two tokens match in both places, three only in the older one."""
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3]
    assert once(tokens, 1, ngram_max=3) == [7]
    assert once(tokens, 1, ngram_max=2) == [8]


def test_a_shorter_match_than_asked_for_counts_for_nothing():
    tokens = [1, 2, 3, 9, 9, 0, 3]
    assert once(tokens, 1, ngram_min=1) == [9]
    assert once(tokens, 1, ngram_min=2) == []


def test_the_most_recent_of_equal_matches_is_followed():
    assert once([1, 5, 1, 6, 1, 7, 1], 1, ngram_max=1, pick="recent") == [7]


def test_the_most_frequent_continuation_is_followed():
    tokens = [1, 5, 0, 1, 5, 0, 1, 6, 0, 1]
    assert once(tokens, 1, ngram_max=1, pick="frequent") == [5]
    assert once(tokens, 1, ngram_max=1, pick="recent") == [6]


def test_of_equally_frequent_continuations_the_most_recent_is_followed():
    assert once([1, 5, 0, 1, 6, 0, 1], 1, ngram_max=1, pick="frequent") == [6]


def test_frequency_is_counted_anew_at_each_token_among_the_places_that_agree():
    """5 follows 1 three times; after 1 5 come 2, 3, 3, and 4 follows only where 5 did not."""
    tokens = [1, 5, 2, 1, 5, 3, 1, 6, 4, 1, 6, 4, 1, 5, 3, 1]
    assert once(tokens, 2, ngram_max=1, pick="frequent") == [5, 3]


def test_past_the_end_of_the_context_the_copy_goes_on_with_itself():
    assert once([4, 1, 2, 1], 6) == [2, 1, 2, 1, 2, 1]
    assert once([9, 9], 3) == [9, 9, 9]


def test_past_the_end_of_the_context_no_frequency_can_be_counted():
    assert once([4, 1, 2, 1], 6, pick="frequent") == [2, 1]


@pytest.mark.parametrize("tokens", [[1], [1, 2, 3, 4], []])
def test_without_a_match_nothing_is_proposed(tokens):
    assert once(tokens) == []


def test_a_match_never_reaches_into_itself():
    """The last tokens end the context; nothing has followed them yet."""
    assert once([7, 8, 9], 4, ngram_max=3) == []


@pytest.mark.parametrize("pick", ["recent", "frequent"])
def test_a_table_that_grew_equals_one_built_anew(pick):
    rng = random.Random(0)
    for _ in range(40):
        alphabet = rng.choice([2, 4, VOCAB])
        growing = NGram(TARGET, pick=pick)
        tokens: list[int] = []
        for _ in range(12):
            tokens.extend(rng.randrange(alphabet) for _ in range(rng.randint(1, 6)))
            assert draft(growing, tokens) == once(tokens, pick=pick), tokens
        rebuilt = NGram(TARGET, pick=pick)
        draft(rebuilt, tokens)
        assert growing._places == rebuilt._places


@pytest.mark.parametrize("other", [[5, 1], [1, 2, 4, 1], [2, 3, 1, 2], [1, 2]])
def test_a_new_prompt_starts_a_new_table(other):
    """It shares a beginning with the old one, is shorter or is another altogether."""
    drafter = NGram(TARGET)
    assert draft(drafter, [1, 2, 3, 1, 2]) == [3, 1, 2, 3]
    assert draft(drafter, other) == once(other)
    assert drafter._places == rebuilt_places(other)


def rebuilt_places(tokens: list[int]) -> dict[tuple[int, ...], list[int]]:
    """Every n-gram of at most 3 tokens and the places that follow it, found by brute force."""
    places: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(tokens)):
        for n in range(1, min(3, end) + 1):
            places.setdefault(tuple(tokens[end - n : end]), []).append(end)
    return places


def test_the_same_context_asked_twice_counts_once():
    """A step that committed nothing, or a run that starts over, must not double the frequencies."""
    drafter = NGram(TARGET, pick="frequent")
    tokens = [1, 5, 0, 1, 6, 0, 1]
    assert [draft(drafter, tokens), draft(drafter, tokens)] == [once(tokens, pick="frequent")] * 2
    assert drafter._places == rebuilt_places(tokens)


def test_the_context_is_not_kept_by_reference():
    drafter = NGram(TARGET)
    ctx = Context([1, 2, 1], None)
    drafter.propose(ctx, 2, Sampler(), torch.Generator())
    ctx.tokens.extend([2, 7, 1, 2])
    assert list(drafter.propose(ctx, 1, Sampler(), torch.Generator()).tokens) == [7]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (3, 2), (1, 17), (-1, -1)])
def test_sizes_that_cannot_be_matched_are_refused(low, high):
    with pytest.raises(UserError, match=f"N-grams of {low} to {high} tokens"):
        NGram(TARGET, ngram_min=low, ngram_max=high)


def test_the_registry_builds_it_with_its_settings():
    drafter = make_drafter("ngram", TARGET, {"ngram_min": 2, "ngram_max": 5, "pick": "frequent"})
    assert isinstance(drafter, NGram)
    assert (drafter.ngram_min, drafter.ngram_max, drafter.pick, drafter.kind) == (2, 5, "frequent", "ngram")


def test_an_unknown_drafter_is_refused_with_the_choices():
    with pytest.raises(UserError, match=r"no drafter 'psychic'; choose one of plain, ngram"):
        make_drafter("psychic", TARGET, {})


# --- trees --------------------------------------------------------------------------------------------------------


def paths(tokens: list[int], gamma: int = 4, **settings: object) -> list[tuple[int, ...]]:
    """What a tree proposes: the tokens down to each node, in order."""
    drafter = NGram(TARGET, tree=True, **settings)
    proposed = drafter.propose(Context(list(tokens), None), gamma, Sampler(temperature=1), torch.Generator())
    if len(proposed):
        assert torch.equal(proposed.q, torch.nn.functional.one_hot(torch.tensor(proposed.tokens), VOCAB).float())
    found: list[tuple[int, ...]] = []
    for token, parent in zip(proposed.tokens, proposed.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert len(set(found)) == len(found) and proposed.depth <= gamma
    return found


def test_a_tree_holds_all_that_followed_the_places_that_match():
    tokens = [1, 5, 6, 0, 1, 5, 7, 0, 1, 8, 9, 0, 1]
    assert set(paths(tokens, 2, ngram_max=1)) == {(8,), (8, 9), (5,), (5, 7), (5, 6)}


def test_a_tree_of_one_place_is_the_chain():
    tokens = [1, 2, 3, 4, 5, 6, 1, 2]
    assert paths(tokens) == [(3,), (3, 4), (3, 4, 5), (3, 4, 5, 6)]
    assert paths([4, 1, 2, 1], 6) == [(2, 1, 2, 1, 2, 1)[:depth] for depth in range(1, 7)], "past the end as well"
    assert paths([4, 1, 2, 1], 6, pick="frequent") == [(2,), (2, 1)]


def test_the_most_recent_or_the_most_frequent_is_tried_first():
    tokens = [1, 5, 0, 1, 5, 0, 1, 6, 0, 1]
    assert paths(tokens, 1, ngram_max=1, pick="recent") == [(6,), (5,)]
    assert paths(tokens, 1, ngram_max=1, pick="frequent") == [(5,), (6,)]


def test_nodes_bound_the_tree_and_the_best_stay():
    tokens = [1, 5, 6, 0, 1, 7, 8, 0, 1]
    assert paths(tokens, 3, ngram_max=1, nodes=1) == [(7,)]
    assert paths(tokens, 3, ngram_max=1, nodes=3) == [(7,), (7, 8), (7, 8, 0)]
    assert set(paths(tokens, 3, ngram_max=1, nodes=4)) == {(7,), (7, 8), (7, 8, 0), (5,)}
    assert len(paths(tokens, 3, ngram_max=1, nodes=64)) == 6


def test_a_likely_path_is_followed_before_unlikely_siblings():
    tokens = [*[1, 5, 6, 7, 0] * 8, 1, 9, 0, 1, 10, 0, 1, 11, 0, 1]
    assert paths(tokens, 3, ngram_max=1, pick="frequent", nodes=3) == [(5,), (5, 6), (5, 6, 7)]


def test_branches_bound_the_children():
    tokens = [1, 5, 1, 6, 1, 7, 1]
    assert paths(tokens, 1, ngram_max=1, branches=2) == [(7,), (6,)]


@pytest.mark.parametrize("pick", ["recent", "frequent"])
def test_a_large_tree_holds_the_chain_and_only_what_is_in_the_text(pick):
    rng = random.Random(0)
    for _ in range(40):
        tokens = [rng.randrange(3) for _ in range(rng.randint(2, 30))]
        chain = tuple(once(tokens, 3, pick=pick))
        found = paths(tokens, 3, pick=pick, nodes=64, branches=16)
        assert {chain[:depth] for depth in range(1, len(chain) + 1)} <= set(found)
        if pick == "frequent" and found:
            assert all(" ".join(map(str, path)) in " ".join(map(str, tokens)) for path in found)


def test_without_a_match_there_is_no_tree():
    assert paths([1, 2, 3]) == [] == paths([1, 2, 1], 0)


def test_a_long_context_takes_no_longer_than_its_places():
    """Of many places that match, only what can be among the best is looked at."""
    rng = random.Random(0)
    tokens = [rng.randrange(2) for _ in range(4000)]
    assert len(paths(tokens, 64, ngram_max=1, nodes=64, branches=16)) == 64


def test_only_the_latest_places_are_looked_at():
    tokens = [1, 5] * 80 + [1, 6] * MOST_PLACES
    assert paths([*tokens, 1], 1, ngram_max=1, pick="frequent") == [(6,)]
    assert once([*tokens, 1], 1, ngram_max=1, pick="frequent") == [6]
    assert paths([*tokens[2 * 80 - 2 : -2], 1], 1, ngram_max=1, pick="frequent") == [(6,), (5,)]


@pytest.mark.parametrize(("setting", "said"), [({"nodes": 0}, "nodes is 0"), ({"branches": 17}, "branches is 17")])
def test_trees_that_cannot_be_are_refused(setting, said):
    with pytest.raises(UserError, match=said):
        make_drafter("ngram", TARGET, {"tree": True, **setting})


@pytest.mark.parametrize("pick", ["recent", "frequent"])
def test_greedy_output_with_a_tree_is_the_targets(pick):
    prompt = [3, 4, 5, 3, 4, 6, 3, 4]
    drafter = NGram(TARGET, pick=pick, tree=True)
    steps = list(decode(TARGET, drafter, prompt, Settings(gamma=3, max_new_tokens=40, stop_tokens=frozenset())))
    assert [token for step in steps for token in step.committed] == reference_decode(TARGET.model, prompt, 40)
    assert any(node.depth == 1 and node.token != step.nodes[0].token for step in steps for node in step.nodes)
