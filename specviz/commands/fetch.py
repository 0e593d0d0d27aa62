"""`fetch`: get a pairing's weights ahead of time."""

from __future__ import annotations

import argparse

from specviz.commands.common import progress, say
from specviz.models.sources import locate
from specviz.presets import pairing


def command(options: argparse.Namespace) -> None:
    model = locate(pairing(options.pairing).target, offline=options.offline, progress=progress())
    print(f"{model.path}\nsource: {model.source}\nsha256: {model.weight_hash}")
    for note in model.notes:
        say(note)
