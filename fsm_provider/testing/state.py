"""The fake's state: its records, the requests it got, and a signal for every change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from starlette.responses import Response

from fsm_provider.testing import wire
from fsm_provider.testing.delivering import RecordedDelivery
from fsm_provider.testing.form_pdf import USUAL, FormPdf
from fsm_provider.testing.listing import Listing
from fsm_provider.testing.wire import Record

log: logging.Logger = logging.getLogger("fsm_provider.testing")


@dataclass(frozen=True)
class RecordedRequest:
    """A request that the fake has read.

    :param method: e.g. ``GET``.
    :param path: decoded, relative to the base URL, e.g. ``/properties/7/jobs``.
    :param query: decoded (name, value) pairs in the order sent.
    :param headers: names in lower case; the value of ``authorization`` is ``Bearer ***`` if the
        token was correct, otherwise ``***``.
    :param json: the parsed body; None where it is empty or not JSON.
    :param status: the HTTP status returned; None where a fault sent none.
    :param connection: host and port of the client; as many distinct pairs as TCP connections.
    :param at: when the request arrived, an aware time in UTC.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    json: Any
    status: int | None
    connection: tuple[str, int]
    at: datetime


@dataclass
class StoredForm:
    """A form and the values it is filtered by, which its record may not show."""

    record: Record
    job_id: int
    property_id: int
    created: datetime
    updated: datetime
    category: str | None
    form_name_id: str | None
    pdf: FormPdf = USUAL

    def matches(self, equal: Mapping[str, str], at_least: Mapping[str, datetime]) -> bool:
        """Apply filters by equality and lower bounds, both keyed by the parameter's name."""
        traits = {
            "createdByType": self.record.get("createdByType"),
            "createdByID": self.record.get("createdByID"),
            "formCategory": self.category,
            "formNameID": self.form_name_id,
            "propertyID": str(self.property_id),
            "jobID": str(self.job_id),
        }
        times = {
            "createdOnDateTime[gte]": self.created,
            "lastUpdatedOnDateTime[gte]": self.updated,
        }
        if any(traits[name] != value for name, value in equal.items()):
            return False
        return all(times[name] >= bound for name, bound in at_least.items())


