"""What is stored with an asset: in Airflow's asset state store; before 3.3, in a SQL database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.task import digest_for

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Engine

ResultT = TypeVar("ResultT")

NO_DATABASE = (
    "connection '{}' names no database as its state_conn_id; before Airflow 3.3 it has to. For a SQLite "
    "file: run `airflow connections add fsm_state --conn-type sqlite --conn-host /opt/airflow/fsm_state.db`, "
    'and put "state_conn_id": "fsm_state" into the extra of the connection'
)
DIGITS = 32
_engines: dict[str, Engine] = {}


class AssetStore(Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and newer."""

    async def aget(self, key: str) -> Any: ...

    async def aset(self, key: str, value: Any) -> None: ...


def asset_store_for(asset_name: str, fsm_conn_id: str) -> AssetStore:
    if not AIRFLOW_V_3_3_PLUS:
        return SqlAssetStore(asset_name, fsm_conn_id)
    from airflow.sdk.execution_time.context import AssetStateStoreAccessor

    store: AssetStore = AssetStateStoreAccessor(name=asset_name)
    return store


class SqlAssetStore:
    """The store of an asset before Airflow 3.3, in the database that the connection names.

    Each method raises FsmInputError if there is no database.
    """

    def __init__(
        self, asset_name: str, fsm_conn_id: str, read: Callable[[str], Awaitable[Any]] = get_async_connection
    ) -> None:
        self._asset_name, self._fsm_conn_id, self._read = asset_name, fsm_conn_id, read

    async def aget(self, key: str) -> Any:
        query = asset_state().select().where(asset_state().c.digest == self._digest(key))
        row = await self._in_transaction(lambda connection: connection.execute(query).first())
        return None if row is None else json.loads(row.value)

    async def aset(self, key: str, value: Any) -> None:
        table, digest = asset_state(), self._digest(key)
        names = {"fsm_conn_id": self._fsm_conn_id, "asset_name": self._asset_name, "key": key}

        def write(connection: Connection) -> None:
            new = {"value": json.dumps(value), "updated_at": datetime.now(UTC).replace(tzinfo=None)}
            if not connection.execute(table.update().where(table.c.digest == digest).values(new)).rowcount:
                connection.execute(table.insert().values(digest=digest, **names, **new))

        await self._in_transaction(write)

    def _digest(self, key: str) -> str:
        airflow = conf.get("fsm", "airflow_name", fallback="")
        return digest_for([airflow, self._fsm_conn_id, self._asset_name, key], DIGITS)

    async def _in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        from sqlalchemy.exc import IntegrityError

        from fsm_provider.state.database import in_transaction

        if (engine := _engines.get(self._fsm_conn_id)) is None:
            engine = _engines[self._fsm_conn_id] = await self._open()
        try:
            return await asyncio.to_thread(in_transaction, engine, work)
        except IntegrityError:  # another process has just inserted the row
            return await asyncio.to_thread(in_transaction, engine, work)

    async def _open(self) -> Engine:
        from asgiref.sync import sync_to_async

        from fsm_provider.compat import hook_on
        from fsm_provider.hooks.fsm import settings_from
        from fsm_provider.state.database import open_database

        if (state_conn_id := settings_from(await self._read(self._fsm_conn_id)).state_conn_id) is None:
            raise FsmInputError(NO_DATABASE.format(self._fsm_conn_id))
        try:
            of_database = await self._read(state_conn_id)
        except AirflowNotFoundException as error:
            raise FsmInputError(f"state_conn_id of connection '{self._fsm_conn_id}': {error}") from None
        # In a thread that Airflow knows: the extra of a connection is masked by a message to the supervisor.
        open_in_thread = sync_to_async(open_database, thread_sensitive=False)
        return await open_in_thread(state_conn_id, lambda _: hook_on(of_database))


@cache
def asset_state() -> Table:
    """Return the table: one value of an asset each, as JSON. The columns between are for the eye."""
    from sqlalchemy import Column, DateTime, String, Table, Text
    from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT

    from fsm_provider.state.database import METADATA, TABLE_OPTIONS

    long_text = Text().with_variant(LONGTEXT(), "mysql").with_variant(LONGTEXT(), "mariadb")
    time = DateTime().with_variant(DATETIME(fsp=6), "mysql").with_variant(DATETIME(fsp=6), "mariadb")
    return Table(
        "fsm_asset_state",
        METADATA,
        Column("digest", String(DIGITS), primary_key=True),
        Column("fsm_conn_id", Text, nullable=False),
        Column("asset_name", Text, nullable=False),
        Column("key", Text, nullable=False),
        Column("value", long_text, nullable=False),
        Column("updated_at", time, nullable=False),
        **TABLE_OPTIONS,
    )
