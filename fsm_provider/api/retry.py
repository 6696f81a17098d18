"""The retry decision: a pure function without I/O.

Full jitter: the delay is uniform between zero and the exponential bound, so that clients that failed together
do not retry together.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

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

_REPEATABLE = (
    FsmConnectionError,
    FsmRateLimitedError,
    FsmRepeatableWriteError,
    FsmResponseError,
    FsmServerError,
)


def is_repeatable(error: FsmError) -> bool:
    """Return whether the same request may succeed shortly: the service is unreachable, busy or broken."""
    return isinstance(error, _REPEATABLE)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and with which delays, one request is repeated.

    :param max_retries: repeats after the first attempt.
    :param base: upper bound of the first delay, in seconds; it doubles with each attempt.
    :param rate_limited_base: ``base`` after a 429 without ``Retry-After``: rate limits count by the minute.
    :param cap: upper bound of a delay that the service did not ask for, in seconds. A service that asks for
        less than this backoff, such as 0 seconds, gets the backoff.
    :param budget: upper bound of the sum of all delays of one request, in seconds.
    """

    max_retries: int = 4
    base: float = 0.5
    rate_limited_base: float = 10.0
    cap: float = 30.0
    budget: float = 120.0

    def delay_after(
        self, error: FsmError, *, attempt: int, waited: float, draw: float | None = None
    ) -> float | None:
        """Return the seconds to wait before the next attempt, or None to raise ``error``.

        An uncertain write is repeated only if the service recognises it.

        :param attempt: number of attempts made, from 1.
        :param waited: seconds waited so far.
        :param draw: the jitter, from 0 to 1; default: random.
        """
        if not is_repeatable(error) or attempt > self.max_retries:
            return None
        asked = error.retry_after if isinstance(error, FsmApiError) else None
        is_rate_limited = asked is None and isinstance(error, FsmRateLimitedError)
        base = self.rate_limited_base if is_rate_limited else self.base
        bound = min(self.cap, base * 2.0 ** min(attempt - 1, 60))
        delay = max(asked or 0.0, bound * (random.random() if draw is None else draw))  # noqa: S311
        return delay if waited + delay <= self.budget else None


@dataclass(eq=False)
class Attempts:
    """Counts the attempts of one request and applies a policy to them."""

    policy: RetryPolicy
    made: int = 0
    waited: float = 0.0

    def delay_after(self, error: FsmError) -> float:
        """Return the seconds to wait before the next attempt.

        :raises FsmError: ``error``, if there is to be no further attempt.
        """
        self.made += 1
        delay = self.policy.delay_after(error, attempt=self.made, waited=self.waited)
        if delay is None:
            raise error
        self.waited += delay
        logger.warning(
            "%s; trying again in %.1f s (retry %s of %s)", error, delay, self.made, self.policy.max_retries
        )
        return delay
