"""Listings in a triggerer, in threads, with an Airflow connection that may change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fsm_provider.api.errors import FsmConnectionError, FsmUnauthorisedError
from fsm_provider.api.forms import FormFilter
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling.limits import in_daemon_thread
from fsm_provider.polling.polls import ListingResult, Query, bound_at, list_once

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.settings import Settings

MAX_READINGS = 3
"""Of one listing, whose totals show that records slipped between its pages."""
READ_CONNECTION_EVERY = 60.0
"""Seconds after which the connection is read again, as it may lead elsewhere; after some errors at
once.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """What listings have to have in common to be shared: equal sources have one feed.

    :ivar service: the base URL and the account.
    :ivar filters: those that a form's reference does not show, so that nobody can check them here.
    :ivar query_params: as JSON.
    :ivar interval: the seconds between two polls.
    """

    fsm_conn_id: str
    service: str
    filters: FormFilter
    query_params: str
    interval: float

    @classmethod
    def from_arguments(
        cls, fsm_conn_id: str, service: str, filters: Any, query_params: Any, interval: float
    ) -> Self:
        return cls(
            fsm_conn_id,
            service,
            filters=FormFilter(**filters).filters_not_in_references(),
            query_params=json.dumps(query_params or {}, sort_keys=True, default=str),
            interval=float(interval),
        )


class Lister:
    """Lists the forms of a source, each time with the retries of the client.

    A feed makes it, calls :meth:`list_forms` from its event loop, two at a time at most, and calls
    :meth:`close` as it ends. The first listing makes the client. Another one replaces it when the
    connection, which is read every minute, has other settings.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._params = json.loads(source.query_params)
        self._client: FsmClient | None = None
        self._reread_connection_at = float("-inf")  # by the event loop

    async def list_forms(self, query: Query) -> ListingResult:
        wanted = replace(
            self._source.filters,
            property_id=query.property_id,
            job_id=query.job_id,
            created_since=bound_at(query.created_since),
            updated_since=bound_at(query.updated_since),
        )
        try:
            return await self._list(wanted)
        except FsmUnauthorisedError:  # the token may have changed
            return await self._list(wanted)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def _list(self, wanted: FormFilter) -> ListingResult:
        client = await self._current_client()
        try:
            listing = in_daemon_thread(
                f"fsm {self._source.fsm_conn_id}", lambda: list_once(client, wanted, self._params)
            )
            return await asyncio.wrap_future(listing)
        except (FsmConnectionError, FsmUnauthorisedError):
            self._reread_connection_at = float("-inf")
            raise

    async def _current_client(self) -> FsmClient:
        from fsm_provider.api.client import FsmClient

        now = asyncio.get_running_loop().time()
        if self._client is not None and now < self._reread_connection_at:
            return self._client
        settings = await read_settings(self._source.fsm_conn_id)
        if self._client is None or self._client.settings != settings:
            self.close()
            metrics = AirflowMetrics({"connection": self._source.fsm_conn_id})
            self._client = FsmClient(settings, metrics=metrics)
        self._reread_connection_at = now + READ_CONNECTION_EVERY
        return self._client


async def read_settings(fsm_conn_id: str) -> Settings:
    """Return the settings of an Airflow connection.

    :raises FsmConnectionError: if it is not there, or its store cannot be reached.
    :raises FsmInputError: if what it holds is no valid settings.
    """
    from airflow.providers.common.compat.connection import get_async_connection

    from fsm_provider.hooks.connection import settings_from
    from fsm_provider.hooks.fsm import FsmHook

    try:
        # Cancelled midway, it would leave its answer to the next one who asks the supervisor, which
        # ends the triggerer of Airflow 3.0 and 3.1.
        reading = asyncio.ensure_future(get_async_connection(fsm_conn_id, hook=FsmHook))
        connection = await asyncio.shield(reading)
    except Exception as error:  # noqa: BLE001 - of any secrets backend
        kind = type(error).__name__
        raise FsmConnectionError(
            f"connection '{fsm_conn_id}': is not defined, or its store cannot be reached ({kind})"
        ) from None
    return settings_from(connection)


async def list_completely(
    list_forms: Callable[[Query], Awaitable[ListingResult]], query: Query
) -> ListingResult:
    """List again, until no record can have slipped between two pages.

    That is the case once a reading has as many records as its total, or adds none that was there
    when the first reading started. All readings together are the result.
    """
    first = await list_forms(query)
    reading = first
    forms = {form.id: form for form in first.forms}
    for _ in range(MAX_READINGS - 1):
        identifiers = {form.id for form in reading.forms}
        has_its_total = reading.total is None or len(identifiers) >= reading.total
        if has_its_total:
            return replace(first, forms=list(forms.values()))
        reading = await list_forms(query)
        if reading.service != first.service:  # the connection was edited meanwhile
            return replace(reading, is_complete=False)
        slipped = [
            form
            for form in reading.forms
            if form.id not in forms and (form.time is None or form.time < first.started)
        ]
        forms.update({form.id: form for form in reading.forms})
        if not slipped:
            return replace(first, forms=list(forms.values()))
    return replace(first, forms=list(forms.values()), is_complete=False)
