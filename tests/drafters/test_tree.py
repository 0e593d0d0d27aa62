"""Draft trees hold the most probable nodes, and every node under its own parent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.drafters.heads.vocabulary import DraftVocabulary
from specviz.drafters.tree import Growing, Shape, dynamic_tree, static_tree
from specviz.errors import UserError

VOCAB = 6
Path = tuple[int, ...]
WHOLE = DraftVocabulary(None, VOCAB)


def table(seed: int) -> Callable[[Path], Tensor]:
    """Logits [V] after any path of at most four tokens, each its own."""
    rows = 1.5 * torch.randn(5, *[VOCAB] * 5, generator=torch.Generator().manual_seed(seed))
    return lambda path: rows[(len(path), *path, *[0] * (4 - len(path)))]


def grown(
    after: Callable[[Path], Tensor], gamma: int, shape: Shape, vocabulary: DraftVocabulary = WHOLE, **asked
) -> Draft:
    def path(node: int, tree: Growing) -> Path:
        return tuple(tree.tokens[each] for each in reversed(tree.path(node)))

    def expand(nodes: Sequence[int], tree: Growing) -> Tensor:
        return torch.stack([after(path(node, tree)) for node in nodes])

    return dynamic_tree(after(()), expand, gamma, shape, vocabulary, **asked)


def paths(draft: Draft) -> list[Path]:
    """Per node, the tokens down to it."""
    found: list[Path] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(() if parent == ROOT else found[parent]), token))
    return found


def chance(after: Callable[[Path], Tensor], path: Path) -> float:
    """The product of the probabilities down to the end of a path."""
    steps = (torch.softmax(after(path[:end]).double(), -1)[token] for end, token in enumerate(path))
    return math.prod(float(step) for step in steps)


# --- which nodes ----------------------------------------------------------------------------------------------------


def by_the_paper(after: Callable[[Path], Tensor], gamma: int, shape: Shape) -> set[Path]:
    """EAGLE-2, arXiv 2406.16858 section 4: expand the best of each depth, then rerank all that was seen."""
    seen: dict[Path, float] = {}
    level: list[Path] = [()]
    for _ in range(gamma):
        children = {}
        for path in level:
            for token in after(path).topk(shape.branches).indices.tolist():
                children[*path, token] = chance(after, (*path, token))
        seen |= children
        level = sorted(children, key=lambda path: -children[path])[: shape.branches]
    return set(sorted(seen, key=lambda path: -seen[path])[: shape.nodes])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(3, 2), Shape(8, 3), Shape(20, 4), Shape(64, 2)], ids=str)
def test_a_dynamic_tree_is_that_of_eagle_2(shape, gamma, seed):
    after = table(seed)
    draft = grown(after, gamma, shape)
    assert set(paths(draft)) == by_the_paper(after, gamma, shape)
    assert len(set(paths(draft))) == len(draft) <= shape.nodes and draft.depth <= gamma


@pytest.mark.parametrize("seed", range(4))
def test_a_small_dynamic_tree_holds_the_best_of_all_paths(seed):
    after, shape = table(seed), Shape(5, 5)
    every = [path for length in range(1, 5) for path in product(range(VOCAB), repeat=length)]
    best = sorted(every, key=lambda path: -chance(after, path))[: shape.nodes]
    assert set(paths(grown(after, 4, shape))) == set(best)


def test_what_can_not_be_among_the_best_is_not_computed():
    after, asked = table(0), []

    def counting(path: Path) -> Tensor:
        asked.append(path)
        return after(path)

    draft = grown(counting, 4, Shape(2, 4))
    assert len(draft) == 2
    best = sorted(product(range(VOCAB)), key=lambda path: -chance(after, path))
    assert {path for path in asked if len(path) == 1} == set(best[:2])


def test_a_chain_is_the_tree_of_one_branch_that_is_always_sure():
    after = table(1)
    draft = grown(after, 4, Shape(4, 1))
    assert draft.is_chain and len(draft) == 4
    assert all(token == int(after(draft.tokens[:end]).argmax()) for end, token in enumerate(draft.tokens))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(5, 2), Shape(12, 3), Shape(64, 4)], ids=str)
def test_a_static_tree_holds_the_best_products(shape, seed):
    logits = 1.5 * torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(seed))
    draft = static_tree(logits, shape, WHOLE)
    top = [row.topk(shape.branches).indices.tolist() for row in logits]
    every = [path for length in (1, 2, 3) for path in product(*top[:length])]
    after = lambda path: logits[len(path)]  # noqa: E731
    best = sorted(every, key=lambda path: -chance(after, path))[: shape.nodes]
    assert set(paths(draft)) == set(best)
    assert all(torch.equal(row, logits[depth - 1]) for row, depth in zip(draft.logits, draft.depths, strict=True))


# --- how they stand in the draft ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_siblings_stand_best_first_and_the_rows_are_those_they_were_taken_from(seed):
    after = table(seed)
    draft = grown(after, 4, Shape(12, 3))
    found = paths(draft)
    for parent in (ROOT, *range(len(draft))):
        chances = [chance(after, found[child]) for child in draft.children(parent)]
        assert chances == sorted(chances, reverse=True)
    for node, path in enumerate(found):
        assert torch.equal(draft.logits[node], after(path[:-1]))
        assert draft.q[node].tolist() == [float(token == draft.tokens[node]) for token in range(VOCAB)]
    assert draft.depths == sorted(draft.depths)


def test_logits_that_nobody_looks_at_are_left_out():
    after = table(0)
    for make in (
        lambda **asked: grown(after, 3, Shape(8, 3), **asked),
        lambda **asked: static_tree(torch.stack([after(()), after((1,))]), Shape(8, 3), WHOLE, **asked),
    ):
        whole, bare = make(), make(detail=False)
        assert bare.logits is None and whole.logits is not None
        assert (bare.tokens, bare.parents) == (whole.tokens, whole.parents) and torch.equal(bare.q, whole.q)


def test_equal_probabilities_never_part_a_child_from_its_parent():
    sure = torch.full((VOCAB,), -torch.inf)
    sure[2] = 0.0  # all of the probability, so that a child is as probable as its parent
    draft = grown(lambda path: sure, 4, Shape(4, 3))
    assert draft.tokens == (2, 2, 2, 2) and draft.parents == (ROOT, 0, 1, 2)


def test_tokens_of_a_draft_vocabulary_are_the_targets():
    vocabulary = DraftVocabulary(torch.tensor([1, 5]), VOCAB)
    after = table(0)
    small = lambda path: after(tuple(path))[[1, 5]]  # noqa: E731
    draft = grown(small, 2, Shape(6, 4), vocabulary)
    assert set(draft.tokens) == {1, 5} and len(draft) == 6
    assert torch.equal(draft.logits[:, [0, 2, 3, 4]], torch.full((6, 4), -torch.inf))
    static = static_tree(torch.stack([small(()), small((1,))]), Shape(6, 4), vocabulary)
    assert set(static.tokens) == {1, 5} and static.q.shape == (6, VOCAB)


# --- where it stops -------------------------------------------------------------------------------------------------


def test_nodes_less_probable_than_the_confidence_get_no_children():
    after = table(2)
    whole, short = grown(after, 4, Shape(20, 3)), grown(after, 4, Shape(20, 3), confidence=0.2)
    parents = [path[:-1] for path in paths(short)]
    assert all(chance(after, parent) >= 0.2 for parent in parents)
    assert {path for path in paths(whole) if chance(after, path[:-1]) < 0.2}, "or it would say nothing"


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_logits_that_are_not_numbers_end_a_tree_with_a_note(depth, value):
    after = table(0)
    draft = grown(lambda path: torch.full((VOCAB,), value) if len(path) >= depth else after(path), 4, Shape(12, 3))
    assert draft.depth == depth
    assert draft.note == "The drafter returned logits that are not numbers; nothing is drafted where it does."
    assert depth == 0 or torch.isfinite(draft.logits).all()


@pytest.mark.parametrize(
    ("nodes", "branches", "problem"),
    [
        (0, 4, "nodes is 0; give a whole number from 1 to 64"),
        (65, 4, "nodes is 65; give a whole number from 1 to 64"),
        (8, 0, "branches is 0; give a whole number from 1 to 16"),
        (8, 17, "branches is 17; give a whole number from 1 to 16"),
    ],
)
def test_sizes_that_no_tree_has_are_refused(nodes, branches, problem):
    with pytest.raises(UserError, match=problem):
        Shape(nodes, branches)
