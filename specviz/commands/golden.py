"""`golden`: reference acceptance lengths shown, checked and written, synthetic acceptance, and the neutral record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from specviz import acceptance_record, golden, synthetic, theory, trace
from specviz.commands import golden_tables as tables
from specviz.errors import UserError
from specviz.golden import OVERALL, Curve, Facts, Golden, Verdict
from specviz.golden_options import MISMATCH, UNDECIDED
from specviz.workloads import conditions, measured
from specviz.workloads.golden_file import golden_of

SCHEMA = 1
EXITS = {"above": MISMATCH, "below": MISMATCH, "can't tell": UNDECIDED}


class Pair(NamedTuple):
    """A golden curve, and what is held against it."""

    curve: Curve
    points: measured.Points
    facts: Facts


def command(options: argparse.Namespace) -> None:
    {"show": show, "check": check, "write": write, "simulate": simulate, "export": export}[options.what](options)


def show(options: argparse.Namespace) -> None:
    files = [golden.read(path) for path in options.files]
    if options.json:
        _print({"files": [_plain(file) for file in files]})
        return
    for file in files:
        print(f"{file.name}: {', '.join(filter(None, (file.status, file.method, file.source)))}")
        for curve in file.curves:
            print(f"\n{curve.name}\n{tables.of_curve(curve)}")
    print(
        "\nAL: acceptance length, the token that ends a step included. survival: what the lengths imply about the "
        "position, made to fall.\nindependent: the AL if every position were accepted as often as the first."
    )


def check(options: argparse.Namespace) -> None:
    """Exits as golden_options says if not all that was compared is within the tolerance."""
    file = golden.read(options.file)
    pairs, left_out = _pairs(file, options)
    found = {pair.curve.name: golden.compare(pair.curve, pair.points, options.tolerance) for pair in pairs}
    differ = {pair.curve.name: golden.differences(file, pair.curve, pair.facts) for pair in pairs}
    every = [verdict for verdicts in found.values() for verdict in verdicts]
    status, counts = golden.worst(every), golden.counts(every)
    if status == "not measured":
        raise UserError(f"{OVERALL[status]} Give a run or results with one of them.")
    if options.json:
        curves = [
            {
                "curve": name,
                "differs": [each._asdict() for each in differ[name]],
                "verdicts": [_verdict(each) for each in verdicts],
            }
            for name, verdicts in found.items()
        ]
        told = {"golden": file.name, "tolerance": options.tolerance, "status": status, "counts": counts}
        _print({**told, "curves": curves, "left_out": left_out})
    else:
        for name, verdicts in found.items():
            print(f"{name}\n{tables.of_verdicts(verdicts)}\n")
        for line in tables.of_differences(differ):
            print(line)
        if others := [curve.name for curve in file.curves if curve.name not in found]:
            print(f"not compared: {', '.join(others)}")
        _print_left_out(left_out)
        print(f"draft lengths: {', '.join(f'{count} {each}' for each, count in counts.items())}")
        print(f"{status}: {OVERALL[status]} The tolerance is {options.tolerance:.1%} of the golden value.")
    if status in EXITS:
        sys.exit(EXITS[status])


def write(options: argparse.Namespace) -> None:
    header, found = measured.read_results(options.results)
    made = golden_of(options.out.stem, header, found)
    golden.write(made, options.out)
    left_out = measured.left_out(found)
    if options.json:
        _print({"out": str(options.out), "curves": [curve.name for curve in made.curves], "left_out": left_out})
        return
    print(f"Wrote {len(made.curves)} curves to {options.out}.")
    _print_left_out(left_out)


def simulate(options: argparse.Namespace) -> None:
    made = synthetic.distribution(options.law, options.length, options.gamma)
    drawn = synthetic.draw(made, options.steps, options.seed)
    costs = _costs(options)
    speedup = theory.speedup(made.length, made.gamma, *costs) if costs else None
    if options.trace:
        _write_trace(synthetic.synthetic_trace(made, options.steps, options.seed), options.trace)
    if options.json:
        _print(
            {
                "mode": "synthetic",
                "law": made.law,
                "asked": made.asked,
                "gamma": made.gamma,
                "length": made.length,
                "variance": made.variance,
                "shares": list(made.shares),
                "survival": list(made.survival),
                "drawn": {"steps": len(drawn), "seed": options.seed, "length": 1 + sum(drawn) / len(drawn)},
                "modelled": {"speedup": speedup, **costs._asdict()} if costs else None,
                "knobs": synthetic.knobs(made) if made.gamma else {},
            }
        )
        return
    print(f"synthetic, {made.law}: {synthetic.ABOUT[made.law]}\n")
    print(tables.of_shares(made, drawn))
    print(f"\nacceptance length {made.length:.4f} (asked for {made.asked:g}), variance {made.variance:.4f}")
    print(f"drawn in {len(drawn)} steps with seed {options.seed}: {1 + sum(drawn) / len(drawn):.4f}")
    if costs and speedup is not None:
        at = f"c = {costs.cost_ratio:.3f} and v = {costs.verify_cost:.3f}"
        print(f"modelled speed-up at {at}: {speedup:.2f}x (acceptance length / (v + gamma * c); nothing was timed)")
    if made.gamma:
        print("\n".join(f"{engine:13} {setting}" for engine, setting in synthetic.knobs(made).items()))
    if made.gamma and made.law in synthetic.SGLANG_METHODS:
        print(synthetic.TOKEN_MODE)


def export(options: argparse.Namespace) -> None:
    if measured.holds_trace(options.file):
        records: Iterable[dict[str, Any]] = [acceptance_record.record(trace.read(options.file))]
    else:
        records = measured.records(*measured.read_results(options.file))
    _print({"fields": acceptance_record.FIELDS, "records": list(records)})


def _pairs(file: Golden, options: argparse.Namespace) -> tuple[list[Pair], list[str]]:
    """Golden curves with what is to be held against them, and the ways of drafting that are left out.

    Of results, curves are held against the drafter and workload that they are named after; one that is named after none
    of them, as those that others published, against one drafter's results altogether.
    """
    if options.trace:
        runs = {str(path): trace.read(path) for path in options.trace}
        points = measured.of_traces(runs)
        facts = conditions.of_runs({name: each.run for name, each in runs.items()})
        return [Pair(file.curve(options.curve), points, facts)], []
    header, found = measured.read_results(options.results)
    left_out = measured.left_out(found)
    if options.drafter:
        found = measured.of_one_drafter(found, options.drafter)
    groups = {f"{group.model}/{group.mode}": group for group in measured.groups(header, found)}
    named = [
        Pair(curve, group.points, group.facts) for curve in file.curves if (group := groups.get(curve.name)) is not None
    ]
    if options.curve is None and named:
        return named, left_out
    curve = file.curve(options.curve)
    if fitting := [pair for pair in named if pair.curve is curve]:
        return fitting, left_out
    own = measured.of_one_drafter(found, options.drafter)
    return [Pair(curve, measured.of_results(own), conditions.of_results(header, own))], left_out


def _print_left_out(ways: Iterable[str]) -> None:
    for way in ways:
        print(f"left out: {way}")


def _costs(options: argparse.Namespace) -> measured.Costs | None:
    """c and v as they are given, else of the results; None where neither is told."""
    given = options.cost_ratio, options.verify_cost
    if options.results is not None and given != (None, None):
        raise UserError("Give c and v themselves or results that they are taken from, not both.")
    if given == (None, None) and options.results is None:
        return None
    if None in given and options.results is None:
        raise UserError("Give both --cost-ratio and --verify-cost.")
    found = measured.Costs(*given) if options.results is None else _measured_costs(options)
    synthetic.check_costs(*found)
    return found


def _measured_costs(options: argparse.Namespace) -> measured.Costs:
    _, found = measured.read_results(options.results)
    return measured.costs(measured.of_one_drafter(found, options.drafter), options.gamma)


def _write_trace(run: trace.Trace, path: Path) -> None:
    try:
        trace.write(run, path)
    except OSError as error:
        raise UserError(f"The run can't be written to {path} ({error.strerror}); give another place.") from error


def _plain(file: Golden) -> dict[str, Any]:
    curves = [
        {
            "model": curve.model,
            "mode": curve.mode,
            "lengths": curve.lengths,
            "implied_survival": golden.implied_survival(curve),
            "from_first_position": golden.from_first_position(curve),
        }
        for curve in file.curves
    ]
    facts = {"status": file.status, "method": file.method, "source": file.source, "provenance": file.provenance}
    return {"name": file.name, **facts, "curves": curves}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    point = verdict.measured._asdict() if verdict.measured else None
    return {**verdict._asdict(), "measured": point, "deviation": verdict.deviation}


def _print(value: dict[str, Any]) -> None:
    print(json.dumps({"schema": SCHEMA, **value}, ensure_ascii=False, allow_nan=False))
