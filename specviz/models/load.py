"""From a folder of weights to a model in memory: safetensors only, no remote code, memory checked first."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specviz import memory
from specviz.errors import UserError
from specviz.models.pack import pack

CONTEXT = 2048  # tokens of context that the memory check allows for
GAMMA = 8


def weight_hash(folder: Path) -> str:
    """sha256 over the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def load_model(
    folder: Path, dtype: torch.dtype, device: torch.device, *, packed: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer, on the device; `packed`: its weights too, where that is faster.

    Raises UserError if the folder holds no such model in safetensors form, or if it does not fit in memory.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no model (no config.json); give a folder saved in the transformers format.")
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} holds no .safetensors file; convert the weights first, other formats are not read.")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        budget = memory.estimate(
            config,
            dtype_bytes=dtype.itemsize,
            context_tokens=CONTEXT,
            gamma=GAMMA,
            available=memory.available_bytes(device),
        )
        memory.check(budget)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map={"": device},  # straight onto the device, by accelerate
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        if missing := sorted(info["missing_keys"]):  # transformers would make them up
            raise ValueError(f"{len(missing)} tensors are missing, first {missing[0]}")
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except UserError:
        raise
    except Exception as error:  # a config can be wrong in as many ways as there are models
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"The model in {folder} can't be loaded ({reason[0]}); check that it is complete.") from error
    if packed:
        pack(model)
    return model, tokenizer
