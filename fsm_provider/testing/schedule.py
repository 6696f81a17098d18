"""Calls functions when they are due, in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Schedule:
    """Calls functions between start and stop.

    :param name: of the threads, which begin with the first call.
    """

    def __init__(self, name: str, *, threads: int) -> None:
        self._names = [f"{name}-{number}" for number in range(threads)]
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._running = False
        self._threads: list[threading.Thread] = []

    def call(self, due: float, function: Callable[[], object]) -> None:
        """Call a function at a time of the monotonic clock; of those due together, the first given
        first.
        """
        with self._changed:
            heappush(self._calls, (due, next(self._numbers), function))
            self._start_threads()
            self._changed.notify()

    def start(self) -> None:
        """Call what is due from now on."""
        with self._changed:
            self._running = True
            self._start_threads()

    def stop(self) -> None:
        """Drop what is not due yet, and wait for calls under way."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        self._calls.clear()

    def _start_threads(self) -> None:
        if self._running and self._calls and not self._threads:
            self._threads = [
                threading.Thread(target=self._work, name=name, daemon=True) for name in self._names
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        while (function := self._next()) is not None:
            function()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while self._running:
                if not self._calls:
                    self._changed.wait()
                elif (remaining := self._calls[0][0] - time.monotonic()) > 0:
                    self._changed.wait(remaining)
                else:
                    return heappop(self._calls)[2]
        return None
