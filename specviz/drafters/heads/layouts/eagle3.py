"""EAGLE-3: three fused states of the target, a layer that reads them beside the embedding, a vocabulary of its own.

https://arxiv.org/abs/2503.01840; names and arithmetic after the authors' `cnets.py` (https://github.com/SafeAILab/EAGLE)
and vLLM's `llama_eagle3.py`. `norm_output` and `fc_norm` as SpecForge's EAGLE-3.1 has them.

Heads of ours may join state and embedding in front of the layer, as EAGLE-1 does ("joined" in HeadConfig). Their
`join.weight` and their norms have names of their own, for the layer's input is then normed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specviz.drafters.heads.files import OURS, Checkpoint
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts import ours
from specviz.drafters.heads.layouts.layout import Layout, Parts
from specviz.drafters.heads.layouts.names import SAME, Names, numbered
from specviz.drafters.heads.layouts.settings import (
    Options,
    TargetSizes,
    block_settings,
    check_fits,
    check_one_layer,
    entry,
    flag,
    written_block,
)
from specviz.drafters.heads.layouts.taps import tapped_layers
from specviz.drafters.heads.offsets import D2T, to_offsets
from specviz.errors import UserError

MIDLAYER, FIRST = "midlayer.", "layers.0."  # the two names of the one layer
AUX_IDS = "eagle_aux_hidden_state_layer_ids"


def names(layer: str) -> Names:
    """The names in a file that calls its layer `layer`."""
    return Names(
        (
            *SAME,
            ("input_norm.", "input_norm."),
            (f"{layer}hidden_norm.", "feature_norm."),
            (f"{layer}input_layernorm.", "embedding_norm."),
            (layer, "layers.0."),
        )
    )


OWN = ("join.", "input_norm.", "embedding_norm.", "feature_norm.")
JOINED = Names((*SAME, *((name, name) for name in OWN), (MIDLAYER, FIRST)))


def matches(checkpoint: Checkpoint) -> bool:
    """A layer 0 is also EAGLE-1's; a norm of the features or a vocabulary of its own tells them apart."""
    layers = numbered(checkpoint.shapes, "layers.")
    return "speculators_model_type" not in checkpoint.config and (
        any(name.startswith(MIDLAYER) for name in checkpoint.shapes)
        or (0 in layers and bool({f"{FIRST}hidden_norm.weight", D2T} & checkpoint.shapes.keys()))
    )


def read(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    config = checkpoint.config
    eagle = entry(config, "eagle_config", checkpoint.where)
    settings = {**config, **eagle}
    residual = flag(settings, "norm_before_residual", checkpoint.where, options.norm_before_residual)
    return read_wide(checkpoint, config, settings, target, options, None, bool(residual))


def read_wide(
    checkpoint: Checkpoint,
    block: Mapping[str, Any],
    settings: Mapping[str, Any],
    target: TargetSizes,
    options: Options,
    convention: str | None,
    norm_before_residual: bool,
) -> Parts:
    """A head from the config of its block and the settings around it, which speculators keeps apart.

    convention: how the target's layers are counted, None if the file leaves it open. Raises UserError.
    """
    where, shapes = checkpoint.where, checkpoint.shapes
    if flag(settings, "use_aux_hidden_state", where, True) is False:
        raise UserError(f"The drafter in {where} reads no states of lower layers; such heads are not read here.")
    if flag(settings, "fc_norm", where):
        raise UserError(f"The drafter in {where} norms each state before fc (fc_norm); such heads are not read here.")
    check_fits({**block, "target_hidden_size": settings.get("target_hidden_size")}, target, where)
    layer = MIDLAYER if any(name.startswith(MIDLAYER) for name in shapes) else FIRST
    check_one_layer({0} | numbered(shapes, "layers."), where)
    said = ours.said(checkpoint, target, ("joined",))
    layers = said.pop("hidden_layers", None) or tapped_layers(settings.get(AUX_IDS), target, where, options, convention)
    draft_vocab_size, vocabulary = ours.draft_vocabulary(checkpoint, settings, target)
    head = HeadConfig(
        **{
            **block_settings(checkpoint, block, layer),
            "hidden_layers": layers,
            "target_hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": draft_vocab_size,
            "combine": "wide",
            "fc_bias": "fc.bias" in shapes,
            "feedback": "normed" if flag(settings, "norm_output", where) else "output",
            "norm_before_residual": norm_before_residual,
            "norm_before_fc": bool(flag(settings, "norm_before_fc", where)),
            "final_norm": True,
            "zero_first_embedding": False,
            "block_type": None,
            "block_config": None,
            **said,
        }
    )
    own = not ours.shares_lm_head(checkpoint)
    if head.combine == "joined" and norm_before_residual:
        raise UserError(f"The drafter in {where} is joined, so it has no residual before its norm; leave that out.")
    called = JOINED if head.combine == "joined" else names(layer)
    return Parts.of(head, checkpoint, called, vocabulary=vocabulary, own_lm_head=own)


def write(head: Head) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, joined = head.config, head.config.combine == "joined"
    called = JOINED if joined else names(MIDLAYER)
    keys = ("hidden_layers", "combine") if joined else ("hidden_layers",)
    tensors = {called.in_file(name): tensor for name, tensor in head.state_dict().items() if name != D2T}
    if config.draft_vocab_size is not None:
        tensors |= to_offsets(head.d2t, config.vocab_size)
    return {
        "architectures": ["JoinedEagle3" if joined else "LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **written_block(config),
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_config": {"use_aux_hidden_state": True, AUX_IDS: list(config.hidden_layers)},
        "norm_output": config.feedback == "normed",
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        OURS: ours.entries(config, "lm_head.weight" not in tensors, keys),
    }, tensors


LAYOUT = Layout("eagle3", matches, read, write)
