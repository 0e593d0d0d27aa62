"""From a pairing's name to a run: load the target once, build the drafter, encode the prompt, write the header."""

from __future__ import annotations

import datetime
import gc
import platform
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

import specviz
from specviz import memory, presets
from specviz.decoding.engine import Settings, check_prompt, decode
from specviz.drafters import ASSISTED, Assistant, Drafter, make_drafter
from specviz.drafters.pair import check_pair
from specviz.errors import UserError
from specviz.models.devices import describe, pick_device, pick_dtype
from specviz.models.examine import Examined
from specviz.models.fetch import Progress
from specviz.models.load import load_model, place_model
from specviz.models.pack import is_packed
from specviz.models.placement import CONTEXT, GAMMA, free_memory, numbered, places
from specviz.models.sources import LocalModel, examine, obtain
from specviz.models.target import Target
from specviz.presets import ModelSource, Pairing
from specviz.prompts import Turn, check_text, conversation, encode
from specviz.trace import Run, Step


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a run needs, and its header."""

    loaded: Loaded
    drafter: Drafter
    prompt: list[int]
    settings: Settings
    run: Run

    def steps(
        self,
        *,
        done: Sequence[Step] = (),
        rng: torch.Generator | None = None,
        detail: bool = True,
        phases: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Step]:
        """Decode, or go on after the steps already `done`. The caller holds `loaded.lock`."""
        return decode(
            self.loaded.target,
            self.drafter,
            self.prompt,
            self.settings,
            done=done,
            rng=rng,
            detail=detail,
            phases=phases,
            should_stop=should_stop,
        )


def prepare(
    loaded: Loaded,
    drafter_kind: str,
    drafter_settings: Mapping[str, Any],
    prompt: str,
    settings: Settings,
    *,
    raw_prompt: bool = False,
    history: Sequence[Turn] = (),
    phases: bool = False,
    max_prompt_tokens: int | None = None,
) -> Prepared:
    """Build the drafter, encode the prompt and write the header. Raises UserError for what can't work.

    max_prompt_tokens: a limit below the target's own, for a server whose visitors share it.
    """
    target = loaded.target
    for string in settings.stop_strings:
        check_text(string, "A stop string")
    drafter = make_drafter(drafter_kind, target, drafter_settings, loaded.assistant)
    ids = encode(target, prompt, raw=raw_prompt, history=history)
    check_prompt(target, ids)
    if max_prompt_tokens is not None and len(ids) > max_prompt_tokens:
        what, advice = ("conversation", "end it and begin a new one") if history else ("prompt", "shorten it")
        raise UserError(f"The {what} has {len(ids):,} tokens; this page takes {max_prompt_tokens:,}, so {advice}.")
    agreement = getattr(drafter, "agreement", None)
    shared_settings = dict(drafter_settings)
    drafter_weights = {}
    if loaded.assistant is not None and drafter_kind in ASSISTED:
        shared_settings["source"] = loaded.assistant.name  # traces are shared: the name, not where it lies
        drafter_weights[loaded.assistant.name] = loaded.assistant.weights
    notes = [*loaded.notes, *([agreement.note] if agreement and agreement.note else [])]
    room = settings.max_new_tokens if target.max_tokens is None else target.max_tokens - len(ids) + 1
    if 0 < room < settings.max_new_tokens:
        notes.append(
            f"{target.name} holds {target.max_tokens} tokens, so at most {room} new ones fit after this prompt."
        )
    stop_tokens = target.stop_tokens if settings.stop_tokens is None else settings.stop_tokens
    run = Run(
        target=target.name,
        drafter=drafter_kind,
        drafter_settings=shared_settings,
        gamma=settings.gamma,
        sampler={**asdict(settings.sampler), "logit_bias": {str(k): v for k, v in settings.sampler.logit_bias.items()}},
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        prompt=tuple(ids),
        prompt_text=conversation(prompt, raw=raw_prompt, history=history),
        chat_template=not raw_prompt,
        device=describe(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads() if target.device.type == "cpu" else None,
        synchronised=phases,
        stop_tokens=tuple(sorted(stop_tokens)),
        stop_strings=settings.stop_strings,
        versions={
            "specviz": specviz.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
            "linear layers": "packed" if is_packed(target.model) else "as stored",  # they round differently
        },
        weights={target.name: target.weights, **drafter_weights},
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        title=loaded.pairing.title,
        notes=tuple(notes),
    )
    return Prepared(loaded, drafter, ids, settings, run)


def budget(prepared: Prepared) -> memory.Budget:
    """What the run should need, from the configs alone, and what its device has left besides what is loaded."""
    target, drafter = prepared.loaded.target, prepared.drafter
    draft_model = getattr(drafter, "model", None)
    need = memory.estimate(
        target.config,
        drafter_config=None if draft_model is None else draft_model.config,
        dtype_bytes=target.dtype.itemsize,
        context_tokens=len(prepared.prompt) + prepared.settings.max_new_tokens,
        gamma=prepared.settings.gamma,
        available=sum(memory.available_bytes(place) for place in places(target.model)),
    )
    if draft_model is target.model:  # its own drafter: a second cache, but the same weights
        need = replace(need, weights_drafter=0, headroom=need.headroom // 2)
    return need


def estimated_bytes(prepared: Prepared) -> int:
    """What the run should need in all: weights, caches, logits and headroom."""
    return budget(prepared).total
