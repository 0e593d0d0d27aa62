"""A pairing in memory: its target, and the model that drafts for it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specviz import memory, presets
from specviz.drafters import Assistant
from specviz.drafters.pair import check_pair
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.examine import Examined
from specviz.models.fetch import Progress
from specviz.models.load import load_model, place_model
from specviz.models.placement import CONTEXT, GAMMA, free_memory, numbered
from specviz.models.sources import LocalModel, examine, obtain
from specviz.models.target import Target
from specviz.presets import ModelSource, Pairing


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target in memory, and the separate model that drafts for it if one was asked for. Whoever decodes holds its
    device's lock, from prefill to the last step.
    """

    pairing: Pairing
    target: Target
    notes: tuple[str, ...] = ()  # what was substituted, and where the weights lie if not on one device
    folder: Path = Path()  # where the target's weights lie
    drafts: ModelSource | None = None
    assistant: Assistant | None = None  # `drafts`, in memory

    @property
    def lock(self) -> threading.Lock:
        """One for all targets on the device: two that decode there at once would spoil each other's times."""
        return _locks.setdefault(str(self.target.device), threading.Lock())


_locks: dict[str, threading.Lock] = {}  # by device
_loading = threading.Lock()  # what is free is looked up and then taken: one at a time


def load(
    pairing: Pairing | str,
    drafts: ModelSource | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    progress: Progress | None = None,
    having: Collection[Loaded] = (),
) -> Loaded:
    """The pairing's target in memory, and the model that `drafts` for it, if any, beside it.

    pairing: itself, or the id of one that is shipped. having: what is in memory already and serves again.
    Raises UserError if the pairing, device or dtype is unknown or the weights can't be had or used, and
    NotEnoughMemory, with the numbers, if they do not fit.
    """
    chosen = presets.pairing(pairing) if isinstance(pairing, str) else pairing
    on = pick_device(device)
    precision = pick_dtype(dtype, on)
    say = progress or (lambda text, fraction: None)
    place = numbered(on)
    fitting = [ready for ready in having if ready.target.device == place and ready.target.dtype == precision]
    targets = [ready for ready in fitting if ready.pairing.target == chosen.target]
    assistants = [ready for ready in fitting if drafts is not None and ready.drafts == drafts]
    if targets and (drafts is None or assistants):
        return replace(targets[0], pairing=chosen, drafts=drafts, assistant=assistants[0].assistant if drafts else None)
    wanted = [*([] if targets else [chosen.target]), *([] if drafts is None or assistants else [drafts])]
    examined = [examine(source, offline=offline, progress=progress) for source in wanted]
    _check(examined, chosen, drafts, precision, on)
    local = {each.source.id: obtain(each, offline=offline, progress=progress) for each in examined}
    with _loading:
        say("loading the model", None)
        if targets:
            found = replace(targets[0], pairing=chosen)
        else:
            reserve = sum(_need(each, precision) for each in examined if each.source == drafts)
            found = _load_target(chosen, local[chosen.target.id], precision, on, reserve)
        if assistants:
            found = replace(found, assistant=assistants[0].assistant)
        elif drafts is not None:
            found = _load_assistant(drafts, local[drafts.id], found)
        gc.collect()
        gc.freeze()  # what is loaded stays; without this, Python looks through all of it again and again while decoding
    return replace(found, drafts=drafts)


def _check(
    wanted: Sequence[Examined], pairing: Pairing, drafts: ModelSource | None, dtype: torch.dtype, device: torch.device
) -> None:
    """Whether what is to be fetched and loaded fits in memory, and its parts fit each other."""
    kind = next((preset.kind for preset in pairing.drafters if preset.model == drafts), "plain")
    first, second = wanted[0], wanted[1] if len(wanted) > 1 else None
    free = sum(free_memory(device).values())
    sizes = {"dtype_bytes": dtype.itemsize, "context_tokens": CONTEXT, "gamma": GAMMA}
    check_pair(first, second, kind if second else "plain", **sizes, available=free)


def _need(model: Examined, dtype: torch.dtype) -> int:
    """Bytes of memory that the model takes, with a context that is long enough for most."""
    size = model.weight_bytes if model.compact else None
    sizes = {"dtype_bytes": dtype.itemsize, "context_tokens": CONTEXT, "gamma": GAMMA}
    return memory.estimate(model.config, **sizes, available=0, weight_bytes=size).total


def _load_target(pairing: Pairing, local: LocalModel, dtype: torch.dtype, device: torch.device, reserve: int) -> Loaded:
    """reserve: bytes to leave free beside it, for the model that drafts."""
    name = pairing.target.name
    placement = place_model(local.path, dtype, device, name=name, reserve=reserve)
    model, tokenizer = load_model(local.path, dtype, device, placement=placement)
    target = Target(model, tokenizer, name, local.weight_hash)
    return Loaded(pairing, target, (*local.notes, *placement.notes), local.path)


def _load_assistant(source: ModelSource, local: LocalModel, beside: Loaded) -> Loaded:
    """The model that drafts, on the target's device and in its number format."""
    dtype, device = beside.target.dtype, beside.target.device
    placement = place_model(local.path, dtype, device, name=source.name)
    model, tokenizer = load_model(local.path, dtype, device, placement=placement)
    assistant = Assistant(model, tokenizer, source.name, local.weight_hash)
    return replace(beside, assistant=assistant, notes=(*beside.notes, *local.notes, *placement.notes))
