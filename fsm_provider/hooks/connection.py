"""The settings in an Airflow connection of type ``fsm``, and connections outside of tasks."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from pydantic_core import from_json

from fsm_provider.api.errors import FsmInputError
from fsm_provider.api.settings import CONNECTION_FIELDS, EXAMPLE_URL, Settings
from fsm_provider.compat import explain_not_found

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

CONN_TYPE = "fsm"
ENVIRONMENT_PREFIX = "AIRFLOW_CONN_"
_IS_OURS = re.compile(r"""\s*(fsm:|\{.*["']conn_type["']\s*:\s*["']fsm["'])""", re.DOTALL | re.I)
"""The value of a variable of the environment that is a connection of our type, as URI or JSON.

It may be no JSON, with the quotes of Python: then it is shown as broken.
"""


def settings_from(connection: Connection) -> Settings:
    """Return the settings of a connection; a host without a scheme is https.

    An empty field has its default, except ``api_version``, which is then not sent.

    :raises FsmInputError: one message that names the connection and every invalid field.
    """
    try:
        if connection.conn_type not in (None, "", CONN_TYPE):
            raise FsmInputError(f"is of type '{connection.conn_type}', not '{CONN_TYPE}'")
        values = _values_of_extra(connection.extra)
        values["base_url"] = _base_url_of(connection)
        values["token"] = connection.password or ""
        values["account"] = (connection.login or "").strip()
        settings = Settings.parse(values)
        settings._connection = connection.conn_id or ""
    except FsmInputError as error:
        raise FsmInputError(f"connection '{connection.conn_id}': {error}") from None
    return settings


def _values_of_extra(text: str | None) -> dict[str, Any]:
    try:
        extra = from_json(text or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise FsmInputError("extra: is not a JSON object")
    for name, place in CONNECTION_FIELDS.items():
        if extra.get(name):
            raise FsmInputError(
                f"extra: {name} is not one of its settings: it is the connection's {place}"
            )
    values = {name: value for name, value in extra.items() if value not in (None, "")}
    if "api_version" in extra:
        values.setdefault("api_version", "")
    return values


def _base_url_of(connection: Connection) -> str:
    host = connection.host
    if not host:
        raise FsmInputError(f"host: is missing: it should be the base URL, e.g. {EXAMPLE_URL}")
    if "://" not in host:
        host = f"{connection.schema or 'https'}://{host}"
    if not connection.port:
        return host
    scheme, _, rest = host.partition("://")
    authority, slash, path = rest.partition("/")
    port = f":{connection.port}"
    authority = authority.removesuffix(port)  # the host may have it as well
    return f"{scheme}://{authority}{port}{slash}{path}"


def read_connection_outside_of_tasks(conn_id: str) -> Connection:
    """Return a connection outside of tasks, where Airflow's SDK does not read its database."""
    from airflow.models import Connection as StoredConnection

    try:
        return StoredConnection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise explain_not_found(conn_id) from None


def fsm_conn_ids() -> list[str]:
    """Return the ids of the connections of type fsm in Airflow's database and the environment.

    Those in a secrets backend cannot be listed.
    """
    from airflow.models import Connection as StoredConnection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(StoredConnection.conn_id).where(StoredConnection.conn_type == CONN_TYPE)
    with create_session() as session:
        conn_ids = set(session.scalars(query))
    for name, value in os.environ.items():
        if name.startswith(ENVIRONMENT_PREFIX) and _IS_OURS.match(value):
            conn_ids.add(name.removeprefix(ENVIRONMENT_PREFIX).lower())
    return sorted(conn_ids)


def hook_outside_of_tasks(conn_id: str) -> Any:
    """Return the hook of a connection outside of tasks, as :func:`hook_on` does."""
    return hook_on(read_connection_outside_of_tasks(conn_id))


def hook_on(stored: Connection) -> Any:
    """Return the hook of a connection that was read before.

    :raises AirflowException: if its type is unknown; ImportError, if the hook's provider is not
        installed.
    """
    from airflow.providers.common.compat.sdk import Connection

    connection: Any = Connection(
        conn_id=stored.conn_id,
        conn_type=stored.conn_type,
        host=stored.host,
        schema=stored.schema,
        login=stored.login,
        password=stored.password,
        port=stored.port,
        extra=stored.extra,
    )

    hook = connection.get_hook()
    # Else it reads its connection again, through the SDK.
    hook.get_connection = lambda _: connection
    return hook
