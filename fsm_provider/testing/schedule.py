"""Calls functions when they are due, in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Schedule:
    """Calls functions between start and stop.

    :meth:`call` may be used before :meth:`start` and from any thread. The threads of the schedule
    begin once it has started and has a first call; each waits until a call is due and makes it.
    :meth:`stop` ends them and drops the other calls; it may be started again.

    :param name: of the threads.
    """

    def __init__(self, name: str, *, threads: int) -> None:
        self._names = [f"{name}-{number}" for number in range(threads)]
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._running = False
        self._threads: list[threading.Thread] = []

    def call(self, due: float, function: Callable[[], object]) -> None:
        """Call a function at a time of the monotonic clock.

        Those due at the same time are called in the order in which they were scheduled.
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
            threads = self._threads
            self._threads = []
        for thread in threads:
            thread.join()
        self._calls.clear()

    def _start_threads(self) -> None:
        if self._threads or not (self._running and self._calls):
            return
        for name in self._names:
            thread = threading.Thread(target=self._make_calls, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_calls(self) -> None:
        while True:
            function = self._await_due()
            if function is None:
                return
            function()

    def _await_due(self) -> Callable[[], object] | None:
        """Wait for the next call that is due; return None once the schedule has stopped."""
        with self._changed:
            while self._running:
                if not self._calls:
                    self._changed.wait()
                    continue
                due, _, function = self._calls[0]
                seconds = due - time.monotonic()
                if seconds <= 0:
                    heappop(self._calls)
                    return function
                self._changed.wait(seconds)
        return None
