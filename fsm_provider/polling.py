"""Sweep after sweep on the triggerer's event loop, through outages, for sensors and watchers alike.

The client runs in a thread and never waits there for another attempt: what it would sleep through,
the event loop sleeps through. No error ends the sweeps: it is told to whoever waits, who decides.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmUnauthorisedError,
)

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.forms import FormFilters
    from fsm_provider.api.settings import Settings
    from fsm_provider.api.sweeps import Sweep, Swept

logger: logging.Logger = logging.getLogger(__name__)

NewsT = TypeVar("NewsT")

LONGEST_PAUSE = 3600.0
"""Seconds; a service that asks to wait for longer is asked again after these."""
REMIND_EVERY = 30.0
"""Seconds, at most, between two reminders of an outage to those who wait."""
COMPLAIN_EVERY = 600.0
"""Seconds between two lines of the log about an outage that stays the same."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A sweep failed, or the pause after it goes on.

    :param error: what it failed with.
    :param reminder: it was told before; told again so that patience can run out in a long pause.
    """

    error: FsmError
    reminder: bool = False


class FormPoller:
    """One client of the service behind a connection; sweeps are read through it in a thread.

    :param fsm_conn_id: the Airflow connection.
    :param query_params: query parameters that the specification does not show.
    """

    def __init__(self, fsm_conn_id: str, query_params: Mapping[str, Any] | None = None) -> None:
        self.fsm_conn_id = fsm_conn_id
        self._query_params = query_params
        self._client: FsmClient | None = None
        self._warned = False

    async def read(self, filters: FormFilters) -> Swept:
        """Read a sweep to its end.

        After an error that stays until somebody changes something, the connection is read again
        for the next sweep; after a refused token at once, and another token is tried.

        :raises FsmError: where it was not read to its end.
        """
        known = self._client
        try:
            return await self._sweep(filters)
        except FsmError as error:
            if not error.permanent:
                raise
            self.close()
            if known is None or not isinstance(error, FsmUnauthorisedError):
                raise
            settings = await self._settings()
            if settings.token == known.settings.token:
                raise
        self._client = _client_of(settings)
        return await self._sweep(filters)

    def close(self) -> None:
        """Close the connections; the next sweep reads the Airflow connection again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def _sweep(self, filters: FormFilters) -> Swept:
        from fsm_provider.api.sweeping import sweep_forms

        if self._client is None:
            self._client = _client_of(await self._settings())
        swept = await asyncio.to_thread(sweep_forms, self._client, filters, self._query_params)
        if swept.others and not self._warned:
            self._warned = True
            logger.warning(
                "%s forms of the listing did not match the filter (%s) and were left out: the service "
                "ignores a part of it; this is said once",
                swept.others,
                filters,
            )
        return swept

    async def _settings(self) -> Settings:
        from fsm_provider.hooks.fsm import FsmHook, settings_of

        try:
            connection = await get_async_connection(self.fsm_conn_id, hook=FsmHook)
        except AirflowNotFoundException:
            raise FsmInputError(f"connection '{self.fsm_conn_id}': is not defined") from None
        except Exception as error:
            logger.exception("The connection '%s' could not be read", self.fsm_conn_id)
            raise FsmConnectionError(
                f"connection '{self.fsm_conn_id}': could not be read ({type(error).__name__})"
            ) from error
        return settings_of(connection)


async def follow(
    poller: FormPoller,
    *,
    next_sweep: Callable[[float], Sweep],
    take: Callable[[Sweep, Swept, float], NewsT],
    interval: float,
    first_after: float,
) -> AsyncGenerator[NewsT | Outage, None]:
    """Yield what ``take`` makes of each sweep, and an :class:`Outage` for each that fails, for ever.

    :param next_sweep: says what to ask for, given the seconds of the loop's clock.
    :param take: takes in a sweep that was read to its end, given the same seconds.
    :param interval: seconds from the end of a sweep to the next.
    :param first_after: seconds until the first sweep.
    """
    clock = asyncio.get_running_loop().time
    complaints = _Complaints(poller.fsm_conn_id)
    failures, pause = 0, first_after
    while True:
        await asyncio.sleep(pause)
        asked = clock()
        sweep = next_sweep(asked)
        try:
            news = take(sweep, await poller.read(sweep.filters), asked)
        except FsmError as error:
            outage = error
        except Exception as error:  # it would end every wait on the stream
            logger.exception("A sweep over the forms of '%s' ended unexpectedly", poller.fsm_conn_id)
            outage = FsmConnectionError(f"a sweep over the forms ended unexpectedly: {type(error).__name__}")
        else:
            failures, pause = 0, interval
            complaints.end()
            yield news
            continue
        failures += 1
        pause = _pause_after(outage, failures, interval)
        complaints.tell(outage, clock(), pause)
        yield Outage(outage)
        while not outage.permanent and pause > (step := min(interval, REMIND_EVERY)):
            await asyncio.sleep(step)
            pause -= step
            yield Outage(outage, reminder=True)


def _client_of(settings: Settings) -> FsmClient:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.retry import RetryPolicy

    return FsmClient(settings, retry_policy=RetryPolicy(max_retries=0))


def _pause_after(error: FsmError, failures: int, interval: float) -> float:
    """Give the seconds until the next attempt: drawn, so that streams do not come back together."""
    from fsm_provider.api.retry import RetryPolicy

    endless = RetryPolicy(max_retries=sys.maxsize, budget=math.inf)
    pause = endless.delay_after(error, attempt=failures, waited=0.0)
    if pause is None:
        return interval
    if isinstance(error, FsmApiError) and error.retry_after is not None:
        pause = min(pause, LONGEST_PAUSE) * random.uniform(1.0, 1.1)  # noqa: S311
    return pause


class _Complaints:
    """Keeps an outage of days from filling the log."""

    def __init__(self, fsm_conn_id: str) -> None:
        self._fsm_conn_id = fsm_conn_id
        self._last: tuple[type[FsmError], float] | None = None
        self._failures = 0

    def tell(self, error: FsmError, now: float, pause: float) -> None:
        self._failures += 1
        if self._last is None or self._last[0] is not type(error) or now - self._last[1] >= COMPLAIN_EVERY:
            self._last = (type(error), now)
            logger.warning(
                "Looking for the forms of '%s' failed (%s in a row) and goes on in %.1f s: %s",
                self._fsm_conn_id,
                self._failures,
                pause,
                error,
            )

    def end(self) -> None:
        if self._failures:
            logger.info(
                "The forms of '%s' are listed again, after %s failures", self._fsm_conn_id, self._failures
            )
        self._last, self._failures = None, 0


class Patience:
    """How long one wait puts up with an outage.

    :param tolerance: seconds from the first failure that it has seen.
    """

    __slots__ = ("_failing_since", "_tolerance")

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._failing_since: float | None = None

    @property
    def is_tried(self) -> bool:
        """Whether the last look failed."""
        return self._failing_since is not None

    def renew(self) -> None:
        """Note that a look succeeded."""
        self._failing_since = None

    def is_over(self, error: FsmError, now: float) -> bool:
        """Note that a look failed, and tell whether that is the end of the wait.

        :param now: seconds of a clock that never goes back.
        """
        from fsm_provider.api.retry import is_transient

        if not is_transient(error):
            return True
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since >= self._tolerance
