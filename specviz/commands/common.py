"""What several commands need: the model that the options name, timing, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import transformers

from specviz import measure, runs
from specviz.comparison import Comparison
from specviz.drafters import DRAFTERS, make_drafter


def drafter_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options that the chosen drafter kind takes."""
    return {
        "ngram": {"ngram_min": options.ngram_min, "ngram_max": options.ngram_max, "pick": options.ngram_pick},
        "early-exit": {"exit_layer": options.exit_layer},
        "draft-model": {"source": options.drafter_path},
    }.get(options.drafter, {})


def load(options: argparse.Namespace) -> runs.Loaded:
    """The pairing's target."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return runs.load(
        options.pairing, device=options.device, dtype=options.dtype, offline=options.offline, progress=progress()
    )


def check_drafter(kind: str) -> None:
    """Refuse an unknown kind before a model is loaded."""
    if kind not in DRAFTERS:
        make_drafter(kind, None, {})  # type: ignore[arg-type]


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
