"""Draft trees: which tokens to propose when several continuations may be put to the test at once.

All nodes of a tree are chosen for their probability, none is drawn. So each was certain to be proposed, its q is
one-hot, and the acceptance rule keeps the target's distribution exactly, at any temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.sampling import one_hot
from specviz.drafter_settings import check_setting
from specviz.drafters.base import NOT_NUMBERS
from specviz.drafters.heads.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a tree may grow: nodes in all, and children looked at per node."""

    nodes: int = 8
    branches: int = 4

    def __post_init__(self) -> None:
        check_setting("nodes", self.nodes)
        check_setting("branches", self.branches)


Behind = Callable[[Sequence[int]], Tensor]
"""behind(parents): the logits [len(parents), V] that the children of these nodes were taken from."""


@dataclass(slots=True)
class Growing:
    """Nodes so far, parents before children. joint: the product of the probabilities down to each node, as a log."""

    tokens: list[int]
    parents: list[int]
    joint: list[float]

    def add(self, parent: int, tokens: Sequence[int], logs: Sequence[float]) -> range:
        """Children of a node, with the log of their probability after it; returns their indices."""
        before = 0.0 if parent == ROOT else self.joint[parent]
        first = len(self.tokens)
        self.tokens.extend(tokens)
        self.parents.extend([parent] * len(tokens))
        self.joint.extend(before + log for log in logs)
        return range(first, len(self.tokens))

    def best(self, count: int, among: Sequence[int] | None = None) -> list[int]:
        """The most probable nodes, best first; of equals the earlier, so that a parent precedes its child."""
        nodes = range(len(self.tokens)) if among is None else among
        return sorted(nodes, key=lambda node: (-self.joint[node], node))[:count]

    def draft(
        self,
        nodes: int,
        vocab_size: int,
        device: torch.device,
        logits: Behind | None,
        note: str | None = None,
    ) -> Draft:
        """The best `nodes` as a draft, siblings best first. logits: None if there are none, or none are wanted.

        A joint probability only falls on the way down, so the parents of the best are among the best.
        """
        chosen = self.best(nodes)
        new = {node: index for index, node in enumerate(sorted(chosen, key=self.depth))}  # a stable sort
        tokens = [self.tokens[node] for node in new]
        taken = [self.parents[node] for node in new]
        parents = tuple(ROOT if parent == ROOT else new[parent] for parent in taken)
        q = one_hot(tokens, vocab_size).to(device)
        return Draft(tuple(tokens), parents, q, None if logits is None else logits(taken), note)

    def path(self, node: int) -> list[int]:
        """The node and its ancestors, from the node up; nothing for the root."""
        found = []
        while node != ROOT:
            found.append(node)
            node = self.parents[node]
        return found

    def depth(self, node: int) -> int:
        """0 for the last committed token, 1 for a child of it."""
        return len(self.path(node))


Expand = Callable[[Sequence[int], Growing], Tensor]


def dynamic_tree(
    first: Tensor,
    expand: Expand,
    gamma: int,
    shape: Shape,
    vocabulary: DraftVocabulary,
    confidence: float = 0.0,
    *,
    detail: bool = True,
) -> Draft:
    """EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858): grow by joint probability, then keep the best nodes.

    first: logits [Vd] after the last committed token. expand(nodes, tree): logits [len(nodes), Vd] after those nodes.
    At each depth up to gamma, the `branches` best new nodes get `branches` children each; of all, the best `nodes` are
    proposed. confidence: nodes whose joint probability is below it get no children. detail: whether the draft is to
    hold the logits, for display.

    A tree grows no further, with a note, where logits give no distribution: the output does not depend on the draft.
    """
    tree = Growing([], [], [])
    taken: list[Tensor] = []  # per depth, the logits that children were taken from, rows of [Vd]
    row: dict[int, int] = {}  # of all those, by node
    nodes, logits, note = [ROOT], first[None], None
    for depth in range(1, gamma + 1):
        if depth > 1:
            logits = expand(nodes, tree)
        frontier = _children(tree, nodes, logits, shape, vocabulary)
        if frontier is None:
            note = NOT_NUMBERS
            break
        taken.append(logits)
        row |= {node: len(row) + index for index, node in enumerate(nodes)}
        sure = [node for node in frontier if confidence <= 0 or tree.joint[node] >= math.log(confidence)]
        # A node that is not among the best so far can have no child among the best in the end.
        within = set(tree.best(shape.nodes))
        nodes = [node for node in tree.best(shape.branches, sure) if node in within]
        if not nodes:
            break
    if not taken:
        return Draft.empty(note)

    def behind(parents: Sequence[int]) -> Tensor:
        return vocabulary.full(torch.cat(taken)[[row[parent] for parent in parents]])

    return tree.draft(shape.nodes, vocabulary.vocab_size, first.device, behind if detail else None, note)


def static_tree(logits: Tensor, shape: Shape, vocabulary: DraftVocabulary, *, detail: bool = True) -> Draft:
    """The best paths where each depth's guess does not depend on the tokens before, as with Medusa's heads.

    logits: [depth, Vd]. The first tokens of a path are as good as any other path's, so the tree is made of the best
    `nodes` paths by the product of their probabilities, `branches` per node at most.
    """
    logs = torch.log_softmax(logits.float(), -1)
    top = logs.topk(min(shape.branches, logs.shape[-1]), -1)
    ids = vocabulary.to_target(top.indices).tolist()
    values = top.values.tolist()
    tree = Growing([], [], [])
    frontier: list[int] = [ROOT]
    for tokens, log in zip(ids, values, strict=True):
        within = {ROOT, *tree.best(shape.nodes)}
        frontier = [child for node in frontier if node in within for child in tree.add(node, tokens, log)]

    def behind(parents: Sequence[int]) -> Tensor:
        return vocabulary.full(logits)[[tree.depth(parent) for parent in parents]]

    return tree.draft(shape.nodes, vocabulary.vocab_size, logits.device, behind if detail else None)


def _children(
    tree: Growing, nodes: Sequence[int], logits: Tensor, shape: Shape, vocabulary: DraftVocabulary
) -> list[int] | None:
    """Add the most probable tokens after each node; None if they can't be known. logits: [len(nodes), Vd]."""
    scores = logits.float()
    top = scores.topk(min(shape.branches, scores.shape[-1]), -1)
    logs = (top.values - scores.logsumexp(-1, keepdim=True)).tolist()
    if any(map(math.isnan, chain.from_iterable(logs))):  # of NaN, of infinity, or of nothing but -inf
        return None
    ids = vocabulary.to_target(top.indices).tolist()
    return [child for node, token, log in zip(nodes, ids, logs, strict=True) for child in tree.add(node, token, log)]
