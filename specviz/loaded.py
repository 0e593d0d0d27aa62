"""A pairing in memory: its target, and the model that drafts for it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specviz import memory, presets
from specviz.drafters import Assistant, Weights
from specviz.drafters.pair import check_pair
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.examine import Examined
from specviz.models.fetch import Progress
from specviz.models.heads import ExaminedHead
from specviz.models.load import load_model, place_model
from specviz.models.pack import bytes_held, packs
from specviz.models.placement import CONTEXT, GAMMA, free_memory
from specviz.models.sources import LocalModel, examine, examine_drafter, obtain
from specviz.models.target import Target
from specviz.presets import ModelSource, Pairing


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target in memory, and the separate model that drafts for it if one was asked for. Whoever decodes holds its
    device's lock, from prefill to the last step.
    """

    pairing: Pairing
    target: Target
    target_notes: tuple[str, ...] = ()  # what was substituted, and where the weights lie if not on one device
    folder: Path = Path()  # where the target's weights lie
    drafts: ModelSource | None = None
    assistant: Assistant | None = None  # `drafts`, in memory, if it is a model
    head: Weights | None = None  # `drafts` on this disk, if it is a head, which a drafter reads as it is built
    asked: tuple[torch.device, torch.dtype] | None = None  # what it was loaded for

    @property
    def lock(self) -> threading.Lock:
        """One for all targets on the device: two that decode there at once would spoil each other's times."""
        return _locks.setdefault(str(self.target.device), threading.Lock())

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be said about the models."""
        return (*self.target_notes, *(self.assistant.notes if self.assistant else ()))


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
    asked = (on, pick_dtype(dtype, on))
    fitting = [ready for ready in having if ready.asked == asked]
    with_target = next((ready for ready in fitting if ready.pairing.target == chosen.target), None)
    with_assistant = next((ready for ready in fitting if drafts is not None and ready.drafts == drafts), None)
    assistant = with_assistant.assistant if with_assistant else None
    head = with_assistant.head if with_assistant else None
    if with_target and (drafts is None or assistant or head):
        return replace(with_target, pairing=chosen, drafts=drafts, assistant=assistant, head=head)
    target = examine(chosen.target, offline=offline, progress=progress)
    drafter = None if drafts is None else examine_drafter(drafts, offline=offline, progress=progress)
    model = drafter if isinstance(drafter, Examined) else None
    _check(chosen, target, drafter, asked, with_target, assistant)
    weights = None if with_target else obtain(target, offline=offline, progress=progress)
    assistant_weights = None if drafter is None or assistant else obtain(drafter, offline=offline, progress=progress)
    with _loading:
        if progress:
            progress("loading the model", None)
        if weights is None:
            assert with_target is not None
            found = replace(with_target, pairing=chosen)
        else:
            reserve = _need(model, asked) if model and assistant_weights else 0
            found = _load_target(chosen, weights, asked, reserve)
        if drafts is not None and assistant_weights is not None and drafts.head:
            head = Weights(assistant_weights.path, drafts.name, assistant_weights.weight_hash, assistant_weights.notes)
        elif drafts is not None and assistant_weights is not None:
            assistant = _load_assistant(drafts, assistant_weights, found.target)
        gc.collect()
        gc.freeze()  # what is loaded stays; without this, Python looks through all of it again and again while decoding
    return replace(found, drafts=drafts, assistant=assistant, head=head)


def _check(
    pairing: Pairing,
    target: Examined,
    drafter: Examined | ExaminedHead | None,
    asked: tuple[torch.device, torch.dtype],
    with_target: Loaded | None,
    assistant: Assistant | None,
) -> None:
    """Whether the models fit each other and, with what is there of them already, in memory."""
    device, dtype = asked
    there = [*([with_target.target.model] if with_target else []), *([assistant.model] if assistant else [])]
    kind = next((each.kind for each in pairing.drafters if drafter and each.model == drafter.source), "plain")
    check_pair(
        target,
        drafter if isinstance(drafter, Examined) else None,
        kind,
        dtype_bytes=dtype.itemsize,
        context_tokens=CONTEXT,
        gamma=GAMMA,
        available=sum(free_memory(device).values()) + sum(map(bytes_held, there)),
        packed=packs(device, dtype),
        head=drafter if isinstance(drafter, ExaminedHead) else None,
    )


def _need(model: Examined, asked: tuple[torch.device, torch.dtype]) -> int:
    """Bytes of memory that the model takes, with a context that is long enough for most."""
    device, dtype = asked
    need = memory.estimate(
        model.config,
        dtype_bytes=dtype.itemsize,
        context_tokens=CONTEXT,
        gamma=GAMMA,
        available=0,
        weight_bytes=model.weight_bytes if model.compact else None,
        packed=packs(device, dtype),
    )
    return need.total


def _load_target(pairing: Pairing, local: LocalModel, asked: tuple[torch.device, torch.dtype], reserve: int) -> Loaded:
    """reserve: bytes to leave free beside it, for the model that drafts."""
    (device, dtype), name = asked, pairing.target.name
    placement = place_model(local.path, dtype, device, name=name, reserve=reserve)
    model, tokenizer = load_model(local.path, dtype, device, placement=placement)
    target = Target(model, tokenizer, name, local.weight_hash)
    return Loaded(pairing, target, (*local.notes, *placement.notes), local.path, asked=asked)


def _load_assistant(source: ModelSource, local: LocalModel, target: Target) -> Assistant:
    """The model that drafts, on the target's device and in its number format."""
    placement = place_model(local.path, target.dtype, target.device, name=source.name)
    model, tokenizer = load_model(local.path, target.dtype, target.device, placement=placement)
    return Assistant(model, tokenizer, source.name, local.weight_hash, (*local.notes, *placement.notes))
