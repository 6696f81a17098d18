"""Limits on when requests may begin, and on how long they take."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import cache


def clocks() -> tuple[float, float]:
    """Return two clocks in seconds, of which at least one goes on while the process is suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time(), time.clock_gettime(boottime)


@dataclass(eq=False)
class TimeLimit:
    """A limit on the total time of requests, without the delays between them.

    :param seconds: more than 0.
    :param begin_within: seconds after ``since`` in which a request may begin.
    :param since: what :func:`clocks` returned.
    """

    seconds: float
    begin_within: float = float("inf")
    since: tuple[float, float] = field(default_factory=clocks)
    _used: float = 0.0
    _started: float | None = None

    def start(self) -> None:
        self._started = time.monotonic()

    def pause(self) -> None:
        self._used, self._started = self.seconds - self.left(), None

    def left(self) -> float:
        """Return the seconds that are left, 0 or less once the limit is reached."""
        running = 0.0 if self._started is None else time.monotonic() - self._started
        return self.seconds - self._used - running

    def is_too_late(self) -> bool:
        """Return whether no request may begin any more, by the clock that has gone further."""
        return max(now - then for now, then in zip(clocks(), self.since, strict=True)) > self.begin_within


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
    return Throttle()
