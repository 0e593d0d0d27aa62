"""What the layouts share that have a draft vocabulary and no other config than their sizes: Medusa heads and ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from specviz.drafters.heads.files import OURS, Checkpoint
from specviz.drafters.heads.offsets import D2T, T2D, from_offsets, to_offsets
from specviz.models.checkpoint import CONFIG, WEIGHTS


def draft_ids(checkpoint: Checkpoint, vocab_size: int) -> Tensor | None:
    """The target's ids of the draft vocabulary, int64 [Vd]; None if it is the target's. Raises UserError."""
    if D2T not in checkpoint.shapes:
        return None
    named = checkpoint.read([name for name in (D2T, T2D) if name in checkpoint.shapes])
    return from_offsets(named, vocab_size, checkpoint.where)


def other_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors but those that name the draft vocabulary. Raises UserError if they can't be read or held."""
    return checkpoint.read([name for name in checkpoint.shapes if name not in (D2T, T2D)])


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    vocab_size: int,
    d2t: Tensor | None,
) -> None:
    """Write config.json and model.safetensors.

    about: what the "specviz" entry is to say of the drafter; see `files.describe_target`. vocab_size: the target's.
    """
    draft_size = vocab_size if d2t is None else len(d2t)
    content = {**config, "vocab_size": vocab_size, "draft_vocab_size": draft_size, OURS: dict(about)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    offsets = {} if d2t is None else to_offsets(d2t, vocab_size)
    # The format refuses tensors that share their storage.
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file({**stored, **offsets}, folder / WEIGHTS, metadata={"format": "pt"})
