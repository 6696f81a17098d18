"""From an Airflow connection of type ``fsm`` to a client of the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import BaseHook
from pydantic_core import from_json

from fsm_provider.api.client import FsmClient
from fsm_provider.api.endpoints import LIST_FORMS
from fsm_provider.api.errors import FsmError, FsmInputError
from fsm_provider.api.inputs import MAX_PDF_BYTES
from fsm_provider.api.pagination import DEFAULT_MAX_PAGES
from fsm_provider.api.settings import Settings
from fsm_provider.provider_info import get_provider_info

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection, ObjectStoragePath

    from fsm_provider.api.drafts import JobCreate, WebhookCreate
    from fsm_provider.api.forms import FormFilters
    from fsm_provider.api.models import AssetDynamicField, Form, Job, Record, Webhook
    from fsm_provider.storing import StoredFile


class FsmHook(BaseHook):
    """The service behind an Airflow connection. Nothing is read or opened before it is used.

    :param fsm_conn_id: the connection: ``host`` is the base URL, ``password`` the token, and the
        extra holds the settings of :class:`fsm_provider.api.Settings`.
    :param sleep: waits so many seconds between two attempts at a request.
    """

    conn_name_attr = "fsm_conn_id"
    default_conn_name = "fsm_default"
    conn_type = "fsm"
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
        self._sleep = sleep

    @cached_property
    def client(self) -> FsmClient:
        """The client, with the connection as it was when first asked for.

        :raises FsmInputError: one message that names every bad field of the connection.
        """
        return FsmClient(self._settings(), reload_token=lambda: self._settings().token, sleep=self._sleep)

    def get_conn(self) -> FsmClient:
        """Give :attr:`client`, under Airflow's usual name."""
        return self.client

    def _settings(self) -> Settings:
        return settings_of(self.get_connection(self.fsm_conn_id))

    def list_forms(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        max_pages: int = DEFAULT_MAX_PAGES,
        **filters: Unpack[FormFilters],
    ) -> Iterator[Form]:
        """List completed forms; see :meth:`fsm_provider.api.FsmClient.list_forms`."""
        return self.client.list_forms(params=params, max_pages=max_pages, **filters)

    def list_asset_dynamic_fields(
        self, *, params: Mapping[str, Any] | None = None, max_pages: int = DEFAULT_MAX_PAGES
    ) -> Iterator[AssetDynamicField]:
        """List asset dynamic fields; see :meth:`fsm_provider.api.FsmClient.list_asset_dynamic_fields`."""
        return self.client.list_asset_dynamic_fields(params=params, max_pages=max_pages)

    def create_job(self, property_id: int | str, job: JobCreate | dict[str, Any]) -> Job:
        """Create a job on a property; see :meth:`fsm_provider.api.FsmClient.create_job`."""
        return self.client.create_job(property_id, job)

    def register_webhook(
        self,
        webhook: WebhookCreate | dict[str, Any],
        *,
        on_registered: Callable[[Webhook], None] | None = None,
    ) -> list[Webhook]:
        """Register a webhook; see :meth:`fsm_provider.api.FsmClient.register_webhook`."""
        return self.client.register_webhook(webhook, on_registered=on_registered)

    def download_form_pdf(
        self,
        form: Form | dict[str, Any],
        destination: ObjectStoragePath | str,
        *,
        max_bytes: int = MAX_PDF_BYTES,
        allow_private_addresses: bool = False,
    ) -> StoredFile:
        """Store the PDF of a form, whole or not at all; in the place of an older file.

        :param form: with its ``formPDFURL``, as a listing gives it; a dictionary is read first.
        :param destination: the file, in any storage that Airflow reaches.
        :param max_bytes: see :meth:`fsm_provider.api.FsmClient.download_pdf`, as for the rest.
        :param allow_private_addresses: likewise.
        """
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        from fsm_provider.api.forms import read_form
        from fsm_provider.api.models import Form
        from fsm_provider.compat import context_of_this_task
        from fsm_provider.lineage import records_of, report
        from fsm_provider.storing import WholeFiles

        path = ObjectStoragePath(str(destination))
        if not isinstance(form, Form):
            form = read_form("form", form, self.client.settings.server_timezone)
        with WholeFiles(path.parent, context_of_this_task(), part=path.name) as files:
            stored = self.client.download_pdf(
                form,
                lambda pieces: files.store(path.name, pieces),
                max_bytes=max_bytes,
                allow_private_addresses=allow_private_addresses,
            )
        report(self, inputs=[records_of(self.fsm_conn_id, "forms")])
        return stored

    def paginate(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        model: type[Record] | None = None,
        *,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> Iterator[Any]:
        """List the records of any path; see :meth:`fsm_provider.api.FsmClient.paginate`."""
        return self.client.paginate(path, params, model, max_pages=max_pages)

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send any request; see :meth:`fsm_provider.api.FsmClient.request`."""
        return self.client.request(method, path, params, json, headers=headers)

    def test_connection(self) -> tuple[bool, str]:
        """List one page of forms, and the next where there is one, which proves the cursor."""
        try:
            pages = self.client.pages(LIST_FORMS.path, LIST_FORMS.response)
            first = next(pages)
            second = next(pages, None)
        except FsmError as error:
            # Airflow's UI tests a copy of the connection, under a name that nobody knows.
            return False, str(error).removeprefix(f"connection '{self.fsm_conn_id}': ")
        if second is None:
            return True, (
                f"The token is accepted. All {len(first.data)} forms fit one page, so whether the cursor "
                f"parameter '{self.client.settings.cursor_param}' is right could not be tried."
            )
        return True, "The token is accepted, and the second page of forms followed the first."

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Describe the form's standard fields to Airflow before 3.2."""
        behaviour = _connection_type()["ui-field-behaviour"]
        return {name.replace("-", "_"): value for name, value in behaviour.items()}

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Make the form's further fields for Airflow before 3.2."""
        from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
        from wtforms import BooleanField, IntegerField, StringField
        from wtforms.validators import Optional

        widgets = {}
        for name, field in _connection_type()["conn-fields"].items():
            kind, default = field["schema"]["type"][0], field["schema"].get("default")
            about = {"label": field["label"], "description": field["description"]}
            if kind == "boolean":
                widgets[name] = BooleanField(**about, default=default)
                continue
            about |= {"validators": [Optional()], "widget": BS3TextFieldWidget()}
            if kind == "integer":
                widgets[name] = IntegerField(**about, default=default)
            else:
                widgets[name] = StringField(**about, default=None if default is None else str(default))
        return widgets


def settings_of(connection: Connection) -> Settings:
    """Read the settings of a connection.

    A field that is empty has its default, but ``api_version``, which is then not sent.

    :raises FsmInputError: one message that names the connection and every bad field.
    """
    try:
        return Settings.checked({**_extra(connection), **_address_and_token(connection)})
    except FsmInputError as error:
        raise FsmInputError(f"connection '{connection.conn_id}': {error}") from None


def _extra(connection: Connection) -> dict[str, Any]:
    try:
        extra = from_json(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise FsmInputError("extra: is not a JSON object")
    given = {name: value for name, value in extra.items() if value not in (None, "")}
    if "api_version" in extra:
        given.setdefault("api_version", "")
    return given


def _address_and_token(connection: Connection) -> dict[str, Any]:
    if not connection.host:
        raise FsmInputError("host: is missing: it should be the base URL, e.g. https://api.example.com/v1")
    host = connection.host
    if "://" not in host:
        host = f"{connection.schema or 'https'}://{host}"
    if connection.port:
        scheme, _, rest = host.partition("://")
        authority, slash, path = rest.partition("/")
        host = f"{scheme}://{authority}:{connection.port}{slash}{path}"
    return {"base_url": host, "token": connection.password or ""}


def _connection_type() -> dict[str, Any]:
    connection_type: dict[str, Any] = get_provider_info()["connection-types"][0]
    return connection_type
