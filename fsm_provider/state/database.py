"""The SQL database that a connection names as ``state_conn_id``: its tables, its transactions and
its clock.

SQLAlchemy is imported where there is such a database.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from tenacity import retry, stop_after_attempt, wait_fixed

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import unreadable_variable

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError, OperationalError
    from sqlalchemy.ext.compiler import compiles
    from sqlalchemy.sql.functions import FunctionElement
except ImportError as _missing:
    text = "install airflow-provider-fsm[sql] and the Airflow provider of the database"
    raise FsmInputError(f"state_conn_id: {_missing}: {text}") from None

from fsm_provider.state.schema import METADATA

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

MAX_REPEATS = 12
"""Of a transaction that a deadlock, a lock timeout or a lost connection has ended: half a minute to
two.
"""
MAX_DELAY = 5.0
SQLITE_LOCK_SECONDS = 5
_BEGIN = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SET LOCAL lock_timeout = '10s'",
    **dict.fromkeys(("mysql", "mariadb"), "SET innodb_lock_wait_timeout = 10"),
}
"""The first statement of each transaction: behind a PgBouncer, a session is not ours."""
_NOW = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)",
    **dict.fromkeys(("mysql", "mariadb"), "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)"),
}
_PASSING = {"40001", "40P01", "55P03", "1020", "1205", "1213"}
"""SQLSTATEs of PostgreSQL and error numbers of MySQL: the same transaction may succeed."""


class now(FunctionElement[int]):
    """Whole milliseconds since 1970 by the clock of the database, at the moment of the statement."""

    type: sa.BigInteger = sa.BigInteger()
    inherit_cache: bool | None = True


@compiles(now)
def _now(_: now, compiler: Any, **__: Any) -> str:
    return _NOW[compiler.dialect.name]


def in_transaction(engine: Engine, work: Callable[[Connection], ResultT]) -> ResultT:
    """Return what ``work`` does in one transaction, which is repeated after a deadlock or a lost
    connection.

    A COMMIT whose response was lost may have taken place: ``work`` has to recognise what it has
    done.
    """
    for repeat in range(MAX_REPEATS + 1):
        try:
            with engine.begin() as connection:
                return work(connection)
        except DBAPIError as error:
            code = str(
                getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None) or ""
            )
            number = str(error.orig.args[0]) if error.orig and error.orig.args else ""
            passing = (
                error.connection_invalidated
                or {code, number} & _PASSING
                or "locked" in str(error.orig)
            )
            # A server that cannot be reached gives no SQLSTATE.
            is_away = (
                isinstance(error, OperationalError) and not code and engine.dialect.name != "sqlite"
            )
            if (
                isinstance(error, IntegrityError)
                or not (passing or is_away)
                or repeat == MAX_REPEATS
            ):
                raise
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**repeat, MAX_DELAY))  # noqa: S311
    raise AssertionError


def open_database(state_conn_id: str, get_hook: Callable[[str], Any] = BaseHook.get_hook) -> Engine:
    """Return the engine of the database that an Airflow connection names; create the tables on
    first use.

    :raises FsmInputError: if a package is missing, or the connection is not of a database that
        lasts.
    """
    named = f"state_conn_id: connection '{state_conn_id}'"
    try:
        hook = get_hook(state_conn_id)
        if not hasattr(hook, "get_sqlalchemy_engine"):
            kind = getattr(hook, "conn_type", "?")
            raise FsmInputError(f"{named} is of type {kind}, not of a SQL database")
        url = hook.get_sqlalchemy_engine({"hide_parameters": True}).url
    except AirflowNotFoundException as error:
        text = f"state_conn_id: {unreadable_variable(state_conn_id, error)}"
        raise AirflowNotFoundException(text) from None
    except Exception as error:
        if not isinstance(error, ImportError | NoSuchModuleError) and "nknown hook type" not in str(
            error
        ):
            raise
        packages = "apache-airflow-providers-postgres or apache-airflow-providers-mysql"
        raise FsmInputError(
            f"{named}: {error}: install {packages}, with the database's driver"
        ) from None
    dialect = url.get_backend_name()
    if dialect not in _BEGIN:
        raise FsmInputError(
            f"{named}: is {dialect}: it should be SQLite, PostgreSQL, MySQL or MariaDB"
        )
    if dialect == "sqlite" and not (url.database or "").startswith("/"):
        raise FsmInputError(
            f"{named}: its host should be the absolute path of a file, the rest empty"
        )
    extra = hook.get_connection(state_conn_id).extra_dejson
    if unused := [name for name in extra if name.startswith("ssl") and name not in url.query]:
        raise FsmInputError(
            f"{named}: {', '.join(unused)}: would be ignored here. For PostgreSQL, put it into the "
            "extra's sqlalchemy_query"
        )
    connect: dict[str, Any] = {"timeout": SQLITE_LOCK_SECONDS} if dialect == "sqlite" else {}
    if url.get_driver_name() == "psycopg":
        # Behind a PgBouncer another connection has what was prepared. In SQL_ASCII, texts would be
        # bytes.
        connect = {"prepare_threshold": None, "client_encoding": "UTF8"}
    further = {} if dialect == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine: Engine = sa.create_engine(url, connect_args=connect, hide_parameters=True, **further)
    if (
        dialect == "sqlite"
    ):  # transactions begin where SQLAlchemy says so, and lock before they read
        sa.event.listen(
            engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None)
        )
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(_BEGIN[dialect]))
    try:
        if not METADATA.tables.keys() <= set(sa.inspect(engine).get_table_names()):
            _create_tables(engine)
            logger.warning(
                "%s: its tables were created: it knows nothing that was sent before", named
            )
    except BaseException as error:
        engine.dispose()
        if isinstance(error, DBAPIError):
            error.add_detail(f"{named}, {engine.url!r}")
        raise
    return engine


@retry(
    stop=stop_after_attempt(2), wait=wait_fixed(0.5), reraise=True
)  # another task may be creating them
def _create_tables(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        # No transaction begins, in which the mode cannot be changed. Who finds it locked is too
        # late.
        with closing(engine.raw_connection()) as raw, suppress(sqlite3.OperationalError):
            raw.cursor().execute("PRAGMA journal_mode=WAL")
    with engine.begin() as connection:
        METADATA.create_all(connection)
