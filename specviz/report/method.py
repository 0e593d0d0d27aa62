"""What was measured, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specviz.workloads import sheets
from specviz.workloads.charts import place_names
from specviz.workloads.results import Header, Result
from specviz.workloads.statistics import DRAWS, FEWEST
from specviz.workloads.summary import Place

HASH = 16  # characters of a weight hash that are shown


def facts(header: Header, results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
    """Machine, models, prompts and the amount of work, by name."""
    load = " / ".join(f"{value:.2f}" for value in header.load) or "n/a"
    return (
        *((name, text) for name, text in sheets.facts(header, results) if name != "Load"),
        ("Load averages at the start", f"{load} (over 1, 5 and 15 minutes)"),
        ("Threads", "n/a" if header.threads is None else str(header.threads)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("Target's weights", header.weights[:HASH]),
        ("Drafters' weights", ", ".join(_drafter_weights(results)) or "none of their own"),
        ("Prompts by workload", _counts(workloads(results))),
        ("Prompts by length", _counts(_by_length(results))),
        (
            "Counted",
            f"{sum(result.tokens for result in results):,} tokens in {sum(result.steps for result in results):,} "
            "verify passes",
        ),
    )


def workloads(results: Sequence[Result]) -> list[str]:
    """Of each prompt, as they are called where there are several suites."""
    prompts = {(result.suite, result.prompt): Place(result.suite, result.workload) for result in results}
    names = place_names(prompts.values())
    return [names[place] for place in prompts.values()]


def _drafter_weights(results: Iterable[Result]) -> list[str]:
    found = {name: hash for result in results for name, hash in result.arm.weights.items()}
    return [f"{name} ({hash.removeprefix('sha256:')[:HASH]})" for name, hash in found.items()]


def _by_length(results: Iterable[Result]) -> list[str]:
    return list({(result.suite, result.prompt): result.length for result in results}.values())


def _counts(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {names.count(name)}" for name in dict.fromkeys(names))


def method(header: Header, results: Sequence[Result]) -> tuple[str, ...]:
    """How the figures came about, sentence by sentence."""
    greedy = header.temperature == 0
    told = [
        "Decoding is greedy: the target's most probable token, every time."
        if greedy
        else f"Tokens are drawn at temperature {header.temperature:g}, with seed {header.seed} for every prompt.",
        f"Every prompt is answered once, to the end that the target gives its answer or to {header.max_new_tokens} "
        "tokens; that run counts what is accepted.",
    ]
    if any(result.turns > 1 for result in results):
        told.append("Conversations of several turns go on with the target's own answers.")
    if header.timed:
        told += [
            f"For the times each prompt is decoded again to as many tokens, {_times(header.repeats)} plainly and as "
            "often speculatively, in turns, after a warm-up of both; which of them goes first alternates.",
            "Times are seconds per token from the end of prefill on: reading the prompt, loading and warming up are "
            "left out. A prompt's speed-up is the median of its repeats' ratios, and the speed-up of a drafter the "
            "median of its prompts'.",
            "The costs c and v are from one more run of each, in which every phase is timed by itself. That slows a "
            "run down, so no speed-up comes of it.",
        ]
    if header.timed and greedy:
        told.append("Speculative output is compared with plain decoding's, token by token.")
    told += [
        "Acceptance lengths count the target's own token of each pass. They are step-weighted (all verify passes "
        "together), and where it says by request, the mean of the prompts' own.",
        f"Intervals of figures are of 95 %, by bootstrap: prompts are drawn anew, with replacement, {DRAWS:,} times, "
        "and the tails are cut where Student's distribution would have them, as the middle 95 % of the draws is too "
        f"narrow for few prompts. Fewer than {FEWEST} prompts have none. They tell how much a figure depends on which "
        "prompts were asked, one figure at a time, and nothing of other workloads or machines.",
    ]
    return tuple(told)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
