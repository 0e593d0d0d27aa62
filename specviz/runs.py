"""From a pairing's name to a run: load the target once, build the drafter, encode the prompt, write the header."""

from __future__ import annotations

import datetime
import gc
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

import specviz
from specviz import memory
from specviz.decoding.engine import Settings, check_prompt, decode
from specviz.drafters import Drafter, DraftModel, make_drafter
from specviz.errors import UserError
from specviz.models.devices import describe, pick_device, pick_dtype
from specviz.models.fetch import Progress
from specviz.models.load import load_model
from specviz.models.pack import is_packed
from specviz.models.sources import locate
from specviz.models.target import Target
from specviz.presets import Pairing, pairing
from specviz.trace import Run, Step

MAX_PROMPT_CHARS = 200_000  # refused before it is tokenised


@dataclass(frozen=True, slots=True)
class Loaded:
    """A target in memory. Whoever decodes holds its device's lock, from prefill to the last step."""

    pairing: Pairing
    target: Target
    notes: tuple[str, ...]  # what was substituted
    folder: Path = Path()  # where its weights lie

    @property
    def lock(self) -> threading.Lock:
        """One for all targets on the device: two that decode there at once would spoil each other's times."""
        return _locks.setdefault(str(self.target.device), threading.Lock())


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said before in a conversation."""

    user: str
    assistant: str


_locks: dict[str, threading.Lock] = {}  # by device
_loaded: dict[tuple[str, str, str], Loaded] = {}
_loading = threading.Lock()


def load(
    pairing_id: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool = False,
    progress: Progress | None = None,
) -> Loaded:
    """The pairing's target, loaded once per process and number format.

    Raises UserError if the pairing, device or dtype is unknown, the weights can't be had, or memory does not suffice.
    """
    chosen = pairing(pairing_id)
    on = pick_device(device)
    precision = pick_dtype(dtype, on)
    key = (pairing_id, str(on), str(precision))
    with _loading:
        if key not in _loaded:
            _loaded[key] = _load(chosen, on, precision, offline, progress)
        return _loaded[key]


def _load(
    chosen: Pairing, device: torch.device, dtype: torch.dtype, offline: bool, progress: Progress | None
) -> Loaded:
    local = locate(chosen.target, offline=offline, progress=progress)
    if progress:
        progress("loading the model", None)
    model, tokenizer = load_model(local.path, dtype, device)
    gc.collect()
    gc.freeze()  # what is loaded stays; without this, Python looks through all of it again and again while decoding
    return Loaded(chosen, Target(model, tokenizer, chosen.target.name, local.weight_hash), local.notes, local.path)


def encode(target: Target, prompt: str, *, raw: bool = False, history: Sequence[Turn] = ()) -> list[int]:
    """Token ids of a prompt: a user turn in the chat template, after the turns before it, or the bare text of all.

    Nothing is added to either.
    """
    if not (prompt if raw else prompt.strip()):
        raise UserError("The prompt is empty; type something.")
    text = conversation(prompt, raw=raw, history=history)
    check_text(text, "The conversation" if history else "The prompt")
    if len(text) > MAX_PROMPT_CHARS:
        what = "conversation" if history else "prompt"
        raise UserError(f"The {what} has {len(text)} characters; the limit is {MAX_PROMPT_CHARS}, so shorten it.")
    tokenizer = target.tokenizer
    if tokenizer is None:
        raise UserError(f"{target.name} has no tokenizer, so it can't read text.")
    if raw:
        return list(tokenizer.encode(text, add_special_tokens=False))
    if not tokenizer.chat_template:
        raise UserError(f"{target.name} has no chat template; use the raw prompt.")
    messages = [{"role": role, "content": said} for role, said in _messages(prompt, history)]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False))


def conversation(prompt: str, *, raw: bool = False, history: Sequence[Turn] = ()) -> str:
    """A prompt and the turns before it as one text: what the target reads if raw, else each turn under its role."""
    if not history:
        return prompt
    messages = _messages(prompt, history)
    if raw:
        return "".join(said for _, said in messages)
    return "\n\n".join(f"{role.capitalize()}: {said}" for role, said in messages)


def _messages(prompt: str, history: Sequence[Turn]) -> list[tuple[str, str]]:
    """Role and text of every message, the prompt last."""
    before = [said for turn in history for said in (("user", turn.user), ("assistant", turn.assistant))]
    return [*before, ("user", prompt)]


def check_text(text: str, what: str) -> None:
    """Refuse what is no text: bytes that some decoder let through as half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} holds bytes that are not UTF-8; write it in UTF-8.") from None


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
    drafter = make_drafter(drafter_kind, target, drafter_settings)
    ids = encode(target, prompt, raw=raw_prompt, history=history)
    check_prompt(target, ids)
    if max_prompt_tokens is not None and len(ids) > max_prompt_tokens:
        what, advice = ("conversation", "end it and begin a new one") if history else ("prompt", "shorten it")
        raise UserError(f"The {what} has {len(ids):,} tokens; this page takes {max_prompt_tokens:,}, so {advice}.")
    agreement = getattr(drafter, "agreement", None)
    shared_settings = dict(drafter_settings)
    drafter_weights = {}
    if isinstance(drafter, DraftModel) and drafter.model is not target.model:
        shared_settings["source"] = drafter.name  # traces are shared: the folder's name and hash, not where it lies
        drafter_weights[drafter.name] = drafter.weights
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
        available=memory.available_bytes(target.device),
    )
    if draft_model is target.model:  # its own drafter: a second cache, but the same weights
        need = replace(need, weights_drafter=0, headroom=need.headroom // 2)
    return need


def estimated_bytes(prepared: Prepared) -> int:
    """What the run should need in all: weights, caches, logits and headroom."""
    return budget(prepared).total
