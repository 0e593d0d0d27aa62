"""Multi-token-prediction layers as models ship them: fc over embedding and final state, one layer, one norm.

Three families of names, after vLLM's `deepseek_mtp.py`, `glm4_moe_mtp.py`, `mimo_mtp.py` and `qwen3_next_mtp.py`:
DeepSeek-V3, GLM-4.5 (`model.layers.{N}.*`), MiMo (`model.mtp_layers.0.*`), Qwen3-Next, Qwen3.5 (`mtp.*`). The file may
hold the whole model: only the layer's tensors are read. A head of ours is written in MiMo's layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from specviz.drafters.heads.files import OURS, Checkpoint
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts import ours
from specviz.drafters.heads.layouts.experts import stacked
from specviz.drafters.heads.layouts.layout import Layout, Parts
from specviz.drafters.heads.layouts.names import Names, numbered
from specviz.drafters.heads.layouts.settings import (
    Options,
    TargetSizes,
    block_settings,
    check_fits,
    check_one_layer,
    whole,
    written_block,
)
from specviz.drafters.heads.offsets import D2T, to_offsets
from specviz.errors import UserError

# Model types whose layer is our own block: Llama's, with what biases and norms the tensors show.
PLAIN = ("llama", "mimo", "qwen2", "qwen3")
_COMPUTED = "rotary_emb.inv_freq"  # in some old files; follows from the config
_DEEPSEEK = re.compile(r"model\.layers\.(\d{1,9})\.(eh_proj|enorm|hnorm)\.weight")


def mimo_names(prefix: str) -> Names:
    """MiMo's, which speculators takes over with another prefix."""
    return Names(
        (
            (f"{prefix}0.token_layernorm.", "embedding_norm."),
            (f"{prefix}0.hidden_layernorm.", "feature_norm."),
            (f"{prefix}0.input_proj.", "fc."),
            (f"{prefix}0.final_layernorm.", "norm."),
            (f"{prefix}0.", "layers.0."),
        )
    )


def deepseek_names(layer: int) -> Names:
    prefix = f"model.layers.{layer}."
    return Names(
        (
            (f"{prefix}enorm.", "embedding_norm."),
            (f"{prefix}hnorm.", "feature_norm."),
            (f"{prefix}eh_proj.", "fc."),
            (f"{prefix}shared_head.norm.", "norm."),
            (f"{prefix}shared_head.head.", "lm_head."),
            (f"{prefix}embed_tokens.", "embed_tokens."),
            (prefix, "layers.0."),
        )
    )


MIMO = "model.mtp_layers."
OUR_NAMES = Names((*mimo_names(MIMO).pairs, ("lm_head.", "lm_head.")))
QWEN_NAMES = Names(
    (
        ("mtp.pre_fc_norm_embedding.", "embedding_norm."),
        ("mtp.pre_fc_norm_hidden.", "feature_norm."),
        ("mtp.fc.", "fc."),
        ("mtp.norm.", "norm."),
        ("mtp.layers.0.", "layers.0."),
        ("mtp.", "mtp."),
    )
)


def matches_mimo(checkpoint: Checkpoint) -> bool:
    return any(name.startswith(MIMO) for name in checkpoint.shapes)


def read_mimo(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    check_one_layer(numbered(checkpoint.shapes, MIMO), checkpoint.where)
    names = OUR_NAMES if OURS in checkpoint.config else mimo_names(MIMO)
    return read_layer(checkpoint, checkpoint.config, target, names, "mtp-reversed", zero_first_embedding=True)


def matches_qwen(checkpoint: Checkpoint) -> bool:
    return any(name.startswith("mtp.") for name in checkpoint.shapes)


def read_qwen(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    check_one_layer(numbered(checkpoint.shapes, "mtp.layers."), checkpoint.where)
    return read_layer(checkpoint, _text(checkpoint), target, QWEN_NAMES, "mtp", zero_first_embedding=False)


def matches_deepseek(checkpoint: Checkpoint) -> bool:
    return any(map(_DEEPSEEK.fullmatch, checkpoint.shapes))


def read_deepseek(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    layers = {int(found[1]) for name in checkpoint.shapes if (found := _DEEPSEEK.fullmatch(name))}
    if layers != {target.num_layers}:
        raise UserError(
            f"The drafter in {checkpoint.where} has its prediction at layer {sorted(layers)}; for this target it "
            f"should have one at {target.num_layers}, so choose one that was made for this target."
        )
    names = deepseek_names(target.num_layers)
    return read_layer(checkpoint, _text(checkpoint), target, names, "mtp", zero_first_embedding=True)


def read_layer(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    target: TargetSizes,
    names: Names,
    combine: str,
    *,
    zero_first_embedding: bool,
) -> Parts:
    """A head from the tensors that `names` knows. config: the language model's. Raises UserError.

    What is fed back is the state after the last norm, as vLLM does.
    """
    where, stored = checkpoint.where, [name for name in names.of_head(checkpoint.shapes) if _COMPUTED not in name]
    if scales := [name for name in stored if name.endswith(("weight_scale_inv", "weight_scale"))]:
        raise UserError(f"The prediction layer in {where} is quantised ({scales[0]}); give a version in bf16.")
    check_fits(config, target, where)
    model_type = str(config.get("model_type"))
    plain = model_type in PLAIN
    layer = next(outside for outside, inside in names.pairs if inside == "layers.0.")
    sizes = config if plain else {"intermediate_size": config.get("moe_intermediate_size"), **config}
    draft_vocab_size, vocabulary = ours.draft_vocabulary(checkpoint, config, target)
    head = HeadConfig(
        **{
            **block_settings(checkpoint, sizes, layer),
            "hidden_layers": (target.num_layers,),
            "target_hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": draft_vocab_size,
            "combine": combine,
            "fc_bias": False,
            "input_norm": True,
            "feedback": "normed",
            "norm_before_residual": False,
            "norm_before_fc": False,
            "final_norm": True,
            "zero_first_embedding": zero_first_embedding,
            "block_type": None if plain else model_type,
            "block_config": None if plain else dict(config),
            **ours.said(checkpoint, target, ("mtp", "mtp-reversed")),
        }
    )
    parts = Parts.of(head, checkpoint, names, stored=stored, vocabulary=vocabulary)
    if plain or "moe_intermediate_size" not in config:
        return parts
    inner = whole(config, "moe_intermediate_size", where)
    return replace(parts, tensors=stacked(parts.tensors, names, where, inner, head.hidden_size))


def write(head: Head) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = head.config
    tensors = {OUR_NAMES.in_file(name): tensor for name, tensor in head.state_dict().items() if name != D2T}
    if config.draft_vocab_size is not None:
        tensors |= to_offsets(head.d2t, config.vocab_size)
    keys = ("hidden_layers", "combine", "feedback", "zero_first_embedding")
    return {
        "architectures": ["MiMoMTPModel"],
        "model_type": "mimo",
        **written_block(config),
        "num_nextn_predict_layers": 1,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        OURS: ours.entries(config, "lm_head.weight" not in tensors, keys),
    }, tensors


def _text(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The language model's part of the config."""
    text = checkpoint.config.get("text_config")
    return text if isinstance(text, dict) else checkpoint.config


LAYOUTS = (
    Layout("mtp", matches_mimo, read_mimo, write),
    Layout("mtp-qwen", matches_qwen, read_qwen),
    Layout("mtp-deepseek", matches_deepseek, read_deepseek),
)
