"""Which pairings can run here, and why the others can't: said before Run, and enforced after it."""

from __future__ import annotations

from dataclasses import replace

from specviz import memory
from specviz.errors import UserError
from specviz.models.devices import pick_device
from specviz.presets import Pairing

MB = 10**6


def obstacle(pairing: Pairing, device: str) -> str:
    """Why the pairing can't run on this server's device; "" if it can."""
    on = pick_device(device)
    if pairing.hardware == "accelerator" and on.type == "cpu":
        return f"{pairing.title} needs a GPU, and this server has none."
    needed, free = pairing.memory_mb * MB, memory.available_bytes(on)
    if needed > free:
        return f"{pairing.title} needs {memory.human(needed)} of memory, and {memory.human(free)} is free."
    return ""


def check_pairing(pairing: Pairing, device: str) -> None:
    """Raises UserError for a pairing that can't run here."""
    if why := obstacle(pairing, device):
        raise UserError(f"{why} Choose another pairing.")


def choices(pairings: dict[str, Pairing], device: str) -> list[tuple[str, str]]:
    """(what the list says, id) of every pairing; those that can't run here say so."""
    blocked = {id: obstacle(pairing, device) for id, pairing in pairings.items()}
    return [(p.title + (" (can't run here)" if blocked[id] else ""), id) for id, p in pairings.items()]


def with_what_is_loaded(needed: memory.Budget) -> memory.Budget:
    """The weights are in memory by now: they are part of the need, and so of what there is for it."""
    return replace(needed, available=needed.available + needed.weights_target + needed.weights_drafter)
