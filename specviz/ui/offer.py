"""Which pairings can run here, and why the others can't: said before Run, and enforced after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specviz import memory
from specviz.errors import UserError
from specviz.models.devices import pick_device
from specviz.models.placement import free_memory
from specviz.models.sources import is_here
from specviz.presets import ModelSource, Pairing
from specviz.ui.loading import Models

MB = 10**6


class Obstacle(NamedTuple):
    """Why a pairing can't run here: a sentence, and the few words that a list has room for. Both are "" if it can."""

    sentence: str = ""
    short: str = ""


def obstacle(pairing: Pairing, models: Models) -> Obstacle:
    """Why the pairing can't run on this server's device, and on those beside it where it has several."""
    on = pick_device(models.device)
    if pairing.hardware == "accelerator" and on.type == "cpu":
        return Obstacle(f"{pairing.title} needs a GPU, and this server has none.", "needs a GPU")
    needed, room = pairing.memory_mb * MB, sum(free_memory(on).values()) + models.held_bytes  # what is there gives way
    if needed > room:
        needs = memory.human(needed)
        sentence = f"{pairing.title} needs {needs} of memory, and there is room for {memory.human(room)}."
        return Obstacle(sentence, f"needs {needs}")
    if models.offline and not is_here(pairing.target):
        sentence = f"{pairing.target.name} is not on this machine, and the server may not fetch it (--offline)."
        return Obstacle(sentence, "not on this machine")
    return Obstacle()


def check_pairing(pairing: Pairing, models: Models) -> None:
    """Raises UserError for a pairing that can't run here."""
    if why := obstacle(pairing, models).sentence:
        raise UserError(f"{why} Choose another pairing.")


def choices(pairings: Mapping[str, Pairing], models: Models) -> list[tuple[str, str]]:
    """(what the list says, id) of every pairing; those that can't run here say why."""
    return [(_entry(each, obstacle(each, models).short), id) for id, each in pairings.items()]


def _entry(pairing: Pairing, why: str) -> str:
    return f"{pairing.title} ({why})" if why else pairing.title


def facts(pairing: Pairing) -> list[tuple[str, str]]:
    """What to know of a pairing before it is loaded: its models with their licences, and what it needs."""
    drafting = {preset.model.id: preset.model for preset in pairing.drafters if preset.model is not None}
    lines = [("Target", _model(pairing.target))]
    lines += [("Drafts", _model(model)) for model in drafting.values()]
    on_gpu = pairing.hardware == "accelerator"
    amount = f"{'a GPU and ' if on_gpu else ''}{memory.human(pairing.memory_mb * MB)} of memory"
    return [*lines, ("Needs", f"{amount}, with its dearest drafter, in {'16 bits' if on_gpu else 'float32'}")]


def _model(model: ModelSource) -> str:
    gate = "gated: accept its terms on its Hub page first" if model.gated else ""
    repo = model.hub.repo if model.hub is not None else str(model.path or "")
    licence = "licence unknown" if model.licence == "unknown" else model.licence
    return " · ".join(part for part in (model.name, repo if repo != model.name else "", licence, gate) if part)


def comes_at_once(pairing: Pairing, drafts: ModelSource | None) -> bool:
    """Whether it may be loaded before anybody presses Run: it is here, or small enough to come in a wheel."""
    return all(model is None or model.wheel is not None or is_here(model) for model in (pairing.target, drafts))
