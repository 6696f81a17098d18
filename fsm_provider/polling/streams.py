"""Polls that all deferred sensors of a triggerer share, by connection, interval and filters.

Airflow 3.3 has shared streams of its own, which wake every trigger at each poll. Here a trigger is woken only
when it is done, and it works on every version.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from sys import intern
from typing import Any
from weakref import WeakKeyDictionary

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmUnauthorisedError,
)
from fsm_provider.api.form_filter import FormReference
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.form_waits import FormWait
from fsm_provider.polling.old_polls import PollQuery
from fsm_provider.polling.poller import FormPoller, PollFailure, poll_forever
from fsm_provider.polling.shared_forms import SharedForms
from fsm_provider.polling.unexpected_errors import keep_polling
from fsm_provider.polling.wait_calls import FailureTolerance, WaitCall
from fsm_provider.polling.wait_status import WaitStatus

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
    key = _key_for(wait, fsm_conn_id, query_params, interval, shared)
    stream = streams.get(key)
    if stream is None:
        stream = streams[key] = FormStream(wait, fsm_conn_id, query_params, interval, first_after)
    try:
        return await stream.result_for(wait, WaitCall(failure_tolerance, status, log, log_interval))
    finally:
        if not stream.size and streams.get(key) is stream:
            del streams[key]
            _measure(fsm_conn_id)


def _key_for(
    wait: FormWait, fsm_conn_id: str, query_params: Mapping[str, Any] | None, interval: float, shared: bool
) -> str:
    """Return the same text for all waits that share a stream."""
    common = wait.wanted.for_shared_stream().as_dict()
    bound = "updated" if wait.wanted.created_since is None else "created"
    parts = [fsm_conn_id, float(interval), bound, common, query_params, None if shared else id(wait)]
    return intern(json.dumps(parts, sort_keys=True, default=str))


def _measure(fsm_conn_id: str) -> None:
    """Set the gauges of a connection's waits: the worst of its streams."""
    loop = asyncio.get_running_loop()
    streams = [one for one in _streams[loop].values() if one.fsm_conn_id == fsm_conn_id]
    metrics = AirflowMetrics(connection=fsm_conn_id)
    metrics.gauge("waits", sum(stream.size for stream in streams))
    metrics.gauge("waits.failures", max((stream.failures for stream in streams), default=0))
    ages = [loop.time() - stream.polled_at for stream in streams]
    metrics.gauge("waits.poll_age", max(ages, default=0.0))
    metrics.gauge("waits.poll_interval", max((stream.interval for stream in streams), default=0.0))


class FormStream:
    """Polls for its waits until the last one has left.

    What a wait lists by itself has a task of its own: its failures and its slowness are its own.

    Its waits have the same filters, apart from what a reference shows. For the parameters see
    :func:`wait_for_forms`.

    :ivar interval: seconds between two polls.
    :ivar failures: failed polls in a row.
    :ivar polled_at: when the last poll succeeded, or the stream began, by the loop's clock.
    """

    def __init__(
        self,
        first: FormWait,
        fsm_conn_id: str,
        query_params: Mapping[str, Any] | None,
        interval: float,
        first_after: float,
    ) -> None:
        self._forms = SharedForms(first.wanted, interval)
        self.fsm_conn_id = fsm_conn_id
        self._query_params = query_params
        self.interval = interval
        self.failures, self.polled_at = 0, asyncio.get_running_loop().time()
        self._metrics = AirflowMetrics(connection=fsm_conn_id)
        self._calls: dict[FormWait, WaitCall] = {}
        self._checks: dict[FormWait, asyncio.Task[None]] = {}
        # Empty contexts, or what the polls log would be in the log of the first wait's task.
        self._task = asyncio.create_task(self._run(first_after), name="fsm form stream", context=Context())

    @property
    def size(self) -> int:
        """The number of waits."""
        return len(self._calls)

    async def result_for(self, wait: FormWait, call: WaitCall) -> list[FormReference]:
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
            if not self.size:
                self._task.cancel()

    async def _run(self, first_after: float) -> None:
        poller = FormPoller(self.fsm_conn_id, self._query_params)
        try:
            await keep_polling(
                partial(self._poll, poller),
                fsm_conn_id=self.fsm_conn_id,
                interval=self.interval,
                first_after=first_after,
                fail=self._fail_all,
            )
        finally:
            poller.close()
            for call in self._calls.values():
                call.result.cancel()

    async def _poll(self, poller: FormPoller, first_after: float) -> None:
        polls = poll_forever(
            poller,
            next_query=lambda now: self._forms.next_query(),
            ingest=lambda _, result, now: self._forms.ingest(result, now),
            interval=self.interval,
            first_after=first_after,
            has_more=lambda: self._forms.has_more,
            sleep=self._until_due,
        )
        is_skipped = False
        async with aclosing(polls):
            async for polled in polls:
                if isinstance(polled, PollFailure):
                    self._count_failure(polled)
                    if not polled.reminder:
                        is_skipped = self._skip(polled.error, poller)
                    if not is_skipped:
                        await self._fail_all(polled.error, progressed=polled.progressed)
                    continue
                self._count_success()
                now = datetime.now(UTC)
                for call in self._calls.values():
                    call.tolerance.reset()
                    call.status.succeed(now)
                async for wait in _in_slices(polled):
                    self._give(wait)

    def _count_success(self) -> None:
        self.failures, self.polled_at = 0, asyncio.get_running_loop().time()
        self._metrics.incr("waits.polls", result="complete")
        _measure(self.fsm_conn_id)

    def _count_failure(self, failure: PollFailure) -> None:
        if not failure.reminder:
            self.failures += 1
            self._metrics.incr("waits.polls", result="failed")
        _measure(self.fsm_conn_id)

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
                await asyncio.sleep(self.interval)

    async def _check(self, wait: FormWait) -> None:
        """List all forms of one wait, until that has succeeded or its tolerance is used up."""
        call = self._calls[wait]
        tolerance = FailureTolerance(call.tolerance.seconds)
        if call.poller is None:
            call.poller = FormPoller(self.fsm_conn_id, self._query_params, is_check=True)
        polls = poll_forever(
            call.poller,
            next_query=lambda now: PollQuery(wanted=wait.wanted),
            ingest=lambda _, result, now: self._forms.checked(wait, result.references, now),
            interval=self.interval,
            first_after=0.0,
        )
        try:
            async with aclosing(polls):
                async for failure in polls:
                    if failure is None:
                        self._count_success()
                        call.status.succeed(datetime.now(UTC))
                        self._give(wait)
                        return
                    self._count_failure(failure)
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


async def _in_slices(waits: Iterable[FormWait]) -> AsyncIterator[FormWait]:
    for number, wait in enumerate(waits, start=1):
        yield wait
        if number % SLICE == 0:
            await asyncio.sleep(0)
