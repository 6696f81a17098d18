"""The call that each wait of a stream makes: what it is given, what it tolerates, and what its log says."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from fsm_provider.api.errors import FsmError
from fsm_provider.api.form_filter import FormReference
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.poller import FormPoller
from fsm_provider.polling.wait_status import WaitStatus


class FailureTolerance:
    """How long one wait tolerates poll failures.

    :param tolerance: seconds since the first of the failures in a row.
    """

    __slots__ = ("_failing_since", "seconds")

    def __init__(self, tolerance: float) -> None:
        self.seconds = tolerance
        self._failing_since: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last poll failed."""
        return self._failing_since is not None

    def reset(self) -> None:
        """Record that a poll succeeded."""
        self._failing_since = None

    def tolerates(self, error: FsmError, now: float) -> bool:
        """Record a failed poll, and return whether the wait goes on.

        :param now: seconds of a clock that never goes back.
        """
        if error.permanent:
            return False
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since < self.seconds


class WaitCall:
    """What a wait is called with: its forms, or the failures of its polls.

    Its functions log in the context of the trigger that waits. For the parameters see
    :func:`fsm_provider.polling.streams.wait_for_forms`.
    """

    __slots__ = (
        *("_context", "_has_shown_others", "_log", "_log_interval", "_timer"),
        *("poller", "result", "status", "tolerance"),
    )

    def __init__(
        self, failure_tolerance: float, status: WaitStatus, log: Any, log_interval: float | None
    ) -> None:
        self.result: asyncio.Future[list[FormReference]] = asyncio.get_running_loop().create_future()
        self.status = status
        self.poller: FormPoller | None = None
        self.tolerance = FailureTolerance(failure_tolerance)
        self._log = log
        self._log_interval = log_interval
        self._context = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._has_shown_others = False
        self._schedule_progress()

    def close(self) -> None:
        """Close the connections, and log no more."""
        if self.poller is not None:
            self.poller.close()
        if self._timer is not None:
            self._timer.cancel()

    def give(self, wait: FormWait) -> bool:
        """Return whether the wait is done, after its forms have changed."""
        forms = wait.forms()
        if forms is None and wait.others and not self._has_shown_others:
            self._has_shown_others = True
            self._context.run(self._log.info, "%s", self.status.other_forms())
        if forms is not None and not self.result.done():
            self.result.set_result(forms)
        return self.result.done()

    def fail(self, error: FsmError, tolerance: FailureTolerance, *, progressed: bool) -> bool:
        """Return whether the wait is done, after a poll has failed."""
        was_failing = tolerance.is_failing
        self.status.fail(error)
        if progressed:
            tolerance.reset()
        if not tolerance.tolerates(error, asyncio.get_running_loop().time()):
            if not self.result.done():
                self.result.set_exception(error)
        elif not was_failing:
            self._context.run(
                self._log.warning,
                "Polling failed, and goes on for up to %g s: %s",
                tolerance.seconds,
                error,
            )
        return self.result.done()

    def _schedule_progress(self) -> None:
        if self._log_interval is not None:
            self._timer = asyncio.get_running_loop().call_later(self._log_interval, self._show_progress)

    def _show_progress(self) -> None:
        self._log.info("%s", self.status.progress())
        self._schedule_progress()
