"""When a request is sent: limits on its time and rate, and whether it is repeated. Nothing is sent here.

Full jitter: the delay is uniform between zero and the exponential bound, so that clients that failed together
do not retry together.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmRepeatableWriteError,
    FsmResponseError,
    FsmServerError,
)

logger: logging.Logger = logging.getLogger(__name__)

_next_times: dict[str, float] = {}
_reserving = threading.Lock()

REPEATABLE = (
    FsmConnectionError | FsmRateLimitedError | FsmRepeatableWriteError | FsmResponseError | FsmServerError
)
"""Errors after which the same request may succeed shortly: the service is unreachable, busy or broken."""


class Metrics:
    """Takes counts and durations, and drops them; those of Airflow are in ``fsm_provider.metrics``."""

    def incr(self, name: str, count: int = 1, **tags: str) -> None:
        """Add to a counter; ``name`` is without the prefix ``fsm.``."""

    def timing(self, name: str, seconds: float, **tags: str) -> None:
        """Record a duration."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and with which delays, one request is repeated.

    :param max_retries: repeats after the first attempt.
    :param base: upper bound of the first delay, in seconds; it doubles with each attempt.
    :param rate_limited_base: ``base`` after a 429 without ``Retry-After``: rate limits count by the minute.
    :param cap: upper bound of this backoff, in seconds; a service that asks for less than it gets it.
    :param budget: upper bound of the sum of all delays of one request, in seconds.
    """

    max_retries: int = 4
    base: float = 0.5
    rate_limited_base: float = 10.0
    cap: float = 30.0
    budget: float = 120.0


@dataclass(eq=False)
class Attempts:
    """Counts the attempts of one request, and the seconds waited, and applies a policy to them."""

    policy: RetryPolicy
    made: int = 0
    waited: float = 0.0

    def delay_after(self, error: FsmError) -> float:
        """Return the seconds to wait before the next attempt; raise ``error`` if there is to be none."""
        self.made += 1
        policy = self.policy
        asked = error.retry_after if isinstance(error, FsmApiError) else None
        is_rate_limited = asked is None and isinstance(error, FsmRateLimitedError)
        base = policy.rate_limited_base if is_rate_limited else policy.base
        bound = min(policy.cap, base * 2.0 ** min(self.made - 1, 60))
        delay = max(asked or 0.0, bound * random.random())  # noqa: S311
        may_repeat = isinstance(error, REPEATABLE) and self.made <= policy.max_retries
        if not may_repeat or self.waited + delay > policy.budget:
            raise error
        self.waited += delay
        logger.warning(
            "%s; trying again in %.1f s (retry %s of %s)", error, delay, self.made, policy.max_retries
        )
        return delay


def clocks() -> tuple[float, float]:
    """Return two clocks in seconds, of which at least one goes on while the process is suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time(), time.clock_gettime(boottime)


@dataclass(eq=False)
class TimeLimit:
    """A limit on the time from the first of some requests on.

    :param seconds: more than 0.
    :param begin_within: seconds after ``since`` in which a request may begin.
    :param since: what :func:`clocks` returned.
    """

    seconds: float
    begin_within: float = float("inf")
    since: tuple[float, float] = field(default_factory=clocks)
    _end: float | None = None

    def start(self) -> None:
        self._end = self._end or time.monotonic() + self.seconds

    def left(self) -> float:
        """Return the seconds that are left, 0 or less once the limit is reached."""
        return self.seconds if self._end is None else self._end - time.monotonic()

    def is_too_late(self) -> bool:
        """Return whether no request may begin any more, by the clock that has gone further."""
        return max(now - then for now, then in zip(clocks(), self.since, strict=True)) > self.begin_within


def reserve_time(base_url: str, per_second: float) -> float:
    """Reserve a service's next free time of evenly spaced ones, and return the seconds until then."""
    with _reserving:
        now = time.monotonic()
        reserved = max(now, _next_times.get(base_url, 0.0))
        _next_times[base_url] = reserved + 1 / per_second
        return reserved - now
