"""Under which conditions acceptance was measured, in the names of golden files. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from specviz.drafter_settings import bare
from specviz.errors import UserError
from specviz.golden import Facts
from specviz.trace import Run
from specviz.workloads.arms import Arm
from specviz.workloads.results import Header, Result

FREE = ("output_len",)  # what runs that are counted together may have each for itself


def policy_of(settings: Mapping[str, Any]) -> str:
    """The gamma policy of a drafter with these settings: "fixed", "confidence" or "adaptive"."""
    named = next((str(value) for name, value in settings.items() if bare(name) == "gamma_policy"), "fixed")
    by_confidence = any(value for name, value in settings.items() if bare(name) == "confidence")
    return "confidence" if named == "fixed" and by_confidence else named


def of_results(header: Header, results: Iterable[Result]) -> Facts:
    """Those of one drafter's results, at least one."""
    found = list(results)
    arm = found[0].arm
    weights = {name: hash for result in found for name, hash in result.arm.weights.items()}
    return {
        "model": header.target,
        "drafter": arm.name,
        "method": arm.kind,
        "dataset": ", ".join(dict.fromkeys(result.suite for result in found)),
        **sampling(header.sampler),
        "dtype": header.dtype,
        "rule": header.rule,
        "chat_template": str(header.chat_template).lower(),
        "batch": str(header.batch),
        "output_len": str(header.max_new_tokens),
        "weights": header.weights,
        **of_weights(weights),
    }


def of_run(run: Run) -> Facts:
    weights = {name: hash for name, hash in run.weights.items() if name != run.target}
    arm = Arm(run.drafter, run.drafter_settings, run.gamma, weights)
    own = {"weights": run.weights[run.target]} if run.target in run.weights else {}
    return {
        "model": run.target,
        "drafter": arm.name,
        "method": arm.kind,
        **sampling(run.sampler),
        "dtype": run.dtype,
        "rule": run.rule,
        "chat_template": str(run.chat_template).lower(),
        "batch": str(run.batch),
        "output_len": str(run.max_new_tokens),
        **own,
        **of_weights(weights),
    }


def of_weights(weights: Mapping[str, str]) -> Facts:
    """Of what drafts: hashes or revisions, by name."""
    return {f"weights of {name}": hash for name, hash in weights.items()}


def of_runs(runs: Mapping[str, Run]) -> Facts:
    """What all have in common, at least one, by what errors call them; raises UserError where they differ."""
    (first, one), *others = ((name, of_run(run)) for name, run in runs.items())
    for name, other in others:
        apart = [
            f"{what} ({one.get(what, 'n/a')} and {other.get(what, 'n/a')})"
            for what in {**one, **other}
            if what not in FREE and one.get(what) != other.get(what)
        ]
        if apart:
            raise UserError(
                f"{first} and {name} can't be counted together, as they differ in {', '.join(apart)}; give runs of one "
                "target, drafter and settings."
            )
    return one


def sampling(sampler: Mapping[str, Any]) -> Facts:
    """Its numbers, and whatever else is on."""
    numbers = {name: f"{value:g}" for name, value in sampler.items() if type(value) in (int, float)}
    return numbers | {name: json.dumps(value) for name, value in sampler.items() if name not in numbers and value}
