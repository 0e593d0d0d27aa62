"""From a pairing in memory to a run: build the drafter, encode the prompt, write the header."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import transformers

import specviz
from specviz import memory
from specviz.decoding.engine import Settings, check_prompt, decode
from specviz.decoding.verify import LOSSLESS
from specviz.drafter_settings import bare
from specviz.drafters import ASSISTED, Drafter, make_drafter, settings_by_part, weights_by_part
from specviz.drafters.heads.files import config
from specviz.drafters.heads.kept import is_kept
from specviz.drafters.library_heads import mtp_is_read
from specviz.drafters.tree import Shape
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.models.devices import describe
from specviz.models.heads import cached_layers, share, stored_bytes
from specviz.models.pack import bytes_held, is_packed
from specviz.models.placement import places
from specviz.models.target import Target
from specviz.planning.room import Growth
from specviz.planning.states import lent_bytes, states_read
from specviz.prompts import Turn, check_text, conversation, encode
from specviz.trace import Run, Step


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a run needs, and its header."""

    loaded: Loaded
    drafter: Drafter
    prompt: list[int]
    settings: Settings
    run: Run
    growth: Growth = field(default_factory=Growth, init=False, compare=False)  # of memory, in the decode begun last

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
        self.loaded.target.prefill(())  # what the run before has left in the cache is no part of this one's memory
        self.growth.start(self.loaded.target.device)
        steps = decode(
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
        try:
            yield from steps
        finally:
            self.growth.stop()

    def asking(self, prompt: str, history: Sequence[Turn] = ()) -> Prepared:
        """The same with another prompt. Raises UserError for one that can't be decoded."""
        target, run = self.loaded.target, self.run
        ids = encode(target, prompt, raw=not run.chat_template, history=history)
        check_prompt(target, ids)
        before = _room(target, self.prompt, self.settings)
        notes = [note for note in run.notes if note not in before]
        text = conversation(prompt, raw=not run.chat_template, history=history)
        asked = replace(run, prompt=tuple(ids), prompt_text=text, notes=(*notes, *_room(target, ids, self.settings)))
        return replace(self, prompt=ids, run=asked)


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
    drafter = make_drafter(drafter_kind, target, drafter_settings, loaded.assistant or loaded.head)
    ids = encode(target, prompt, raw=raw_prompt, history=history)
    check_prompt(target, ids)
    if max_prompt_tokens is not None and len(ids) > max_prompt_tokens:
        what, advice = ("conversation", "end it and begin a new one") if history else ("prompt", "shorten it")
        raise UserError(f"The {what} has {len(ids):,} tokens; this page takes {max_prompt_tokens:,}, so {advice}.")
    parts = tuple(getattr(drafter, "parts", (drafter,)))
    drafter_weights = _weights_by_name(parts, target.name, target.weights)
    shared_settings = dict(drafter_settings)
    if drafter_weights:  # traces are shared: the names, not where the weights lie
        shared_settings["source"] = " + ".join(drafter_weights)
    notes = list(dict.fromkeys([*loaded.notes, *(note for part in parts for note in _notes(part))]))
    lossless = settings.rule in LOSSLESS or drafter_kind == "plain" or settings.gamma == 0
    notes += [] if lossless else [_lossy(settings)]
    notes += _shallow(parts, settings, drafter_settings)
    notes += _room(target, ids, settings)
    stop_tokens = target.stop_tokens if settings.stop_tokens is None else settings.stop_tokens
    run = Run(
        target=target.name,
        drafter=drafter_kind,
        drafter_settings=shared_settings,
        gamma=settings.gamma,
        gamma_policy=_policy(settings, drafter_settings),
        rule=settings.rule,
        lossless=lossless,
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


def _room(target: Target, prompt: Sequence[int], settings: Settings) -> list[str]:
    """What has to be said where not all new tokens fit after the prompt."""
    room = settings.max_new_tokens if target.max_tokens is None else target.max_tokens - len(prompt) + 1
    if not 0 < room < settings.max_new_tokens:
        return []
    return [f"{target.name} holds {target.max_tokens} tokens, so at most {room} new ones fit after this prompt."]


def _lossy(settings: Settings) -> str:
    if settings.sampler.temperature == 0:
        return f"The rule {settings.rule} is lossy, but at temperature 0 it keeps just what greedy decoding would."
    return f"The rule {settings.rule} is lossy: the output need not be distributed as the target's own."


def _shallow(parts: Sequence[Drafter], settings: Settings, drafter_settings: Mapping[str, Any]) -> list[str]:
    """Which drafters can't draft as deep as they are asked to."""
    second = min(settings.gamma, drafter_settings.get("second_gamma") or settings.gamma)
    found = []
    for index, part in enumerate(parts):
        gamma, deepest = second if index else settings.gamma, getattr(part, "deepest", None)
        if deepest is not None and deepest < gamma:
            so = f", so gamma {gamma} comes to {deepest}" if len(parts) == 1 else ""
            found.append(f"{part.kind} drafts {deepest} deep at most{so}.")
    return found


def _weights_by_name(parts: Sequence[Drafter], target: str, target_weights: str) -> dict[str, str]:
    """What identifies the weights that the drafters bring; the target's own, which some of them use, are left out."""
    found: dict[str, str] = {}
    for part in parts:
        name, weights = getattr(part, "name", ""), getattr(part, "weights", "")
        if name and name != f"{target} itself" and weights and weights != target_weights:
            found[name if name != target else f"{name} (the drafter)"] = weights
    return found


def _notes(part: Drafter) -> Iterator[str]:
    """What has to be said of a drafter: of its weights, and of its tokens beside the target's."""
    yield from getattr(part, "notes", ())
    agreement = getattr(part, "agreement", None)
    if agreement and agreement.note:
        yield agreement.note


def _policy(settings: Settings, drafter_settings: Mapping[str, Any]) -> str:
    """How the draft length is chosen, as the header says it."""
    confident = any(value for key, value in drafter_settings.items() if bare(key) == "confidence")
    return "confidence" if settings.gamma_policy == "fixed" and confident else settings.gamma_policy


def needs(
    loaded: Loaded,
    drafter_kind: str,
    drafter_settings: Mapping[str, Any],
    gamma: int,
    context_tokens: int,
    *,
    drafter: Drafter | None = None,
) -> memory.Budget:
    """What a run should need, from the configs alone, and what there is for it: what is free, and the weights that are
    in memory already. drafter: itself, if it is built, and so its weights are among those.
    """
    target, kinds = loaded.target, drafter_kind.split("+")
    dtype_bytes = target.dtype.itemsize
    weights = weights_by_part(drafter_kind, target, drafter_settings, loaded.assistant or loaded.head)
    sizes = {
        kind: share(stored_bytes(each.path), each.path == loaded.folder, target.config) + lent_bytes(config(each.path))
        for kind, each in weights.items()
    }
    states = sum(states_read(kind, config(each.path)) for kind, each in weights.items())
    mtp = "library" in kinds and drafter_settings.get("method") == "mtp"
    need = memory.estimate(
        target.config,
        drafter_config=loaded.assistant.model.config if loaded.assistant and {*kinds} & {*ASSISTED} else None,
        itself="draft-model" in kinds and not loaded.assistant and "draft-model" not in weights,
        head_bytes=sum(sizes.values()),
        head_layers=sum(cached_layers(kind, config(each.path)) for kind, each in weights.items()),
        head_states=states if drafter is None else len(drafter.hidden_layers),
        mtp=mtp,
        dtype_bytes=dtype_bytes,
        context_tokens=context_tokens,
        gamma=max(gamma, verified_nodes(drafter_kind, drafter_settings)),
        available=sum(memory.available_bytes(place) for place in places(target.model)),
        packed=is_packed(target.model),
        on_cpu=target.device.type == "cpu",
    )
    unread = 0
    if drafter is None:
        stored = sum(size for kind, size in sizes.items() if not is_kept(weights[kind].path, target))
        unread = memory.head_weights(stored, dtype_bytes)
        if mtp and not mtp_is_read(target.model):
            unread += memory.count_mtp_parameters(target.config) * dtype_bytes
    # What is there already is part of the need, and of what there is for it.
    there = need.weights_target + need.weights_drafter + need.runtime
    return replace(need, available=need.available + there - unread)


def verified_nodes(drafter_kind: str, drafter_settings: Mapping[str, Any]) -> int:
    """Tokens of a draft tree that a verify pass reads beside the last committed one; 0 for chains."""
    parts = settings_by_part(drafter_kind, drafter_settings).values()
    return max((int(part.get("nodes", Shape().nodes)) for part in parts if part.get("tree")), default=0)


def budget(prepared: Prepared) -> memory.Budget:
    """As `needs`, for a run that is prepared."""
    run, settings = prepared.run, prepared.settings
    tokens = len(prepared.prompt) + settings.max_new_tokens
    return needs(prepared.loaded, run.drafter, run.drafter_settings, settings.gamma, tokens, drafter=prepared.drafter)


def estimated_bytes(prepared: Prepared) -> int:
    """What the run should take at its peak: weights, and what decoding adds to them. To be set beside `peak_bytes`."""
    need = budget(prepared)
    return need.expected - need.runtime


def peak_bytes(prepared: Prepared) -> int | None:
    """What the run that was decoded last took: its weights, and by how much memory grew beyond what was in use before.

    None if nothing was decoded in this process, or where the system doesn't tell. Of a head the weights count as
    estimated, since they are spread over modules of several kinds.
    """
    grown, loaded = prepared.growth.peak, prepared.loaded
    if grown is None:
        return None
    drafting = budget(prepared).weights_drafter
    if loaded.assistant and drafting:
        drafting = bytes_held(loaded.assistant.model)
    return bytes_held(loaded.target.model) + drafting + grown
