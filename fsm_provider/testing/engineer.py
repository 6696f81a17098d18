"""A simulated engineer, who completes forms some time after a job was created."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Engineer:
    """Which forms are completed against every new job, and when.

    :param after: seconds from the creation of a job to its first form.
    :param form_names: the forms completed against each job, in this order.
    :param every: seconds from one form of a job to its next.
    """

    after: float = 3.0
    form_names: tuple[str, ...] = ("Gas Safety Record",)
    every: float = 0.0


class EngineerThread:
    """Calls ``complete_form(job_id, form_name)`` when a form is due, between start and stop."""

    def __init__(self, engineer: Engineer, complete_form: Callable[[int, str], object]) -> None:
        self._engineer = engineer
        self._complete_form = complete_form
        self._due: list[tuple[float, int, int, str]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def job_created(self, job_id: int) -> None:
        """Schedule the forms of a job."""
        first = time.monotonic() + self._engineer.after
        with self._changed:
            for index, form_name in enumerate(self._engineer.form_names):
                due = first + index * self._engineer.every
                heapq.heappush(self._due, (due, job_id, index, form_name))
            self._changed.notify()

    def start(self) -> None:
        """Start the thread."""
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="fsm-engineer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drop scheduled forms and wait for the thread to end."""
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (form := self._next_form()) is not None:
            self._complete_form(*form)

    def _next_form(self) -> tuple[int, str] | None:
        with self._changed:
            while not self._stopped:
                if not self._due:
                    self._changed.wait()
                elif (remaining := self._due[0][0] - time.monotonic()) > 0:
                    self._changed.wait(remaining)
                else:
                    _, job_id, _, form_name = heapq.heappop(self._due)
                    return job_id, form_name
        return None
