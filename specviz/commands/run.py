"""`run`: decode a prompt, and print the text and what came of the drafts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specviz import replay, runs, trace
from specviz.commands.common import compare, drafter_settings, load, say, settle_drafter, settled_gamma
from specviz.comparison import Comparison
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.drafter_settings import asks_for_tree, bare
from specviz.drafters import Plain
from specviz.drafters.tree import Shape
from specviz.errors import UserError
from specviz.summary import report
from specviz.trace import Run, Step, Trace


def command(options: argparse.Namespace) -> None:
    if options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; give at least 1.")
    prompt = read_prompt(options)
    if options.trace:
        check_writable(options.trace)
    settle_drafter(options)
    settings = read_settings(options)
    loaded = load(options)
    settings = replace(settings, gamma=settled_gamma(options, loaded.pairing))
    drafting = drafter_settings(options, loaded.pairing)
    if settings.rule == "block" and asks_for_tree(drafting):
        raise UserError(f"The rule block verifies chains only, and {options.drafter} drafts trees; add --no-tree.")
    prepared = runs.prepare(
        loaded,
        options.drafter,
        drafting,
        prompt,
        settings,
        raw_prompt=options.raw_prompt,
        phases=options.phases,
    )
    steps: list[Step] = []
    if options.phases:  # a cold first step would spoil the phases
        list(replace(prepared, settings=replace(settings, max_new_tokens=4)).steps(detail=False))
    try:
        for step in prepared.steps(detail=not options.no_trace, phases=options.phases):
            steps.append(step)
            if not options.json:
                replay.write_text(sys.stdout, replay.visible("".join(step.text)))
    except KeyboardInterrupt:
        say("stopped; what follows is the run so far.")
    result = Trace(prepared.run, tuple(steps))
    if options.trace:
        try:
            trace.write(result, options.trace)
        except OSError as error:
            raise UserError(f"The trace can't be written to {options.trace} ({error.strerror}).") from error
    comparison: Comparison | None = None
    plain_steps: list[Step] = []
    if options.baseline and result.finish_reason != "cancelled":
        try:
            comparison = compare(prepared, options.repeats, phases=False)
            if options.phases:
                plain = replace(
                    prepared, drafter=Plain(), settings=replace(settings, max_new_tokens=len(result.tokens))
                )
                plain_steps = list(plain.steps(detail=False, phases=True))
        except KeyboardInterrupt:
            comparison = None
            say("stopped; the comparison is left out.")
    if options.json:  # ASCII, so that no terminal's encoding can spoil it
        print(json.dumps(report(prepared, result, comparison, plain_steps), allow_nan=False))
    else:
        said = "\n".join([in_short(result.run), *result.run.notes])
        summary = replay.render_summary(result, with_text=False)  # it stands above already
        replay.write_text(sys.stdout, f"\n\n{said}\n{summary}\n")
        if comparison:
            print(in_words(comparison))


def in_short(run: Run) -> str:
    """What ran, in one line, and what the output is worth, in another."""
    settings = [_setting(name, value, run.drafter_settings) for name, value in run.drafter_settings.items()]
    gamma = "" if run.drafter == "plain" else f"gamma {run.gamma} ({run.gamma_policy})"
    rule = "" if run.drafter == "plain" else f"{run.rule} rule"
    named = ", ".join(part for part in (f"with {run.drafter}", *settings, gamma, rule, *_sampling(run)) if part)
    line = f"{run.target} {named}, in {run.dtype} on {run.device}."
    if not run.lossless or run.drafter == "plain":
        return line  # what a lossy rule does is one of the notes
    if run.dtype == "float32":
        return f"{line}\nLossless: the target's own distribution."
    return (
        f"{line}\nLossless, up to rounding: in {run.dtype} near ties can fall otherwise than in plain decoding; "
        "--dtype float32 is exact."
    )


def _sampling(run: Run) -> list[str]:
    """How tokens are drawn; what is off is left out."""
    usual = asdict(Sampler())
    changed = {name: value for name, value in run.sampler.items() if value != usual[name]}
    if not run.sampler["temperature"]:  # no filter changes which token is the likeliest
        changed = {name: value for name, value in changed.items() if name in ("repetition_penalty", "logit_bias")}
    words = [f"{name.replace('_', ' ')} {value}" for name, value in changed.items()]
    return [*words, f"seed {run.seed}"] if run.sampler["temperature"] else ["greedy", *words]


def _setting(name: str, value: object, among: Mapping[str, Any]) -> str:
    """A setting of the drafter in words; "" for one that another's words tell already."""
    if bare(name) == "tree":
        whose = name.removesuffix("tree")  # "" or "eagle.", of a part of a combination
        nodes, branches = (
            among.get(f"{whose}{size}", among.get(size, getattr(Shape(), size))) for size in ("nodes", "branches")
        )
        return whose.replace(".", " ") + (f"trees of {nodes} nodes and {branches} branches" if value else "chains")
    if bare(name) in ("nodes", "branches"):
        return ""
    return f"{name.replace('_', ' ')} {value}"


def in_words(comparison: Comparison) -> str:
    """One sentence on speed, one on equality."""
    if comparison.speedup is None or comparison.spread is None:
        return "Nothing was decoded, so there is nothing to time."
    low, high = comparison.spread
    verdict = "faster" if comparison.speedup > 1 else "slower"
    text = (
        f"{comparison.speedup:.2f}x the speed of plain decoding, {verdict} "
        f"(median of {comparison.repeats}, {low:.2f} to {high:.2f})."
    )
    if comparison.identical:
        return f"{text} Output identical to plain decoding."
    if comparison.divergence is None:
        return f"{text} Sampled, so the outputs are not compared."
    where = comparison.divergence
    kind = "a near tie" if where.near_tie else "not a near tie"
    margin = "" if where.margin is None else f", logit margin {where.margin:.3g}: {kind} in this number format"
    return f"{text} Parts from plain decoding at output token {where.index + 1}{margin}."


def read_settings(options: argparse.Namespace) -> Settings:
    return Settings(
        gamma=settled_gamma(options),
        max_new_tokens=options.max_new_tokens,
        sampler=Sampler(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            logit_bias=dict(read_bias(entry) for entry in options.logit_bias),
        ),
        seed=options.seed,
        rule=options.rule,
        gamma_policy="adaptive" if options.gamma_policy == "adaptive" else "fixed",
        stop_strings=tuple(options.stop),
    )


def read_bias(entry: str) -> tuple[int, float]:
    token, _, bias = entry.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UserError(f"--logit-bias {entry!r} is not ID:BIAS, such as 42:-5.") from None


def check_writable(file: Path) -> None:
    """Said before the run, which would be lost otherwise."""
    try:
        file.open("a").close()
    except OSError as error:
        raise UserError(f"The trace can't be written to {file} ({error.strerror}); choose another place.") from error


def read_prompt(options: argparse.Namespace) -> str:
    if options.prompt_file is None:
        return str(options.prompt)
    try:
        if str(options.prompt_file) == "-":
            return sys.stdin.read()
        return str(options.prompt_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The prompt file {options.prompt_file} can't be read as UTF-8 text ({error}).") from error
