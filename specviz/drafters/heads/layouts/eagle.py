"""EAGLE-1 and EAGLE-2: one layer over fc(cat[embedding, feature]), https://arxiv.org/abs/2401.15077.

Names and arithmetic after the authors' `cnets1.py`, https://github.com/SafeAILab/EAGLE. The layer has no norm of its
input, the LM head is the target's, and whether fc has a bias is told by its tensor alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specviz.drafters.heads.files import Checkpoint
from specviz.drafters.heads.head import Head, HeadConfig
from specviz.drafters.heads.layouts.layout import Layout, Parts
from specviz.drafters.heads.layouts.names import SAME, Names, numbered
from specviz.drafters.heads.layouts.settings import (
    Options,
    TargetSizes,
    block_settings,
    check_fits,
    check_one_layer,
    written_block,
)
from specviz.drafters.heads.offsets import D2T

NAMES = Names((*SAME, ("layers.0.", "layers.0.")))


def matches(checkpoint: Checkpoint) -> bool:
    return (
        "speculators_model_type" not in checkpoint.config
        and 0 in numbered(checkpoint.shapes, "layers.")
        and not {"layers.0.hidden_norm.weight", D2T} & checkpoint.shapes.keys()
    )


def read(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    config, where = checkpoint.config, checkpoint.where
    check_fits(config, target, where)
    check_one_layer(numbered(checkpoint.shapes, "layers."), where)
    head = HeadConfig(
        **block_settings(checkpoint, config, "layers.0."),
        hidden_layers=(target.num_layers,),
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=None,
        combine="concat",
        fc_bias="fc.bias" in checkpoint.shapes,
        input_norm="layers.0.input_layernorm.weight" in checkpoint.shapes,
        feedback="output",
        norm_before_residual=False,
        norm_before_fc=False,
        final_norm="norm.weight" in checkpoint.shapes,
        zero_first_embedding=False,
        block_type=None,
        block_config=None,
    )
    return Parts.of(head, checkpoint, NAMES)


def write(head: Head) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = head.config
    content = {"architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "bias": config.fc_bias}
    tensors = {NAMES.in_file(name): tensor for name, tensor in head.state_dict().items()}
    return {**content, **written_block(config)}, tensors


LAYOUT = Layout("eagle", matches, read, write)
