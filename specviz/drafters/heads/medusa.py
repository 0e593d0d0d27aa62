"""Medusa's heads: each guesses one further token from the same state of the target (Cai et al. 2024, arXiv 2401.10774).

Names in files after the authors' repository, https://github.com/FasterDecoding/Medusa: `{head}.{block}.linear` are
residual blocks, `{head}.{blocks}.weight` is the head's own LM head. Ours leave out the latter and use rows of the
target's, named by `d2t`, after a matrix of the head's own, `{head}.{blocks}.turn.weight`: the product of the two is the
LM head of the paper, but what is stored is H x H.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from specviz.drafters.heads.files import check_shapes, fill, open_checkpoint
from specviz.drafters.heads.folders import draft_ids, other_tensors, write_folder
from specviz.drafters.heads.offsets import D2T
from specviz.drafters.heads.shared import check_sizes, shared_lm_head
from specviz.drafters.heads.vocabulary import DraftVocabulary
from specviz.errors import UserError
from specviz.models.target import Target

MOST_HEADS, MOST_BLOCKS = 16, 8
_BLOCK = re.compile(r"(\d{1,9})\.(\d{1,9})\.linear\.(weight|bias)")
_LM_HEAD = re.compile(r"(\d{1,9})\.(\d{1,9})\.weight")
_TURN = re.compile(r"(\d{1,9})\.(\d{1,9})\.turn\.weight")


class MedusaHeads(nn.Module):
    """All heads at once: state [.., H] -> logits [heads, .., Vd]. Head i guesses token t+2+i from the state after t."""

    d2t: Tensor

    def __init__(
        self,
        heads: int,
        blocks: int,
        hidden_size: int,
        vocab_size: int,
        draft_vocab_size: int | None = None,
        *,
        own_lm_heads: bool = False,
        turned: bool = False,
    ) -> None:
        """blocks: residual ones, of each head. draft_vocab_size: None for the target's vocabulary.

        own_lm_heads, turned: what follows the blocks, an LM head of each one's own, or a matrix and then the target's.
        A block adds no less than SiLU's lowest value, -0.28, so blocks alone can't undo that the state speaks of the
        very next token.
        """
        super().__init__()
        self.hidden_size, self.vocab_size, self.draft_vocab_size = hidden_size, vocab_size, draft_vocab_size
        self.weight = nn.Parameter(torch.zeros(blocks, heads, hidden_size, hidden_size))  # [blocks, heads, out, in]
        self.bias = nn.Parameter(torch.zeros(blocks, heads, hidden_size))
        if own_lm_heads:
            self.lm_heads = nn.Parameter(torch.zeros(heads, draft_vocab_size or vocab_size, hidden_size))
        if turned:
            self.turns = nn.Parameter(torch.eye(hidden_size).repeat(heads, 1, 1))  # [heads, out, in]
        if draft_vocab_size is not None:
            self.register_buffer("d2t", torch.arange(draft_vocab_size))
        self._lm: tuple[nn.Module, ...] = ()  # a tuple, so that it is none of its own modules

    @property
    def heads(self) -> int:
        return int(self.weight.shape[1])

    @property
    def lm(self) -> nn.Module:
        """The LM head that the heads share with the target, once bound; those with their own have none."""
        return self._lm[0]

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Made anew at each call."""
        return DraftVocabulary(getattr(self, "d2t", None), self.vocab_size)

    def bind(self, target: Target, *, packed: bool = False) -> MedusaHeads:
        """Take the target's device, number format and, without LM heads of its own, its LM head; returns itself.

        packed: for decoding only. Raises UserError if it was made for a target of other sizes.
        """
        check_sizes(target, self.hidden_size, self.vocab_size)
        self.to(device=target.device, dtype=target.dtype)
        if not hasattr(self, "lm_heads"):
            self._lm = (shared_lm_head(target, getattr(self, "d2t", None), packed=packed),)
        return self

    def states(self, hidden: Tensor, heads: int | None = None) -> Tensor:
        """[T, H], the target's states after the final norm -> [heads, T, H], what the LM heads read.

        heads: only the first so many, and no others are computed.
        """
        count = self.heads if heads is None else min(heads, self.heads)
        states = hidden.expand(count, *hidden.shape)
        for weight, bias in zip(self.weight[:, :count], self.bias[:, :count], strict=True):
            states = states + F.silu(torch.baddbmm(bias[:, None], states, weight.transpose(1, 2)))
        return torch.bmm(states, self.turns[:count].transpose(1, 2)) if hasattr(self, "turns") else states

    def logits(self, states: Tensor) -> Tensor:
        """[heads, T, H], of the first heads -> [heads, T, Vd]"""
        if hasattr(self, "lm_heads"):
            return torch.bmm(states, self.lm_heads[: len(states)].transpose(1, 2))
        result: Tensor = self.lm(states)
        return result


