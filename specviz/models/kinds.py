"""The two kinds of models that take part: causal language models, and DFlash models, which can only draft."""

from __future__ import annotations

from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PretrainedConfig


def is_dflash(model_type: str) -> bool:
    """Whether this is the type of a DFlash model that transformers itself can build.

    Such a model drafts blocks from a target's hidden states, through the target's embeddings and LM head, so it has no
    vocabulary of its own. Transformers' configuration class tells: a file that adds the same entries to another type
    describes a model that needs other code.
    """
    entries = ("target_layer_ids", "block_size", "mask_token_id")
    return model_type in CONFIG_MAPPING and all(hasattr(CONFIG_MAPPING[model_type], entry) for entry in entries)


def auto_class(config: PretrainedConfig) -> type[AutoModel] | type[AutoModelForCausalLM]:
    """The class of transformers that builds and loads the model of a configuration."""
    if is_dflash(config.model_type):
        return AutoModel  # type: ignore[no-any-return]
    return AutoModelForCausalLM  # type: ignore[no-any-return]
