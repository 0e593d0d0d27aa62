"""How long a draft is asked for, step by step.

A policy knows what has been committed and what it cost, and nothing of what is to come, so that the output stays
distributed as the target's own whatever it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specviz.trace import Step

DECAY = 0.95  # what an observation still counts after one more: about the last 20 make an estimate
FIRST_ACCEPTANCE = 0.6  # of the first draft token, before anything is known; it counts as PRIOR observations
PRIOR = 1.0
FURTHER_VERIFIED = 0.05  # of a verify pass over one token: what each further one adds, before that is known
DRAFTED = 0.1  # of a verify pass over one token: what a draft token costs, before that is known
SHORTEST = 1e-9  # seconds; rates are divided by it
LONGEST_SPIKE = 4.0  # a pass that takes longer than so many expected ones was held up, and counts as this
PROBE_AFTER, PROBE_AT_MOST = 4, 32  # steps without a draft until one is tried again; twice as many after each try


class GammaPolicy(Protocol):
    """Chooses the draft length of each step of one run."""

    def ask(self) -> int:
        """The draft length to ask for next."""

    def learn(self, step: Step, draft_s: float | None, verify_s: float | None) -> None:
        """Take in a step, with the seconds of drafting and of the verify pass if they are known."""


class Fixed:
    """Always the same."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def ask(self) -> int:
        return self.gamma

    def learn(self, step: Step, draft_s: float | None, verify_s: float | None) -> None:
        pass


class Adaptive:
    """The draft length that promises the most tokens per second, from 0 to `longest`.

    It maximises (1 + expected accepted) / (seconds of the verify pass + seconds of drafting), all three as this run
    has shown them lately. Where no draft at all seems best it still tries a short one now and then, since a drafter
    that is not asked can't be seen to improve. Until times are known, usual cost ratios stand for them.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._acceptance = _Acceptance(longest)
        self._verify, self._draft = _Cost(FURTHER_VERIFIED), _Cost(1.0)
        self._reading = Reading()
        self._breadth = 1.0  # draft tokens per unit of depth: 1 in a chain, more in a tree
        self._undrafted, self._patience = 0, PROBE_AFTER

    def ask(self) -> int:
        best = self._best()
        return min(1, self.longest) if best == 0 and self._undrafted >= self._patience else best

    def learn(self, step: Step, draft_s: float | None, verify_s: float | None) -> None:
        if step.gamma_asked == 0:
            self._undrafted += 1
        else:
            was_probe = self._undrafted >= self._patience
            self._patience = min(2 * self._patience, PROBE_AT_MOST) if was_probe else PROBE_AFTER
            self._undrafted = 0
        if step.nodes:
            self._acceptance.add(step)
            self._breadth = DECAY * self._breadth + (1 - DECAY) * len(step.nodes) / step.gamma_used
        has_read = self._reading.is_in(step)
        if verify_s is not None and step.prefill_s is None:
            self._verify.add(len(step.nodes) + 1, verify_s)
        if draft_s is not None and step.nodes and not has_read:
            self._draft.add(step.gamma_used, draft_s)

    def _best(self) -> int:
        unit = self._verify.first
        best, most = 0, 1 / unit
        tokens = reached = 1.0
        for gamma, accepted in enumerate(self._acceptance.conditional(), 1):
            reached *= accepted
            tokens += reached
            drafting = self._draft.of(gamma) if self._draft.is_known else DRAFTED * unit * gamma
            if (rate := tokens / (self._verify.of(1 + gamma * self._breadth) + drafting)) > most:
                best, most = gamma, rate
        return best


class Reading:
    """Finds the steps whose drafting holds a reading of the prompt: it is told every step of a run, in order.

    Such is the first step after a prefill. So is the first draft since then of each drafter of a combination, which
    reads the prompt only when its turn comes.
    """

    def __init__(self) -> None:
        self._have_read: set[str | None] = set()

    def is_in(self, step: Step) -> bool:
        if step.prefill_s is not None:
            self._have_read = set()
        new = {node.by for node in step.nodes} - self._have_read
        self._have_read |= new
        return bool(new) or step.prefill_s is not None


class _Acceptance:
    """How often draft tokens are accepted, by their depth, given that those before them were."""

    def __init__(self, depth: int) -> None:
        self.accepted, self.tried = [0.0] * depth, [0.0] * depth

    def add(self, step: Step) -> None:
        """Older steps count less, at every depth: what has long not been tried falls back to the depth before it."""
        end = step.path[-1] if step.path else -1
        tried = step.num_accepted + any(node.parent == end for node in step.nodes)
        for i in range(len(self.tried)):
            self.accepted[i] = DECAY * self.accepted[i] + (i < step.num_accepted)
            self.tried[i] = DECAY * self.tried[i] + (i < tried)

    def conditional(self) -> list[float]:
        """For depth 1, 2, ...; each estimate leans on the one before it."""
        estimates, estimate = [], FIRST_ACCEPTANCE
        for accepted, tried in zip(self.accepted, self.tried, strict=True):
            estimate = (PRIOR * estimate + accepted) / (PRIOR + tried)
            estimates.append(estimate)
        return estimates


class _Cost:
    """Seconds by number of tokens: `first` for one, and `further` for each one more.

    A least-squares line through what was measured, older measurements counting less, and as if once more it had been
    seen that `further` is `ratio` times `first`: one number of tokens alone would not tell the two apart.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio, self.first, self.further = ratio, 1.0, ratio
        self.is_known = False
        self._weight = self._x = self._xx = self._y = self._xy = 0.0  # sums over the measurements, x = tokens - 1

    def of(self, tokens: float) -> float:
        return self.first + self.further * (tokens - 1)

    def add(self, tokens: int, seconds: float) -> None:
        if self.is_known:
            seconds = min(seconds, LONGEST_SPIKE * self.of(tokens))
        x = tokens - 1
        self._weight = DECAY * self._weight + 1
        self._x, self._xx = DECAY * self._x + x, DECAY * self._xx + x * x
        self._y, self._xy = DECAY * self._y + seconds, DECAY * self._xy + x * seconds
        self._fit()

    def _fit(self) -> None:
        """Minimise sum of (first + further * x - y)^2 over the measurements, plus (further - ratio * first)^2."""
        a, b, c = self._weight + self.ratio**2, self._x - self.ratio, self._xx + 1
        determinant = a * c - b * b  # above 0: the second term holds the line where the first leaves it free
        first, further = (c * self._y - b * self._xy) / determinant, (a * self._xy - b * self._y) / determinant
        if further < 0:  # noise; more tokens never take less time
            first, further = self._y / self._weight, 0.0
        elif first < 0:
            first, further = 0.0, self._xy / self._xx
        self.first, self.further = max(first, SHORTEST), further
        self.is_known = True


POLICIES: dict[str, type[Fixed | Adaptive]] = {"fixed": Fixed, "adaptive": Adaptive}


def make_policy(name: str, gamma: int, done: Sequence[Step] = ()) -> GammaPolicy:
    """name: of POLICIES; gamma: the draft length asked for, or the longest one; done: steps already made."""
    policy = POLICIES[name](gamma)
    for step in done:
        policy.learn(step, step.draft_s, step.verify_s)
    return policy
