"""A golden file of our own, made from a suite's results. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from specviz import trace
from specviz.errors import UserError
from specviz.golden import Curve, Golden
from specviz.workloads import conditions
from specviz.workloads.measured import Group, groups, left_out
from specviz.workloads.results import Header, Result

DECIMALS = 4
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")  # besides the temperature


def golden_of(name: str, header: Header, results: Sequence[Result]) -> Golden:
    """A curve for every drafter on every suite and on each of its workloads, with all that reproduces them.

    Raises UserError where there is nothing to write: no chain of one length was drafted.
    """
    found = groups(header, results)
    if not found:
        raise UserError(
            "No drafter of these results drafted chains of one length, so there is no golden length; give others."
        )
    curves = tuple(Curve(group.model, group.mode, _lengths(group)) for group in found)
    return Golden(name, curves, tuple(map(_in_a_line, _comments(header, results, found))))


def _in_a_line(comment: str) -> str:
    """What is no character of a line, such as a line break in a name, would end the comment."""
    return "".join(character if character.isprintable() else " " for character in comment)


def _lengths(group: Group) -> dict[int, float]:
    return {k: round(point.length, DECIMALS) for k, point in group.points.items()}


def _comments(header: Header, results: Sequence[Result], found: Sequence[Group]) -> list[str]:
    suites = ", ".join(dict.fromkeys(result.suite for result in results))
    sampling = [f"{name}: {value}" for name, value in conditions.sampling(header.sampler).items() if name in FILTERS]
    weights = {name: hash for result in results for name, hash in result.arm.weights.items()}
    shown = json.dumps(_reproduction(header, results, found), indent=1, ensure_ascii=False)
    return [
        "# A length is 1 + accepted / verify passes that had a draft, over all passes of all prompts (step-weighted).",
        "# model: the target and its drafter | mode: the suite, or one of its workloads | key: draft length",
        f"# status: measured | source: specviz bench | date: {header.date}",
        f"# dataset: {suites} | temperature: {header.temperature:g} | output_len: {header.max_new_tokens}",
        f"# dtype: {header.dtype} | device: {header.device} | seed: {header.seed} | batch: {header.batch}",
        f"# rule: {header.rule} | chat_template: {str(header.chat_template).lower()} | weights: {header.weights}",
        f"# {' | '.join(sampling)}",
        *(f"# {name}: {hash}" for name, hash in conditions.of_weights(weights).items()),
        *(f"# left out: {each}" for each in left_out(results)),
        *(f"# {line}" for line in shown.splitlines()),
    ]


def _reproduction(header: Header, results: Sequence[Result], found: Sequence[Group]) -> dict[str, Any]:
    """All that the results depend on, and how sure each length is."""
    arms: list[Any] = []
    for result in results:
        if result.arm not in arms:
            arms.append(result.arm)
    prompts = {(result.suite, result.prompt, result.text) for result in results}
    return {
        "header": {key: value for key, value in trace.plain(header).items() if key != "load"},
        "arms": [json.dumps(trace.plain(arm)) for arm in arms],
        "prompts": len(prompts),
        "prompts_sha256": sha256(json.dumps(sorted(prompts)).encode()).hexdigest()[:16],
        "lengths": {
            f"{group.model}/{group.mode}": [f"k {k}: {_sure(*point[1:])}" for k, point in group.points.items()]
            for group in found
        },
    }


def _sure(low: float | None, high: float | None, drafts: int | None) -> str:
    interval = "" if low is None or high is None else f", 95 % from {low:.{DECIMALS}f} to {high:.{DECIMALS}f}"
    return f"{drafts} drafts{interval}"
