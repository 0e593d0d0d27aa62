"""Decoder layers of transformers as a head's layer: for families whose layer is not like Llama's."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from specviz.drafters.heads.bounds import check_numbers
from specviz.errors import UserError
from specviz.models.alone import loading_alone
from specviz.models.cache import GrowingLayer
from specviz.models.config import cleaned


@dataclass(frozen=True, slots=True)
class Family:
    """Where transformers has a family's classes, and the settings that make layer 0 the kind that predicts.

    prefix: of the names of its decoder layer and norm; rotary: the prefix for its rotary embedding, where that differs.
    """

    module: str
    prefix: str
    settings: Mapping[str, Any]
    rotary: str | None = None

    def find(self, name: str) -> Any:
        return getattr(importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}"), name)

    def kept_in_float32(self, dtype: torch.dtype) -> tuple[str, ...]:
        """Parts of the names of the tensors that transformers keeps in float32 in a model of that number format."""
        model = self.find(f"{self.prefix}PreTrainedModel")
        kept = [*(model._keep_in_fp32_modules_strict or ())] if dtype in (torch.float16, torch.bfloat16) else []
        return (*kept, *((model._keep_in_fp32_modules or ()) if dtype == torch.float16 else ()))

    def norm(self, width: int, eps: float) -> nn.Module:
        """The family's own: some scale by 1 + weight."""
        made: nn.Module = self.find(f"{self.prefix}RMSNorm")(width, eps=eps)
        return made


_EXPERTS = {"first_k_dense_replace": 0}  # those layers come first, and the one that predicts comes last
_FULL = {"layer_types": ["full_attention"]}
FAMILIES = {
    "deepseek_v3": Family("deepseek_v3", "DeepseekV3", _EXPERTS),
    "glm4_moe": Family("glm4_moe", "Glm4Moe", _EXPERTS),
    "qwen3_next": Family("qwen3_next", "Qwen3Next", _FULL),
    "qwen3_5_text": Family("qwen3_5", "Qwen3_5", _FULL, "Qwen3_5Text"),
    "qwen3_5_moe_text": Family("qwen3_5_moe", "Qwen3_5Moe", _FULL, "Qwen3_5MoeText"),
}


def family(block_type: str) -> Family:
    """Raises UserError for a model type that is not among FAMILIES."""
    if block_type not in FAMILIES:
        raise UserError(
            f"Prediction layers of the family {block_type!r} are not read here; the families are {', '.join(FAMILIES)}."
        )
    return FAMILIES[block_type]


class LibraryBlock:
    """A transformers layer with its rotary embedding; `layer` is the module to register."""

    def __init__(self, block_type: str, block_config: Mapping[str, Any]) -> None:
        """block_config: the model's config.json.

        Raises UserError for an unknown family, and ValueError for sizes that no model has.
        """
        of = family(block_type)
        check_numbers(block_config)
        sizes = {key: value for key, value in cleaned(block_config).items() if key not in ("model_type", "layer_types")}
        config = AutoConfig.for_model(block_type, **{**sizes, "num_hidden_layers": 1, **of.settings})
        config._attn_implementation = "sdpa"
        with loading_alone:
            self.layer: nn.Module = of.find(f"{of.prefix}DecoderLayer")(config, layer_idx=0)
            with torch.device("cpu"):  # no weights: computed here, also where the layer is built without storage
                self._rotary: nn.Module = of.find(f"{of.rotary or of.prefix}RotaryEmbedding")(config)

    def __call__(self, states: Tensor, positions: Tensor, rows: GrowingLayer | None, mask: Tensor | None) -> Tensor:
        """[B, T, H]; arguments as `Head.forward` has them."""
        if mask is None and rows is not None:  # transformers would take it for a causal pass without rows before
            mask = states.new_zeros(1, rows.rows + states.shape[1])
        output = self.layer(
            states,
            position_embeddings=self._rotary.to(states.device)(states, positions),
            attention_mask=None if mask is None else mask[None, None],
            position_ids=positions,
            cache=None if rows is None else _OneLayer(rows),
        )
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result


class _OneLayer:
    """The cache that a transformers layer writes to: whatever its index, the rows of this head."""

    def __init__(self, rows: GrowingLayer) -> None:
        self.rows = rows

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.rows.update(keys, values)
