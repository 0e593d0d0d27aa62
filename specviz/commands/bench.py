"""`bench`: time our loop against transformers' assisted generation, or drafters over a suite of prompts."""

from __future__ import annotations

import argparse
import json
from time import monotonic

from specviz import bench
from specviz.commands.common import drafter_settings, load, say, settle_drafter, settled_gamma
from specviz.drafters import make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.presets import pairing
from specviz.prompts import encode
from specviz.workloads import runner, summary, table
from specviz.workloads.arms import Arm, arms, usual_settings
from specviz.workloads.options import Choice
from specviz.workloads.prompts import load_prompts
from specviz.workloads.results import Result, Results


def command(options: argparse.Namespace) -> None:
    if options.suite is None:
        race(options)
    else:
        suite(options)


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
    loaded = load(options)
    drafter = make_drafter(options.drafter, loaded.target, drafter_settings(options, loaded.pairing))
    prompt = encode(loaded.target, options.prompt)
    say("loading transformers' copy of the target, unpacked")
    rival, _ = load_model(loaded.folder, loaded.target.dtype, loaded.target.device, packed=False)
    gamma = settled_gamma(options, loaded.pairing)
    for timed in bench.against_transformers(
        loaded.target, rival, drafter, prompt, gamma, options.max_new_tokens, repeats
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


def suite(options: argparse.Namespace) -> None:
    """Drafters at every setting over a suite's prompts; goes on where the --out file ends."""
    plan = read_plan(options)
    results = Results(options.out)
    groups = read_arms(options)
    total = sum(len(group) for _, group in groups) * len(plan.prompts)
    found: list[Result] = []
    known, started = len(results.all), monotonic()
    for kind, group in groups:
        loaded = load(argparse.Namespace(**{**vars(options), "drafter": kind}))
        for result in runner.run(loaded, group, plan, results):
            found.append(result)
            if new := len(results.all) - known:
                left = (monotonic() - started) / new * (total - len(found)) / 60
                what = f"{table.name(result.arm)}, {result.arm.title}, {result.prompt}: {result.speedup:.2f}x"
                say(f"{len(found)} of {total}, about {left:.0f} min left; {what}")
        del loaded  # before the next one is read: a large target fits in memory only once
    assert results.header is not None
    if options.json:
        print(json.dumps(summary.report(results.header, found), allow_nan=False))
    else:
        print(table.render(results.header, found))


def read_plan(options: argparse.Namespace) -> runner.Plan:
    repeats = 1 if options.repeats is None else options.repeats
    if min(repeats, options.max_new_tokens) < 1:
        raise UserError("--repeats and --max-new-tokens must be at least 1 here.")
    prompts = tuple(prompt for prompt in load_prompts().values() if options.only in (None, prompt.kind))
    return runner.Plan(options.suite, prompts, options.max_new_tokens, repeats)


def read_arms(options: argparse.Namespace) -> list[tuple[str, list[Arm]]]:
    """What is to be measured, drafter by drafter, each with its kind."""
    if options.target is None:
        offered = pairing(options.pairing).drafters
    else:
        offered = load(argparse.Namespace(**{**vars(options), "drafter": "plain"})).pairing.drafters
    choices = options.drafters or [Choice(preset.kind, {}) for preset in offered if preset.kind != "plain"]
    groups = []
    for choice in choices:
        settings = {**usual_settings(choice.kind, offered), **choice.settings}
        trees = options.trees if runner.takes_trees(choice.kind) else ()
        if len(trees) < len(options.trees):
            say(f"{choice.kind} drafts no trees, so its chains alone are measured")
        groups.append((choice.kind, arms(choice.kind, settings, options.gammas, trees, options.depths)))
    return groups
