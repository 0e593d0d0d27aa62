"""From a trace to numbers: what was accepted, and how long it took.

Acceptance counts tokens and passes over a whole run (not means of means) and never counts a correction or bonus as an
accepted draft token. What can't be computed, such as a rate of nothing, is None and never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from specviz.trace import Step, Trace

LONGEST_LIST = 64  # a header may claim any gamma; beyond this, lists go only as deep as the drafts did

DEFINITIONS: dict[str, str] = {
    "steps": "Steps of the run; each is one draft, one verify pass of the target and the decision.",
    "undrafted_steps": "Steps in which the drafter proposed nothing, so that the verify pass was plain decoding.",
    "drafted": "All draft tokens, in a tree every node: accepted + rejected + untested + cut.",
    "accepted": "Draft tokens that the target kept. The correction or bonus that ends a step is the target's own "
    "and not counted, nor is anything after a stop.",
    "rejected": "Draft tokens that the target tested and refused.",
    "untested": "Draft tokens never tested: they follow a rejected one, or lie off the accepted path of a tree. There "
    "are none under the block rule, which tests them all.",
    "cut": "Draft tokens that lie beyond the end of the run; they count as drafted.",
    "acceptance_length": "1 + accepted / steps, over all verify passes, those without a draft included.",
    "acceptance_length_drafted": "1 + accepted / steps, over only those verify passes that had a draft.",
    "tokens_per_pass": "Committed tokens / steps: what one verify pass of the target really brought.",
    "acceptance_rate": "Accepted / drafted: of all draft tokens, untested and cut ones too, the share that was kept. "
    "In a tree siblings compete for one place, so at most as many of its nodes can be kept as it is deep.",
    "tested_rate": "Accepted / (accepted + rejected): of the draft tokens that were tested, the share that was kept. "
    "The block rule also tests those after a rejected one, so compare rules by their acceptance length.",
    "histogram": "How many verify passes with a draft accepted exactly 0, 1, 2, ... draft tokens.",
    "survival": "Per draft position: the share of all verify passes with a draft that accepted every draft token up to "
    "and including this position. Summed, it is the acceptance length (drafted) less 1.",
    "conditional": "Per draft position: among the verify passes that accepted all draft tokens before it and had one "
    "there, the share that accepted this one too.",
    "prefill_s": "Seconds of the target's first pass over the prompt; not part of the decode time.",
    "decode_s": "Seconds of all steps together, from the end of prefill to the last token.",
    "tokens_per_s": "Committed tokens / decode seconds. Prefill is left out.",
    "draft_s": "Seconds spent drafting; known only in runs that were synchronised to time the phases.",
    "verify_s": "Seconds of the target's verify passes; known only in runs that were synchronised to time the phases.",
    "decide_s": "Seconds of accepting, rejecting and rolling back; known only in runs that were synchronised to time "
    "the phases.",
}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How much of the drafts was kept. `DEFINITIONS` says what each number is."""

    steps: int
    undrafted_steps: int
    drafted: int
    accepted: int
    acceptance_length: float | None
    acceptance_length_drafted: float | None
    tokens_per_pass: float | None
    acceptance_rate: float | None
    tested_rate: float | None
    histogram: tuple[int, ...]  # [j] verify passes with j accepted, j from 0 to gamma
    survival: tuple[float | None, ...]  # [i - 1] for position i, 1 to gamma
    conditional: tuple[float | None, ...]  # the same


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds. `DEFINITIONS` says what each number is."""

    prefill_s: float | None
    decode_s: float | None
    tokens_per_s: float | None
    draft_s: float | None
    verify_s: float | None
    decide_s: float | None


class Outcomes(NamedTuple):
    """How the draft tokens ended; together they are all that were drafted."""

    accepted: int
    rejected: int
    untested: int
    cut: int


class _Draft(NamedTuple):
    """What the lists per position need of a step that drafted something."""

    accepted: int
    went_on: bool  # a draft token followed the last accepted one


def outcomes(steps: Iterable[Step]) -> Outcomes:
    """Draft tokens by how they ended."""
    counts = Counter(node.outcome for step in steps for node in step.nodes)
    return Outcomes(counts["accepted"], counts["rejected"], counts["untested"], counts["cut"])


def acceptance(trace: Trace) -> Acceptance:
    """Count what was accepted. Any trace will do, empty ones and runs without drafts included."""
    steps = len(trace.steps)
    drafts = [_summary(step) for step in trace.steps if step.nodes]
    counts = outcomes(trace.steps)
    drafted, tested = sum(counts), counts.accepted + counts.rejected
    histogram = Counter(draft.accepted for draft in drafts)
    positions = range(1, _positions(trace) + 1)
    return Acceptance(
        steps=steps,
        undrafted_steps=steps - len(drafts),
        drafted=drafted,
        accepted=counts.accepted,
        acceptance_length=_length(counts.accepted, steps),
        acceptance_length_drafted=_length(counts.accepted, len(drafts)),
        tokens_per_pass=_share(len(trace.tokens), steps),
        acceptance_rate=_share(counts.accepted, drafted),
        tested_rate=_share(counts.accepted, tested),
        histogram=tuple(histogram[j] for j in (0, *positions)),
        survival=tuple(_survival(drafts, position) for position in positions),
        conditional=tuple(_conditional(drafts, position) for position in positions),
    )


def timing(trace: Trace) -> Timing:
    """Add up the times of the steps; a sum is None unless every step has its part."""
    decode_s = _total(step.seconds for step in trace.steps)
    return Timing(
        prefill_s=trace.steps[0].prefill_s if trace.steps else None,
        decode_s=decode_s,
        tokens_per_s=_share(len(trace.tokens), decode_s or 0),
        draft_s=_total(step.draft_s for step in trace.steps),
        verify_s=_total(step.verify_s for step in trace.steps),
        decide_s=_total(step.decide_s for step in trace.steps),
    )


def _summary(step: Step) -> _Draft:
    # Counted from the outcomes, as everything else is, so that no trace whatsoever can bring a rate above 1.
    accepted = outcomes([step]).accepted
    end = step.path[-1] if step.path else -1
    return _Draft(accepted, any(node.parent == end for node in step.nodes))


def _positions(trace: Trace) -> int:
    """How many draft positions the lists have: gamma, or more if a draft went deeper."""
    deepest = (min(step.gamma_used, len(step.nodes)) for step in trace.steps)
    accepted = (outcomes([step]).accepted for step in trace.steps)
    return max(0, min(trace.run.gamma, LONGEST_LIST), *deepest, *accepted)


def _survival(drafts: list[_Draft], position: int) -> float | None:
    return _share(sum(draft.accepted >= position for draft in drafts), len(drafts))


def _conditional(drafts: list[_Draft], position: int) -> float | None:
    passed = sum(draft.accepted >= position for draft in drafts)
    ended = sum(draft.accepted == position - 1 and draft.went_on for draft in drafts)
    return _share(passed, passed + ended)


def _length(accepted: int, steps: int) -> float | None:
    return 1 + accepted / steps if steps else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _total(times: Iterable[float | None]) -> float | None:
    known = list(times)
    numbers = [time for time in known if time is not None]
    return sum(numbers) if numbers and len(numbers) == len(known) else None
