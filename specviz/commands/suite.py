"""`bench --suite`: drafters and their settings over many prompts, each beside plain decoding."""

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

from specviz import loaded, trace
from specviz.commands.common import load, progress, say
from specviz.commands.drafting import from_path
from specviz.decoding.sampling import Sampler
from specviz.errors import UserError
from specviz.presets import DrafterPreset, ModelSource, pairing
from specviz.trace import Trace
from specviz.workloads import runner, summary, table
from specviz.workloads.arms import Arm, arms, untried, usual_settings
from specviz.workloads.result_file import Results
from specviz.workloads.results import Result
from specviz.workloads.suites import Suite, load_suite, sample


class Group(NamedTuple):
    """Arms that are measured with the same models in memory."""

    kind: str
    arms: list[Arm]
    preset: DrafterPreset | None  # whose model drafts; None: what the options name, or the kind's first preset has


def command(options: argparse.Namespace) -> None:
    """Drafters at every setting over suites' prompts; goes on where the --out file ends."""
    plan = read_plan(options)
    groups = read_arms(options)
    with Results(options.out) as results:
        found, left_out = measured(options, plan, groups, results)
        assert results.header is not None
        if options.json:
            report = summary.report(results.header, found)
            print(json.dumps({**report, "left_out": left_out}, allow_nan=False))
        else:
            print(table.render(results.header, found))


def measured(
    options: argparse.Namespace, plan: runner.Plan, groups: Sequence[Group], results: Results
) -> tuple[list[Result], list[dict[str, str]]]:
    """The results of all arms on all prompts, and which prompts the target could not decode, with the reason."""
    arms_in_all = sum(len(group.arms) for group in groups)
    found: list[Result] = []
    left_out: list[dict[str, str]] = []
    known, started = len(results.all), monotonic()
    for group in groups:
        ready = load_group(options, group)
        plan, unfit = fitting(ready, plan)
        left_out += unfit
        total = arms_in_all * len(plan.prompts)
        for result in runner.run(ready, group.arms, plan, results, keep=keeper(options.traces)):
            found.append(result)
            if new := len(results.all) - known:
                left = (monotonic() - started) / new * (total - len(found)) / 60
                speed = "" if result.speedup is None else f", {result.speedup:.2f}x"
                what = f"{result.arm.name}, {result.arm.title}, {result.prompt}: AL {result.acceptance_length:.2f}"
                say(f"{len(found)} of {total}, about {left:.0f} min left; {what}{speed}")
        del ready  # before the next one is read: a large target fits in memory only once
    if options.traces and (bare := sum(not (options.traces / trace_name(each, 1)).exists() for each in found)):
        say(f"{bare} of the results are from a run without traces, so they have none")
    return found, left_out


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


def fitting(ready: loaded.Loaded, plan: runner.Plan) -> tuple[runner.Plan, list[dict[str, str]]]:
    """The plan without the prompts that the target can't decode, and these with the reason, which is said."""
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
    return kept, [{"suite": suite, "prompt": prompt, "why": why} for (suite, prompt), why in unfit.items()]


def keeper(folder: Path | None) -> runner.Keep:
    """Writes the traces of every answer into the folder, if there is one; raises UserError where it can't."""

    def keep(result: Result, traces: Sequence[Trace]) -> None:
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for turn, answer in enumerate(traces, 1):
                trace.write(answer, folder / trace_name(result, turn))
        except OSError as error:
            raise UserError(f"The traces can't be written to {folder} ({error.strerror}).") from error

    return keep


def trace_name(result: Result, turn: int) -> str:
    """The file of an answer's trace: readable, and no other answer's, whatever suite and prompt are called."""
    whole = trace.dump([result.suite, result.prompt, result.text, trace.plain(result.arm)])
    readable = re.sub(r"[^A-Za-z0-9.+-]", "_", f"{result.prompt[:40]}-{result.arm.kind}-{result.arm.gamma}")
    return f"{readable}-{sha256(whole.encode()).hexdigest()[:12]}-{turn}.jsonl"


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
