"""A request, limits on its time and rate, and whether it is repeated. Nothing is sent here."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_provider.api import errors

logger: logging.Logger = logging.getLogger(__name__)

_next_times: dict[str, float] = {}
_reserving = threading.Lock()

READS = ("GET", "HEAD", "OPTIONS")
REPEATABLE = (
    errors.FsmConnectionError
    | errors.FsmRateLimitedError
    | errors.FsmRepeatableWriteError
    | errors.FsmResponseError
    | errors.FsmServerError
)


class Metrics:
    """Takes counts and durations, and drops them; those of Airflow are in ``fsm_provider.metrics``."""

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        """Add to a counter; ``name`` is without the prefix ``fsm.``."""

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        """Record a duration."""


BASE = 0.5
"""Seconds up to which the first delay is drawn: clients should not retry together. It doubles each
time.
"""
RATE_LIMITED_BASE = 10.0  # after a 429 without Retry-After: rate limits count by the minute
CAP = 30.0  # of this backoff; Retry-After may ask for more
BUDGET = 120.0  # for all delays of one request


@dataclass(eq=False)
class Attempts:
    max_retries: int
    made: int = 0
    waited: float = 0.0

    def delay_after(self, error: errors.FsmError) -> float:
        """Return the seconds to wait before the next attempt; raise ``error`` if there is to be
        none.
        """
        self.made += 1
        asked = error.retry_after if isinstance(error, errors.FsmApiError) else None
        is_rate_limited = asked is None and isinstance(error, errors.FsmRateLimitedError)
        bound = min(
            CAP, (RATE_LIMITED_BASE if is_rate_limited else BASE) * 2.0 ** min(self.made - 1, 60)
        )
        delay = max(asked or 0.0, bound * random.random())  # noqa: S311
        may_repeat = isinstance(error, REPEATABLE) and self.made <= self.max_retries
        if not may_repeat or self.waited + delay > BUDGET:
            raise error
        self.waited += delay
        message = "%s; trying again in %.1f s (retry %s of %s)"
        logger.warning(message, error, delay, self.made, self.max_retries)
        return delay


def clocks() -> tuple[float, float]:
    """Return two clocks in seconds, of which at least one goes on while the process is suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time(), time.clock_gettime(boottime)


@dataclass(eq=False)
class TimeLimit:
    """A limit on the time from the first of some requests on.

    :param begin_within: seconds after ``since``, by :func:`clocks`, in which a request may begin.
    """

    seconds: float
    begin_within: float = float("inf")
    since: tuple[float, float] = field(default_factory=clocks)
    _end: float | None = None

    def start(self) -> None:
        self._end = self._end or time.monotonic() + self.seconds

    def left(self) -> float:
        return self.seconds if self._end is None else self._end - time.monotonic()

    def is_too_late(self) -> bool:
        """Return whether no request may begin any more, by the clock that has gone further."""
        return (
            max(now - then for now, then in zip(clocks(), self.since, strict=True))
            > self.begin_within
        )


@dataclass(eq=False)
class ApiRequest:
    """One request; ``confidential`` texts are in no error or log, even if the service repeats them."""

    method: str
    path: str
    params: Mapping[str, Any] | None = None
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: dict[str, Any] = field(default_factory=dict)
    confidential: tuple[str, ...] = ()
    limit: TimeLimit | None = None


def reserve_time(base_url: str, per_second: float) -> float:
    """Reserve a service's next free time of evenly spaced ones, and return the seconds until then."""
    with _reserving:
        now = time.monotonic()
        reserved = max(now, _next_times.get(base_url, 0.0))
        _next_times[base_url] = reserved + 1 / per_second
        return reserved - now
