"""Polling on the triggerer's event loop, for sensors and watchers alike.

The client runs in a thread and never sleeps there between two attempts: the event loop sleeps, and then
requests the page that failed. No error ends the polling: every wait is notified of it, and decides.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmRateLimitedError,
    FsmServerError,
    FsmUnauthorisedError,
)
from fsm_provider.api.log_once import warn_once
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.threads import run_in_thread

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.settings import Settings
    from fsm_provider.polling.form_poll import FormPoll
    from fsm_provider.polling.old_polls import PollQuery, PollResult

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

MAX_PAUSE = 3600.0
"""Seconds; the longest Retry-After that is honoured."""
MAX_PAGE_GAP = 600.0
"""Seconds without a page after which a listing is read from its start, unless the service sent Retry-After.

The longer a listing takes, the more its records may have shifted.
"""
REMINDER_INTERVAL = 30.0
"""Seconds, at most, between two reminders of a poll failure to the waits."""
LOG_INTERVAL = 600.0
"""Seconds between two log lines about failures of the same type."""


@dataclass(frozen=True, slots=True)
class PollFailure:
    """A poll failed, or the pause after the failure goes on.

    :param error: its error.
    :param reminder: it was yielded before; repeated so that a tolerance can run out during a long pause.
    :param progressed: this poll got further than ever before: the service is slow, not down.
    """

    error: FsmError
    reminder: bool = False
    progressed: bool = False


class FormPoller:
    """Reads polls in a thread, through one client of the service behind a connection.

    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not document.
    :param is_check: it reads for one wait of many, and so has no thread that shared polls need.
    """

    def __init__(
        self, fsm_conn_id: str, query_params: Mapping[str, Any] | None = None, *, is_check: bool = False
    ) -> None:
        self.fsm_conn_id = fsm_conn_id
        self._threads = f"{fsm_conn_id} (checks)" if is_check else fsm_conn_id
        self._query_params = query_params
        self._client: FsmClient | None = None
        self._settings_before: Settings | None = None
        self._poll: FormPoll | None = None
        self._is_resumed = False
        self._last_page_at = 0.0

    @property
    def pages_read(self) -> int:
        """Number of pages read by a failed poll that can resume, 0 if there is none."""
        return 0 if self._poll is None else self._poll.pages_read

    async def read(self, query: PollQuery) -> PollResult:
        """Poll to the end or for the query's ``max_pages``, or resume the failed poll of its filters.

        After an error that a repeat may not meet, the next call resumes at the page that failed. Any other
        error of a resumed poll may be due to the pause, for example an expired cursor: the poll restarts at
        once. Unless the service is down or asks to wait, the next call reads the connection again. A refused
        token is read again at once, and the poll resumes with the new one.

        :raises FsmError: if the poll did not reach its end.
        """
        from fsm_provider.api.retry import is_repeatable

        clock = asyncio.get_running_loop().time
        refused: FsmUnauthorisedError | None = None
        while True:
            try:
                return await self._read(query, refused)
            except FsmUnauthorisedError as error:
                self.close()
                if refused is not None:
                    self._poll = None
                    raise
                refused = error
            except FsmError as error:
                if not isinstance(error, FsmRateLimitedError | FsmServerError):
                    self.close()  # the connection may have been corrected
                if is_repeatable(error):
                    has_retry_after = isinstance(error, FsmApiError) and error.retry_after is not None
                    if not has_retry_after and clock() - self._last_page_at > MAX_PAGE_GAP:
                        self._poll = None
                    self._is_resumed = True
                    raise
                restarts, self._poll = self._is_resumed and self.pages_read > 0, None
                if not restarts:
                    raise
                logger.info("The poll for forms of '%s' restarts: %s", self.fsm_conn_id, error)
            except BaseException:
                self._poll = None
                raise

    def abandon(self) -> None:
        """Do not resume the failed poll, if there is one."""
        self._poll = None

    def close(self) -> None:
        """Close the connections; the next request reads the Airflow connection again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _read(self, query: PollQuery, refused: FsmUnauthorisedError | None) -> PollResult:
        from fsm_provider.polling.form_poll import FormPoll

        client = await self._connected(refused)
        if self._poll is None or not self.pages_read or self._poll.wanted != query.wanted:
            self._poll = FormPoll(query.wanted, self._query_params, max_pages=query.max_pages)
            self._is_resumed = False
        result = None
        while result is None:
            result = await run_in_thread(self._threads, self._poll.read_page, client)
            self._last_page_at = asyncio.get_running_loop().time()
        self._poll = None
        if result.others:
            warn_once(
                logger,
                ("filter", client.settings.base_url, *query.wanted.as_dict()),
                "%s forms of the listing did not match the filter (%s) and were left out: the service "
                "ignores a part of it",
                *(result.others, query.wanted),
            )
        return result

    async def _connected(self, refused: FsmUnauthorisedError | None) -> FsmClient:
        """Return the client; drop the poll if the connection leads to another service.

        :raises FsmError: ``refused``, if the token is still the refused one.
        """
        if self._client is None:
            from fsm_provider.api.client import FsmClient
            from fsm_provider.api.retry import RetryPolicy

            known = self._settings_before
            settings = await self._settings(otherwise=None if refused else known)
            if known is not None and refused is not None and known.token == settings.token:
                raise refused
            if known is None or settings.model_copy(update={"token": known.token}) != known:
                self._poll = None
            self._is_resumed = True
            self._settings_before = settings
            metrics = AirflowMetrics(connection=self.fsm_conn_id)
            self._client = FsmClient(settings, retry_policy=RetryPolicy(max_retries=0), metrics=metrics)
        return self._client

    async def _settings(self, otherwise: Settings | None) -> Settings:
        """Return the settings of the Airflow connection, or ``otherwise`` if it cannot be read now."""
        from fsm_provider.hooks.fsm import FsmHook, settings_from

        try:
            connection = await get_async_connection(self.fsm_conn_id, hook=FsmHook)
        except Exception as error:
            if otherwise is not None:
                logger.warning(
                    "The connection '%s' cannot be read (%s); polling goes on with what it was before",
                    *(self.fsm_conn_id, type(error).__name__),
                )
                return otherwise
            if isinstance(error, AirflowNotFoundException):
                raise connection_not_found(self.fsm_conn_id) from None
            logger.exception("Could not read the connection '%s'", self.fsm_conn_id)
            raise FsmConnectionError(
                f"connection '{self.fsm_conn_id}': could not be read ({type(error).__name__})"
            ) from error
        return settings_from(connection)