class ServiceState:
    """The records of one fake.

    Endpoints in the server's thread, the engineer's thread and a test use it at the same time.
    Whoever changes records calls a method, which holds ``changed`` and notifies those that wait;
    whoever reads several values holds it. Only the server's thread uses ``answers``.
    """

    def __init__(
        self,
        properties: Iterable[int] | None,
        id_offset: int = 0,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.now: Callable[[], datetime] = now or partial(datetime.now, UTC)
        self._base_url: str | None = None
        self.changed: threading.Condition = threading.Condition()
        self.requests: list[RecordedRequest] = []
        self.jobs: dict[int, Record] = {}
        self.listed_jobs: Listing[int] = Listing()
        self.forms: Listing[StoredForm] = Listing()
        self.asset_dynamic_fields: Listing[Record] = Listing()
        self.webhooks: list[Record] = []
        self.answers: dict[str, tuple[Any, Response]] = {}
        """By idempotency key: the content of its first request, and the response to that."""
        self.deliveries: list[RecordedDelivery] = []
        self.on_job: list[Callable[[str, Record], None]] = []
        """Called with the type of each event of a job, and the job."""
        self._properties: set[int] | None = None
        if properties is not None:
            self._properties = set(properties)
        # Apart from each other, so that one kind of identifier taken for another is noticed.
        self._job_ids = count(id_offset + 1001)
        self._form_ids = count(id_offset + 5001)
        self._webhook_ids = count(id_offset + 1)

    @property
    def base_url(self) -> str:
        """The service's URL, which the links in records begin with."""
        if self._base_url is None:
            raise RuntimeError("The URL isn't known yet: start() the service first")
        return self._base_url

    @base_url.setter
    def base_url(self, url: str) -> None:
        self._base_url = url

    def has_property(self, property_id: int) -> bool:
        """Return whether jobs can be created on this property."""
        return self._properties is None or property_id in self._properties

    def add_property(self, property_id: int) -> None:
        """Add a property; no effect where any integer is one."""
        with self.changed:
            if self._properties is not None:
                self._properties.add(property_id)

    def record_request(self, request: RecordedRequest) -> None:
        """Record a request that was read."""
        log.info("%s %s %s", request.method, request.path, request.status or "no response")
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    def record_delivery(self, delivery: RecordedDelivery) -> None:
        """Record an attempt at a delivery."""
        status = delivery.status or "no response"
        event = f"{delivery.event_type} {delivery.job_id}"
        log.info("delivery of %s, attempt %d: %s", event, delivery.attempt, status)
        with self.changed:
            self.deliveries.append(delivery)
            self.changed.notify_all()

    def add_job(
        self, property_id: int, body: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> Record:
        """Create a job from a request body, with some fields replaced."""
        now = wire.truncate_to_milliseconds(self.now())
        with self.changed:
            job = wire.job_record(
                next(self._job_ids),
                property_id,
                body,
                base_url=self.base_url,
                now=now,
            )
            job |= overrides
            self.jobs[job["id"]] = job
            self.listed_jobs.records.append(job["id"])
            self.changed.notify_all()
        self._publish("jobs.created", job)
        return job

    def update_job(self, job_id: int, overrides: Mapping[str, Any]) -> Record:
        """Change a job.

        :raises LookupError: if there is no such job.
        """
        updated = wire.timestamp(self.now())
        with self.changed:
            # A new record, as the former may be on its way into a response.
            job = {**self.jobs[job_id], "lastUpdatedOnDateTime": updated, **overrides}
            self.jobs[job_id] = job
            log.info("job %d: %s", job_id, job["status"])
            self.changed.notify_all()
        self._publish("jobs.updated", job)
        return job

    def complete_job(self, job_id: int) -> Record:
        """Complete a job now."""
        completed = {
            "completedByID": 1,
            "completedByUser": wire.ENGINEER,
            "completedByType": "User",
            "completedOnDateTime": wire.timestamp(self.now()),
        }
        return self.update_job(job_id, {"status": "Completed", "completed": completed})

    def _publish(self, event_type: str, job: Record) -> None:
        for listener in self.on_job:
            listener(event_type, job)

    def add_form(
        self,
        *,
        job_id: int,
        property_id: int,
        form_name: str,
        created: datetime,
        updated: datetime,
        category: str | None = None,
        form_name_id: str | None = None,
        pdf: FormPdf = USUAL,
        overrides: Mapping[str, Any] | None = None,
    ) -> Record:
        """Add a form, with some fields of its record replaced."""
        created = wire.truncate_to_milliseconds(created)
        updated = wire.truncate_to_milliseconds(updated)
        with self.changed:
            record = wire.form_record(
                next(self._form_ids),
                job_id=job_id,
                property_id=property_id,
                form_name=form_name,
                created=created,
                updated=updated,
                base_url=self.base_url,
            )
            record |= overrides or {}
            form = StoredForm(
                record,
                job_id=job_id,
                property_id=property_id,
                created=created,
                updated=updated,
                category=category,
                form_name_id=form_name_id,
                pdf=pdf,
            )
            self.forms.records.append(form)
            self.changed.notify_all()
        return record

    def update_form(
        self,
        form_id: int,
        updated: datetime,
        overrides: Mapping[str, Any],
        pdf: FormPdf | None = None,
    ) -> Record:
        """Change a form in its place in the listing.

        :param pdf: what its PDF shows from now on; None: what it showed.

        :raises LookupError: if there is no such form.
        """
        updated = wire.truncate_to_milliseconds(updated)
        with self.changed:
            stored = self.form(form_id)
            stored.updated = updated
            if pdf is not None:
                stored.pdf = pdf
            stored.record |= {"lastUpdatedOnDateTime": wire.timestamp(updated), **overrides}
            self.changed.notify_all()
        return stored.record

    def form(self, form_id: int) -> StoredForm:
        """Find a form.

        :raises LookupError: if there is no such form.
        """
        with self.changed:
            for stored in self.forms.records:
                if stored.record["id"] == form_id:
                    return stored
        raise LookupError(f"There is no form {form_id}")

    def complete_form(self, job_id: int, form_name: str, pdf: FormPdf = USUAL) -> Record:
        """Add a form completed just now against a job.

        :raises LookupError: if there is no such job.
        """
        with self.changed:
            if job_id not in self.jobs:
                raise LookupError(f"There is no job {job_id}")
            property_id = self.jobs[job_id]["propertyID"]
        now = self.now()
        form = self.add_form(
            job_id=job_id,
            property_id=property_id,
            form_name=form_name,
            created=now,
            updated=now,
            pdf=pdf,
        )
        log.info("form %d completed against job %d: %s", form["id"], job_id, form_name)
        return form

    def add_asset_dynamic_field(
        self,
        name: str,
        values: Sequence[str],
        used_by: Sequence[Mapping[str, Any]],
        overrides: Mapping[str, Any],
    ) -> Record:
        """Add an asset dynamic field, with some fields replaced."""
        with self.changed:
            fields = self.asset_dynamic_fields.records
            field = wire.asset_dynamic_field_record(len(fields) + 1, name, values, used_by)
            field |= overrides
            fields.append(field)
            self.changed.notify_all()
        return field

    def add_webhook(self, fields: Mapping[str, Any]) -> Record:
        """Register a webhook."""
        with self.changed:
            webhook = wire.webhook_record(next(self._webhook_ids), fields)
            self.webhooks.append(webhook)
            self.changed.notify_all()
        return webhook
