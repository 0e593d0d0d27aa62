"""What a run came to as one plain object, for programs: the command line's --json and the app's endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from specviz import measure, metrics, runs, trace
from specviz.comparison import Comparison
from specviz.trace import Step, Trace


def report(
    prepared: runs.Prepared, result: Trace, comparison: Comparison | None, plain_steps: Sequence[Step] = ()
) -> dict[str, Any]:
    """The object that `run --json` prints. plain_steps: of plain decoding, with phases, as `result` has them then."""
    phases = comparison.phases if comparison else None
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
        "cost_ratio": phases.cost_ratio if phases else measure.cost_ratio(result.steps, plain_steps),
        "verify_cost": measure.verify_cost(result.steps, plain_steps),
        "memory": {
            "estimated": runs.estimated_bytes(prepared),
            "peak": runs.peak_bytes(prepared),
        },
        "baseline": baseline(comparison) if comparison else None,
        "run": trace.plain(result.run),
    }


def baseline(comparison: Comparison) -> dict[str, Any]:
    """Plain decoding's speed, and how the run compares with it."""
    divergence = comparison.divergence
    return {
        "tokens_per_s": comparison.plain_tokens_per_s,
        "speedup": comparison.speedup,
        "spread": list(comparison.spread) if comparison.spread else None,
        "repeats": comparison.repeats,
        "identical": comparison.identical,
        "first_divergence": trace.plain(divergence) if divergence else None,
    }


def speeds(first: Comparison | None, second: Comparison | None) -> dict[str, Any]:
    """The second's speed over the first's, from runs that were timed in turns: median and extremes of its repeats.

    Of a repeat that was cut short nothing is used.
    """
    pairs = zip(first.speculative_s, second.speculative_s, strict=False) if first and second else ()
    ratios = [slow / fast for slow, fast in pairs]
    return {
        "speed_ratio": median(ratios) if ratios else None,
        "spread": [min(ratios), max(ratios)] if ratios else None,
        "repeats": len(ratios),
        "tokens": first.tokens if first and ratios else None,
    }
