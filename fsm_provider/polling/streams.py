"""Polls that all deferred sensors of a triggerer share, by connection, interval and filters.

Airflow 3.3 has shared streams of its own, which wake every trigger at each poll. Here a trigger is woken only
when it is done, and it works on every version.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
)
from fsm_provider.api.form_filter import FormReference
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.poller import FailureTolerance, FormPoller, PollFailure, poll_forever
from fsm_provider.polling.polls import PollQuery
from fsm_provider.polling.shared_forms import SharedForms
from fsm_provider.polling.wait_status import WaitStatus

logger: logging.Logger = logging.getLogger(__name__)

LOOK_BACK = timedelta(hours=1)
CHECK_INTERVAL = 900.0
"""Seconds, at least, between two checks of a wait against all forms since its bound."""
ANY_LISTING = (FsmConnectionError, FsmRateLimitedError, FsmUnauthorisedError)
"""Errors that are not about one listing, but about all of a connection."""
SLICE = 200
"""Waits that are called before the event loop may do other work."""

_streams: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, FormStream]] = WeakKeyDictionary()


async def wait_for_forms(
    wait: FormWait,
    *,
    fsm_conn_id: str,
    query_params: Mapping[str, Any] | None,
    interval: float,
    first_after: float,
    failure_tolerance: float,
    status: WaitStatus,
    log: Any,
    log_interval: float | None = None,
    shared: bool = True,
) -> list[FormReference]:
    """Return the forms of a wait once they are enough.

    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not document.
    :param interval: seconds between two polls.
    :param first_after: seconds until the first poll, if no other wait polls already.
    :param failure_tolerance: seconds for which polls may fail.
    :param status: is kept up to date.
    :param log: logger of the wait.
    :param log_interval: seconds between two lines about the status; None: none.
    :param shared: share the polls of other waits; if not, nothing that they know is used.
    :raises FsmError: if polls fail for longer, or with a permanent error.
    """
    streams = _streams.setdefault(asyncio.get_running_loop(), {})
    common = wait.wanted.for_shared_stream().as_dict()
    bound = "updated" if wait.wanted.created_since is None else "created"
    parts = [fsm_conn_id, float(interval), bound, common, query_params, None if shared else id(wait)]
    key = json.dumps(parts, sort_keys=True, default=str)
    stream = streams.get(key)
    if stream is None:
        stream = streams[key] = FormStream(wait, fsm_conn_id, query_params, interval, first_after)
    try:
        return await stream.result_for(wait, _Call(failure_tolerance, status, log, log_interval))
    finally:
        if stream.is_idle and streams.get(key) is stream:
            del streams[key]


class FormStream:
    """Polls for its waits until the last one has left.

    What a wait lists by itself has a task of its own: its failures and its slowness are its own.

    :param first: the first wait; the others have the same filters, apart from what a reference shows.
    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not document.
    :param interval: seconds between two polls.
    :param first_after: seconds until the first.
    """

    def __init__(
        self,
        first: FormWait,
        fsm_conn_id: str,
        query_params: Mapping[str, Any] | None,
        interval: float,
        first_after: float,
    ) -> None:
        self._forms = SharedForms(
            first.wanted,
            look_back=LOOK_BACK,
            interval=interval,
            check_interval=max(CHECK_INTERVAL, 10 * interval),
        )
        self._fsm_conn_id = fsm_conn_id
        self._query_params = query_params
        self._interval = interval
        self._first_after = first_after
        self._calls: dict[FormWait, _Call] = {}
        self._checks: dict[FormWait, asyncio.Task[None]] = {}
        # Empty contexts, or what the polls log would be in the log of the first wait's task.
        self._task = asyncio.create_task(self._run(), name="fsm form stream", context=Context())

    @property
    def is_idle(self) -> bool:
        """Whether there is no wait."""
        return not self._calls

    async def result_for(self, wait: FormWait, call: _Call) -> list[FormReference]:
        """Return the forms of a wait once they are enough.

        :raises FsmError: if polls fail for longer than tolerated, or with a permanent error.
        """
        self._calls[wait] = call
        try:
            self._forms.join(wait)
            call.give(wait)
            return await call.result
        finally:
            self._forms.leave(wait)
            del self._calls[wait]
            if check := self._checks.pop(wait, None):
                check.cancel()
            call.close()
            if self.is_idle:
                self._task.cancel()

    async def _run(self) -> None:
        poller = FormPoller(self._fsm_conn_id, self._query_params)
        try:
            while True:
                try:
                    await self._poll(poller)
                except Exception as error:
                    logger.exception("The polls for forms of '%s' start again", self._fsm_conn_id)
                    message = f"the polls for forms ended unexpectedly: {type(error).__name__}"
                    await self._fail_all(FsmConnectionError(message))
                self._first_after = self._interval
        finally:
            poller.close()
            for call in self._calls.values():
                call.result.cancel()

    async def _poll(self, poller: FormPoller) -> None:
        polls = poll_forever(
            poller,
            next_query=lambda now: self._forms.next_query(),
            ingest=lambda _, result, now: self._forms.ingest(result, now),
            interval=self._interval,
            first_after=self._first_after,
            has_more=lambda: self._forms.has_more,
            sleep=self._until_due,
        )
        is_skipped = False
        async with aclosing(polls):
            async for polled in polls:
                if isinstance(polled, PollFailure):
                    if not polled.reminder:
                        is_skipped = self._skip(polled.error, poller)
                    if not is_skipped:
                        await self._fail_all(polled.error, progressed=polled.progressed)
                    continue
                now = datetime.now(UTC)
                for call in self._calls.values():
                    call.tolerance.reset()
                    call.status.succeed(now)
                async for wait in _in_slices(polled):
                    self._give(wait)

    def _skip(self, error: FsmError, poller: FormPoller) -> bool:
        """Return whether a failed listing is skipped, because it may be the only one that fails."""
        if isinstance(error, ANY_LISTING) or not self._forms.lists_since_bound:
            return False
        poller.abandon()
        return self._forms.skip(asyncio.get_running_loop().time(), permanent=error.permanent)

    async def _until_due(self, seconds: float) -> None:
        """Wait for the next listing for all; begin a poll if there is none left of the last."""
        await asyncio.sleep(seconds)
        while not self._forms.has_listing:
            for wait in self._forms.plan(asyncio.get_running_loop().time(), datetime.now(UTC)):
                self._checks[wait] = asyncio.create_task(self._check(wait), context=Context())
            if not self._forms.has_listing:
                await asyncio.sleep(self._interval)

    async def _check(self, wait: FormWait) -> None:
        """List all forms of one wait, until that has succeeded or its tolerance is used up."""
        call = self._calls[wait]
        tolerance = FailureTolerance(call.tolerance.seconds)
        if call.poller is None:
            call.poller = FormPoller(self._fsm_conn_id, self._query_params, is_check=True)
        polls = poll_forever(
            call.poller,
            next_query=lambda now: PollQuery(filters=wait.wanted.as_dict(), full=True),
            ingest=lambda _, result, now: self._forms.checked(wait, result.references, now),
            interval=self._interval,
            first_after=0.0,
        )
        try:
            async with aclosing(polls):
                async for failure in polls:
                    if failure is None:
                        call.status.succeed(datetime.now(UTC))
                        self._give(wait)
                        return
                    if call.fail(failure.error, tolerance, progressed=failure.progressed):
                        self._forms.leave(wait)
                        return
        finally:
            self._checks.pop(wait, None)
            if not self._forms.is_alone:
                call.poller.close()

    def _give(self, wait: FormWait) -> None:
        if (call := self._calls.get(wait)) and call.give(wait):
            self._forms.leave(wait)

    async def _fail_all(self, error: FsmError, *, progressed: bool = False) -> None:
        async for wait in _in_slices(self._forms.waits):
            if (call := self._calls.get(wait)) and call.fail(error, call.tolerance, progressed=progressed):
                self._forms.leave(wait)


class _Call:
    """What a wait is called with: its forms, or the failures of its polls.

    Its functions log in the context of the trigger that waits. For the parameters see
    :func:`wait_for_forms`.
    """

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
                "Polling for forms failed, and goes on for up to %g s: %s",
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


async def _in_slices(waits: Iterable[FormWait]) -> AsyncIterator[FormWait]:
    for number, wait in enumerate(waits, start=1):
        yield wait
        if number % SLICE == 0:
            await asyncio.sleep(0)
