"""`plan`: what a target and its drafter need of memory, before anything is downloaded, and what they really take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from specviz import trace
from specviz.commands.common import say
from specviz.commands.drafting import preset_of
from specviz.drafters import SELF, usual_gamma
from specviz.errors import UserError
from specviz.memory import human
from specviz.models.devices import pick_device, pick_dtype
from specviz.models.pack import packs
from specviz.models.placement import free_memory
from specviz.models.sources import drafter_of
from specviz.planning import drafts
from specviz.planning import options as wanted
from specviz.planning.configs import Known, known, named
from specviz.planning.measuring import Report, measure
from specviz.planning.planner import Drafting, Parts, Plan, Spec, plan
from specviz.planning.room import room
from specviz.presets import DrafterPreset, Pairing, pairing


def command(options: argparse.Namespace) -> None:
    transformers.utils.logging.set_verbosity_error()
    wanted.check(options)
    if options.measure:
        _measure(options)
        return
    target, drafting, gamma = _pair(options)
    spec, available, counter = _machine(options, target, drafting)
    made = plan(
        spec,
        options.context,
        options.batch,
        gamma,
        available=available,
        counter=counter,
        devices=options.devices,
        limit=target.limit,
    )
    if options.json:
        print(json.dumps(as_object(made, target, drafting, options, gamma), allow_nan=False))
    else:
        print("\n".join(in_words(made, target, drafting, options, gamma)))


def _pair(options: argparse.Namespace) -> tuple[Known, Drafting, int]:
    """The target, what drafts for it, and the tokens of a draft."""
    if options.target is not None:
        return _own_pair(options)
    chosen = pairing(options.pairing)
    preset = _preset(chosen, options.drafter)
    target = known(chosen.target, offline=options.offline)
    if options.drafter_path is not None:
        drafting = _named_drafting(options, target, preset.kind)
    else:
        drafting = drafts.of_preset(preset, target, offline=options.offline)
    gamma = preset.defaults.get("gamma", 0) if options.gamma is None else options.gamma
    nodes = drafts.nodes(preset) if options.nodes is None else options.nodes
    return target, drafting, max(int(gamma), nodes)


def _own_pair(options: argparse.Namespace) -> tuple[Known, Drafting, int]:
    target = known(named(options.target), offline=options.offline)
    kind = options.drafter or ("ngram" if options.drafter_path is None else "draft-model")
    if options.drafter_path is not None:
        drafting = _named_drafting(options, target, kind)
    else:
        drafting = drafts.of_preset(DrafterPreset(kind, kind, {}, ""), target, offline=options.offline)
    gamma = (0 if kind == "plain" else usual_gamma(kind)) if options.gamma is None else options.gamma
    return target, drafting, max(gamma, options.nodes or 0)


def _named_drafting(options: argparse.Namespace, target: Known, kind: str) -> Drafting:
    """What --drafter-path names, a model or a head."""
    if options.drafter_path == SELF:
        return drafts.of_preset(DrafterPreset(kind, SELF, {"source": SELF}, ""), target, offline=options.offline)
    source = named(options.drafter_path)
    if source.path is None or source.path.is_dir():
        source = drafter_of(source, kind, offline=options.offline)
    return drafts.of_preset(DrafterPreset(kind, source.name, {}, "", source), target, offline=options.offline)


def _preset(chosen: Pairing, kind: str | None) -> DrafterPreset:
    if kind is None:
        with_model = (preset for preset in chosen.drafters if preset.model is not None)
        return next(with_model, None) or next(preset for preset in chosen.drafters if preset.kind == "ngram")
    found = preset_of(kind, chosen)
    if found is None or found.kind != kind:
        offered = ", ".join(dict.fromkeys(preset.kind for preset in chosen.drafters))
        raise UserError(f"{chosen.id} offers no drafter {kind!r}; choose one of {offered}.")
    return found


def _machine(options: argparse.Namespace, target: Known, drafting: Drafting) -> tuple[Spec, int, str]:
    """The formats, and the budget with its counter: of this machine, or as the options give it for another."""
    elsewhere = options.memory is not None or options.devices is not None
    on = pick_device(options.device) if options.device != "auto" or not elsewhere else None
    auto = torch.bfloat16 if on is None else pick_dtype("auto", on)
    dtype = auto if options.dtype == "auto" else getattr(torch, options.dtype)
    on_cpu = on is not None and on.type == "cpu"
    spec = Spec(
        target.config,
        drafting,
        dtype.itemsize,
        quantisation=options.quantisation,
        kv_dtype_bytes=None if options.kv_dtype is None else wanted.KV_DTYPES[options.kv_dtype],
        on_cpu=on_cpu,
        packed=on_cpu and options.quantisation == "none" and packs(torch.device("cpu"), dtype),
        windowed=options.engine_cache,
    )
    if options.devices is not None:
        count, size = options.devices
        return spec, count * size, f"{count} GPUs of {human(size)}, as you gave them"
    if options.memory is not None:
        return spec, options.memory, "as you gave it"
    assert on is not None
    free = free_memory(on)
    rooms = ", ".join(f"{place} {human(size)}" for place, size in free.items())
    source = room(on).source
    return spec, sum(free.values()), source if len(free) == 1 else f"{source}: {rooms}"


def in_words(made: Plan, target: Known, drafting: Drafting, options: argparse.Namespace, gamma: int) -> Sequence[str]:
    """The plan as lines of text."""
    rows = [f"  {'':<12}{'target':>12}{'drafter':>12}{'both':>12}"]
    for name in Parts._fields:
        cells = [getattr(parts, name) for parts in (made.target, made.drafter, made.both)]
        rows.append(f"  {LABELS[name]:<12}" + "".join(f"{human(cell):>12}" for cell in cells))
    totals = [made.target.total, made.both.total - made.target.total, made.both.total]
    rows.append(f"  {'all':<12}" + "".join(f"{human(total):>12}" for total in totals))
    ratio = "n/a" if made.kv_ratio is None else f"{made.kv_ratio:.2f}x the target's alone"
    window = "what serving engines keep" if options.engine_cache else "all rows, as specviz keeps them"
    return [
        f"{target.name}, {target.source}; drafted by {drafting.name}",
        f"{options.context:,} tokens of context, {options.batch} at a time, drafts of {gamma}; caches hold {window}",
        *rows,
        f"KV cache per token: {made.kv_row_target:,} B target, {made.kv_row_drafter:,} B drafter; {ratio}",
        f"Available: {human(made.available)} ({made.counter})",
        made.verdict,
        f"Largest context at this batch: {made.context_in_words}; largest batch at this context: {made.batch_in_words}",
        *made.notes,
        *made.hints,
    ]


LABELS = {
    "weights": "weights",
    "kv": "KV cache",
    "logits": "logits",
    "activations": "activations",
    "runtime": "libraries",
    "headroom": "headroom",
}


def as_object(made: Plan, target: Known, drafting: Drafting, options: argparse.Namespace, gamma: int) -> dict[str, Any]:
    """The plan for programs; bytes throughout."""
    return {
        "schema": trace.SCHEMA,
        "target": target.name,
        "target_config": target.source,
        "drafter": drafting.name,
        "context": options.context,
        "batch": options.batch,
        "gamma": gamma,
        "dtype": options.dtype,
        "quantisation": options.quantisation,
        "parts": {name: getattr(made, name)._asdict() for name in ("target", "drafter", "both")},
        "expected": made.both.total - made.both.headroom,
        "total": made.both.total,
        "kv_per_token": {"target": made.kv_row_target, "drafter": made.kv_row_drafter, "ratio": made.kv_ratio},
        "available": made.available,
        "counter": made.counter,
        "fits": made.fits,
        "largest_context": made.largest_context,
        "largest_batch": made.largest_batch,
        "model_limit": made.limit,
        "notes": list(made.notes),
        "hints": list(made.hints),
    }


def _measure(options: argparse.Namespace) -> None:
    """Decode once in a fresh process, and set the estimate beside what that took."""
    chosen = pairing(options.pairing)
    preset = _preset(chosen, options.drafter)
    settings = {name: value for name, value in preset.defaults.items() if name not in ("gamma", "gamma_policy")}
    if options.nodes is not None:
        settings |= {"tree": True, "nodes": options.nodes}
    say("loading and decoding in a process of its own")
    made = measure(
        chosen.id,
        preset.kind,
        settings,
        [options.context],
        gamma=int(preset.defaults.get("gamma", 0)) if options.gamma is None else options.gamma,
        dtype=options.dtype,
        device=options.device,
        offline=options.offline,
    )
    if options.json:
        print(json.dumps(measured_object(made), allow_nan=False))
    else:
        print("\n".join(measured_words(made)))


def measured_words(made: Report) -> Sequence[str]:
    (run,) = made.runs
    off = "" if run.difference is None else f", {run.difference:+.1%}"
    lines = [
        f"{run.context:,} tokens: expected {human(run.expected)}, measured "
        f"{'n/a' if run.measured is None else human(run.measured)}{off}",
        "Both are what the process has at its peak while it decodes, beyond what it had with everything imported and a "
        f"tiny model run ({human(made.before)}): resident memory on a CPU, what torch allocates on a GPU.",
        f"Loading reached {'n/a' if made.loading is None else human(made.loading)}, and {human(made.held)} stayed.",
    ]
    if made.idle:
        lines.append(
            f"Left out are {human(made.idle)} of checkpoints that stay mapped and unused: the system takes them back "
            "when it needs them."
        )
    return lines


def measured_object(made: Report) -> dict[str, Any]:
    (run,) = made.runs
    return {
        "schema": trace.SCHEMA,
        "context": run.context,
        "expected": run.expected,
        "measured": run.measured,
        "difference": run.difference,
        "before": made.before,
        "loading": made.loading,
        "held": made.held,
        "idle": made.idle,
        "parts": trace.plain(run.need),
    }
