"""At most so many requests a second from this process to one service, over all of its clients."""

from __future__ import annotations

import threading
import time
from functools import cache


class Throttle:
    """Hands out moments at which to send, evenly spaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def reserve(self, per_second: float) -> float:
        """Take the next free moment and give the seconds until then."""
        with self._lock:
            now = time.monotonic()
            moment = max(now, self._next)
            self._next = moment + 1 / per_second
            return moment - now


@cache
def throttle_for(base_url: str) -> Throttle:
    """Give the one throttle of a service."""
    return Throttle()
