"""What several commands need: the model that the options name, timing, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import transformers

from specviz import loaded, measure, runs
from specviz.comparison import Comparison
from specviz.drafters import ASSISTED, DRAFTERS, make_drafter
from specviz.errors import UserError
from specviz.models.sources import own_model
from specviz.own import ITSELF, own_pairing
from specviz.presets import DrafterPreset, Pairing, pairing


def drafter_settings(options: argparse.Namespace, pairing: Pairing) -> dict[str, Any]:
    """The options that the chosen drafter kind takes; what is left out is as the pairing has it."""
    offered = (preset.defaults for preset in pairing.drafters if preset.kind == options.drafter)
    usual = next(offered, {})
    exit_layer = usual.get("exit_layer") if options.exit_layer is None else options.exit_layer
    if options.drafter == "early-exit" and exit_layer is None:
        raise UserError(f"{pairing.title} names no layer to leave early; choose one with --exit-layer.")
    return {
        "ngram": {"ngram_min": options.ngram_min, "ngram_max": options.ngram_max, "pick": options.ngram_pick},
        "early-exit": {"exit_layer": exit_layer},
        "library": {"method": options.method or usual.get("method", "universal")},
    }.get(options.drafter, {})


def load(options: argparse.Namespace) -> loaded.Loaded:
    """The target that the options name, and the model that drafts for it if the drafter is of a kind that takes one."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    where = {"device": options.device, "dtype": options.dtype, "offline": options.offline, "progress": progress()}
    drafting = str(getattr(options, "drafter", "plain"))
    named = getattr(options, "drafter_path", None) if drafting in ASSISTED else None
    if getattr(options, "target", None) is None:
        chosen = pairing(options.pairing)
        if named not in (None, ITSELF):
            model = own_model(named)
            chosen = replace(chosen, drafters=(DrafterPreset(drafting, model.name, {}, "", model), *chosen.drafters))
        offered = (preset.model for preset in chosen.drafters if preset.kind == drafting)
        return loaded.load(chosen, None if named == ITSELF else next(offered, None), **where)
    if drafting == "draft-model" and named is None:
        say("no --drafter-path is given, so the target drafts for itself")
    found = own_pairing(options.target, "" if named in (None, ITSELF) else named, kind=drafting, **where)
    if found.note:
        say(found.note)
    return loaded.load(found.pairing, found.drafter.source if found.drafter else None, **where)


def settle_drafter(options: argparse.Namespace) -> None:
    """Fill in the drafter where none is named; refuse an unknown one, and options that it would pass over."""
    if options.drafter is None:
        options.drafter = "ngram" if options.drafter_path is None else "draft-model"
    kind = options.drafter
    if kind not in DRAFTERS:
        make_drafter(kind, None, {})  # type: ignore[arg-type]
    if options.drafter_path is not None and kind not in ASSISTED:
        raise UserError(f"--drafter-path names a model that drafts, and {kind} takes none; leave one of them out.")
    if options.method is not None and kind != "library":
        raise UserError("--method is of the drafter library; add --drafter library, or leave it out.")


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
