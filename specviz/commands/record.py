"""`record`: make the examples' recorded runs anew."""

from __future__ import annotations

import argparse
from dataclasses import replace

from specviz import recordings, runs
from specviz.commands.common import compare, load, say
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.errors import UserError
from specviz.loaded import Loaded
from specviz.recordings import Example, Recording
from specviz.trace import Trace


def command(options: argparse.Namespace) -> None:
    if options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; give at least 1.")
    examples = recordings.load_examples()
    if options.only is not None and options.only not in examples:
        raise UserError(f"There is no example {options.only!r}; choose one of {', '.join(examples)}.")
    loaded = load(options)
    for example in examples.values():
        if options.only in (None, example.id):
            say(f"recording {example.id}")
            recordings.write(record(loaded, example, options.repeats), options.out)


def record(loaded: Loaded, example: Example, repeats: int) -> Recording:
    """Time the example against plain decoding, then decode it once more for the trace, warm by then."""
    settings = Settings(
        gamma=example.gamma,
        max_new_tokens=example.max_new_tokens,
        sampler=Sampler(**example.sampler),  # type: ignore[arg-type]
        seed=example.seed,
    )
    prepared = runs.prepare(loaded, example.drafter, example.drafter_settings, example.prompt, settings)
    with loaded.lock:
        comparison = compare(prepared, repeats, phases=True)
        steps = tuple(prepared.steps())
    run = replace(prepared.run, mode="recorded", title=example.title)
    return Recording(example, Trace(run, steps), comparison)
