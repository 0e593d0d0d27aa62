"""The format of the `speculators` library, which vLLM reads: https://github.com/vllm-project/speculators.

The config of the layer lies in `transformer_layer_config`; the tensors go by vLLM's names, `layers.0.*` for EAGLE-3 and
`mtp_layers.0.*` for MTP. Its layer ids are those that the states enter.
"""

from __future__ import annotations

from specviz.drafters.heads.files import Checkpoint
from specviz.drafters.heads.layouts.eagle3 import AUX_IDS, read_wide
from specviz.drafters.heads.layouts.layout import Layout, Parts
from specviz.drafters.heads.layouts.mtp import mimo_names, read_layer
from specviz.drafters.heads.layouts.names import numbered
from specviz.drafters.heads.layouts.settings import Options, TargetSizes, check_one_layer, entry, flag
from specviz.errors import UserError
from specviz.refusals import brief

KIND = "speculators_model_type"
LAYERS = "mtp_layers."


def matches(checkpoint: Checkpoint) -> bool:
    return KIND in checkpoint.config


def read(checkpoint: Checkpoint, target: TargetSizes, options: Options) -> Parts:
    kind, where = checkpoint.config[KIND], checkpoint.where
    block = entry(checkpoint.config, "transformer_layer_config", where)
    if kind == "mtp":
        check_one_layer(numbered(checkpoint.shapes, LAYERS), where)
        return read_layer(checkpoint, block, target, mimo_names(LAYERS), "mtp", zero_first_embedding=False)
    if kind != "eagle3":
        raise UserError(f"{where} is a speculator of the kind {brief(kind)}; those read here are eagle3 and mtp.")
    settings = dict(checkpoint.config)
    settings[AUX_IDS] = settings.get(AUX_IDS) or settings.get("aux_hidden_state_layer_ids")
    residual = flag(settings, "norm_before_residual", where, options.norm_before_residual)
    if residual is None:
        raise UserError(
            f"The drafter in {where} does not say where its residual branch starts, and engines assume different "
            "things, so give norm_before_residual: true (--norm-before-residual) for most published heads, false "
            "(--no-norm-before-residual) if it was trained without."
        )
    return read_wide(checkpoint, block, settings, target, options, "input", residual)


LAYOUT = Layout("speculators", matches, read)
