"""Public layouts of trained heads: which one a folder has, and reading and writing it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig

from specviz.drafters.heads.files import OURS, fill, open_checkpoint
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts import eagle, eagle3, mtp, speculators
from specviz.drafters.heads.layouts.settings import Options, TargetSizes
from specviz.errors import UserError
from specviz.models.checkpoint import CONFIG, WEIGHTS
from specviz.refusals import refused_as

LAYOUTS = {layout.name: layout for layout in (speculators.LAYOUT, eagle3.LAYOUT, *mtp.LAYOUTS, eagle.LAYOUT)}


def read_head(
    folder: Path,
    target_config: PretrainedConfig,
    *,
    aux_convention: str | None = None,
    norm_before_residual: bool | None = None,
) -> Head:
    """The head in a folder with its weights, in the file's dtypes and on the CPU, not yet bound to the target.

    aux_convention ("input" or "output") and norm_before_residual are asked for where a file leaves them open.
    Raises UserError if the folder holds no head in a layout of LAYOUTS, if the head does not fit the target, or if a
    tensor is missing, unexpected or of another shape.
    """
    checkpoint, target = open_checkpoint(folder), TargetSizes.of(target_config)
    layout = next((layout for layout in LAYOUTS.values() if layout.matches(checkpoint)), None)
    if layout is None:
        raise UserError(
            f"{folder} holds no head in a layout that is read here ({', '.join(LAYOUTS)}); its tensors go by other "
            "names."
        )
    parts = layout.read(checkpoint, target, Options(aux_convention, norm_before_residual))
    with refused_as(f"The head in {folder} can't be built from its {CONFIG}", "so give another version"):
        own_embedding = "embed_tokens.weight" in parts.tensors
        with torch.device("meta"):  # no memory for sizes that the tensors do not have, and no first weights
            head = Head(parts.config, own_embedding=own_embedding, own_lm_head=parts.own_lm_head)
        fill(head, parts.tensors, checkpoint.where, parts.names.in_file)
    return head


def write_head(head: Head, folder: Path, layout: str, about: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors.

    layout: "eagle", "eagle3" or "mtp" (MiMo's). about: what the "specviz" entry is to say of it; see `describe_target`.
    Raises ValueError if what is read from the folder again would be another head.
    """
    write = LAYOUTS[layout].write
    if write is None:
        raise ValueError(f"the layout {layout} is only read")
    content, tensors = write(head)
    content[OURS] = {**about, **content.get(OURS, {})}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    if _differs(layout, folder, head.config):
        raise ValueError(f"the layout {layout} can't say all of this head's config: {head.config}")


def _differs(layout: str, folder: Path, config: HeadConfig) -> bool:
    """Whether another config is read from the folder; but for rope_scaling, which says one thing in several ways."""
    target = TargetSizes(config.target_hidden_size, max(config.hidden_layers), config.vocab_size)
    found = LAYOUTS[layout].read(open_checkpoint(folder), target, Options()).config
    return replace(found, rope_scaling=None) != replace(config, rope_scaling=None)
