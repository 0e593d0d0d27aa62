"""Acceptance length against the place in the output, and against the prompt's length. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from specviz.workloads.results import Answer, Result
from specviz.workloads.statistics import Interval, ratio_interval

OUTPUT = (0, 8, 16, 32, 64, 128, 256, 512, 1024)  # tokens of the answer before a step
PROMPT = (0, 64, 128, 256, 512, 1024, 2048, 4096)  # tokens of the prompt, the conversation before it included


class Part(NamedTuple):
    """The passes between two bounds."""

    start: int
    end: int | None  # None: no upper bound
    prompts: int
    steps: int
    acceptance_length: float  # over the passes
    interval: Interval | None

    @property
    def name(self) -> str:
        return f"{self.start}+" if self.end is None else f"{self.start}-{self.end - 1}"


def by_output_position(results: Sequence[Result]) -> list[Part]:
    """The acceptance length of the steps that began after so many tokens of the answer."""

    def places(answer: Answer) -> Iterable[int]:
        before = 0
        for committed in answer.committed:
            yield before
            before += committed

    return _parts(results, OUTPUT, places)


def by_prompt_tokens(results: Sequence[Result]) -> list[Part]:
    """The acceptance length of answers to prompts of so many tokens."""
    return _parts(results, PROMPT, lambda answer: [answer.prompt_tokens] * len(answer.accepted))


def _parts(results: Sequence[Result], bounds: Sequence[int], places: Callable[[Answer], Iterable[int]]) -> list[Part]:
    """Sums of each prompt between the bounds; prompts without a step there take no part."""
    found = []
    for start, end in zip(bounds, [*bounds[1:], None], strict=True):
        sums = [_within(result, start, end, places) for result in results]
        counted = [(steps, accepted) for steps, accepted in sums if steps]
        if not counted:
            continue
        steps, accepted = ([each[column] for each in counted] for column in (0, 1))
        length = 1 + sum(accepted) / sum(steps)
        interval = ratio_interval([a + s for s, a in counted], steps)
        found.append(Part(start, end, len(counted), sum(steps), length, interval))
    return found


def _within(result: Result, start: int, end: int | None, places: Callable[[Answer], Iterable[int]]) -> tuple[int, int]:
    """Steps between the bounds, and what they accepted."""
    accepted = [
        kept
        for answer in result.answers
        for place, kept in zip(places(answer), answer.accepted, strict=True)
        if start <= place and (end is None or place < end)
    ]
    return len(accepted), sum(accepted)
