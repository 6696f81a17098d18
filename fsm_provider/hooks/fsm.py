"""The hook: a client of the service for an Airflow connection of type ``fsm``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_2_PLUS

from fsm_provider.api.client import FsmClient, Headers, Params
from fsm_provider.api.errors import FsmApiError, FsmNoLedgerError
from fsm_provider.api.forms import parse_form
from fsm_provider.api.listing import DEFAULT_MAX_PAGES
from fsm_provider.api.models import LIST_FORMS, AssetDynamicField, Form, Job, Record, Webhook
from fsm_provider.api.settings import Settings
from fsm_provider.api.validation import JsonObject, pluralize, with_hints
from fsm_provider.compat import context_for_current_task, explain_not_found
from fsm_provider.hooks.connection import CONN_TYPE, hook_outside_of_tasks, settings_from
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.provider_info import get_provider_info
from fsm_provider.user_errors import text_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.api.metrics import Metrics
    from fsm_provider.api.payloads import JobCreate, WebhookCreate


SUPERVISOR_LOCK = nullcontext() if AIRFLOW_V_3_2_PLUS else RLock()
"""Held while a thread talks to the task's supervisor.

Before Airflow 3.2, two threads at once get each other's responses.
"""


class FsmHook(BaseHook):
    """The service behind an Airflow connection, which is read on first use.

    Listings return lists. Those of :attr:`client` take the same arguments and yield the records
    page by page.

    :param fsm_conn_id: the connection: ``host`` is the base URL, ``password`` the token, and the
        extra holds the settings of :class:`fsm_provider.api.Settings`.
    :param sleep: waits the given number of seconds between the attempts of a read.
    """

    conn_name_attr = "fsm_conn_id"
    default_conn_name = "fsm_default"
    conn_type = CONN_TYPE
    hook_name = "Field-service management"

    def __init__(
        self,
        fsm_conn_id: str = default_conn_name,
        *,
        sleep: Callable[[float], None] = time.sleep,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fsm_conn_id = fsm_conn_id
        self.metrics: Metrics = AirflowMetrics({"connection": fsm_conn_id})
        self._sleep = sleep

    @cached_property
    def client(self) -> FsmClient:
        """The client, with the connection as it was on first use.

        :raises FsmInputError: one message that names every invalid field of the connection.
        """
        return FsmClient(
            self._read_settings(),
            reload_settings=self._read_settings,
            sleep=self._sleep,
            metrics=self.metrics,
        )

    def get_conn(self) -> FsmClient:
        """Return :attr:`client`, under Airflow's usual name."""
        return self.client

    @property
    def settings(self) -> Settings:
        """Those of :attr:`client`."""
        return self.client.settings

    def _read_settings(self) -> Settings:
        try:
            with SUPERVISOR_LOCK:
                connection = self.get_connection(self.fsm_conn_id)
        except AirflowNotFoundException:
            raise explain_not_found(self.fsm_conn_id) from None
        return settings_from(connection)

    @with_hints
    def list_forms(
        self,
        *,
        property_id: int | str | None = None,
        job_id: int | str | None = None,
        created_since: datetime | str | None = None,
        updated_since: datetime | str | None = None,
        form_names: str | list[str] | tuple[str, ...] | None = None,
        form_category: str | None = None,
        form_name_id: int | str | None = None,
        created_by_type: str | None = None,
        created_by_id: int | str | None = None,
        params: Params | None = None,
    ) -> list[Form]:
        """List the completed forms that match all filters that are set; no filter lists all forms.

        All pages are read, with ``GET /forms`` (section 4.3 of the specification). A form has no
        answers: they are in its PDF. Each form is also checked here, in case the service ignores a
        filter. To hold no more than a page in memory, iterate over the same method of
        :attr:`client`.

        Example::

            FsmHook().list_forms(property_id=7, created_since="2026-01-01T00:00:00Z")

        :param property_id: forms of this property.
        :param job_id: forms of this job.
        :param created_since: created at or after this time, as a datetime or ISO 8601 text; UTC if
            it has no zone.
        :param updated_since: last updated at or after this time, likewise.
        :param form_names: a name, or a list of names of which a form has to have one, letter by
            letter.
        :param form_category: a category; only the service can check it.
        :param form_name_id: the identifier of a form's name; only the service can check it.
        :param created_by_type: the type of the creator.
        :param created_by_id: the identifier of the creator.
        :param params: further query parameters by name, sent as they are.
        :return: :class:`~fsm_provider.api.Form` records in the service's order, such as ``id``,
            ``form_name``, ``property_id`` and ``job_details``.
        :raises FsmInputError: before anything is sent, naming the filter that is invalid, or what
            is wrong with the connection.
        :raises FsmPaginationError: if the cursors do not lead to the end of the listing.
        :raises FsmError: any other, e.g. an FsmApiError for an HTTP status that is no success. A
            read is repeated first, ``max_retries`` times.
        """
        listing = self.client.list_forms(
            property_id=property_id,
            job_id=job_id,
            created_since=created_since,
            updated_since=updated_since,
            form_names=form_names,
            form_category=form_category,
            form_name_id=form_name_id,
            created_by_type=created_by_type,
            created_by_id=created_by_id,
            params=params,
        )
        return list(listing)

    def list_asset_dynamic_fields(self, *, params: Params | None = None) -> list[AssetDynamicField]:
        """List the dynamic fields of assets, with their selectable values and where they are used.

        All pages are read, with ``GET /assetDynamicFieldValues`` (section 4.1 of the
        specification).

        Example::

            FsmHook().list_asset_dynamic_fields()

        :param params: query parameters by name, sent as they are; the specification shows none.
        :return: :class:`~fsm_provider.api.AssetDynamicField` records in the service's order.
        :raises FsmInputError: before anything is sent, for invalid parameters or a connection.
        :raises FsmPaginationError: if the cursors do not lead to the end of the listing.
        :raises FsmError: any other, e.g. an FsmApiError for an HTTP status that is no success. A
            read is repeated first, ``max_retries`` times.
        """
        return list(self.client.list_asset_dynamic_fields(params=params))

    def create_job(self, property_id: int | str, job: JobCreate | Mapping[str, Any]) -> Job:
        """Create a job on a property, and keep no ledger: the next call creates another job.

        So a retry of the task creates the job again. ``FsmCreateJobOperator`` does not. The request
        is ``POST /properties/{propertyID}/jobs`` (section 4.2 of the specification), sent once.

        Example::

            FsmHook().create_job(7, {"notes": "Gas check", "priority": "Important"})

        :param property_id: the property.
        :param job: the fields of the job, all optional: ``notes``, ``customerReference``,
            ``priority`` (such as Important), ``quotedAmount`` (as text, such as 120.50),
            ``customerContactID``, ``siteContactID``, ``settingsJobDescriptionID``,
            ``serviceReminderInstance1ID`` to ``3ID``, ``skills``, ``businessUnitID``,
            ``userGroupID``; or any field that the specification does not show, in
            ``extra_fields``.
        :return: the :class:`~fsm_provider.api.Job`, with its ``id``.
        :raises FsmInputError: before anything is sent, naming each invalid field.
        :raises FsmUncertainWriteError: if the job may exist nevertheless, as the response was lost:
            look it up before another call.
        :raises FsmError: any other: the job does not exist.
        """
        return self.client.create_job(property_id, job)

    def register_webhook(self, webhook: WebhookCreate | dict[str, Any]) -> Webhook:
        """Register a webhook, and keep no ledger: the next call registers another one.

        ``FsmRegisterWebhookOperator`` registers it once. The request is
        ``POST /settings/webhooks`` (section 4.4 of the specification), sent once. A registration
        cannot be deleted from here.

        Example::

            webhook = {
                "object": "jobs",
                "event_types": ["jobs.created"],
                "target_url": "https://example.com/webhooks",
            }
            FsmHook().register_webhook(webhook)

        :param webhook: ``object`` (properties, assets, contracts, opportunities, jobs or
            appointments), ``event_types`` (each ``<object>.<event>``), ``target_url`` and, if
            wanted, ``description``.
        :return: the :class:`~fsm_provider.api.Webhook`. The service shows its ``signing_secret``
            once; ``signing_secret.get_secret_value()`` reads it.
        :raises FsmInputError: before anything is sent, naming each invalid field.
        :raises FsmRegistrationError: if the service registered another object or other event types.
        :raises FsmUncertainWriteError: if the registration may exist nevertheless.
        :raises FsmError: any other: it does not exist.
        """
        return self.client.register_webhook(webhook)

    def paginate(
        self,
        path: str,
        params: Params | None = None,
        model: type[Record] | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> list[Any]:
        """List the records of any path that answers with ``meta``, ``pagination`` and ``data``.

        All pages are read, with GET (section 2.5 of the specification). To hold no more than a page
        in memory, iterate over the same method of :attr:`client`.

        Example::

            FsmHook().paginate("/forms", {"jobID": 11})

        :param path: below the base URL; it starts with ``/`` and contains no query.
        :param params: query parameters by name, sent with each page.
        :param model: the class of the records; None: they are dictionaries.
        :param max_pages: a listing of more pages is an error.
        :return: the records in the service's order.
        :raises FsmInputError: before anything is sent, for an invalid path, parameters or
            connection.
        :raises FsmPaginationError: if the cursors do not lead to the end of the listing.
        :raises FsmError: any other, e.g. an FsmApiError for an HTTP status that is no success. A
            read is repeated first, ``max_retries`` times.
        """
        return list(self.client.paginate(path, params, model, max_pages=max_pages))

    def request(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        json: Any = None,
        *,
        headers: Headers | None = None,
    ) -> Any:
        """Send any request, without a ledger, and return the JSON values of its response.

        GET, HEAD and OPTIONS are repeated after a failure, ``max_retries`` times. Any other method
        is sent once; each further call sends it again. ``FsmRequestOperator`` keeps a ledger.

        Example::

            FsmHook().request("GET", "/forms", {"jobID": 11})

        :param method: such as GET or POST.
        :param path: below the base URL; it starts with ``/`` and contains no query.
        :param params: query parameters by name.
        :param json: the body, as JSON values; None sends no body.
        :param headers: further headers by name, e.g. ``X-API-VERSION`` (section 9 of the
            specification).
        :return: the parsed body; None if it is empty.
        :raises FsmInputError: before anything is sent, naming what cannot be sent.
        :raises FsmUncertainWriteError: if a write may have taken effect nevertheless.
        :raises FsmError: any other, e.g. an FsmApiError for an HTTP status that is no success.
        """
        return self.client.request(method, path, params, json, headers=headers)

    def download_form_pdf(
        self,
        form: Form | dict[str, Any],
        destination: ObjectStoragePath | str,
        **limits: Unpack[PdfLimits],
    ) -> int:
        """Store the PDF of a form as a file that is complete or not there; return its size.

        An older file of that name is replaced. The PDF is at the ``formPDFURL`` of the form's
        record (section 2.3 of the specification).

        Example::

            (form,) = FsmHook().list_forms(job_id=11)
            FsmHook().download_form_pdf(form, "/data/forms/gas-check.pdf", max_seconds=60)

        :param form: a form of a listing, with its ``formPDFURL``; a dictionary is validated first.
        :param destination: the file's path or URL, in any storage that Airflow supports.
        :param limits: ``max_bytes`` (default: 100 MiB), ``max_seconds`` for the whole download with
            its repeats (default: 600), and ``allow_private_addresses`` (default: False), which
            allows other hosts with an IP address that is not public.
        :return: the size in bytes.
        :raises FsmInputError: if the form is not valid.
        :raises FsmPdfUrlError: if the URL is missing or not allowed.
        :raises FsmPdfError: if the file is not a PDF, or larger than ``max_bytes``.
        :raises FsmDownloadTimeoutError: after ``max_seconds``.
        :raises FsmError: any other. A read is repeated first, ``max_retries`` times.
        :raises OSError: if it cannot be stored, or what the storage's library raises.
        """
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        from fsm_provider.storage import AtomicFiles, report_read

        path = ObjectStoragePath(str(destination))
        if not isinstance(form, Form):
            form = parse_form("form", form, self.settings.server_timezone)
        with AtomicFiles(path.parent, context_for_current_task(), part=path.name) as files:
            stored = self.client.download_pdf(form, partial(files.store, path.name), **limits)
        report_read(self, "forms")
        return stored

    def test_connection(self) -> tuple[bool, str]:
        """List a page of forms, and a second one if any; open the ledger, which creates nothing.

        The second page checks the cursor parameter.
        """
        try:
            pages = self.client.pages(LIST_FORMS.path, model=LIST_FORMS.response)
            first = next(pages)
            second = next(pages, None)
            ledger = self._try_ledger()
        except Exception as error:
            if isinstance(error, FsmApiError):
                # The host may be one that only Airflow reaches: its body is not for who tests.
                error = replace(error, body_excerpt="")
            text = text_of(error)
            if text is None:
                raise
            # Airflow's UI tests a copy of the connection under a temporary name.
            name = f"connection '{self.fsm_conn_id}'"
            return False, text.removeprefix(f"{name}: ").replace(f"; {name}", "")
        if second is None:
            forms = pluralize(len(first.data), "form")
            return True, (
                f"The token is accepted. There is one page, of {forms}, so whether the cursor "
                f"parameter '{self.settings.cursor_param}' is right could not be tried.{ledger}"
            )
        return True, (
            f"The token is accepted, and the second page of forms followed the first.{ledger}"
        )

    def _try_ledger(self) -> str:
        """Open the database that the connection names, if any; return what to say of it."""
        state_conn_id = self.settings.state_conn_id
        if state_conn_id is None:
            return ""
        from fsm_provider.state.database import open_database

        try:
            open_database(state_conn_id, hook_outside_of_tasks, create=False).dispose()
        except FsmNoLedgerError as error:
            return f" In state_conn_id {error}: the first task that writes makes it."
        return f" The ledger of state_conn_id '{state_conn_id}' can be read."

    @classmethod
    def get_ui_field_behaviour(cls) -> JsonObject:
        """Return the connection form's standard fields, for Airflow before 3.2."""
        behaviour = get_provider_info()["connection-types"][0]["ui-field-behaviour"]
        return {name.replace("-", "_"): value for name, value in behaviour.items()}

    @classmethod
    def get_connection_form_widgets(cls) -> JsonObject:
        """Return the connection form's custom fields, for Airflow before 3.2."""
        fields = get_provider_info()["connection-types"][0]["conn-fields"]
        return {name: _make_widget(field) for name, field in fields.items()}


def _make_widget(field: JsonObject) -> Any:
    """Return the widget of a field of the connection form."""
    from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
    from wtforms import BooleanField, IntegerField, StringField
    from wtforms.validators import Optional

    json_type = field["schema"]["type"][0]
    default = field["schema"].get("default")
    texts = {"label": field["label"], "description": field["description"]}
    if json_type == "boolean":
        return BooleanField(default=default, **texts)
    entry = {"validators": [Optional()], "widget": BS3TextFieldWidget()}
    if json_type == "integer":
        return IntegerField(default=default, **texts, **entry)
    if default is not None:
        default = str(default)
    return StringField(default=default, **texts, **entry)
