"""Limit the log of failures that outsiders can cause at will."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class LogLimit:
    """Logs one message of each kind per minute; the next one says how many were suppressed.

    :param clock: returns seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def log(self, level: int, kind: str, details: Callable[[], str] = str) -> None:
        """Log a kind of failure.

        :param kind: one of a few, without data of the request.
        :param details: returns what is logged after it.
        """
        now = self._clock()
        since, suppressed = self._kinds.get(kind, (now - 60, 0))
        if now - since < 60:
            self._kinds[kind] = since, suppressed + 1
            return
        self._kinds[kind] = now, 0
        more = f" ({suppressed} more since the last such line)" if suppressed else ""
        self._logger.log(level, "%s%s%s", kind, more, details())
