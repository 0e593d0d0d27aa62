"""What to keep in mind with the figures: all that the results themselves give reason for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specviz.report.arms_tables import called
from specviz.report.method import workloads
from specviz.report.names import plural
from specviz.workloads.results import Header, Result
from specviz.workloads.statistics import FEWEST
from specviz.workloads.summary import Row, best, by_arm
from specviz.workloads.table import outgrown, span

FEW = 12  # prompts; from fewer, intervals are rough
BUSY = 0.5  # load average per thread of the run, from which on others may have slowed it
MOST_NAMED = 8


def caveats(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> tuple[str, ...]:
    """Sentences, the gravest first."""
    found = [sentence for tell in _TELL for sentence in tell(header, results, rows)]
    return (*found, "One machine and one target: elsewhere drafting and verifying cost other shares of a plain pass.")


def _untimed(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    if header.timed:
        return []
    return [
        "Nothing was timed. Acceptance alone does not tell whether drafting pays, as its costs are left out. Nor was "
        "the output compared with plain decoding's."
    ]


def _unfinished(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    groups = by_arm(results)
    prompts = [{(result.suite, result.prompt) for result in group} for group in groups]
    every = set().union(*prompts)
    names = called(group[0].arm for group in groups)
    short = [f"{name} ({len(own)})" for name, own in zip(names, prompts, strict=True) if own != every]
    if not short:
        return []
    return [
        f"Not every way of drafting was measured on all {len(every)} prompts, so that their figures are of different "
        f"prompts: {_listed(short)}."
    ]


def _parted(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    compared = sum(row.compared for row in rows)
    near, same = sum(row.near_ties for row in rows), sum(row.identical for row in rows)
    said = []
    if elsewhere := compared - same - near:
        said.append(
            f"{elsewhere} of {plural(compared, 'output')} part from plain decoding's where the target is not near a "
            "tie. Rounding does not explain that; look into it before relying on these figures."
        )
    if near:
        said.append(
            f"{near} of {plural(compared, 'output')} part from plain decoding's at a near tie, where rounding in "
            f"{header.dtype} decides between two tokens. From there on the texts differ, and so may what is accepted."
        )
    if not compared and header.temperature > 0:
        said.append("Output was sampled, so it can't be compared with plain decoding's, and is that of one seed.")
    return said


def _loaded(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    if not header.timed:
        return []
    if not header.load:
        return ["How busy the machine was with other work is not known."]
    threads = header.threads or 1
    if header.load[0] <= BUSY * threads:
        return []
    return [
        f"The machine was not idle when the run began: a load average of {header.load[0]:.2f} over the minute before, "
        f"where the run has {plural(threads, 'thread')}. Times may have suffered; plain and speculative runs "
        "took turns, so ratios suffer less."
    ]


def _noise(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    return [
        f"Plain decoding timed against itself came to {row.speedup:.2f}x (quartiles {span(row.quartiles)}): "
        "differences as small as that are noise."
        for row in rows
        if row.arm.kind == "plain" and row.speedup is not None
    ]


def _once(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    if header.timed and header.repeats == 1:
        return ["Every prompt was timed once, so a prompt's own speed-up may be off by whatever else happened then."]
    return []


def _few(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    listed = workloads(results)
    said = []
    if len(listed) < FEW:
        said.append(f"All of this is of {plural(len(listed), 'prompt')}; with so few, intervals are rough.")
    scarce = [name for name in dict.fromkeys(listed) if listed.count(name) < FEWEST]
    if scarce:
        said.append(f"Of fewer than {FEWEST} prompts, and so without an interval: {_listed(scarce)}.")
    return said


def _chosen(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    if len(rows) == 1:
        return []
    settings = ", and which setting of each drafter," if len(best(rows)) < len(rows) else ""
    return [
        f"Which of the {len(rows)} ways of drafting is best{settings} was found out on the same prompts that the "
        "figures are of, which flatters the best a little. New prompts would tell by how much."
    ]


def _twice(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    prompts = {(result.suite, result.prompt): result.text for result in results}
    repeated = len(prompts) - len(set(prompts.values()))
    if not repeated:
        return []
    return [
        f"{plural(repeated, 'prompt')} of one suite stand in another too and count twice; intervals are too narrow."
    ]


def _cut(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    answers = [answer for result in results for answer in result.answers]
    full = sum(answer.tokens >= header.max_new_tokens for answer in answers)
    if not full:
        return []
    return [
        f"{full} of {plural(len(answers), 'answer')} came to the limit of {header.max_new_tokens} tokens: what would "
        "have been accepted after it is not in the figures."
    ]


def _outgrown(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    return outgrown(results)


def _single(header: Header, results: Sequence[Result], rows: Sequence[Row]) -> list[str]:
    if not header.timed or header.batch != 1:
        return []
    return ["One sequence at a time (batch 1), which flatters speculation: a batch leaves less of a pass unused."]


_TELL: tuple[Callable[[Header, Sequence[Result], Sequence[Row]], Iterable[str]], ...] = (
    _untimed,
    _unfinished,
    _parted,
    _loaded,
    _noise,
    _once,
    _few,
    _chosen,
    _twice,
    _cut,
    _outgrown,
    _single,
)


def _listed(names: Sequence[str]) -> str:
    """The names, of many the first and how many more there are."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
