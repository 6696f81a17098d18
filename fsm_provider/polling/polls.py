"""Queries to the service about forms, and complete answers, for workers and triggerers alike.

Which forms somebody wants is said by four types. A :class:`~fsm_provider.api.forms.FormFilter` is
what the service filters by. A :class:`Query` is that part of it that differs between listings of a
feed. A :class:`FormSelection` is checked here, on references, and may have many properties and
jobs. :class:`Criteria` say when the forms that match are enough.

A time is in seconds since 1970. Those of forms are by the service's clock; when a poll began is by
the earlier of the service's clock and ours, as from too late a time, forms are missed.
:data:`BEGINNING` is before every form: what is asked since then is asked without a bound. None is a
time that is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from fsm_provider.api.digests import digest_for
from fsm_provider.api.forms import (
    FormFilter,
    FormReference,
    job_id_from,
    normalize_name,
    reference_to,
    seconds_of,
)
from fsm_provider.api.validation import canonical_id

if TYPE_CHECKING:
    from fsm_provider.api.client import FsmClient
    from fsm_provider.api.models import Form

Time = float
RoutingKey = tuple[str, str]
"""By which a form finds who waits for it: ``job``, ``property`` or ``name`` and its value; or
:data:`ANY_FORM`.
"""

BEGINNING: Time = 0.0
LATEST_DATETIME: Time = 2.5e11
"""The year 9892: a datetime can hold no time that is much later."""
LOOK_BACK = 3_600.0
"""Seconds that a poll goes back behind the start of the one before it, also after a restart."""
ANY_FORM: RoutingKey = ("any", "")
CLOCKS_AGREE = 5.0
"""Seconds by which two clocks may differ, and still agree: times may lack milliseconds."""
MAX_PLACES = 20
"""Properties and jobs that are asked for one by one; for more, the whole account is asked for."""


class FormVersion(NamedTuple):
    """A completed form as polls compare it.

    Its name and its identifiers are in their one spelling; an empty one is not known.
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
        """What differs between two versions of one form."""
        return self.digest if self.updated is None else self.updated


@dataclass(frozen=True, slots=True)
class Query:
    """The filters of one listing, but for those of its :class:`~.lister.Source`."""

    property_id: str | None = None
    job_id: str | None = None
    created_since: Time = BEGINNING
    updated_since: Time = BEGINNING

    @property
    def is_by_creation(self) -> bool:
        return self.created_since > BEGINNING


@dataclass(frozen=True, slots=True)
class FormSelection:
    """Which forms a sensor or an asset wants, by what references show; empty matches any."""

    property_ids: Collection[str] = ()
    job_ids: Collection[str] = ()
    form_names: Collection[str] = ()
    created_since: Time = BEGINNING
    updated_since: Time = BEGINNING

    def matches(self, form: FormVersion) -> bool:
        """Return whether a form is wanted; a time that is not known matches."""
        if self.property_ids and form.property_id not in self.property_ids:
            return False
        if self.job_ids and form.job_id not in self.job_ids:
            return False
        if self.form_names and form.name not in self.form_names:
            return False
        if form.created is not None and form.created < self.created_since:
            return False
        return form.updated is None or form.updated >= self.updated_since

    def routing_keys(self) -> list[RoutingKey]:
        """Return keys of which each form that matches has one."""
        if self.job_ids:
            return [("job", job_id) for job_id in self.job_ids]
        if self.property_ids:
            return [("property", property_id) for property_id in self.property_ids]
        if self.form_names:
            return [("name", name) for name in self.form_names]
        return [ANY_FORM]

    def queries_by_place(self) -> list[Query]:
        """Return the queries that together list all forms that match, and few others."""
        anywhere: list[str | None] = [None]
        places = list(product(self.property_ids or anywhere, self.job_ids or anywhere))
        if len(places) > MAX_PLACES:
            places = [(None, None)]
        return [
            Query(property_id, job_id, self.created_since, self.updated_since)
            for property_id, job_id in places
        ]


@dataclass(frozen=True, slots=True)
class Criteria:
    """When forms are enough: as many as ``minimum_forms``, and one of each name."""

    minimum_forms: int = 1
    form_names: tuple[str, ...] = ()

    def counts(self, name: str) -> bool:
        return not self.form_names or name in self.form_names

    def are_met(self, names_by_id: Mapping[int, str]) -> bool:
        has_each_name = set(self.form_names) <= set(names_by_id.values())
        return has_each_name and len(names_by_id) >= self.minimum_forms


@dataclass(frozen=True, slots=True)
class ListingResult:
    """All pages of a listing.

    :ivar started: when its first page was requested, by the earlier of two clocks.
    :ivar total: the number of records, by its last page; None: not shown, or some records did not
        match, so that it is not that of ``forms``.
    :ivar service: the base URL and the account that have answered.
    :ivar is_complete: no record that was there before ``started`` is missing.
    :ivar clock_offset: the service's clock less this machine's, in seconds; 0 if they agree, None
        if the service shows no time.
    """

    forms: list[FormVersion]
    started: Time
    total: int | None
    service: str
    is_complete: bool = True
    clock_offset: float | None = 0.0


def list_once(
    client: FsmClient,
    wanted: FormFilter,
    params: Mapping[str, Any] | None,
    reference_for: Callable[[Form], FormReference] = reference_to,
    sent: FormFilter | None = None,
) -> ListingResult:
    """List the forms that match a filter; each is also checked here.

    :param sent: a filter for the service that lets more forms through; None: the same.
    """
    pages = client.form_pages(sent or wanted, params)
    forms = []
    listed = 0
    requested = time.time()
    began = time.monotonic()
    started = requested
    clock_offset = None
    for index, page in enumerate(pages.pages_with_warning()):
        server_time = seconds_of(getattr(page.meta, "server_time", None))
        if index == 0 and server_time is not None:
            # The service read its clock between the request and now: it is ahead by at least so
            # much, or behind. A start that is too late would miss forms.
            now = requested + time.monotonic() - began
            ahead = server_time - now
            behind = requested - server_time
            clock_offset = ahead if max(ahead, behind) > CLOCKS_AGREE else 0.0
            started = requested + min(ahead, 0.0)
        forms += [
            _version_from(record, reference_for(record))
            for record in page.data
            if wanted.matches(record)
        ]
        listed += len(page.data)
        del page  # or Python's garbage collector goes through it as it reads the next page
    total = pages.last_total if listed == len(forms) else None
    service = client.settings.service
    return ListingResult(forms, started, total, service, clock_offset=clock_offset)


def _version_from(record: Form, reference: FormReference) -> FormVersion:
    updated = seconds_of(record.last_updated_on_date_time)
    return FormVersion(
        id=record.id,
        name=normalize_name(record.form_name),
        property_id=_canonical_or_empty(record.property_id),
        job_id=_canonical_or_empty(job_id_from(record)),
        created=seconds_of(record.created_on_date_time),
        updated=updated,
        digest=digest_for(reference, 16) if updated is None else "",
        reference=reference,
    )


def _canonical_or_empty(identifier: int | str | None) -> str:
    return "" if identifier is None else canonical_id(identifier)


def time_of(seconds: Time | None) -> datetime | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(min(max(seconds, BEGINNING), LATEST_DATETIME), UTC)


def bound_at(since: Time) -> datetime | None:
    """Return a bound as a filter has it: none for the beginning."""
    return None if since == BEGINNING else time_of(since)
