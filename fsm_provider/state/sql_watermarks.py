"""A watermark in a SQL database, which all runs, DAGs and Airflows share that use its name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select

from fsm_provider.state.digest import digest_for
from fsm_provider.state.sql_entries import in_transaction
from fsm_provider.state.sql_rows import storable, utc_now
from fsm_provider.state.sql_tables import DIGITS, WATERMARKS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine


class SqlWatermark:
    """The watermark of one name on one service.

    :param engine: the database; its tables exist.
    :param base_url: identifies the service.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails. Nothing is moved then,
        unless the COMMIT took place whose response was lost.
    """

    def __init__(self, engine: Engine, base_url: str, name: str) -> None:
        self._engine = engine
        self._row = {"service": digest_for(base_url, DIGITS), "name_digest": digest_for(name, DIGITS)}
        self._about = {"name": storable(name), "base_url": storable(base_url)}
        self._is_mine = [WATERMARKS.c[column] == value for column, value in self._row.items()]

    def get_or_add(self, first: Callable[[], datetime]) -> datetime:
        """Return the time; if there is none, store the one that ``first`` returns."""
        stored = in_transaction(self._engine, self._read)
        if stored is None:
            at = first()
            stored = in_transaction(self._engine, lambda connection: self._add(connection, at))
        return stored

    def advance(self, at: datetime) -> None:
        """Replace the time, unless it is a later one."""
        earlier = WATERMARKS.update().where(*self._is_mine, WATERMARKS.c.at < _text(at))
        update = earlier.values(at=_text(at), updated_at=utc_now())
        in_transaction(self._engine, lambda connection: connection.execute(update))

    def replace(self, expected: datetime, at: datetime) -> bool:
        """Replace a time by any other; return whether it was the expected one, and is replaced."""
        update = WATERMARKS.update().where(*self._is_mine, WATERMARKS.c.at == _text(expected))
        values = update.values(at=_text(at), updated_at=utc_now())
        return in_transaction(self._engine, lambda one: one.execute(values).rowcount, retry=False) == 1

    def _read(self, connection: Connection) -> datetime | None:
        text = connection.execute(select(WATERMARKS.c.at).where(*self._is_mine)).scalar()
        return None if text is None else datetime.fromisoformat(text)

    def _add(self, connection: Connection, at: datetime) -> datetime:
        if (stored := self._read(connection)) is not None:
            return stored
        values = {**self._row, **self._about, "at": _text(at), "updated_at": utc_now()}
        connection.execute(WATERMARKS.insert().values(**values))
        return at


def sql_watermarks(engine: Engine, base_url: str) -> dict[str, datetime]:
    """Return the times of all watermarks of a service, by name."""
    query = select(WATERMARKS.c.name, WATERMARKS.c.at).order_by(WATERMARKS.c.name)
    mine = query.where(WATERMARKS.c.service == digest_for(base_url, DIGITS))
    with engine.connect() as connection:
        return {name: datetime.fromisoformat(at) for name, at in connection.execute(mine)}


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
