"""A draft is a tree of tokens. A chain is a one-path tree; plain decoding is the empty tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROOT = -1  # stands for the last committed token, the parent of the first draft tokens


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes, parents before children, siblings in the order in which they are tried."""

    tokens: tuple[int, ...]  # [n]
    parents: tuple[int, ...]  # [n], ROOT for a child of the last committed token
    q: Tensor  # [n, V] the distribution each node was drawn from, in the target's vocabulary
    logits: Tensor | None = None  # [n, V] what the drafter computed, for display; None if it has none
    note: str | None = None  # something the user should know, such as why nothing was drafted
    by: tuple[str, ...] = ()  # [n] the kind of drafter each node is from; empty: the run's drafter itself

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.parents) != n or self.q.shape[0] != n:
            raise ValueError(f"a draft of {n} tokens has {len(self.parents)} parents and {self.q.shape[0]} rows of q")
        if len(self.by) not in (0, n):
            raise ValueError(f"a draft of {n} tokens says of {len(self.by)} who drafted them")
        if any(not ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError(f"draft nodes must follow their parents: {self.parents}")

    @classmethod
    def empty(cls, note: str | None = None) -> Draft:
        return cls((), (), torch.empty(0, 0, dtype=torch.float32), note=note)

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Tensor, logits: Tensor | None = None, note: str | None = None) -> Draft:
        """A one-path tree. q, logits: [n, V]."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), q, logits, note)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, len(self) - 1))

    @property
    def depths(self) -> list[int]:
        """Per node, 1 for a child of the last committed token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def depth(self) -> int:
        return max(self.depths, default=0)

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def take(self, path: Sequence[int]) -> list[int]:
        """The tokens of these nodes."""
        return [self.tokens[node] for node in path]

    def visibility(self) -> Tensor:
        """[n+1, n+1] bool: whether row i (0: the last committed token, i: node i-1) sees column j."""
        seen = torch.eye(len(self) + 1, dtype=torch.bool)
        seen[:, 0] = True
        for node, parent in enumerate(self.parents):
            seen[node + 1] |= seen[parent + 1]
        return seen
