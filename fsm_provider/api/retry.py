"""Whether a request that failed is sent again, and after which pause. Nothing is sent here."""

import logging
import random
from dataclasses import dataclass

from fsm_provider.api import errors

logger: logging.Logger = logging.getLogger(__name__)

REPEATABLE = (
    errors.FsmConnectionError
    | errors.FsmKeyInUseError
    | errors.FsmRateLimitedError
    | errors.FsmRepeatableWriteError
    | errors.FsmResponseError
    | errors.FsmServerError
)
"""Errors after which the same request may succeed."""

BASE = 0.5
"""Seconds up to which the first delay is drawn; it doubles each time.

It is drawn because clients should not retry together.
"""
RATE_LIMITED_BASE = 10.0
"""``BASE`` after a 429 without Retry-After: rate limits count by the minute."""
CAP = 30.0
"""Seconds up to which any delay is drawn; Retry-After may ask for more."""
BUDGET = 120.0
"""Seconds for all delays of one request."""


@dataclass(eq=False)
class RetryState:
    """The retries of one request.

    Who sends the request makes one for it, and asks for a delay after each error.
    """

    max_retries: int
    retries: int = 0
    waited: float = 0.0

    def delay_after(self, error: errors.FsmError) -> float:
        """Return the seconds to wait before the next attempt; raise ``error`` if there is none."""
        if not isinstance(error, REPEATABLE) or self.retries >= self.max_retries:
            raise error
        delay = self._draw_delay(error)
        if self.waited + delay > BUDGET:
            raise error
        self.retries += 1
        self.waited += delay
        logger.warning(
            "%s; trying again in %.1f s (retry %s of %s)",
            error,
            delay,
            self.retries,
            self.max_retries,
        )
        return delay

    def _draw_delay(self, error: errors.FsmError) -> float:
        retry_after = error.retry_after if isinstance(error, errors.FsmApiError) else None
        base = BASE
        if retry_after is None and isinstance(error, errors.FsmRateLimitedError):
            base = RATE_LIMITED_BASE
        doublings = min(self.retries, 60)  # more would not fit into a float
        longest = min(CAP, base * 2.0**doublings)
        drawn = longest * random.random()  # noqa: S311
        return max(retry_after or 0.0, drawn)
