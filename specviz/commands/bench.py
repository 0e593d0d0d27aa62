"""`bench`: time our loop against transformers' assisted generation, or drafters over suites of prompts."""

from __future__ import annotations

import argparse
import json

from specviz import bench
from specviz.commands import suite
from specviz.commands.common import drafter_settings, load, say, settle_drafter, settled_gamma
from specviz.drafters import make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.prompts import encode
from specviz.workloads.options import PROMPT

# What would be passed over if it were given, by the options' names.
OF_SUITE = ("prompts", "drafters", "trees", "untimed", "out", "traces")
OF_RACE = (
    "drafter",
    "gamma",
    "gamma_policy",
    "confidence",
    "tree",
    "nodes",
    "branches",
    "second_gamma",
    "ngram_min",
    "ngram_max",
    "ngram_pick",
    "exit_layer",
    "aux_convention",
    "norm_before_residual",
    "method",
    "prompt",
)


def command(options: argparse.Namespace) -> None:
    check_options(options)
    if options.suite is None:
        race(options)
    else:
        suite.command(options)


def check_options(options: argparse.Namespace) -> None:
    """Refuse what a suite, or the race against transformers, would pass over. Raises UserError."""
    of_suite = {name: getattr(options, name) for name in OF_SUITE}
    of_race = {name: getattr(options, name, None) for name in OF_RACE}
    where, wrong, other = (
        ("The race against transformers", of_suite, "add --suite")
        if options.suite is None
        else ("A suite", of_race, "use --drafters and --gammas, or leave it out")
    )
    given = [name for name, value in wrong.items() if value not in (None, False, ())]
    if given:
        raise UserError(f"{where} takes no --{given[0].replace('_', '-')}; {other}.")


def race(options: argparse.Namespace) -> None:
    """Our loop against transformers' on one prompt."""
    repeats = 7 if options.repeats is None else options.repeats
    settle_drafter(options)
    if options.drafter not in bench.GENERATE:
        raise UserError(f"transformers has no counterpart here to {options.drafter}; use {', '.join(bench.GENERATE)}.")
    if min(repeats, options.max_new_tokens, settled_gamma(options)) < 1:
        raise UserError("--repeats, --max-new-tokens and --gamma must be at least 1 here.")
    if options.drafter == "ngram" and (options.ngram_min, options.ngram_pick) != (1, "recent"):
        raise UserError("transformers' lookup knows no --ngram-min and no --ngram-pick; leave them out here.")
    ready = load(options)
    drafter = make_drafter(options.drafter, ready.target, drafter_settings(options, ready.pairing))
    prompt = encode(ready.target, PROMPT if options.prompt is None else options.prompt)
    say("loading transformers' copy of the target, unpacked")
    rival, _ = load_model(ready.folder, ready.target.dtype, ready.target.device, packed=False)
    gamma = settled_gamma(options, ready.pairing)
    for timed in bench.against_transformers(
        ready.target, rival, drafter, prompt, gamma, options.max_new_tokens, repeats
    ):
        say(f"timed {len(timed[0].seconds)} of {repeats} rounds")
    result = bench.summary(timed)
    if options.json:
        print(json.dumps(result))
        return
    for way in timed:
        count = f"{way.passes} forward passes for {len(way.tokens)} tokens"
        print(f"{way.name:20} {way.milliseconds:7.2f} ms per token, {count}")
    print(
        f"specviz with the trace on is {result['ratio']:.2f}x as fast as transformers with its own, unpacked weights "
        f"(median of {repeats}, {result['spread'][0]:.2f} to {result['spread'][1]:.2f}); "
        f"switching the trace off gains {result['trace_off_gain']:.1%}."
    )
