"""What is stored with an asset before Airflow 3.3: rows of a SQL database, one for each key."""

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
    "connection '{}' names no database as its state_conn_id; before Airflow 3.3 it has to. "
    "For a SQLite file: run `airflow connections add fsm_state --conn-type sqlite "
    '--conn-host /opt/airflow/fsm_state.db`, and put "state_conn_id": "fsm_state" into the '
    "extra of the connection"
)
_engines: dict[str, Engine] = {}
"""The opened database of each connection.

It stays as long as the process: what is edited of either connection takes effect after a restart.
"""


class SqlAssetStore:
    """The values of an asset, in the database that its connection names.

    The watcher of the asset calls it in the event loop of its triggerer, which reads the
    connections; each query runs in a thread. Commands and the page call it in a loop of their own.

    :param read: reads an Airflow connection.
    :raises FsmInputError: from each method, if the connection names no database.
    """

    def __init__(
        self,
        asset_name: str,
        fsm_conn_id: str,
        read: Callable[[str], Awaitable[Any]] = get_async_connection,
        *,
        create: bool = True,
    ) -> None:
        self._asset_name = asset_name
        self._fsm_conn_id = fsm_conn_id
        self._read = read
        self._create = create

    async def aget(self, key: str) -> Any:
        (value,) = await read_all([(self, key)])
        return value

    async def aset(self, key: str, value: Any) -> None:
        digest = self._digest(key)
        text = json.dumps(value)
        update = ASSET_STATE.update().where(ASSET_STATE.c.digest == digest).values(value=text)
        insert = ASSET_STATE.insert().values(
            digest=digest,
            fsm_conn_id=self._fsm_conn_id,
            asset_name=self._asset_name,
            key=key,
            value=text,
        )

        def write(connection: Connection) -> None:
            updated = connection.execute(update)
            if updated.rowcount == 0:
                connection.execute(insert)

        await self._in_transaction(write)

    def _digest(self, key: str) -> str:
        airflow = conf.get("fsm", "airflow_name", fallback="")
        return digest_for([airflow, self._fsm_conn_id, self._asset_name, key])

    async def _in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        engine = _engines.get(self._fsm_conn_id)
        if engine is None:
            engine = await self._open()
            _engines[self._fsm_conn_id] = engine
        try:
            return await asyncio.to_thread(in_transaction, engine, work)
        except IntegrityError:  # another process has just inserted the row
            return await asyncio.to_thread(in_transaction, engine, work)

    async def _open(self) -> Engine:
        settings = settings_from(await self._read(self._fsm_conn_id))
        state_conn_id = settings.state_conn_id
        if state_conn_id is None:
            raise FsmInputError(NO_DATABASE.format(self._fsm_conn_id))
        try:
            database = await self._read(state_conn_id)
        except AirflowNotFoundException as error:
            raise FsmInputError(
                f"state_conn_id of connection '{self._fsm_conn_id}': {error}"
            ) from None
        # In a thread that Airflow knows: the extra of a connection is masked by a message to the
        # supervisor.
        open_in_thread = sync_to_async(open_database, thread_sensitive=False)
        return await open_in_thread(state_conn_id, lambda _: hook_on(database), create=self._create)


async def read_all(wanted: Sequence[tuple[SqlAssetStore, str]]) -> list[Any]:
    """Return the values of assets of one connection, by one query."""
    digests = [store._digest(key) for store, key in wanted]
    query = sa.select(ASSET_STATE.c.digest, ASSET_STATE.c.value).where(
        ASSET_STATE.c.digest.in_(digests)
    )
    first_store, _ = wanted[0]
    rows = await first_store._in_transaction(lambda connection: connection.execute(query).all())
    values = {digest: json.loads(text) for digest, text in rows}
    return [values.get(digest) for digest in digests]
