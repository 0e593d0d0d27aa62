"""The draft tree's shape: depths, children, paths, and which token sees which."""

import pytest
import torch

from specviz.decoding.draft import ROOT, Draft

#       0       1
#      / \      |
#     2   4     3
#     |
#     5
TREE = Draft((10, 11, 12, 13, 14, 15), (ROOT, ROOT, 0, 1, 0, 2), torch.zeros(6, 20))


def chain(*tokens: int) -> Draft:
    return Draft.chain(tokens, torch.zeros(len(tokens), 20))


def test_a_chain_hangs_each_token_on_the_one_before():
    draft = chain(5, 6, 7)
    assert draft.tokens == (5, 6, 7)
    assert draft.parents == (ROOT, 0, 1)
    assert draft.depths == [1, 2, 3]
    assert draft.depth == len(draft) == 3
    assert draft.is_chain


def test_an_empty_draft_is_a_chain_of_depth_0_and_carries_its_note():
    draft = Draft.empty("why")
    assert (draft.tokens, draft.parents, draft.depths, draft.depth, len(draft)) == ((), (), [], 0, 0)
    assert draft.is_chain and draft.note == "why" and draft.logits is None
    assert draft.children(ROOT) == []
    assert draft.visibility().tolist() == [[True]]


def test_who_drafted_is_said_of_all_nodes_or_of_none():
    q = torch.zeros(2, 20)
    assert Draft((1, 2), (ROOT, 0), q).by == ()
    assert Draft((1, 2), (ROOT, 0), q, by=("ngram", "eagle")).by == ("ngram", "eagle")
    with pytest.raises(ValueError, match="2 tokens says of 1 who drafted"):
        Draft((1, 2), (ROOT, 0), q, by=("ngram",))


def test_depths_count_from_1_below_the_last_committed_token():
    assert TREE.depths == [1, 1, 2, 2, 2, 3]
    assert TREE.depth == 3
    assert len(TREE) == 6


def test_children_come_in_the_order_in_which_they_are_tried():
    assert TREE.children(ROOT) == [0, 1]
    assert TREE.children(0) == [2, 4]
    assert [TREE.children(node) for node in (1, 2, 3, 4, 5)] == [[3], [5], [], [], []]


def test_take_reads_tokens_along_a_path():
    assert TREE.take([0, 2, 5]) == [10, 12, 15]
    assert TREE.take([]) == []


@pytest.mark.parametrize("parents", [(ROOT, ROOT), (ROOT, 0, 0), (ROOT, 0, ROOT)])
def test_whatever_branches_is_no_chain(parents):
    assert not Draft(tuple(range(len(parents))), parents, torch.zeros(len(parents), 20)).is_chain


def test_a_chain_sees_everything_before_it():
    assert torch.equal(chain(5, 6, 7).visibility(), torch.ones(4, 4, dtype=torch.bool).tril())


def test_a_tree_node_sees_its_ancestors_and_itself_only():
    expected = [
        [1, 0, 0, 0, 0, 0, 0],  # the last committed token
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 1],
    ]
    assert TREE.visibility().int().tolist() == expected


@pytest.mark.parametrize(
    ("tokens", "parents", "rows", "complaint"),
    [
        ((1, 2), (ROOT,), 2, "2 tokens has 1 parents"),
        ((1, 2), (ROOT, 0), 1, "1 rows of q"),
        ((), (), 1, "0 tokens"),
        ((1, 2), (1, ROOT), 2, "follow their parents"),
        ((1, 2), (ROOT, 1), 2, "follow their parents"),  # its own parent
        ((1, 2), (ROOT, 2), 2, "follow their parents"),
        ((1,), (-2,), 1, "follow their parents"),
    ],
)
def test_malformed_drafts_are_refused(tokens, parents, rows, complaint):
    with pytest.raises(ValueError, match=complaint):
        Draft(tokens, parents, torch.zeros(rows, 20))
