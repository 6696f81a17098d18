"""What is stored with an asset; before Airflow 3.3, in the database of ``state_conn_id``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException, conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.digest import digest_for

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Engine

    Database = Callable[[], Awaitable[tuple[Engine, str]]]

Result = TypeVar("Result")
DIGITS = 32
OWNER = "owner"
"""Key of the claim of the process that owns the asset; when the row was updated shows that it is alive."""
RENEW_INTERVAL = 15.0
"""Seconds between two renewals."""
MAX_SILENCE = 90.0
"""Seconds without a renewal after which the owner is taken for dead; between two events it renews nothing."""
PROCESS = uuid4().hex
_claimed: set[tuple[str, str]] = set()
"""The processes and the names of assets that they have owned."""


class AssetStore(Protocol):
    """JSON values that are stored with an asset: ``AssetStateStoreAccessor`` of Airflow 3.3 and newer."""

    async def aget(self, key: str) -> Any:
        """Return a value, None if there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Store a value other than None."""

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""


class AssetClaimedError(AirflowException):
    """Another process has claimed the asset, and stores what it does."""


class SqlAssetStore:
    """The store of an asset in a SQL database, for triggerers and commands.

    Several triggerers may watch an asset. Airflow moves a trigger away from a triggerer that is silent, which
    may wake up later; and Airflow 3.0 and 3.1 run the trigger of an asset in every triggerer. The last one
    to claim the asset owns it. Another one gets it back once the owner is silent.

    :param asset_name: the asset's name.
    :param database: returns the database, and the base URL of the service.
    :param process: what identifies the process.
    :raises FsmInputError: by each method, if there is no database, or a value is not what was stored.
    :raises AssetClaimedError: by each write after :meth:`claim`, if there was another claim since.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(self, asset_name: str, database: Database, process: str = PROCESS) -> None:
        self._asset_name = asset_name
        self._database = database
        self._process = process
        self._claim: str | None = None

    async def aget(self, key: str) -> Any:
        """Return a JSON value, None if there is none."""
        return (await self._read(key))[0]

    async def aset(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        await self._write(key, json.dumps(value))

    async def adelete(self, key: str) -> None:
        """Delete a value, if there is one."""
        await self._write(key, None)

    async def claim(self) -> None:
        """Own the asset; wait first until the owner is silent, if this process has owned it before."""
        if (self._process, self._asset_name) in _claimed:
            await self._until_silent()
        # A number of its own: what an earlier claim of this process still writes in a thread is refused, too.
        claim = json.dumps([self._process, uuid4().hex])
        await self._write(OWNER, claim)
        self._claim = claim
        _claimed.add((self._process, self._asset_name))

    async def renew(self) -> None:
        """Show that the owner is not silent."""
        await self._write(OWNER, self._claim)

    async def _until_silent(self) -> None:
        clock = asyncio.get_running_loop().time
        seen, since = None, clock()
        while (owner := await self._read(OWNER))[0] and owner[0][0] != self._process:
            if owner != seen:
                seen, since = owner, clock()
            elif clock() - since >= MAX_SILENCE:
                return
            await asyncio.sleep(RENEW_INTERVAL)

    async def _read(self, key: str) -> tuple[Any, datetime | None]:
        """Return a value, and when it was written."""
        engine, service = await self._database()
        query = asset_state().select().where(*_is(self._row(service, key)))
        row = await asyncio.to_thread(_in_transaction, engine, lambda one: one.execute(query).first())
        try:
            return (None, None) if row is None else (json.loads(row.value), row.updated_at)
        except ValueError as error:
            raise FsmInputError(
                f"'{key}' of the asset '{self._asset_name}' in the table fsm_asset_state is not what was "
                f"stored: {error}"
            ) from None

    async def _write(self, key: str, text: str | None) -> None:
        """Store a value, or delete it, unless there was another claim since this store's."""
        engine, service = await self._database()
        claim, now = self._claim, datetime.now(UTC).replace(tzinfo=None)
        table, row = asset_state(), self._row(service, key)
        renewal = table.update().where(*_is(self._row(service, OWNER)), table.c.value == claim)
        values = {"service": service, "asset_name": self._asset_name, "key": key, "value": text}

        def write(connection: Connection) -> None:
            # Until the transaction ends, the owner's row is locked: nobody else claims the asset meanwhile.
            if claim and not connection.execute(renewal.values(updated_at=now)).rowcount:
                raise AssetClaimedError("another triggerer watches the asset meanwhile")
            if text is None:
                connection.execute(table.delete().where(*_is(row)))
            elif not connection.execute(
                table.update().where(*_is(row)).values(**values, updated_at=now)
            ).rowcount:
                connection.execute(table.insert().values(**row, **values, updated_at=now))

        await asyncio.to_thread(_in_transaction, engine, write)

    def _row(self, service: str, key: str) -> dict[str, str]:
        """Return the primary key of a value."""
        asset = [conf.get("fsm", "airflow_name", fallback=""), service, self._asset_name]
        return {"asset_digest": digest_for(asset, DIGITS), "key_digest": digest_for(key, DIGITS)}


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
        Column("service", Text, nullable=False),
        Column("asset_name", Text, nullable=False),
        Column("key", Text, nullable=False),
        Column("value", long_text, nullable=False),
        Column("updated_at", time, nullable=False),
        **TABLE_OPTIONS,
    )


def _is(row: dict[str, str]) -> list[Any]:
    return [asset_state().c[name] == value for name, value in row.items()]


def _in_transaction(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    from sqlalchemy.exc import IntegrityError

    from fsm_provider.state.database import in_transaction

    try:
        return in_transaction(engine, work)
    except IntegrityError:  # another process has just inserted the row
        return in_transaction(engine, work)
