"""`fetch`: get the weights of a pairing, its drafters' models among them, ahead of time."""

from __future__ import annotations

import argparse

from specviz.commands.common import progress, say
from specviz.models.sources import locate
from specviz.presets import pairing


def command(options: argparse.Namespace) -> None:
    for source in {source.id: source for source in pairing(options.pairing).models}.values():
        model = locate(source, offline=options.offline, progress=progress())
        print(f"{source.name}: {model.path}\nsource: {model.source}\nhash: {model.weight_hash}")
        for note in model.notes:
            say(note)
