"""A recorded run in place of one that can't be made now, and said so."""

from __future__ import annotations

from collections.abc import Mapping

from specviz.recordings import Recording
from specviz.ui import screens
from specviz.ui.form import Ask
from specviz.ui.screens import Screen
from specviz.ui.work import NoGPU


def of(ask: Ask, recordings: Mapping[str, Recording], error: NoGPU) -> Screen:
    """The recorded run that comes nearest to what was asked for, and why it is shown.

    Raises the error where nothing is recorded.
    """
    recording = nearest(ask, recordings)
    if recording is None:
        raise error
    kind = recording.example.drafter
    titles = {preset.kind: preset.title for preset in ask.pairing.drafters}
    return screens.instead(recording, titles.get(kind, kind), str(error))


def nearest(ask: Ask, recordings: Mapping[str, Recording]) -> Recording | None:
    """One with the drafter asked for, if there is any, and of these one of the prompt; else the first."""
    return max(
        recordings.values(),
        key=lambda each: (each.example.drafter == ask.preset.kind, each.example.prompt == ask.prompt),
        default=None,
    )
