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
from fsm_provider.polling.form_waits import FormWait, SharedForms
from fsm_provider.polling.poller import FailureTolerance, FormPoller, PollFailure, poll_forever

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
    log: Any,
    shared: bool = True,
) -> list[FormReference]:
    """Return the forms of a wait once they are enough.

    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not document.
    :param interval: seconds between two polls.
    :param first_after: seconds until the first poll, if no other wait polls already.
    :param failure_tolerance: seconds for which polls may fail.
    :param log: logger for the failures that are tolerated.
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
        stream = streams[key] = FormStream(wait, FormPoller(fsm_conn_id, query_params), interval, first_after)
    try:
        return await stream.result_for(wait, FailureTolerance(failure_tolerance), log)
    finally:
        if stream.is_idle and streams.get(key) is stream:
            del streams[key]


class FormStream:
    """Polls for its waits until the last one has left.

    :param first: the first wait; the others have the same filters, apart from what a reference shows.
    :param poller: reads the listings.
    :param interval: seconds between two polls.
    :param first_after: seconds until the first.
    """

    def __init__(self, first: FormWait, poller: FormPoller, interval: float, first_after: float) -> None:
        self._forms = SharedForms(
            first.wanted,
            look_back=LOOK_BACK,
            interval=interval,
            check_interval=max(CHECK_INTERVAL, 10 * interval),
        )
        self._poller = poller
        self._interval = interval
        self._first_after = first_after
        self._calls: dict[FormWait, _Call] = {}
        self._all_failed = False
        # An empty context, or what the polls log would be in the log of the first wait's task.
        self._task = asyncio.create_task(self._run(), name="fsm form stream", context=Context())

    @property
    def is_idle(self) -> bool:
        """Whether there is no wait."""
        return not self._calls

    async def result_for(self, wait: FormWait, tolerance: FailureTolerance, log: Any) -> list[FormReference]:
        """Return the forms of a wait once they are enough.

        :raises FsmError: if polls fail for longer than tolerated, or with a permanent error.
        """
        call = self._calls[wait] = _Call(tolerance, log)
        try:
            self._forms.join(wait)
            call.give(wait)
            return await call.result
        finally:
            self._forms.leave(wait)
            del self._calls[wait]
            if self.is_idle:
                self._task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._poll()
                except Exception as error:
                    logger.exception("The polls for forms of '%s' start again", self._poller.fsm_conn_id)
                    message = f"the polls for forms ended unexpectedly: {type(error).__name__}"
                    await self._fail(self._forms.waits, FsmConnectionError(message))
                self._first_after = self._interval
        finally:
            self._poller.close()
            for call in self._calls.values():
                call.result.cancel()

    async def _poll(self) -> None:
        polls = poll_forever(
            self._poller,
            next_query=lambda now: self._forms.next_query(now, datetime.now(UTC)),
            ingest=lambda _, result, now: self._forms.ingest(result, now),
            interval=self._interval,
            first_after=self._first_after,
            has_more=lambda: self._forms.has_more,
        )
        concerned: list[FormWait] = []
        async with aclosing(polls):
            async for polled in polls:
                if isinstance(polled, PollFailure):
                    if not polled.reminder:
                        concerned, self._all_failed = self._concerned_by(polled.error)
                    # A listing of one wait does not resume, so pages of it are no progress.
                    await self._fail(
                        concerned, polled.error, progressed=polled.progressed and self._all_failed
                    )
                    continue
                if self._all_failed:
                    self._all_failed = False
                    for failed in self._calls.values():
                        failed.reset()
                async for wait in _in_slices(polled):
                    if call := self._calls.get(wait):
                        call.reset()
                        if call.give(wait):
                            self._forms.leave(wait)

    def _concerned_by(self, error: FsmError) -> tuple[list[FormWait], bool]:
        """Return the waits that a failed listing concerns, and whether it concerns all.

        The listing of one wait is skipped, so that the others do not have to wait for it.
        """
        wait = self._forms.skip()
        if wait is not None:
            self._poller.abandon()
            if not isinstance(error, ANY_LISTING):
                return [wait], False
        return self._forms.waits, True

    async def _fail(self, waits: Iterable[FormWait], error: FsmError, *, progressed: bool = False) -> None:
        async for wait in _in_slices(waits):
            if (call := self._calls.get(wait)) and call.fail(error, progressed=progressed):
                self._forms.leave(wait)


class _Call:
    """What a wait is called with: its forms, or the failures of its polls.

    Its functions log in the context of the trigger that waits.
    """

    def __init__(self, tolerance: FailureTolerance, log: Any) -> None:
        self.result: asyncio.Future[list[FormReference]] = asyncio.get_running_loop().create_future()
        self._tolerance = tolerance
        self._log = log
        self._context = copy_context()

    def give(self, wait: FormWait) -> bool:
        """Return whether the wait is done, after its forms have changed."""
        forms = wait.forms()
        if forms is not None and not self.result.done():
            self.result.set_result(forms)
        return self.result.done()

    def fail(self, error: FsmError, *, progressed: bool) -> bool:
        """Return whether the wait is done, after a poll has failed."""
        was_failing = self._tolerance.is_failing
        if progressed:
            self._tolerance.reset()
        if not self._tolerance.tolerates(error, asyncio.get_running_loop().time()):
            if not self.result.done():
                self.result.set_exception(error)
        elif not was_failing:
            self._context.run(
                self._log.warning,
                "Polling for forms failed, and goes on for up to %g s: %s",
                self._tolerance.seconds,
                error,
            )
        return self.result.done()

    def reset(self) -> None:
        """Record that a poll succeeded."""
        self._tolerance.reset()


async def _in_slices(waits: Iterable[FormWait]) -> AsyncIterator[FormWait]:
    for number, wait in enumerate(waits, start=1):
        yield wait
        if number % SLICE == 0:
            await asyncio.sleep(0)