def read_medusa(folder: Path, target_config: PretrainedConfig) -> MedusaHeads:
    """The heads in a folder, not yet bound. How many there are, the tensors say: published configs are wrong about it.

    Raises UserError for a folder in another layout, for heads of another size than the target's, or if a tensor is
    missing, unexpected or of another shape.
    """
    checkpoint = open_checkpoint(folder)
    where, shapes = checkpoint.where, checkpoint.shapes
    if any(name.startswith("model.layers.") for name in shapes):
        raise UserError(
            f"{where} holds a whole model with its Medusa heads; give a repository of the heads alone, such as a v1.3."
        )
    heads, blocks = _counts(shapes, where)
    text = target_config.get_text_config(decoder=True)
    width, vocab_size = int(text.hidden_size), int(text.vocab_size)
    own, turned = (any(name.fullmatch(each) for each in shapes) for name in (_LM_HEAD, _TURN))
    if own and turned:
        raise UserError(f"{where} has both LM heads and matrices before a shared one; give heads of one form.")
    ids, stored = draft_ids(checkpoint, vocab_size), other_tensors(checkpoint)
    rows = vocab_size if ids is None else len(ids)
    check_shapes(_as_stored(heads, blocks, width, rows if own else None, turned), stored, where)
    with torch.device("meta"):
        medusa = MedusaHeads(
            heads, blocks, width, vocab_size, None if ids is None else len(ids), own_lm_heads=own, turned=turned
        )
    stacked = {
        kind: torch.stack(
            [torch.stack([stored[f"{head}.{block}.linear.{kind}"] for head in range(heads)]) for block in range(blocks)]
        )
        for kind in ("weight", "bias")
    }
    if own:
        stacked["lm_heads"] = torch.stack([stored[f"{head}.{blocks}.weight"] for head in range(heads)])
    if turned:
        stacked["turns"] = torch.stack([stored[f"{head}.{blocks}.turn.weight"] for head in range(heads)])
    fill(medusa, {**stacked, **({} if ids is None else {D2T: ids})}, where)
    return medusa


def write_medusa(medusa: MedusaHeads, folder: Path, about: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors. about: what the "specviz" entry is to say of it."""
    blocks, tensors = len(medusa.weight), {}
    for head in range(medusa.heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = medusa.weight[block, head]
            tensors[f"{head}.{block}.linear.bias"] = medusa.bias[block, head]
        if hasattr(medusa, "lm_heads"):
            tensors[f"{head}.{blocks}.weight"] = medusa.lm_heads[head]
        if hasattr(medusa, "turns"):
            tensors[f"{head}.{blocks}.turn.weight"] = medusa.turns[head]
    config = {
        "medusa_num_heads": medusa.heads,
        "medusa_num_layers": blocks,
        "hidden_size": medusa.hidden_size,
    }
    write_folder(folder, config, tensors, about, medusa.vocab_size, getattr(medusa, "d2t", None))


def _as_stored(heads: int, blocks: int, width: int, vocab_size: int | None, turned: bool) -> nn.Module:
    """Modules whose parameters have the names and shapes in files, without storage. vocab_size: of own LM heads."""

    def layers() -> list[nn.Module]:
        found: list[nn.Module] = [nn.ModuleDict({"linear": nn.Linear(width, width)}) for _ in range(blocks)]
        if turned:
            found.append(nn.ModuleDict({"turn": nn.Linear(width, width, bias=False)}))
        elif vocab_size is not None:
            found.append(nn.Linear(width, vocab_size, bias=False))
        return found

    with torch.device("meta"):
        return nn.ModuleList([nn.ModuleList(layers()) for _ in range(heads)])


def _counts(shapes: Collection[str], where: str) -> tuple[int, int]:
    """How many heads, and residual blocks in each, the names tell of."""
    found = [match for name in shapes if (match := _BLOCK.fullmatch(name))]
    if not found:
        raise UserError(f"{where} holds no Medusa heads: no tensor is called 0.0.linear.weight; give a folder of some.")
    heads, blocks = (1 + max(int(match[part]) for match in found) for part in (1, 2))
    if heads > MOST_HEADS or blocks > MOST_BLOCKS:
        raise UserError(f"{where} names {heads} Medusa heads of {blocks} blocks, more than there can be; give another.")
    return heads, blocks
