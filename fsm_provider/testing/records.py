"""The records of the fake, as a test adds and reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from fsm_provider.testing.delivering import EVENT_TYPES
from fsm_provider.testing.form_pdf import USUAL, FormPdf
from fsm_provider.testing.pdf import pdf_for
from fsm_provider.testing.state import ServiceState
from fsm_provider.testing.wire import Record

DEFAULT_USAGE = {"scope": "standard", "fieldKey": "make", "fieldDescription": "Make"}


class FakeRecords:
    """Records with the service's field names, and every field of the specification.

    Returned records are copies: changing them does not change the service's.
    """

    def __init__(
        self, properties: Iterable[int] | None, id_offset: int, now: Callable[[], datetime]
    ) -> None:
        self._state = ServiceState(properties, id_offset, now)

    @property
    def jobs(self) -> list[Record]:
        """Copies of all jobs, oldest first."""
        with self._state.changed:
            return copy.deepcopy(list(self._state.jobs.values()))

    @property
    def forms(self) -> list[Record]:
        """Copies of all forms, in the order of the listing."""
        with self._state.changed:
            return copy.deepcopy([form.record for form in self._state.forms.records])

    def pdf(self, form_id: int) -> bytes:
        """Return the PDF of a form as it is now.

        :raises LookupError: if there is no such form.
        """
        with self._state.changed:
            form = self._state.form(form_id)
            return pdf_for(form.record, form.pdf)

    @property
    def webhooks(self) -> list[Record]:
        """Copies of all webhook registrations, with their signing secrets."""
        with self._state.changed:
            return copy.deepcopy(self._state.webhooks)

    @property
    def asset_dynamic_fields(self) -> list[Record]:
        """Copies of all asset dynamic fields, in the order of the listing."""
        with self._state.changed:
            return copy.deepcopy(self._state.asset_dynamic_fields.records)

    def add_property(self, property_id: int) -> None:
        """Add a property, where ``properties`` was given."""
        self._state.add_property(property_id)

    def add_job(self, property_id: int, **fields: Any) -> Record:
        """Add a job and return it.

        :param fields: fields of the record by the service's names, e.g. ``status="Closed"``.
        """
        job = self._state.add_job(property_id, {}, fields)
        return copy.deepcopy(job)

    def update_job(self, job_id: int, **fields: Any) -> Record:
        """Change a job and return it.

        :param fields: fields of the record by the service's names.
        :raises LookupError: if there is no such job.
        """
        job = self._state.update_job(job_id, fields)
        return copy.deepcopy(job)

    def add_form(
        self,
        *,
        job_id: int | None = None,
        property_id: int | None = None,
        form_name: str = "Gas Safety Record",
        created: datetime | None = None,
        updated: datetime | None = None,
        category: str | None = None,
        form_name_id: str | None = None,
        pdf: FormPdf = USUAL,
        **fields: Any,
    ) -> Record:
        """Add a completed form and return it.

        :param job_id: the job it was completed against, which need not exist; default 1.
        :param property_id: default: the property of the job, 1 where there is no such job.
        :param created: aware time, which ``createdOnDateTime[gte]`` is compared with; default now.
        :param updated: aware time, which ``lastUpdatedOnDateTime[gte]`` is compared with;
            default ``created``.
        :param category: what ``formCategory`` is compared with; not shown in the record.
        :param form_name_id: what ``formNameID`` is compared with; not shown in the record.
        :param pdf: what its PDF shows, e.g. ``FormPdf(version=2, answers={"Remarks": "Leaks"})``.
        :param fields: fields of the record by the service's names, of any type, e.g.
            ``createdByID="7"`` or ``createdOnDateTime="yesterday"``.
        """
        if property_id is None:
            property_id = self._property_of(job_id)
        if job_id is None:
            job_id = 1
        if created is None:
            created = self._state.now()
        if updated is None:
            updated = created
        form = self._state.add_form(
            job_id=job_id,
            property_id=property_id,
            form_name=form_name,
            created=created,
            updated=updated,
            category=category,
            form_name_id=form_name_id,
            pdf=pdf,
            overrides=fields,
        )
        return copy.deepcopy(form)

    def _property_of(self, job_id: int | None) -> int:
        """Return the property of a job, 1 where there is no such job."""
        with self._state.changed:
            if job_id is None or job_id not in self._state.jobs:
                return 1
            property_id: int = self._state.jobs[job_id]["propertyID"]
            return property_id

    def seed_forms(
        self,
        count: int,
        *,
        property_ids: Sequence[int] = (1,),
        form_names: Sequence[str] = ("Gas Safety Record",),
        first_created: datetime | None = None,
        interval: timedelta = timedelta(seconds=1),
    ) -> None:
        """Add many forms, each against a job of its own (numbered from 1, not created).

        :param property_ids: taken in turn.
        :param form_names: taken in turn.
        :param first_created: aware time of the first form; default: such that the last form's is
            now.
        :param interval: time from one form to the next.
        """
        if first_created is None:
            first_created = self._state.now() - interval * (count - 1)
        for index in range(count):
            created = first_created + interval * index
            self._state.add_form(
                job_id=index + 1,
                property_id=property_ids[index % len(property_ids)],
                form_name=form_names[index % len(form_names)],
                created=created,
                updated=created,
            )

    def update_form(
        self,
        form_id: int,
        *,
        updated: datetime | None = None,
        pdf: FormPdf | None = None,
        **fields: Any,
    ) -> Record:
        """Change a form, which keeps its place in the listing, and return it.

        :param updated: aware time of the change; default now.
        :param pdf: what its PDF shows from now on; None: what it showed.
        :param fields: fields of the record by the service's names.
        :raises LookupError: if there is no such form.
        """
        if updated is None:
            updated = self._state.now()
        form = self._state.update_form(form_id, updated, fields, pdf)
        return copy.deepcopy(form)

    def complete_form(self, job_id: int, form_name: str, pdf: FormPdf = USUAL) -> Record:
        """Complete a form against a job now and return it.

        :param pdf: what its PDF shows.
        :raises LookupError: if there is no such job.
        """
        form = self._state.complete_form(job_id, form_name, pdf)
        return copy.deepcopy(form)

    def add_webhook(self, target_url: str, signing_secret: str) -> Record:
        """Register a webhook for every event of jobs, as with the service itself, and return it."""
        fields = {
            "description": "",
            "object": "jobs",
            "eventTypes": EVENT_TYPES,
            "targetURL": target_url,
            "signingSecret": signing_secret,
        }
        webhook = self._state.add_webhook(fields)
        return copy.deepcopy(webhook)

    def add_asset_dynamic_field(
        self,
        name: str = "Make",
        *,
        values: Sequence[str] = ("Baxi", "Vaillant"),
        used_by: Sequence[Mapping[str, Any]] = (DEFAULT_USAGE,),
        **fields: Any,
    ) -> Record:
        """Add an asset dynamic field and return it.

        :param values: names of the values, numbered from 1.
        :param used_by: usage objects, with the service's field names.
        :param fields: other fields of the record by the service's names, e.g.
            ``dynamicFieldID=7``.
        """
        field = self._state.add_asset_dynamic_field(name, values, used_by, fields)
        return copy.deepcopy(field)
