"""What the commands of the command line do. Results go to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers

from specviz import bench, measure, memory, metrics, replay, runs, trace
from specviz.decoding.engine import Settings
from specviz.decoding.sampling import Sampler
from specviz.drafters import DRAFTERS, Plain, make_drafter
from specviz.errors import UserError
from specviz.models.load import load_model
from specviz.models.sources import locate
from specviz.presets import pairing
from specviz.trace import Step, Trace


def drafter_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options that the chosen drafter kind takes."""
    return {
        "ngram": {"ngram_min": options.ngram_min, "ngram_max": options.ngram_max, "pick": options.ngram_pick},
        "early-exit": {"exit_layer": options.exit_layer},
        "draft-model": {"source": options.drafter_path},
    }.get(options.drafter, {})


def run_command(options: argparse.Namespace) -> None:
    if options.repeats < 1:
        raise UserError(f"--repeats is {options.repeats}; give at least 1.")
    settings = read_settings(options)
    prompt = read_prompt(options)
    if options.trace:
        check_writable(options.trace)
    loaded = load(options)
    prepared = runs.prepare(
        loaded,
        options.drafter,
        drafter_settings(options),
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
    comparison: measure.Comparison | None = None
    plain_steps: list[Step] = []
    if options.baseline and result.finish_reason != "cancelled":
        try:
            comparison = compare(prepared, options.repeats)
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
        replay.write_text(sys.stdout, "\n\n" + replay.render_summary(result) + "\n")
        if comparison:
            print(in_words(comparison))


def report(
    prepared: runs.Prepared, result: Trace, comparison: measure.Comparison | None, plain_steps: Sequence[Step]
) -> dict[str, Any]:
    """The object that `run --json` prints."""
    return {
        "schema": trace.SCHEMA,
        "text": result.text,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "lossless": result.run.lossless,
        "rule": result.run.rule,
        "warnings": list(result.warnings),
        "acceptance": trace.plain(metrics.acceptance(result)),
        "timing": trace.plain(metrics.timing(result)),
        "cost_ratio": measure.cost_ratio(result.steps, plain_steps),
        "verify_cost": measure.verify_cost(result.steps, plain_steps),
        "memory": {
            "estimated": runs.estimated_bytes(prepared),
            "peak": memory.peak_bytes(prepared.loaded.target.device),
        },
        "baseline": baseline(comparison) if comparison else None,
        "run": trace.plain(result.run),
    }


def baseline(comparison: measure.Comparison) -> dict[str, Any]:
    divergence = comparison.divergence
    return {
        "tokens_per_s": comparison.plain_tokens_per_s,
        "speedup": comparison.speedup,
        "spread": list(comparison.spread) if comparison.spread else None,
        "repeats": comparison.repeats,
        "identical": comparison.identical,
        "first_divergence": trace.plain(divergence) if divergence else None,
    }


def in_words(comparison: measure.Comparison) -> str:
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


def compare(prepared: runs.Prepared, repeats: int) -> measure.Comparison:
    """The whole comparison, with its progress on stderr."""
    say("warming up plain and speculative decoding")
    for result in measure.compare(
        prepared.loaded.target, prepared.drafter, prepared.prompt, prepared.settings, repeats=repeats
    ):
        say(f"timed {result.repeats} of {repeats} repeats")
    return result


def read_settings(options: argparse.Namespace) -> Settings:
    return Settings(
        gamma=options.gamma,
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


def load(options: argparse.Namespace) -> runs.Loaded:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.drafter not in DRAFTERS:  # said before a model is loaded
        make_drafter(options.drafter, None, {})  # type: ignore[arg-type]
    return runs.load(
        options.pairing, device=options.device, dtype=options.dtype, offline=options.offline, progress=progress()
    )


def progress() -> Callable[[str, float | None], None]:
    """Prints what is happening, once per tenth."""
    shown: set[tuple[str, int]] = set()

    def show(what: str, fraction: float | None) -> None:
        tenth = -1 if fraction is None else int(fraction * 10)
        if (what, tenth) not in shown:
            shown.add((what, tenth))
            say(what if fraction is None else f"{what}: {fraction:.0%}")

    return show


def say(text: str) -> None:
    print(f"specviz: {text}", file=sys.stderr, flush=True)


def fetch_command(options: argparse.Namespace) -> None:
    model = locate(pairing(options.pairing).target, offline=options.offline, progress=progress())
    print(f"{model.path}\nsource: {model.source}\nsha256: {model.weight_hash}")
    for note in model.notes:
        say(note)


def bench_command(options: argparse.Namespace) -> None:
    if options.drafter not in bench.GENERATE:
        raise UserError(f"transformers has no counterpart here to {options.drafter}; use {', '.join(bench.GENERATE)}.")
    if min(options.repeats, options.max_new_tokens, options.gamma) < 1:
        raise UserError("--repeats, --max-new-tokens and --gamma must be at least 1 here.")
    if options.drafter == "ngram" and (options.ngram_min, options.ngram_pick) != (1, "recent"):
        raise UserError("transformers' lookup knows no --ngram-min and no --ngram-pick; leave them out here.")
    loaded = load(options)
    drafter = make_drafter(options.drafter, loaded.target, drafter_settings(options))
    prompt = runs.encode(loaded.target, options.prompt)
    say("loading transformers' copy of the target, unpacked")
    rival, _ = load_model(loaded.folder, loaded.target.dtype, loaded.target.device, packed=False)
    for timed in bench.against_transformers(
        loaded.target, rival, drafter, prompt, options.gamma, options.max_new_tokens, options.repeats
    ):
        say(f"timed {len(timed[0].seconds)} of {options.repeats} rounds")
    result = bench.summary(timed)
    if options.json:
        print(json.dumps(result))
        return
    for way in timed:
        count = f"{way.passes} forward passes for {len(way.tokens)} tokens"
        print(f"{way.name:20} {way.milliseconds:7.2f} ms per token, {count}")
    print(
        f"specviz with the trace on is {result['ratio']:.2f}x as fast as transformers with its own, unpacked weights "
        f"(median of {options.repeats}, {result['spread'][0]:.2f} to {result['spread'][1]:.2f}); "
        f"switching the trace off gains {result['trace_off_gain']:.1%}."
    )
