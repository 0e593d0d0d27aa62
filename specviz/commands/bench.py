"""`bench`: time our loop against transformers' assisted generation, or drafters over a suite of prompts."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from specviz import bench, loaded, trace
from specviz.commands.common import drafter_settings, load, progress, say, settle_drafter, settled_gamma
from specviz.commands.drafting import from_path
from specviz.decoding.sampling import Sampler
from specviz.drafters import make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.presets import DrafterPreset, ModelSource, pairing
from specviz.prompts import encode
from specviz.trace import Trace
from specviz.workloads import runner, summary, table
from specviz.workloads.arms import Arm, arms, untried, usual_settings
from specviz.workloads.results import Result, Results
from specviz.workloads.suites import Suite, load_suite, sample


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
    """Drafters at every setting over suites' prompts; goes on where the --out file ends."""
    plan = read_plan(options)
    results = Results(options.out)
    groups = read_arms(options)
    arms_in_all = sum(len(group.arms) for group in groups)
    found: list[Result] = []
    known, started = len(results.all), monotonic()
    for group in groups:
        ready = load_group(options, group)
        plan = fitting(ready, plan)
        total = arms_in_all * len(plan.prompts)
        for result in runner.run(ready, group.arms, plan, results, keep=keeper(options.traces)):
            found.append(result)
            if new := len(results.all) - known:
                left = (monotonic() - started) / new * (total - len(found)) / 60
                speed = "" if result.speedup is None else f", {result.speedup:.2f}x"
                what = f"{result.arm.name}, {result.arm.title}, {result.prompt}: AL {result.acceptance_length:.2f}"
                say(f"{len(found)} of {total}, about {left:.0f} min left; {what}{speed}")
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
    if options.prompts is not None and options.prompts < 1:
        raise UserError(f"--prompts is {options.prompts}; give at least 1.")
    suites = [load_suite(name) for name in options.suite]
    if twice := [suite.name for place, suite in enumerate(suites) if suite.name in {s.name for s in suites[:place]}]:
        raise UserError(f"Two suites are called {twice[0]}; leave one out, or rename its file.")
    if options.prompts is not None:
        suites = [sample(suite, options.prompts) for suite in suites]
    sampler = Sampler(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    return runner.Plan(
        tuple(suites), options.max_new_tokens, 0 if options.untimed else repeats, sampler, seed=options.seed
    )


def fitting(ready: loaded.Loaded, plan: runner.Plan) -> runner.Plan:
    """The plan without the prompts that the target can't decode, which are named."""
    unfit = runner.unfit(ready, plan)
    for (suite, prompt), why in unfit.items():
        say(f"{suite}, {prompt} is left out: {why}")
    suites = [
        Suite(suite.name, tuple(prompt for prompt in suite.prompts if (suite.name, prompt.id) not in unfit))
        for suite in plan.suites
    ]
    kept = replace(plan, suites=tuple(suite for suite in suites if suite.prompts))
    if not kept.prompts:
        raise UserError(f"{ready.target.name} can decode none of these prompts; choose another suite.")
    return kept


def keeper(folder: Path | None) -> runner.Keep:
    """Writes the traces of every answer into the folder, if there is one; raises UserError where it can't."""

    def keep(result: Result, traces: Sequence[Trace]) -> None:
        if folder is None:
            return
        arm = sha256(trace.dump(trace.plain(result.arm)).encode()).hexdigest()[:8]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for turn, answer in enumerate(traces, 1):
                name = f"{result.suite}-{result.prompt}-{result.arm.kind}-{result.arm.gamma}-{arm}-{turn}.jsonl"
                trace.write(answer, folder / re.sub(r"[^\w.+-]", "_", name))
        except OSError as error:
            raise UserError(f"The traces can't be written to {folder} ({error.strerror}).") from error

    return keep


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
