"""Who is running what: one stop event per visitor, and turns at a model in order of arrival."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

MAX_VISITS = 1000  # more than can ever wait; beyond it, those who asked and never came are forgotten
POLL_SECONDS = 0.25  # how long one try for the lock may take


class Visits:
    """The stop event of each visitor's run, by session. Kept here, not in the page's state, and never for longer than
    the run or the visit."""

    def __init__(self) -> None:
        self._runs: dict[str, threading.Event] = {}
        self._guard = threading.Lock()

    def arrive(self, session: str) -> threading.Event:
        """A run has been asked for; one that the visitor left behind is told to stop."""
        with self._guard:
            left = [self._runs.pop(session)] if session in self._runs else []
            event = self._runs[session] = threading.Event()
            left += [self._runs.pop(next(iter(self._runs))) for _ in range(len(self._runs) - MAX_VISITS)]
        for old in left:
            old.set()
        return event

    def begin(self, session: str) -> threading.Event:
        """The event of the run that was asked for; a caller that never asked gets one of its own."""
        with self._guard:
            return self._runs.setdefault(session, threading.Event())

    def stop(self, session: str) -> bool:
        """Tell the visitor's run to stop; whether there is one."""
        with self._guard:
            event = self._runs.get(session)
            if event is not None:
                event.set()
        return event is not None

    def end(self, session: str, event: threading.Event) -> None:
        """The run with this event is over."""
        with self._guard:
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
        self._lines: defaultdict[int, deque[object]] = defaultdict(deque)
        self._guard = threading.Lock()

    @contextmanager
    def queue(self, lock: threading.Lock) -> Iterator[Turn]:
        """Stand in line for the lock; at the end the lock is free again if it was had, whatever happened."""
        turn = Turn(self, lock)
        with self._guard:
            self._lines[id(lock)].append(turn)
        try:
            yield turn
        finally:
            self._leave(turn)
            if turn.held:
                turn.held = False
                lock.release()

    def ahead(self, turn: Turn) -> int:
        """How many in the line come first; the one that holds the lock is no longer in it."""
        with self._guard:
            return list(self._lines[id(turn.lock)]).index(turn)

    def _leave(self, turn: Turn) -> None:
        with self._guard:
            line = self._lines.get(id(turn.lock))
            if line and turn in line:
                line.remove(turn)
            if not line:
                self._lines.pop(id(turn.lock), None)


class Turn:
    """A place in the line."""

    def __init__(self, turns: Turns, lock: threading.Lock) -> None:
        self.turns, self.lock, self.held = turns, lock, False

    @property
    def ahead(self) -> int:
        return self.turns.ahead(self)

    def take(self, seconds: float = POLL_SECONDS) -> bool:
        """Try for the lock for so long, so that the caller can look up in between."""
        if self.ahead == 0 and self.lock.acquire(timeout=seconds):
            self.held = True
            self.turns._leave(self)
        elif self.ahead:
            threading.Event().wait(seconds)
        return self.held
