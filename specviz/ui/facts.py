"""Around a run: how it ended, what it ran on, and what the figures mean, in words."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from specviz.drafter_settings import asks_for_tree, bare
from specviz.drafters.tree import Shape
from specviz.metrics import DEFINITIONS, acceptance, outcomes, timing
from specviz.trace import FinishReason, Run, Trace

Lines = list[tuple[str, str]]  # name, text
SHOWN_PROMPT = 60  # characters
FILTERS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # sampler settings that are off
SPEED = (
    "Plain time per token / speculative time per token. Both decode the same number of tokens, in turns, repeatedly; "
    "reading the prompt is left out. Shown is the median of the repeats; the verdict has the smallest and largest too."
)


def lines(trace: Trace, drafter: str, why_stopped: str = "stopped by you") -> Lines:
    """How it ended, what was drafted, and on what it ran. `drafter`: as the page calls it."""
    run = trace.run
    counts, numbers, clock = outcomes(trace.steps), acceptance(trace), timing(trace)
    drafted = (
        f"{numbers.drafted}: {counts.accepted} accepted, {counts.rejected} rejected, {counts.untested} untested, "
        f"{counts.cut} cut, in {numbers.steps - numbers.undrafted_steps} of {plural(numbers.steps, 'verify pass')}"
    )
    shown: Lines = [("Ended", ended(trace.finish_reason, len(trace.tokens), why_stopped))]
    if numbers.drafted:
        shown.append(("Drafted", drafted))
    if run.gamma_policy != "fixed":
        shown.append(("Draft length", _lengths(trace)))
    if drafters := Counter(node.by for step in trace.steps for node in step.nodes if node.by):
        shown.append(("Drafted by", ", ".join(f"{name}: {plural(count, 'token')}" for name, count in drafters.items())))
    read = "" if clock.prefill_s is None else f", read in {clock.prefill_s:.2f} s"
    asked = run.prompt_text.rpartition("\n\nUser: ")[2] if run.chat_template else run.prompt_text
    shown.append(("Prompt", f"“{shortened(asked)}” ({plural(len(run.prompt), 'token')}{read})"))
    return [*shown, ("Run", facts(run, drafter))]


def _lengths(trace: Trace) -> str:
    """What the policy asked for and what came, over all steps."""
    asked, used = ([getattr(step, name) for step in trace.steps] for name in ("gamma_asked", "gamma_used"))
    average = f"; on average {fmean(asked):.1f} asked for and {fmean(used):.1f} drafted" if asked else ""
    return f"{trace.run.gamma_policy}, at most {trace.run.gamma}{average}"


def shortened(prompt: str) -> str:
    """The beginning of a prompt, in one line."""
    words = " ".join(prompt.split())
    return words if len(words) <= SHOWN_PROMPT else words[:SHOWN_PROMPT].rstrip() + "…"


def ended(reason: FinishReason, tokens: int, why_stopped: str) -> str:
    return {
        "stop_token": f"after {plural(tokens, 'token')}, with the target's stop token",
        "stop_string": f"after {plural(tokens, 'token')}, by a stop string",
        "length": f"after {plural(tokens, 'token')}, the most that were allowed",
        "cancelled": f"{why_stopped} after {plural(tokens, 'token')}",
    }[reason]


def facts(run: Run, drafter: str = "") -> str:
    """Target, drafter, sampler, device, number format and seed, in one line."""
    settings = ", ".join(_setting(name, value) for name, value in run.drafter_settings.items())
    used = [
        f"{name.replace('_', '-')} {run.sampler[name]:g}" for name, off in FILTERS.items() if run.sampler[name] != off
    ]
    parts = [
        run.target,
        (drafter or run.drafter) + (f" ({settings})" if settings else ""),
        *drafting(run),
        f"temperature {run.sampler['temperature']:g}",
        *used,
        f"seed {run.seed}",
        *machine(run),
        *([] if run.chat_template else ["raw prompt"]),
    ]
    return " · ".join(parts)


def source(run: Run, drafter: str) -> str:
    """What run it is, in one short line."""
    day = [f"{datetime.datetime.fromisoformat(run.date):%-d %b %Y}"] if run.date else []
    return " · ".join([drafter, *drafting(run), run.target, *machine(run), *day])


def drafting(run: Run) -> list[str]:
    """Draft length and how it is decided on, and the acceptance rule where it is not the usual one."""
    if run.drafter == "plain":
        return []
    settings, is_fixed = run.drafter_settings, run.gamma_policy == "fixed"
    length = f"{'' if is_fixed else 'at most '}{run.gamma}"
    later = f", else {settings['second_gamma']}" if "second_gamma" in settings else ""
    length += later + ("" if is_fixed else f", {run.gamma_policy}")
    drafts = [f"gamma {length}"]
    if asks_for_tree(settings):
        trees = f"trees of at most {_nodes(settings)} nodes"
        drafts = [*drafts, trees] if "+" in run.drafter else [f"{trees}, depth {length}"]
    return [*drafts, *([] if run.rule == "token" else [rule(run)])]


def _nodes(settings: Mapping[str, Any]) -> int:
    """Of the largest tree that is asked for."""
    return max((value for name, value in settings.items() if bare(name) == "nodes"), default=Shape().nodes)


def rule(run: Run) -> str:
    """The acceptance rule in words; never without saying that it is lossy."""
    name = {"token": "token-wise acceptance", "block": "block verification"}.get(run.rule, f"{run.rule} acceptance")
    return name if run.lossless else f"{name}, lossy"


def _setting(name: str, value: object) -> str:
    spelled = name.replace("_", " ")
    return spelled if value is True else f"no {spelled}" if value is False else f"{spelled} {value}"


def machine(run: Run) -> list[str]:
    """Device, its threads and the number format."""
    threads = [] if run.threads is None or "thread" in run.device else [plural(run.threads, "thread")]
    return [run.device, *threads, run.dtype]


def definitions() -> list[tuple[str, str]]:
    names = ("tokens_per_pass", "acceptance_rate", "acceptance_length", "untested", "cut")
    return [*((name.replace("_", " "), DEFINITIONS[name]) for name in names), ("speed-up", SPEED)]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")
