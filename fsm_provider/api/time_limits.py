"""Limit when a request begins and how long it takes: a socket's timeout applies to each read alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock, Timer
from time import monotonic

running_limit: ContextVar[TimeLimit | None] = ContextVar("fsm_time_limit", default=None)
"""The limit of the block that runs, if it has one."""


def clocks() -> tuple[float, float]:
    """Return two clocks in seconds, of which at least one goes on while the process is suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time(), time.clock_gettime(boottime)


class TimeLimit:
    """A limit on the total time of several blocks; when it is reached, the watched connection is shut down.

    :param seconds: more than 0.
    :param begin_within: seconds after ``since`` in which a request may begin; None: at any time.
    :param since: what :func:`clocks` returned.
    """

    def __init__(
        self,
        seconds: float,
        *,
        begin_within: float | None = None,
        since: tuple[float, float] | None = None,
    ) -> None:
        self.seconds = seconds
        self.reached: bool = False
        self._begin_within = begin_within
        self._since = since or clocks()
        self._left = seconds
        self._watched: socket.socket | None = None
        self._lock = Lock()

    def is_too_late(self) -> bool:
        """Return whether no request may begin any more, by the clock that has gone further."""
        if self._begin_within is None:
            return False
        return max(now - then for now, then in zip(clocks(), self._since, strict=True)) > self._begin_within

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        started, timer = monotonic(), Timer(self._left, self._reach)
        timer.daemon = True
        timer.start()
        token = running_limit.set(self)
        try:
            yield
        finally:
            running_limit.reset(token)
            timer.cancel()
            self.watch(None)
            self._left = max(0.0, self._left - (monotonic() - started))

    def watch(self, connection: socket.socket | None) -> None:
        """Shut this connection down when the limit is reached; None stops watching."""
        with self._lock:
            self._watched = connection
            if self.reached:
                self._shut_down()

    def _reach(self) -> None:
        with self._lock:
            self.reached = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._watched:
            with suppress(OSError):  # already closed
                self._watched.shutdown(socket.SHUT_RDWR)
