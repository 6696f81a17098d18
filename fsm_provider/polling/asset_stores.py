"""Opens what is stored with assets: Airflow's asset state store; before 3.3, a SQL database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.assets import AssetStore, SqlAssetStore

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

NO_DATABASE = (
    "connection '{}' names no database as its state_conn_id. Before Airflow 3.3, what was emitted is stored "
    "there; Airflow 3.3 and newer need none. For a SQLite file: run `airflow connections add fsm_state "
    "--conn-type sqlite --conn-host /opt/airflow/fsm_state.db`, and put "
    '"state_conn_id": "fsm_state" into the extra of the connection'
)
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[Engine]]] = WeakKeyDictionary()
"""The database of each connection."""


def asset_store_for(asset_name: str, fsm_conn_id: str) -> AssetStore:
    if not AIRFLOW_V_3_3_PLUS:
        return sql_store_for(asset_name, fsm_conn_id)
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    store: AssetStore = AssetStateStoreAccessor(name=asset_name)
    return store


def sql_store_for(
    asset_name: str, fsm_conn_id: str, read: Callable[[str], Awaitable[Any]] = get_async_connection
) -> SqlAssetStore:
    """Return the store of an asset before Airflow 3.3.

    :param read: reads a connection.
    """

    async def engine() -> Engine:
        """Open the database, once in an event loop."""
        opened = _opened.setdefault(asyncio.get_running_loop(), {})
        opening = opened.get(fsm_conn_id)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = opened[fsm_conn_id] = asyncio.ensure_future(_open(fsm_conn_id, read))
        return await asyncio.shield(opening)

    return SqlAssetStore(asset_name, fsm_conn_id, engine)


async def _open(fsm_conn_id: str, read: Callable[[str], Awaitable[Any]]) -> Engine:
    from asgiref.sync import sync_to_async

    from fsm_provider.hooks.fsm import settings_from

    if (state_conn_id := settings_from(await read(fsm_conn_id)).state_conn_id) is None:
        raise FsmInputError(NO_DATABASE.format(fsm_conn_id))
    try:
        of_database = await read(state_conn_id)
    except AirflowNotFoundException as error:
        raise FsmInputError(f"state_conn_id of connection '{fsm_conn_id}': {error}") from None
    # In a thread that Airflow knows: the extra of a connection is masked by a message to the supervisor.
    return await sync_to_async(_engine, thread_sensitive=False)(state_conn_id, of_database)


def _engine(state_conn_id: str, connection: Any) -> Engine:
    from fsm_provider.compat import hook_on
    from fsm_provider.state.assets import asset_state
    from fsm_provider.state.database import open_database

    asset_state()  # which is then among the tables that are created
    return open_database(state_conn_id, lambda _: hook_on(connection))
