"""Limit the log of failures that outsiders can cause at will."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class LogLimit:
    """Counts failures by kind and minute; the minute of a kind begins with its first failure.

    :param clock: returns seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def log(self, level: int, kind: str, details: Callable[[], str] = str) -> None:
        """Log the first failure of a minute; it says how many there were after the one before.

        :param kind: one of a few, without data of the request.
        :param details: returns what is logged after it.
        """
        number, earlier = self._count(kind)
        if number == 1:
            more = f" ({earlier - 1} more since the last such line)" if earlier > 1 else ""
            self._logger.log(level, "%s%s%s", kind, more, details())

    def exceeds(self, limit: int, kind: str) -> bool:
        """Count a failure that is logged elsewhere; return whether there were more in this minute.

        The first of a minute logs how many there were in the one before.

        :param kind: as for :meth:`log`.
        """
        number, earlier = self._count(kind)
        if number == 1 and earlier:
            self._logger.warning("%s: %d within a minute", kind, earlier)
        return number > limit

    def _count(self, kind: str) -> tuple[int, int]:
        """Count a failure; return its number in this minute, and for the first, how many the last one had."""
        now = self._clock()
        since, earlier = self._kinds.get(kind, (now, 0))
        number = 1 if now - since >= 60 else earlier + 1
        self._kinds[kind] = (now if number == 1 else since), number
        return number, earlier
