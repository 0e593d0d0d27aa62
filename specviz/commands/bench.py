"""`bench`: time our loop against transformers' assisted generation, or drafters over a suite of prompts."""

from __future__ import annotations

import argparse
import json
from time import monotonic
from typing import Any, NamedTuple

from specviz import bench, loaded
from specviz.commands.common import drafter_settings, load, progress, say, settle_drafter, settled_gamma
from specviz.commands.drafting import from_path
from specviz.drafters import make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.presets import DrafterPreset, ModelSource, pairing
from specviz.prompts import encode
from specviz.workloads import runner, summary, table
from specviz.workloads.arms import Arm, arms, untried, usual_settings
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
    ready = load(options)
    drafter = make_drafter(options.drafter, ready.target, drafter_settings(options, ready.pairing))
    prompt = encode(ready.target, options.prompt)
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


class Group(NamedTuple):
    """Arms that are measured with the same models in memory."""

    kind: str
    arms: list[Arm]
    preset: DrafterPreset | None  # whose model drafts; None: what the options name, or the kind's first preset has


def suite(options: argparse.Namespace) -> None:
    """Drafters at every setting over a suite's prompts; goes on where the --out file ends."""
    plan = read_plan(options)
    results = Results(options.out)
    groups = read_arms(options)
    total = sum(len(group.arms) for group in groups) * len(plan.prompts)
    found: list[Result] = []
    known, started = len(results.all), monotonic()
    for group in groups:
        ready = load_group(options, group)
        for result in runner.run(ready, group.arms, plan, results):
            found.append(result)
            if new := len(results.all) - known:
                left = (monotonic() - started) / new * (total - len(found)) / 60
                what = f"{result.arm.name}, {result.arm.title}, {result.prompt}: {result.speedup:.2f}x"
                say(f"{len(found)} of {total}, about {left:.0f} min left; {what}")
        del ready  # before the next one is read: a large target fits in memory only once
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


def read_arms(options: argparse.Namespace) -> list[Group]:
    """What is to be measured, drafter by drafter; what is asked for twice is measured once."""
    groups: list[Group] = []
    seen: list[tuple[Arm, ModelSource | None]] = []
    for kind, settings, preset in read_drafters(options):
        trees = options.trees if runner.takes_trees(kind) else ()
        if len(trees) < len(options.trees):
            say(f"{kind} drafts no trees, so its chains alone are measured")
        model = preset.model if preset else None
        found = arms(kind, settings, options.gammas, trees, options.depths)
        if new := [arm for arm in found if (arm, model) not in seen]:
            groups.append(Group(kind, new, preset))
            seen += [(arm, model) for arm in new]
    return groups


def read_drafters(options: argparse.Namespace) -> list[tuple[str, dict[str, Any], DrafterPreset | None]]:
    """Kinds with their settings: those that are named, else every preset; with each the preset whose model it needs."""
    named = getattr(options, "drafter_path", None)
    if options.target is None:
        offered = pairing(options.pairing).drafters
    else:
        offered = load(argparse.Namespace(**{**vars(options), "drafter": "plain"})).pairing.drafters
    if options.drafters:
        return [
            (
                choice.kind,
                {**from_path(named, choice.kind, usual_settings(choice.kind, offered)), **choice.settings},
                None,
            )
            for choice in options.drafters
        ]
    shipped = options.target is None and named is None
    return [
        (preset.kind, from_path(named, preset.kind, untried(preset.defaults)), preset if shipped else None)
        for preset in offered
        if preset.kind != "plain"
    ]


def load_group(options: argparse.Namespace, group: Group) -> loaded.Loaded:
    """The target, and what drafts for it: of several presets of a kind each has its own model, or none."""
    preset = group.preset
    if preset is None or preset.model is None:
        return load(argparse.Namespace(**{**vars(options), "drafter": "plain" if preset else group.kind}))
    where = {"device": options.device, "dtype": options.dtype, "offline": options.offline}
    return loaded.load(pairing(options.pairing), preset.model, progress=progress(), **where)
