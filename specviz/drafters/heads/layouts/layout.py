"""What a layout is: how to tell that a folder has it, how to read a head from it and how to write one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specviz.drafters.heads.files import Checkpoint
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts.names import Names
from specviz.drafters.heads.layouts.settings import Options, TargetSizes
from specviz.drafters.heads.offsets import D2T, T2D


@dataclass(frozen=True, slots=True)
class Parts:
    """What a head is made from.

    tensors: by their names inside, `d2t` as absolute ids. names: what those are called in the file.
    own_lm_head: whether the head has to have one; otherwise it shares the target's.
    """

    config: HeadConfig
    tensors: dict[str, Tensor]
    names: Names
    own_lm_head: bool

    @classmethod
    def of(
        cls,
        config: HeadConfig,
        checkpoint: Checkpoint,
        names: Names,
        *,
        stored: Collection[str] | None = None,
        vocabulary: Mapping[str, Tensor] | None = None,
        own_lm_head: bool | None = None,
    ) -> Parts:
        """stored: the file's tensors that are the head's, by default all. own_lm_head: by default if it has one."""
        stored = [name for name in (stored or checkpoint.shapes) if name not in (D2T, T2D)]
        tensors = {names.inside(name): tensor for name, tensor in checkpoint.read(stored).items()}
        own = "lm_head.weight" in tensors if own_lm_head is None else own_lm_head
        return cls(config, {**tensors, **(vocabulary or {})}, names, own)


@dataclass(frozen=True, slots=True)
class Layout:
    """One public layout.

    matches: whether a folder has it, from the config's keys and the tensors' names. read: raises UserError.
    write: the entries of config.json and the tensors, by their names in the file; None if it is only read.
    """

    name: str
    matches: Callable[[Checkpoint], bool]
    read: Callable[[Checkpoint, TargetSizes, Options], Parts]
    write: Callable[[Head], tuple[dict[str, Any], dict[str, Tensor]]] | None = None
