"""`run`: decode a prompt, and print the text and what came of the drafts."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from specviz import replay, runs, trace
from specviz.commands.common import compare, drafter_settings, load, say, settle_drafter, settled_gamma
from specviz.comparison import Comparison
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.drafters import Plain
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
    prepared = runs.prepare(
        loaded,
        options.drafter,
        drafter_settings(options, loaded.pairing),
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
        replay.write_text(sys.stdout, f"\n\n{said}\n{replay.render_summary(result)}\n")
        if comparison:
            print(in_words(comparison))


def in_short(run: Run) -> str:
    """What ran, in one line."""
    settings = "".join(f", {name.replace('_', ' ')} {value}" for name, value in run.drafter_settings.items())
    gamma = "" if run.drafter == "plain" else f", gamma {run.gamma} ({run.gamma_policy})"
    return f"{run.target} with {run.drafter}{settings}{gamma}, in {run.dtype} on {run.device}."


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
