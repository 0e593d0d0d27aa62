"""What figures of suites show, as tables and sentences: for screen readers, narrow screens and reports.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specviz.figures.drift import WORDS, DriftInfo
from specviz.figures.over_position import OverPositionInfo
from specviz.figures.workload_survival import WorkloadSurvivalInfo
from specviz.workloads import charts
from specviz.workloads.arms import Arm
from specviz.workloads.choice import Choice
from specviz.workloads.results import Header, Result
from specviz.workloads.statistics import FEWEST, Interval
from specviz.workloads.table import number

UNTIMED = "by acceptance alone; drafting costs are left out"
RULES = {"token": "token by token (lossless)", "block": "block by block (lossless)", "typical": "typical (lossy)"}
HARDLY = 0.005  # a gain or loss below this share is none


class Sheet(NamedTuple):
    """A table of texts."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def facts(header: Header, results: Sequence[Result]) -> list[tuple[str, str]]:
    """What was measured where and how, by name."""
    sampler = header.sampler
    drawn = [f"temperature {header.temperature:g}"]
    drawn += [f"top-k {sampler['top_k']}"] if sampler.get("top_k") else []
    drawn += [f"top-p {sampler['top_p']}"] if sampler.get("top_p", 1) != 1 else []
    repeats = "once" if header.repeats == 1 else f"{header.repeats} times"
    timed = f"timed {repeats}, plain and speculative in turns" if header.timed else "acceptance alone, untimed"
    prompts = len({(result.suite, result.prompt) for result in results})
    suites = ", ".join(dict.fromkeys(result.suite for result in results))
    return [
        ("Target", f"{header.target} (pairing {header.pairing})"),
        ("Machine", header.device),
        ("Number format", header.dtype),
        ("Method", f"{timed}; answers of at most {header.max_new_tokens} tokens"),
        ("Rule", f"{RULES.get(header.rule, header.rule)}; batch {header.batch}"),
        ("Sampler", f"{'greedy' if header.temperature == 0 else ', '.join(drawn)}; seed {header.seed}"),
        ("Prompts", f"{prompts} of {suites}; chat template {'applied' if header.chat_template else 'not applied'}"),
        ("Date", header.date[:16].replace("T", " ")),
        *([("Load", f"{header.load[0]:.2f} on average in the minute before")] if header.load else []),
    ]


def numbers(results: Sequence[Result], arms: Sequence[Arm]) -> Sheet:
    """All that the heat maps show, a row for each of their cells."""
    head = (
        *("workload", "drafter", "prompts"),
        *("acceptance length", "95 %", "request-weighted", "95 %"),
        *("speed-up", "95 %", "verdict"),
    )
    rows = [
        (
            *(workload, ", ".join(name), str(row.prompts)),
            *(f"{row.acceptance_length:.2f}", _span(row.acceptance_interval)),
            *(f"{row.request_acceptance_length:.2f}", _span(row.request_interval)),
            *(_times(row.speedup), _span(row.speedup_interval), row.verdict or "not timed"),
        )
        for workload, line in charts.lines(results, arms).items()
        for name, row in zip(charts.names_of(arms), line, strict=True)
        if row is not None
    ]
    return Sheet("Acceptance length and speed-up by workload and drafter", head, tuple(rows))


def survival(info: WorkloadSurvivalInfo) -> Sheet:
    """All workloads, those that the figure has no room for too."""
    positions = range(1, len(info.overall) + 1)
    rows = [(charts.ALL_PROMPTS, sum(panel.drafts for panel in info.panels), info.overall)] + [
        (panel.workload, panel.drafts, panel.survival) for panel in info.panels
    ]
    return Sheet(
        f"Survival by workload, {info.drafter}",
        ("workload", "passes with a draft", *(f"position {position}" for position in positions)),
        tuple(
            (name, str(drafts), *(f"{shares[i - 1]:.1%}" if i <= len(shares) else "n/a" for i in positions))
            for name, drafts, shares in rows
        ),
    )


def over(info: OverPositionInfo) -> Sheet:
    """The bins of the figure."""
    return Sheet(
        f"{info.title}, {info.drafter}",
        (info.counted, "acceptance length", "95 %", "prompts", "passes"),
        tuple(
            (
                f"{part.start} or more" if part.end is None else f"{part.start} to {part.end - 1}",
                f"{part.length:.2f}",
                _span(part.interval),
                str(part.prompts),
                str(part.passes),
            )
            for part in info.bins
        ),
    )


def drift(info: DriftInfo) -> Sheet:
    """All of the changes, those that the figure has no room for too."""
    return Sheet(
        f"Change of {info.measure} from {info.before} to {info.after}",
        ("workload", "drafter", "before", "after", "change", "interval of the change", "prompts", "verdict"),
        tuple(
            (
                change.workload,
                change.drafter,
                f"{change.before:.2f}",
                f"{change.after:.2f}",
                f"{change.difference:+.2f}",
                _span(change.interval, "+.2f"),
                f"{change.prompts[0]} and {change.prompts[1]}{', the same' if change.paired else ''}",
                WORDS[change.mark],
            )
            for change in info.changes
        ),
    )


def choice(chosen: Choice, arms: Sequence[Arm]) -> Sheet:
    """The best of the arms for each workload, and the next."""
    names = charts.place_names(best.place for best in chosen.by_workload)
    speed = "speed-up" if chosen.timed else "tokens per pass"
    return Sheet(
        f"The best drafter by workload (harmonic mean over its prompts{'' if chosen.timed else f', {UNTIMED}'})",
        ("workload", "best", speed, "next", speed),
        tuple(
            (
                names[best.place],
                charts.name_of(best.arm, arms),
                f"{best.speed:.2f}",
                "n/a" if best.next_arm is None else charts.name_of(best.next_arm, arms),
                number(best.next_speed, ".2f"),
            )
            for best in chosen.by_workload
        ),
    )


def choice_sentence(chosen: Choice, arms: Sequence[Arm]) -> str:
    """The best for all workloads together, and what choosing for each would gain."""
    if chosen.prompts < FEWEST:
        return f"Which drafter is best can't be told by {_prompts(chosen.prompts)}; it takes {FEWEST}."
    single = charts.name_of(chosen.single, arms)
    value = f"{chosen.single_speed:.2f}"
    speed = f"harmonic mean {value}x" if chosen.timed else f"{value} tokens per pass, {UNTIMED}"
    best = f"Over all {chosen.prompts} prompts the best single choice is {single} ({speed})."
    if chosen.gain is None:
        return f"{best} What choosing by workload would gain takes two drafters, two workloads and two prompts of each."
    change = abs(chosen.gain - 1)
    if change < HARDLY:
        return f"{best} Choosing for each workload would gain nothing."
    if chosen.gain < 1:
        return (
            f"{best} Choosing for each workload would lose {change:.1%}: the differences between workloads are no "
            "larger than luck with the prompts."
        )
    return f"{best} Choosing for each workload would gain another {change:.1%}."


def _prompts(count: int) -> str:
    return "1 prompt" if count == 1 else f"{count} prompts"


def _span(interval: Interval | None, form: str = ".2f") -> str:
    return "n/a" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"