async def poll_forever(
    poller: FormPoller,
    *,
    next_query: Callable[[float], PollQuery | None],
    ingest: Callable[[PollQuery, PollResult, float], ResultT],
    interval: float,
    first_after: float,
    has_more: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncGenerator[ResultT | PollFailure, None]:
    """Poll forever: yield what ``ingest`` returns for each poll, and a :class:`PollFailure` for each failure.

    :param next_query: returns the next query, given the time of the loop's clock in seconds; None ends it.
    :param ingest: handles a poll that was read to its end, given the same time.
    :param interval: seconds from the end of a poll to the next.
    :param first_after: seconds until the first poll.
    :param has_more: whether the next query belongs to the same poll, so that no interval precedes it.
    :param sleep: waits between two polls; an exception from it ends the polling.
    """
    clock = asyncio.get_running_loop().time
    failure_log = _FailureLog(poller.fsm_conn_id)
    failures, furthest, pause = 0, 0, first_after
    started, query = 0.0, None
    while True:
        await sleep(pause)
        if query is None or not poller.pages_read:
            started = clock()
            if (query := next_query(started)) is None:
                return
        try:
            result = ingest(query, await poller.read(query), started)
        except FsmError as error:
            failure = error
        except Exception as error:  # it would end every wait on the stream
            logger.exception("The poll for forms of '%s' ended unexpectedly", poller.fsm_conn_id)
            failure = FsmConnectionError(f"the poll for forms ended unexpectedly: {type(error).__name__}")
        else:
            failures, furthest, query = 0, 0, None
            failure_log.end()
            yield result
            pause = 0.0 if has_more() else interval
            continue
        progressed = poller.pages_read > furthest
        furthest = max(furthest, poller.pages_read)
        failures = 1 if progressed else failures + 1
        pause = _pause_after(failure, failures, interval)
        failure_log.add(failure, clock(), pause)
        yield PollFailure(failure, progressed=progressed)
        while not failure.permanent and pause > (step := min(interval, REMINDER_INTERVAL)):
            await sleep(step)
            pause -= step
            yield PollFailure(failure, reminder=True)


def connection_not_found(fsm_conn_id: str) -> FsmConnectionError:
    """Return the error for a connection that is undefined, or whose secrets backend is unreachable."""
    return FsmConnectionError(
        f"connection '{fsm_conn_id}': is not defined, or what it is stored in cannot be reached"
    )


def _pause_after(error: FsmError, failures: int, interval: float) -> float:
    """Return the seconds until the next attempt, randomised so that streams do not retry together."""
    from fsm_provider.api.retry import RetryPolicy

    endless = RetryPolicy(max_retries=sys.maxsize, budget=math.inf)
    pause = endless.delay_after(error, attempt=failures, waited=0.0)
    if pause is None:
        return interval
    if isinstance(error, FsmApiError) and error.retry_after is not None:
        pause = min(pause, MAX_PAUSE) * random.uniform(1.0, 1.1)  # noqa: S311
    return pause


class _FailureLog:
    """Logs poll failures at a bounded rate."""

    def __init__(self, fsm_conn_id: str) -> None:
        self._fsm_conn_id = fsm_conn_id
        self._last: tuple[type[FsmError], float] | None = None
        self._failures = 0

    def add(self, error: FsmError, now: float, pause: float) -> None:
        self._failures += 1
        if self._last is None or self._last[0] is not type(error) or now - self._last[1] >= LOG_INTERVAL:
            self._last = (type(error), now)
            logger.warning(
                "Polling for forms of '%s' failed (%s in a row); the next attempt is in %.1f s: %s",
                self._fsm_conn_id,
                self._failures,
                pause,
                error,
            )

    def end(self) -> None:
        if self._failures:
            logger.info(
                "Polling for forms of '%s' works again after %s failures", self._fsm_conn_id, self._failures
            )
        self._last, self._failures = None, 0
