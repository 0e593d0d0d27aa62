"""What several commands need: the model that the options name, timing, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

import transformers

from specviz import loaded, measure, runs
from specviz.commands.drafting import drafter_settings, preset_defaults, preset_of, settle_drafter, settled_gamma
from specviz.comparison import Comparison
from specviz.drafters import ASSISTED, SELF, WEIGHTED, Weights
from specviz.models.sources import drafter_of, own_model
from specviz.own import own_pairing
from specviz.presets import DrafterPreset, pairing

__all__ = ["compare", "drafter_settings", "load", "progress", "say", "settle_drafter", "settled_gamma"]


def load(options: argparse.Namespace) -> loaded.Loaded:
    """The target that the options name, and the model that drafts for it if the drafter is of a kind that takes one."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    where = {"device": options.device, "dtype": options.dtype, "offline": options.offline, "progress": progress()}
    drafting = str(getattr(options, "drafter", "plain"))
    takers = {*ASSISTED, *WEIGHTED}
    named = getattr(options, "drafter_path", None) if takers & {*drafting.split("+")} else None
    if getattr(options, "target", None) is None:
        chosen = pairing(options.pairing)
        if named not in (None, SELF):
            model = drafter_of(own_model(named), drafting, offline=options.offline, progress=where["progress"])
            named_one = DrafterPreset(drafting, model.name, preset_defaults(drafting, chosen), "", model)
            chosen = replace(chosen, drafters=(named_one, *chosen.drafters))
        offered = preset_of(drafting, chosen)
        drafts = offered.model if offered and named != SELF else None
        return _with_its_own(loaded.load(chosen, drafts, **where), drafting, named)
    if drafting == "draft-model" and named is None:
        say("no --drafter-path is given, so the target drafts for itself")
    found = own_pairing(options.target, "" if named in (None, SELF) else named, kind=drafting, **where)
    if found.note:
        say(found.note)
    drafts = found.drafter.source if found.drafter else found.head
    return _with_its_own(loaded.load(found.pairing, drafts, **where), drafting, named)


def _with_its_own(found: loaded.Loaded, drafting: str, named: str | None) -> loaded.Loaded:
    """The target with the prediction layers of its own checkpoint as the head, if those are what is to draft."""
    if named != SELF or "mtp" not in drafting.split("+"):
        return found
    return replace(found, head=Weights(found.folder, found.target.name, found.target.weights))


def compare(prepared: runs.Prepared, repeats: int, *, phases: bool) -> Comparison:
    """The whole comparison, with its progress on stderr."""
    target, drafter, prompt, settings = prepared.loaded.target, prepared.drafter, prepared.prompt, prepared.settings
    say("warming up plain and speculative decoding")
    for result in measure.compare(target, drafter, prompt, settings, repeats=repeats, phases=phases):
        say(f"timed {result.repeats} of {repeats} repeats")
    return result


def progress() -> Callable[[str, float | None], None]:
    """Prints what is happening, once per tenth."""
    shown: set[tuple[str, int]] = set()

    def show(what: str, fraction: float | None) -> None:
        tenth = -1 if fraction is None else int(fraction * 10)
        if (what, tenth) not in shown:
            shown.add((what, tenth))
            say(what if fraction is None else f"{what}: {fraction:.0%}")

    return show


def say(text: str) -> None:
    print(f"specviz: {text}", file=sys.stderr, flush=True)
