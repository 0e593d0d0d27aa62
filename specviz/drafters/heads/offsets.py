"""The draft vocabulary as files hold it: `d2t`, what to add to a draft id to get the target's, and the mask `t2d`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specviz.errors import UserError

D2T, T2D = "d2t", "t2d"


def from_offsets(tensors: Mapping[str, Tensor], vocab_size: int, where: str) -> Tensor:
    """The target's ids of the draft vocabulary, int64 [Vd], from `d2t` [Vd] and, where it is given, `t2d` [V].

    where: how errors call the file. Raises UserError if they are no offsets, or if the two do not agree.
    """
    d2t, t2d = tensors[D2T], tensors.get(T2D)
    if d2t.dim() != 1 or d2t.is_floating_point() or not 0 < len(d2t) <= vocab_size:
        raise UserError(
            f"{D2T} of {where} is {list(d2t.shape)} in {d2t.dtype} and should hold 1 to {vocab_size} whole numbers, so "
            "give another version."
        )
    ids = d2t.long() + torch.arange(len(d2t))
    if t2d is not None and t2d.shape != (vocab_size,):
        raise UserError(f"{T2D} of {where} is {list(t2d.shape)} and should be [{vocab_size}], so give another version.")
    if _fits(ids, t2d, vocab_size) and (t2d is not None or not _rises(d2t)):
        return ids
    if _fits(d2t.long(), t2d, vocab_size):
        raise UserError(
            f"{D2T} of {where} holds the target's token ids themselves; the format wants what to add to each draft id, "
            f"so subtract 0, 1, 2, ... from them, and save {T2D} along with them."
        )
    problem = f"does not name the tokens that {T2D} names" if t2d is not None else "is not sorted, or goes beyond it"
    raise UserError(f"{D2T} of {where} {problem} in a vocabulary of {vocab_size}, so give another version.")


def to_offsets(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """`d2t` and `t2d` for the target's ids of a draft vocabulary, [Vd], on the CPU. Raises ValueError unless they rise.

    ids: on any device; a head that was trained on an accelerator has them there.
    """
    ids = ids.cpu()
    if not _fits(ids, None, vocab_size):
        raise ValueError(f"the ids of a draft vocabulary have to rise and to be below {vocab_size}")
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return {D2T: ids.long() - torch.arange(len(ids)), T2D: t2d}


def _fits(ids: Tensor, t2d: Tensor | None, vocab_size: int) -> bool:
    """Whether these can be the ids: in order, each once, within the vocabulary, and those that t2d marks."""
    if ids[0] < 0 or ids[-1] >= vocab_size or not _rises(ids):
        return False
    return t2d is None or torch.equal(t2d.bool().nonzero()[:, 0], ids)


def _rises(ids: Tensor) -> bool:
    """As offsets do only where no two tokens of the vocabulary are neighbours, and as ids always do."""
    return bool((ids[1:] > ids[:-1]).all())
