"""Questions to the service about forms, and complete answers. Times are seconds by the service's
clock.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmConnectionError, FsmUnauthorisedError
from fsm_provider.api.forms import (
    FormFilter,
    FormReference,
    job_id_from,
    normalize_name,
    reference_to,
    seconds_of,
)
from fsm_provider.api.validation import canonical_id
from fsm_provider.metrics import AirflowMetrics

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.models import Form as FormRecord
    from fsm_provider.api.settings import Settings

Time = float
Place = tuple[str, str]
"""Where forms are: ``job``, ``property`` or ``name`` and its value; ``any``."""
MAX_READINGS = 3
"""Of one listing, whose totals show that records slipped between its pages."""
READ_CONNECTION_EVERY = 60.0
"""Seconds after which the connection is read again, as it may lead elsewhere; after some errors at
once.
"""


class Form(NamedTuple):
    """A completed form as polls compare it: name and identifiers in their one spelling; empty:
    unknown.
    """

    id: int
    name: str
    property_id: str
    job_id: str
    created: Time | None
    updated: Time | None
    digest: str = ""  # of the reference, if it has no update time
    reference: FormReference = {}  # noqa: RUF012 - never changed

    @property
    def time(self) -> Time | None:
        """When it was last updated, or else created."""
        return self.created if self.updated is None else self.updated

    @property
    def version(self) -> Time | str:
        return self.digest if self.updated is None else self.updated


@dataclass(frozen=True, slots=True)
class Query:
    """The filters of a listing. Those that a :class:`Source` holds are left out."""

    property_id: str | None = None
    job_id: str | None = None
    created_since: Time | None = None
    updated_since: Time | None = None

    def matches(self, form: Form) -> bool:
        """Return whether a form matches by what its reference shows; an unknown time matches."""
        return (
            (self.property_id is None or self.property_id == form.property_id)
            and (self.job_id is None or self.job_id == form.job_id)
            and (
                self.created_since is None
                or form.created is None
                or form.created >= self.created_since
            )
            and (
                self.updated_since is None
                or form.updated is None
                or form.updated >= self.updated_since
            )
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """All pages of a listing.

    :ivar total: the number of records, by its last page; None: unknown, or records did not match.
    :ivar is_complete: no record that was there before ``started`` is missing.
    """

    forms: list[Form]
    started: Time
    total: int | None
    service: str
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """What listings have in common that can be shared; the service is a base URL and an account."""

    fsm_conn_id: str
    service: str
    filters: FormFilter  # those that a form's reference does not show
    query_params: str
    interval: float

    @classmethod
    def of(
        cls, fsm_conn_id: str, service: str, filters: Any, query_params: Any, interval: float
    ) -> Self:
        params = json.dumps(query_params or {}, sort_keys=True, default=str)
        return cls(
            fsm_conn_id, service, FormFilter(**filters).for_shared_stream(), params, float(interval)
        )


def places_of(
    job_ids: Iterable[str], property_ids: Iterable[str], names: Iterable[str]
) -> list[Place]:
    """Return where forms are that match all of these filters; an empty one matches all."""
    by_kind = {"job": job_ids, "property": property_ids, "name": names}
    places = ([(kind, value) for value in values] for kind, values in by_kind.items())
    return next(filter(None, places), [("any", "")])


async def list_completely(
    list_forms: Callable[[Query], Awaitable[Listing]], query: Query
) -> Listing:
    """List until a reading has as many records as its total, or adds nothing older than the first
    one.
    """
    first = listing = await list_forms(query)
    forms = {form.id: form for form in first.forms}
    for _ in range(MAX_READINGS - 1):
        count = len({form.id for form in listing.forms})
        if listing.total is None or count >= listing.total:
            break
        listing = await list_forms(query)
        added = [form for form in listing.forms if form.id not in forms]
        forms |= {form.id: form for form in listing.forms}
        if not any(form.time is None or form.time < first.started for form in added):
            break
    else:
        return replace(first, forms=list(forms.values()), is_complete=False)
    return replace(first, forms=list(forms.values()))


class Lister:
    """Lists the forms of a source, each time with the retries of the client."""

    def __init__(self, source: Source) -> None:
        self._source, self._params = source, json.loads(source.query_params)
        self._client: FsmClient | None = None
        self._reads_connection_at = 0.0

    async def list_forms(self, query: Query) -> Listing:
        wanted = replace(
            self._source.filters,
            property_id=query.property_id,
            job_id=query.job_id,
            created_since=time_of(query.created_since),
            updated_since=time_of(query.updated_since),
        )
        try:
            return await self._list(wanted)
        except FsmUnauthorisedError:  # the token may have changed
            return await self._list(wanted)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    async def _list(self, wanted: FormFilter) -> Listing:
        """List in a daemon thread: a service that hangs fills no pool of Airflow's, and delays no
        exit.
        """
        from fsm_provider.api.client import FsmClient

        fsm_conn_id, now = self._source.fsm_conn_id, asyncio.get_running_loop().time()
        if (client := self._client) is None or now >= self._reads_connection_at:
            settings = await read_settings(fsm_conn_id)
            if (client := self._client) is None or client.settings != settings:
                self.close()
                metrics = AirflowMetrics({"connection": fsm_conn_id})
                self._client = client = FsmClient(settings, metrics=metrics)
            self._reads_connection_at = now + READ_CONNECTION_EVERY
        answer = Future[Listing]()
        answer.set_running_or_notify_cancel()  # when this is cancelled, the thread goes on

        def run() -> None:
            try:
                answer.set_result(list_once(client, wanted, self._params))
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                answer.set_exception(error)

        Thread(target=run, name=f"fsm {fsm_conn_id}", daemon=True).start()
        try:
            return await asyncio.wrap_future(answer)
        except (FsmConnectionError, FsmUnauthorisedError):
            self._reads_connection_at = now
            raise


async def read_settings(fsm_conn_id: str) -> Settings:
    """Return the settings of an Airflow connection; a FsmConnectionError if it cannot be read now."""
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
        text = (
            f"connection '{fsm_conn_id}': is not defined, or its store cannot be reached ({kind})"
        )
        raise FsmConnectionError(text) from None
    return settings_from(connection)


def list_once(
    client: FsmClient,
    wanted: FormFilter,
    params: Mapping[str, Any] | None,
    reference_for: Callable[[FormRecord], FormReference] = reference_to,
) -> Listing:
    """List the forms that match a filter; each is also checked here."""
    pages, forms, others = client.form_pages(wanted, params), [], 0
    requested, began, started = time.time(), time.monotonic(), None
    for page in pages.pages_with_warning():
        if started is None:
            # By the service's clock or the local one, the earlier: from too late a time, forms are
            # missed.
            served = seconds_of(getattr(page.meta, "server_time", None))
            by_service = requested if served is None else served - (time.monotonic() - began)
            started = min(requested, by_service)
        matching = [record for record in page.data if wanted.matches(record)]
        others += len(page.data) - len(matching)
        forms += [_form_from(record, reference_for(record)) for record in matching]
        del page, matching  # what is alive at the next page counts as long-lived
    total = None if others else pages.last_total
    return Listing(forms, requested if started is None else started, total, client.settings.service)


def _form_from(record: FormRecord, reference: FormReference) -> Form:
    updated, job_id = seconds_of(record.last_updated_on_date_time), job_id_from(record)
    return Form(
        record.id,
        normalize_name(record.form_name),
        "" if record.property_id is None else canonical_id(record.property_id),
        "" if job_id is None else canonical_id(job_id),
        seconds_of(record.created_on_date_time),
        updated,
        digest_for(reference, 16) if updated is None else "",
        reference,
    )


def time_of(seconds: Time | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(min(max(seconds, 0.0), 2.5e11), UTC)
