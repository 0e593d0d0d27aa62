"""From a folder of weights to a model in memory: safetensors only, no remote code, memory checked first."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers import AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from specviz.errors import UserError
from specviz.models.alone import loading_alone
from specviz.models.checkpoint import has_tokenizer
from specviz.models.config import config_of
from specviz.models.kinds import auto_class, is_dflash
from specviz.models.pack import pack
from specviz.models.placement import Placement, plan
from specviz.planning.room import give_back
from specviz.refusals import refused_as

# Quantised formats that are unpacked to plain weights as they are read: computing in them takes kernels that
# transformers would download and run, or hardware that few have. By `quant_method`, as people call them.
UNPACKED = {"fp8": "FP8", "mxfp8": "MXFP8", "mxfp4": "MXFP4"}


def weight_hash(folder: Path) -> str:
    """sha256 over the folder's safetensors files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def place_model(
    folder: Path, dtype: torch.dtype, device: torch.device, *, name: str = "", reserve: int = 0
) -> Placement:
    """Where the model in the folder would go, from its config alone, and what has to be said about it.

    `name`: what notes call it. `reserve`: bytes to leave free on the device, for a drafter. Raises UserError if the
    folder holds no model in safetensors form, or if it does not fit in memory.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no model (no config.json); give a folder saved in the transformers format.")
    weights = list(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{folder} holds no .safetensors file; convert the weights first, other formats are not read.")
    with _said_of(folder):
        config = config_of(f"the model in {folder}", folder)
        method = _quantisation(config)
        stays = method is not None and method not in UNPACKED
        weight_bytes = sum(file.stat().st_size for file in weights) if stays else None
        placement = plan(config, dtype, device, name=name, reserve=reserve, weight_bytes=weight_bytes)
        if method in UNPACKED:
            note = _unpacked_note(name or config.model_type, UNPACKED[method], dtype)
            placement = replace(placement, notes=(*placement.notes, note))
    return placement


def load_model(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    *,
    packed: bool = True,
    placement: Placement | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A model and its tokenizer, on the device; `packed`: its weights too, where that is faster.

    The tokenizer is None only for a DFlash model whose folder has none. `placement`: what `place_model` answered for
    this folder, whose notes say what was substituted; by default it is asked here. Raises UserError if the folder holds
    no model in safetensors form that works here, or if it does not fit in memory.
    """
    placement = placement or place_model(folder, dtype, device)
    with loading_alone, _said_of(folder):
        config = config_of(f"the model in {folder}", folder)
        unpacking = {"quantization_config": _unpacking(config)} if _quantisation(config) in UNPACKED else {}
        model, info = auto_class(config).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map=placement.device_map,  # straight onto the devices, by accelerate
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, in words
            **unpacking,
        )
        if wrong := sorted(str(key) for key, *_ in info["mismatched_keys"]):
            raise ValueError(f"{len(wrong)} tensors have other shapes than its config says, first {wrong[0]}")
        if missing := sorted(info["missing_keys"]):  # transformers would make them up
            raise ValueError(f"{len(missing)} tensors are missing, first {missing[0]}")
        tokenizer = None
        if not is_dflash(config.model_type) or has_tokenizer([file.name for file in folder.iterdir()]):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if packed and pack(model):
        _let_go(model)
    return model, tokenizer


def _let_go(model: PreTrainedModel) -> None:
    """Give back what weights leave behind once they are packed: the mapped file, and what the C library keeps."""
    for weight in model.parameters():
        weight.data = weight.data.clone()  # one that lies in the file keeps all of it mapped
    give_back()


def _said_of(folder: Path) -> AbstractContextManager[None]:
    """Whatever goes wrong inside becomes one sentence."""
    return refused_as(f"The model in {folder} can't be loaded", "so check that it is complete")


def _quantisation(config: PretrainedConfig) -> str | None:
    """The quantisation method that the config names, None if none."""
    stored: dict[str, Any] | None = getattr(config, "quantization_config", None)
    return None if stored is None else str(stored.get("quant_method"))


def _unpacked_note(name: str, stored: str, dtype: torch.dtype) -> str:
    plain = str(dtype).removeprefix("torch.")
    return f"The {stored} weights of {name} are unpacked to {plain}, so they are as large and as slow as others in it."


def _unpacking(config: PretrainedConfig) -> QuantizationConfigMixin:
    """The checkpoint's own quantisation settings, with the weights made plain as they are read."""
    return AutoQuantizationConfig.from_dict({**config.quantization_config, "dequantize": True})
