"""A process that loads a pairing, decodes, and tells how much memory that took. Started by `planning.measuring`.

It reads a request as JSON from standard input and writes the answer as JSON to standard output, and nothing else there.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from specviz import loaded, runs
from specviz.decoding.engine import Settings, decode
from specviz.drafters import NGram
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.pack import pack
from specviz.models.target import Target
from specviz.planning.mapped import idle_mapped
from specviz.planning.room import forget_peak, give_back, peak_bytes, used_bytes
from specviz.presets import nearest, pairing

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps under the old oak until the sun goes down. "


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What loading and, for each context, decoding took beyond what the imports had."""
    device = pick_device(request["device"])
    dtype = pick_dtype(request["dtype"], device)
    _warm(device, dtype)
    _tidy(device)
    before = used_bytes(device)
    can_tell = forget_peak(device)
    ready = _load(request, str(dtype).removeprefix("torch."))
    loading = peak_bytes(device) - before
    _tidy(device)
    idle = idle_mapped(_models(ready))  # weights that were packed lie in the file still, unused, where it stays mapped
    held = used_bytes(device) - before - idle
    made = [_run(ready, request, context, before, can_tell) for context in request["contexts"]]
    return {"before": before, "loading": loading if can_tell else None, "held": held, "idle": idle, "runs": made}


def _load(request: dict[str, Any], dtype: str) -> loaded.Loaded:
    chosen = pairing(request["pairing"])
    preset = nearest(chosen, request["drafter"], request["settings"])
    drafts = preset.model if preset else None
    return loaded.load(chosen, drafts, device=request["device"], dtype=dtype, offline=request["offline"])


def _models(ready: loaded.Loaded) -> list[nn.Module]:
    return [ready.target.model, *([ready.assistant.model] if ready.assistant else [])]


def _run(ready: loaded.Loaded, request: dict[str, Any], context: int, before: int, can_tell: bool) -> dict[str, Any]:
    """One decode of a prompt that fills the context up to its last new tokens."""
    settings = Settings(
        gamma=request["gamma"], max_new_tokens=min(request["new_tokens"], context - 1), stop_tokens=frozenset()
    )
    prepared = runs.prepare(ready, request["drafter"], request["settings"], TEXT, settings, raw_prompt=True)
    prepared = replace(prepared, prompt=_prompt(prepared.prompt, context - settings.max_new_tokens))
    device = ready.target.device
    ready.target.prefill(())  # nothing of the run before is left
    gc.collect()
    forget_peak(device)
    for _ in prepared.steps():
        pass
    peak = peak_bytes(device) - before - idle_mapped(_models(ready))  # the file of a head is mapped by now, too
    need = runs.budget(prepared)
    return {"context": context, "measured": peak if can_tell else None, "need": asdict(need)}


def _prompt(tokens: Sequence[int], length: int) -> list[int]:
    return (list(tokens) * (length // len(tokens) + 1))[:length]


def _warm(device: torch.device, dtype: torch.dtype) -> None:
    """Run a tiny model, so that what libraries load on first use is there before anything is measured."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config).to(device=device, dtype=dtype)
    pack(model)
    settings = Settings(2, 16, stop_tokens=frozenset())
    for _ in decode(Target(model), NGram(Target(model), 1, 2), [3, 4, 5, 3, 4], settings):
        pass


def _tidy(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    give_back()


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(json.dumps(answer(json.load(sys.stdin))))
