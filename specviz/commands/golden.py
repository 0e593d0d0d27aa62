"""`golden`: reference acceptance lengths shown, checked and written, synthetic acceptance, and the neutral record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specviz import acceptance_record, golden, synthetic, theory, trace
from specviz.commands import golden_tables as tables
from specviz.errors import UserError
from specviz.golden import OVERALL, Curve, Golden, Verdict
from specviz.golden_options import MISMATCH
from specviz.workloads import measured
from specviz.workloads.golden_file import golden_of

SCHEMA = 1


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
    """Exits with MISMATCH if a length is outside the tolerance."""
    file = golden.read(options.file)
    pairs = _pairs(file, options)
    found = {curve.name: golden.compare(curve, points, options.tolerance) for curve, points in pairs}
    status = golden.worst(verdict for verdicts in found.values() for verdict in verdicts)
    if status == "not measured":
        raise UserError(f"{OVERALL[status]} Give a run or results with one of them.")
    left_out = [curve.name for curve in file.curves if curve.name not in found]
    if options.json:
        curves = [
            {"curve": name, "verdicts": [_verdict(each) for each in verdicts]} for name, verdicts in found.items()
        ]
        _print({"golden": file.name, "tolerance": options.tolerance, "status": status, "curves": curves})
    else:
        for name, verdicts in found.items():
            print(f"{name}\n{tables.of_verdicts(verdicts)}\n")
        if left_out:
            print(f"not compared: {', '.join(left_out)}")
        print(f"{status}: {OVERALL[status]} The tolerance is {options.tolerance:.1%} of the golden value.")
    if status in ("above", "below"):
        sys.exit(MISMATCH)


def write(options: argparse.Namespace) -> None:
    made = golden_of(options.out.stem, *measured.read_results(options.results))
    golden.write(made, options.out)
    if options.json:
        _print({"out": str(options.out), "curves": [curve.name for curve in made.curves]})
    else:
        print(f"Wrote {len(made.curves)} curves to {options.out}.")


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
                "knobs": synthetic.knobs(made.asked, made.gamma) if made.gamma else {},
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
    for engine, setting in synthetic.knobs(made.asked, made.gamma).items() if made.gamma else ():
        print(f"{engine:13} {setting}")


def export(options: argparse.Namespace) -> None:
    if measured.holds_trace(options.file):
        records: Iterable[dict[str, Any]] = [acceptance_record.record(trace.read(options.file))]
    else:
        records = measured.records(*measured.read_results(options.file))
    _print({"fields": acceptance_record.FIELDS, "records": list(records)})


def _pairs(file: Golden, options: argparse.Namespace) -> list[tuple[Curve, measured.Points]]:
    """Golden curves with the points that are to be held against them.

    Of results, curves are held against the drafter and workload that they are named after; one that is named after none
    of them, as those that others published, against one drafter's results altogether.
    """
    if options.trace:
        return [
            (file.curve(options.curve), measured.of_traces({str(path): trace.read(path) for path in options.trace}))
        ]
    header, found = measured.read_results(options.results)
    if options.drafter:
        found = measured.of_one_drafter(found, options.drafter)
    points = {f"{group.model}/{group.mode}": group.points for group in measured.groups(header, found)}
    named = [(curve, points[curve.name]) for curve in file.curves if curve.name in points]
    if options.curve is None and named:
        return named
    curve = file.curve(options.curve)
    return [(curve, points.get(curve.name) or measured.of_results(measured.of_one_drafter(found, options.drafter)))]


def _costs(options: argparse.Namespace) -> measured.Costs | None:
    """c and v as they are given, else of the results; None where neither is told."""
    given = options.cost_ratio, options.verify_cost
    if options.results is not None and given != (None, None):
        raise UserError("Give c and v themselves or results that they are taken from, not both.")
    if given == (None, None):
        if options.results is None:
            return None
        _, found = measured.read_results(options.results)
        return measured.costs(measured.of_one_drafter(found, options.drafter), options.gamma)
    if None in given or not (0 <= options.cost_ratio < float("inf") and 0 < options.verify_cost < float("inf")):
        raise UserError("Give both --cost-ratio, 0 or more, and --verify-cost, above 0.")
    return measured.Costs(*given)


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
