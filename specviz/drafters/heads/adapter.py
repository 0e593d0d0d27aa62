"""A trained adapter for an early exit: what stands between a middle layer's state and the LM head.

The layout is ours, for there is no public one: `adapter.norm`, `adapter.up` [I, H], `adapter.down` [H, I], `norm`, and
`d2t`; the exit layer stands in config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from specviz.drafters.heads.block import RMSNorm
from specviz.drafters.heads.files import config, fill, open_checkpoint
from specviz.drafters.heads.folders import draft_ids, other_tensors, write_folder
from specviz.drafters.heads.offsets import D2T
from specviz.drafters.heads.shared import check_sizes, shared_lm_head
from specviz.drafters.heads.vocabulary import DraftVocabulary
from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG
from specviz.models.pack import pack
from specviz.models.target import Target
from specviz.refusals import brief

_UP = "adapter.up.weight"


class _Residual(nn.Module):
    """x + down(silu(up(norm(x))))"""

    def __init__(self, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(width, eps)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = states + self.down(F.silu(self.up(self.norm(states))))
        return result


class ExitAdapter(nn.Module):
    """State of layer `exit_layer` [.., H] -> logits [.., Vd]."""

    d2t: Tensor

    def __init__(
        self,
        exit_layer: int,
        hidden_size: int,
        inner_size: int,
        vocab_size: int,
        draft_vocab_size: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        """exit_layer: layers of the target that run. draft_vocab_size: None for the target's vocabulary."""
        super().__init__()
        self.exit_layer, self.hidden_size, self.vocab_size = exit_layer, hidden_size, vocab_size
        self.draft_vocab_size, self.eps = draft_vocab_size, eps
        self.adapter = _Residual(hidden_size, inner_size, eps)
        self.norm = RMSNorm(hidden_size, eps)
        if draft_vocab_size is not None:
            self.register_buffer("d2t", torch.arange(draft_vocab_size))
        self._lm: tuple[nn.Module, ...] = ()  # a tuple, so that it is none of its own modules

    @property
    def lm(self) -> nn.Module:
        """The LM head that it shares with the target, once bound."""
        return self._lm[0]

    @property
    def vocabulary(self) -> DraftVocabulary:
        """Made anew at each call."""
        return DraftVocabulary(getattr(self, "d2t", None), self.vocab_size)

    def bind(self, target: Target, *, packed: bool = False) -> ExitAdapter:
        """Take the target's device, number format and LM head; returns itself. packed: for decoding only.

        Raises UserError if it was made for a target of other sizes.
        """
        check_sizes(target, self.hidden_size, self.vocab_size)
        self.to(device=target.device, dtype=target.dtype)
        if packed:
            pack(self)
        self._lm = (shared_lm_head(target, getattr(self, "d2t", None), packed=packed),)
        return self

    def states(self, hidden: Tensor) -> Tensor:
        """What the LM head reads, [.., H]."""
        result: Tensor = self.norm(self.adapter(hidden))
        return result

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.lm(self.states(hidden))
        return result


def exit_of(folder: Path) -> Any:
    """The exit layer that the adapter in a folder was trained for; None if it says none."""
    return config(folder).get("exit_layer")


def read_adapter(folder: Path, target_config: PretrainedConfig) -> ExitAdapter:
    """The adapter in a folder, not yet bound. Raises UserError for anything else, or for one of another size."""
    checkpoint = open_checkpoint(folder)
    where, text = checkpoint.where, target_config.get_text_config(decoder=True)
    exit_layer, layers = exit_of(folder), int(text.num_hidden_layers)
    if type(exit_layer) is not int or len(checkpoint.shapes.get(_UP, ())) != 2:
        raise UserError(f"{where} holds no exit adapter (exit_layer or {_UP} is missing); give the folder of one.")
    if not 1 <= exit_layer < layers:
        raise UserError(
            f"The adapter in {where} is for an exit after layer {exit_layer}, and this target has {layers} layers; "
            "choose one that was made for this target."
        )
    eps = checkpoint.config.get("rms_norm_eps", 1e-5)
    if type(eps) is not float or not 0 < eps < 1:
        raise UserError(f"{CONFIG} of {where} has {brief(eps)} as rms_norm_eps; give an adapter that is unchanged.")
    vocab_size = int(text.vocab_size)
    ids = draft_ids(checkpoint, vocab_size)
    inner = checkpoint.shapes[_UP][0]
    draft_vocab_size = None if ids is None else len(ids)
    with torch.device("meta"):  # its sizes are the file's: nothing is allocated before they are compared
        adapter = ExitAdapter(exit_layer, int(text.hidden_size), inner, vocab_size, draft_vocab_size, float(eps))
    fill(adapter, {**other_tensors(checkpoint), **({} if ids is None else {D2T: ids})}, where)
    return adapter


def write_adapter(adapter: ExitAdapter, folder: Path, about: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors. about: what the "specviz" entry is to say of it."""
    entries = {"exit_layer": adapter.exit_layer, "hidden_size": adapter.hidden_size, "rms_norm_eps": adapter.eps}
    tensors = {name: value for name, value in adapter.state_dict().items() if name != D2T}
    write_folder(folder, entries, tensors, about, adapter.vocab_size, getattr(adapter, "d2t", None))
