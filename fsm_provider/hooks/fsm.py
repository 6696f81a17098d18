"""The hook: a client of the service for an Airflow connection of type ``fsm``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial, wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_2_PLUS

from fsm_provider.api.client import FsmClient
from fsm_provider.api.errors import FsmApiError, FsmNoLedgerError
from fsm_provider.api.forms import parse_form
from fsm_provider.api.models import LIST_FORMS, Form
from fsm_provider.api.settings import Settings
from fsm_provider.api.validation import JsonObject, pluralize
from fsm_provider.compat import context_for_current_task, explain_not_found
from fsm_provider.hooks.connection import CONN_TYPE, hook_outside_of_tasks, settings_from
from fsm_provider.metrics import AirflowMetrics
from fsm_provider.provider_info import get_provider_info
from fsm_provider.user_errors import text_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    from fsm_provider.api.downloads import PdfLimits
    from fsm_provider.api.metrics import Metrics


P = ParamSpec("P")
R = TypeVar("R")

SUPERVISOR_LOCK = nullcontext() if AIRFLOW_V_3_2_PLUS else RLock()
"""Held while a thread talks to the task's supervisor.

Before Airflow 3.2, two threads at once get each other's responses.
"""


def _of_client(
    method: Callable[Concatenate[FsmClient, P], R],
) -> Callable[Concatenate[FsmHook, P], R]:
    @wraps(method)
    def call(hook: FsmHook, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(hook.client, *args, **kwargs)

    call.__doc__ = f"See :meth:`fsm_provider.api.FsmClient.{method.__name__}`."
    return call


class FsmHook(BaseHook):
    """The service behind an Airflow connection, which is read on first use.

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

    list_forms: Final = _of_client(FsmClient.list_forms)
    list_asset_dynamic_fields: Final = _of_client(FsmClient.list_asset_dynamic_fields)
    create_job: Final = _of_client(FsmClient.create_job)
    register_webhook: Final = _of_client(FsmClient.register_webhook)
    paginate: Final = _of_client(FsmClient.paginate)
    request: Final = _of_client(FsmClient.request)

    def download_form_pdf(
        self,
        form: Form | dict[str, Any],
        destination: ObjectStoragePath | str,
        **limits: Unpack[PdfLimits],
    ) -> int:
        """Store the PDF of a form atomically, and return its size in bytes.

        An older file is replaced.

        :param form: with its ``formPDFURL``, as in a listing; a dictionary is validated first.
        :param destination: the file, in any storage that Airflow supports.
        :param limits: those of :meth:`fsm_provider.api.FsmClient.download_pdf`, which says what it
            raises.
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
