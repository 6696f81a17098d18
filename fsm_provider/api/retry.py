"""Whether a request that failed is sent again, and after which pause. Nothing is sent here."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from fsm_provider.api import errors

logger: logging.Logger = logging.getLogger(__name__)

REPEATABLE = (
    errors.FsmConnectionError
    | errors.FsmRateLimitedError
    | errors.FsmRepeatableWriteError
    | errors.FsmResponseError
    | errors.FsmServerError
)


BASE = 0.5
"""Seconds up to which the first delay is drawn: clients should not retry together. It doubles each
time.
"""
RATE_LIMITED_BASE = 10.0  # after a 429 without Retry-After: rate limits count by the minute
CAP = 30.0  # of this backoff; Retry-After may ask for more
BUDGET = 120.0  # for all delays of one request


@dataclass(eq=False)
class RetryState:
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
