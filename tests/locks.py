"""Whether a lock is held, seen from outside."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def is_held(lock: threading.Lock | Any) -> bool:
    """Whether another thread, asked now, would have to wait. Any: a reentrant lock, which has no public type."""

    def taken() -> bool:
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        return not free

    with ThreadPoolExecutor(1) as other:
        return other.submit(taken).result()
