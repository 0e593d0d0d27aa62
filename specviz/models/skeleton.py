"""The model that a configuration describes, without its weights: to count parameters and share out modules.

Built beside threads that load and decode, so it neither writes what they read, torch's default dtype above all, nor
depends on what a load alters meanwhile.
"""

from __future__ import annotations

import copy

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import MtpModel
from transformers.models.auto.auto_factory import _get_model_class

from specviz.models.kinds import auto_class


def model_without_storage(config: PretrainedConfig) -> PreTrainedModel:
    """The model that `config` describes, in float32 and unquantised, its tensors on the meta device.

    Raises ValueError for a configuration of no model that takes part here.
    """
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    _forget_dtypes(config)
    known = auto_class(config)._model_mapping
    if type(config) not in known:
        raise ValueError(f"transformers has no language model of the type {config.model_type}")
    model_class = _get_model_class(config, known)
    text = config.sub_configs.get("text_config")
    if text is not None and model_class.config_class == text:  # a model of the text part alone
        config = config.get_text_config()
    # Not by `from_config`, which sets the default dtype for all threads.
    # The meta device holds for this thread only, unlike accelerate's init_empty_weights, which patches nn.Module.
    with torch.device("meta"):
        model: PreTrainedModel = model_class(config)
    _tie(model)
    return model.float()


def mtp_without_storage(model: PreTrainedModel) -> MtpModel:
    """The multi-token-prediction layers of such a model, with its embeddings and LM head.

    Raises ValueError if it has none.
    """
    layers = getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None)
    if not layers:
        raise ValueError(f"{model.config.model_type} has no multi-token-prediction layers")
    with torch.device("meta"):
        return MtpModel(model, int(layers))


def _forget_dtypes(config: PretrainedConfig) -> None:
    """Models of several parts build these with `from_config`, which sets the default dtype if the part names one."""
    config.dtype = None
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            _forget_dtypes(part)


def _tie(model: PreTrainedModel) -> None:
    """Tie weights that the model wants tied. It does so itself, unless another thread is loading."""
    for twin, source in model.all_tied_weights_keys.items():
        module, _, name = twin.rpartition(".")
        setattr(model.get_submodule(module), name, model.get_parameter_or_buffer(source))
