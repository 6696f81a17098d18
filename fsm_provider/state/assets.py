"""What is stored with an asset; before Airflow 3.3, in the database of ``state_conn_id``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.task import digest_for

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Engine

ResultT = TypeVar("ResultT")
DIGITS = 32


class AssetStore(Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and newer."""

    async def aget(self, key: str) -> Any:
        """Return a value, None if there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value other than None."""


class SqlAssetStore:
    """The store of an asset in a SQL database, for triggerers and commands.

    :param open_engine: opens the database.
    :raises FsmInputError: by each method, if there is no database, or a value is not what was stored.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(
        self, asset_name: str, fsm_conn_id: str, open_engine: Callable[[], Awaitable[Engine]]
    ) -> None:
        self._asset_name, self._fsm_conn_id, self._open_engine = asset_name, fsm_conn_id, open_engine

    async def aget(self, key: str) -> Any:
        query = asset_state().select().where(*self._is(key))
        row = await self._in_transaction(lambda connection: connection.execute(query).first())
        try:
            return None if row is None else json.loads(row.value)
        except ValueError as error:
            raise FsmInputError(
                f"'{key}' of the asset '{self._asset_name}' in the table fsm_asset_state is not what was "
                f"stored: {error}"
            ) from None

    async def aset(self, key: str, value: Any) -> None:
        table, names = asset_state(), {"fsm_conn_id": self._fsm_conn_id, "asset_name": self._asset_name}
        values = {**names, "key": key, "value": json.dumps(value)}

        def write(connection: Connection) -> None:
            now = {"updated_at": datetime.now(UTC).replace(tzinfo=None)}
            if not connection.execute(table.update().where(*self._is(key)).values(**values, **now)).rowcount:
                connection.execute(table.insert().values(**self._row(key), **values, **now))

        await self._in_transaction(write)

    async def _in_transaction(self, work: Callable[[Connection], ResultT]) -> ResultT:
        from sqlalchemy.exc import IntegrityError

        from fsm_provider.state.database import in_transaction

        engine = await self._open_engine()
        try:
            return await asyncio.to_thread(in_transaction, engine, work)
        except IntegrityError:  # another process has just inserted the row
            return await asyncio.to_thread(in_transaction, engine, work)

    def _row(self, key: str) -> dict[str, str]:
        asset = [conf.get("fsm", "airflow_name", fallback=""), self._fsm_conn_id, self._asset_name]
        return {"asset_digest": digest_for(asset, DIGITS), "key_digest": digest_for(key, DIGITS)}

    def _is(self, key: str) -> list[Any]:
        return [asset_state().c[name] == value for name, value in self._row(key).items()]


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
        Column("asset_digest", String(DIGITS), primary_key=True),
        Column("key_digest", String(DIGITS), primary_key=True),
        Column("fsm_conn_id", Text, nullable=False),
        Column("asset_name", Text, nullable=False),
        Column("key", Text, nullable=False),
        Column("value", long_text, nullable=False),
        Column("updated_at", time, nullable=False),
        **TABLE_OPTIONS,
    )
