"""A draft vocabulary: the part of the target's that a drafter's LM head knows, so that it is small."""

from __future__ import annotations

import torch
from torch import Tensor


class DraftVocabulary:
    """Maps ids and logits between draft vocabulary and target. Without a part named, it is the target's own."""

    def __init__(self, d2t: Tensor | None, vocab_size: int) -> None:
        """d2t: int64 [Vd], the target's id of each draft id, each at most once."""
        self.d2t, self.vocab_size = d2t, vocab_size
        self._t2d: Tensor | None = None
        if d2t is not None:
            self._t2d = torch.full((vocab_size,), -1, dtype=torch.long, device=d2t.device)
            self._t2d[d2t] = torch.arange(len(d2t), device=d2t.device)

    def __len__(self) -> int:
        return self.vocab_size if self.d2t is None else len(self.d2t)

    def full(self, logits: Tensor) -> Tensor:
        """Logits [.., Vd] over the target's vocabulary [.., V]: -inf for all that is not drafted."""
        if self.d2t is None:
            return logits
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.d2t, logits)

    def to_target(self, ids: Tensor) -> Tensor:
        return ids if self.d2t is None else self.d2t[ids]

    def to_draft(self, ids: Tensor) -> Tensor:
        """Draft ids, -1 for tokens outside the draft vocabulary."""
        return ids if self._t2d is None else self._t2d[ids]
