"""Limit the total time of requests: a socket's own timeout applies to each read of a few bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock, Timer
from time import monotonic

running_limit: ContextVar[TimeLimit | None] = ContextVar("fsm_time_limit", default=None)
"""The limit of the block that runs, if it has one."""


class TimeLimit:
    """A limit on the total time of several blocks; when it is reached, the watched connection is shut down.

    :param seconds: more than 0.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reached: bool = False
        self._left = seconds
        self._watched: socket.socket | None = None
        self._lock = Lock()

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
