"""What is stored with an asset before Airflow 3.3: rows of a SQL database, one for each key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from asgiref.sync import sync_to_async
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from fsm_provider.api.digests import digest_for
from fsm_provider.api.errors import FsmInputError
from fsm_provider.hooks.connection import hook_on, settings_from
from fsm_provider.state.database import in_transaction, open_database
from fsm_provider.state.schema import ASSET_STATE

ResultT = TypeVar("ResultT")

NO_DATABASE = (
    "connection '{}' names no database as its state_conn_id; before Airflow 3.3 it has to. For a SQLite "
    "file: run `airflow connections add fsm_state --conn-type sqlite --conn-host /opt/airflow/fsm_state.db`, "
    'and put "state_conn_id": "fsm_state" into the extra of the connection'
)
_engines: dict[str, Engine] = {}


class SqlAssetStore:
    """The values of an asset, in the database that its connection names; a FsmInputError if it
    names none.
    """

    def __init__(
        self,
        asset_name: str,
        fsm_conn_id: str,
        read: Callable[[str], Awaitable[Any]] = get_async_connection,
        *,
        create: bool = True,
    ) -> None:
        self._asset_name, self._fsm_conn_id, self._read = asset_name, fsm_conn_id, read
        self._create = create

    async def aget(self, key: str) -> Any:
        return (await read_all([(self, key)]))[0]

    async def aset(self, key: str, value: Any) -> None:
        digest, text = self._digest(key), json.dumps(value)
        names = {"fsm_conn_id": self._fsm_conn_id, "asset_name": self._asset_name, "key": key}

        def write(connection: Connection) -> None:
            update = ASSET_STATE.update().where(ASSET_STATE.c.digest == digest).values(value=text)
            if not connection.execute(update).rowcount:
                connection.execute(ASSET_STATE.insert().values(digest=digest, value=text, **names))

        await self._in_transaction(write)

    def _digest(self, key: str) -> str:
        airflow = conf.get("fsm", "airflow_name", fallback="")
        return digest_for([airflow, self._fsm_conn_id, self._asset_name, key])

    async def _in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        if (engine := _engines.get(self._fsm_conn_id)) is None:
            engine = _engines[self._fsm_conn_id] = await self._open()
        try:
            return await asyncio.to_thread(in_transaction, engine, work)
        except IntegrityError:  # another process has just inserted the row
            return await asyncio.to_thread(in_transaction, engine, work)

    async def _open(self) -> Engine:
        if (
            state_conn_id := settings_from(await self._read(self._fsm_conn_id)).state_conn_id
        ) is None:
            raise FsmInputError(NO_DATABASE.format(self._fsm_conn_id))
        try:
            of_database = await self._read(state_conn_id)
        except AirflowNotFoundException as error:
            raise FsmInputError(
                f"state_conn_id of connection '{self._fsm_conn_id}': {error}"
            ) from None
        # In a thread that Airflow knows: the extra of a connection is masked by a message to the
        # supervisor.
        open_in_thread = sync_to_async(open_database, thread_sensitive=False)
        return await open_in_thread(
            state_conn_id, lambda _: hook_on(of_database), create=self._create
        )


async def read_all(wanted: Sequence[tuple[SqlAssetStore, str]]) -> list[Any]:
    """Return the values of assets of one connection, by one query."""
    digests = [store._digest(key) for store, key in wanted]
    query = sa.select(ASSET_STATE.c.digest, ASSET_STATE.c.value).where(
        ASSET_STATE.c.digest.in_(digests)
    )
    rows = await wanted[0][0]._in_transaction(lambda connection: connection.execute(query).all())
    found = {digest: json.loads(value) for digest, value in rows}
    return [found.get(digest) for digest in digests]
