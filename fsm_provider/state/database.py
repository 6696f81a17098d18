"""The SQL database of a connection's ``state_conn_id``. SQLAlchemy is imported where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

from fsm_provider.api.errors import FsmInputError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine


def open_database(state_conn_id: str, get_hook: Callable[[str], Any] = BaseHook.get_hook) -> Engine:
    """Return the engine of the database that an Airflow connection names; create the tables on first use.

    :param get_hook: returns the hook of a connection.
    :raises FsmInputError: if a package is missing, the connection is not of a database that lasts, or the
        tables cannot be created or are of a newer version.
    :raises sqlalchemy.exc.SQLAlchemyError: if the database is away.
    """
    try:
        from fsm_provider.state.sql_tables import check_tables, engine_for
    except ImportError as error:
        raise FsmInputError(
            f"state_conn_id: {error}: install airflow-provider-fsm[sql] and the provider of the database"
        ) from None
    engine = engine_for(state_conn_id, get_hook)
    try:
        check_tables(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine
