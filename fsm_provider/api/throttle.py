"""Limit the requests per second from this process to one service, across all clients."""

from __future__ import annotations

import threading
import time
from functools import cache


class Throttle:
    """Assigns evenly spaced times for requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def reserve(self, per_second: float) -> float:
        """Reserve the next free time and return the seconds until then."""
        with self._lock:
            now = time.monotonic()
            reserved = max(now, self._next)
            self._next = reserved + 1 / per_second
            return reserved - now


@cache
def throttle_for(base_url: str) -> Throttle:
    """Return the throttle of a service, one per process."""
    return Throttle()
