"""What to do after an attempt: a pure function from what happened to a decision, without I/O.

Full jitter: the delay is drawn evenly from nothing up to the exponential bound, so that clients
that failed together do not come back together.
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
    FsmResponseError,
    FsmServerError,
)

logger: logging.Logger = logging.getLogger(__name__)

_TRANSIENT = (FsmConnectionError, FsmRateLimitedError, FsmResponseError, FsmServerError)


def is_transient(error: FsmError) -> bool:
    """Tell whether time alone may mend an error: the service cannot be reached, is busy, or is broken."""
    return isinstance(error, _TRANSIENT)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often one request is tried.

    :param max_retries: repeats after the first attempt.
    :param base: the bound of the first delay, in seconds; it doubles with each attempt.
    :param rate_limited_base: the same after a 429 that does not say how long to wait: limits are by the
        minute rather than by the second.
    :param cap: the bound of any delay of our own choosing, in seconds.
    :param budget: what all delays of one request may add up to, in seconds.
    """

    max_retries: int = 4
    base: float = 0.5
    rate_limited_base: float = 10.0
    cap: float = 30.0
    budget: float = 120.0

    def delay_after(
        self, error: FsmError, *, attempt: int, waited: float, draw: float | None = None
    ) -> float | None:
        """Decide on the seconds to wait before the next attempt, or None to raise ``error``.

        An uncertain write is none of the errors that are ever repeated.

        :param attempt: how many attempts have been made, from 1.
        :param waited: seconds waited before them.
        :param draw: the jitter, from 0 to 1; drawn where not given.
        """
        if not is_transient(error) or attempt > self.max_retries:
            return None
        asked = error.retry_after if isinstance(error, FsmApiError) else None
        if asked is None:
            base = self.rate_limited_base if isinstance(error, FsmRateLimitedError) else self.base
            bound = min(self.cap, base * 2.0 ** min(attempt - 1, 60))
            delay = bound * (random.random() if draw is None else draw)  # noqa: S311
        else:
            delay = asked
        return delay if waited + delay <= self.budget else None


class Attempts:
    """The attempts at one request, counted: a policy's decisions as delays to wait."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._made = 0
        self._waited = 0.0

    def delay_after(self, error: FsmError) -> float:
        """Give the seconds to wait before the next attempt.

        :raises FsmError: ``error``, where there is to be none.
        """
        self._made += 1
        delay = self._policy.delay_after(error, attempt=self._made, waited=self._waited)
        if delay is None:
            raise error
        self._waited += delay
        logger.warning(
            "%s; trying again in %.1f s (retry %s of %s)", error, delay, self._made, self._policy.max_retries
        )
        return delay
