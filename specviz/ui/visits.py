"""Who is running what: one stop event per visitor, and turns at a model in order of arrival."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Protocol

MAX_VISITS = 1000  # more than can ever have asked and not begun; beyond it, the oldest of these are forgotten
POLL_SECONDS = 0.25  # how long one try for the lock may take
REMEMBERED = 20  # turns, from which the next ones' length is guessed


class Lock(Protocol):
    """A lock, or a semaphore where several may go on at once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Visits:
    """The stop event of each visitor's run, by session. Kept here, not in the page's state, and never for longer than
    the run or the visit."""

    def __init__(self) -> None:
        self._runs: dict[str, threading.Event] = {}
        self._begun: set[threading.Event] = set()  # those of runs that are under way
        self._guard = threading.Lock()

    def arrive(self, session: str) -> threading.Event:
        """A run has been asked for; one that the visitor left behind is told to stop."""
        with self._guard:
            left = [self._runs.pop(session)] if session in self._runs else []
            event = self._runs[session] = threading.Event()
            asked_only = [other for other, run in self._runs.items() if run not in self._begun]
            left += [self._runs.pop(other) for other in asked_only[: max(0, len(asked_only) - MAX_VISITS)]]
        for old in left:
            old.set()
        return event

    def begin(self, session: str) -> threading.Event:
        """The event of the run that was asked for; a caller that never asked gets one of its own.

        A session has one run at a time: where an earlier one has begun, it is told to stop.
        """
        with self._guard:
            event = self._runs.get(session)
            if event is None or event in self._begun:
                if event is not None:
                    event.set()
                event = self._runs[session] = threading.Event()
            self._begun.add(event)
            return event

    def stop(self, session: str) -> bool:
        """Tell the visitor's run to stop; whether there is one."""
        with self._guard:
            event = self._runs.get(session)
            if event is not None:
                event.set()
        return event is not None

    def is_running(self, session: str) -> bool:
        with self._guard:
            return session in self._runs

    def end(self, session: str, event: threading.Event) -> None:
        """The run with this event is over."""
        with self._guard:
            self._begun.discard(event)
            if self._runs.get(session) is event:
                del self._runs[session]

    def leave(self, session: str) -> None:
        """The visitor has gone: stop, and forget."""
        with self._guard:
            event = self._runs.pop(session, None)
        if event is not None:
            event.set()

    def __len__(self) -> int:
        return len(self._runs)


class Turns:
    """Turns at locks, first come, first served."""

    def __init__(self) -> None:
        self._lines: defaultdict[int, _Line] = defaultdict(_Line)  # by the lock's identity; a device has one for good
        self._guard = threading.Lock()

    @contextmanager
    def queue(self, lock: Lock) -> Iterator[Turn]:
        """Stand in line for the lock; at the end the lock is free again if it was had, whatever happened."""
        with self._guard:
            line = self._lines[id(lock)]
            turn = Turn(line, lock, self._guard)
            line.waiting.append(turn)
        try:
            yield turn
        finally:
            turn.leave()


class _Line:
    """Those who wait for one lock, and what is known of how long a turn takes."""

    def __init__(self) -> None:
        self.waiting: deque[Turn] = deque()
        self.since: float | None = None  # when the turn under way began
        self.seconds: deque[float] = deque(maxlen=REMEMBERED)  # of the last turns


class Turn:
    """A place in the line."""

    def __init__(self, line: _Line, lock: Lock, guard: threading.Lock) -> None:
        self._line, self._lock, self._guard = line, lock, guard
        self.held = False

    @property
    def ahead(self) -> int:
        """How many in the line come first; the one that holds the lock is no longer in it."""
        with self._guard:
            return self._line.waiting.index(self)

    @property
    def expected_seconds(self) -> float | None:
        """How long it may still take, if turns go on as the last ones did.

        None before there was one, and where the turn under way has already lasted longer than that.
        """
        with self._guard:
            spent = 0.0 if self._line.since is None else time.monotonic() - self._line.since
            usual = mean(self._line.seconds) if self._line.seconds else 0.0
            if spent >= usual:
                return None
            return usual - spent + usual * self._line.waiting.index(self)

    def take(self, seconds: float = POLL_SECONDS) -> bool:
        """Try for the lock for so long, so that the caller can look up in between."""
        if self.ahead:
            time.sleep(seconds)
        elif self._lock.acquire(timeout=seconds):
            with self._guard:
                self.held = True
                self._line.waiting.remove(self)
                self._line.since = time.monotonic()
        return self.held

    def leave(self) -> None:
        """Out of the line, and the lock free again if it was had."""
        with self._guard:
            if self in self._line.waiting:
                self._line.waiting.remove(self)
            if not self.held:
                return
            if self._line.since is not None:
                self._line.seconds.append(time.monotonic() - self._line.since)
            self._line.since, self.held = None, False
        self._lock.release()
