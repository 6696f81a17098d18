"""A request to the service, and the limits on its time. Nothing is sent here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""They change nothing in the service: such a request may be repeated."""


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
