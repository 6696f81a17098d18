"""The SQL database that a connection names as ``state_conn_id``: its transactions and its clock.

:mod:`fsm_provider.state.schema` has its tables. SQLAlchemy is imported where there is such a
database.
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from fsm_provider.api.errors import FsmInputError, FsmNoLedgerError
from fsm_provider.compat import explain_not_found

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError, OperationalError
    from sqlalchemy.ext.compiler import compiles
    from sqlalchemy.sql.functions import FunctionElement
except ImportError as _missing:
    text = "install airflow-provider-fsm[sql] and the Airflow provider of the database"
    raise FsmInputError(f"state_conn_id: {_missing}: {text}") from None

from fsm_provider.state.schema import METADATA, SCHEMA, VERSION

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, Engine
    from tenacity import RetryCallState

logger: logging.Logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

MAX_REPEATS = 12
"""How often a transaction that fails is repeated, within half a minute to two minutes."""
MAX_DELAY = 5.0
SQLITE_LOCK_SECONDS = 5
CONNECT_SECONDS = "5"
"""After which a PostgreSQL server that accepts a connection and says nothing counts as away."""
FIRST_STATEMENT = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SET LOCAL lock_timeout = '10s'",
    "mysql": "SET innodb_lock_wait_timeout = 10",
    "mariadb": "SET innodb_lock_wait_timeout = 10",
}
"""The first statement of each transaction: behind a PgBouncer, a session is not ours."""
NOW = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)",
    "mariadb": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)",
}
TRANSIENT = {"40001", "40P01", "55P03", "1020", "1205", "1213"}
"""SQLSTATEs of PostgreSQL and error numbers of MySQL: the same transaction may succeed."""
LOCK_SCHEMA = {
    "postgresql": "SELECT pg_advisory_xact_lock(hashtext('fsm_schema'))",
    "mysql": "SELECT GET_LOCK(CONCAT('fsm_schema ', MD5(DATABASE())), 30)",
    "mariadb": "SELECT GET_LOCK(CONCAT('fsm_schema ', MD5(DATABASE())), 30)",
}
"""Lets one process at a time create tables: until COMMIT, or the end of the session in MySQL.

In SQLite, FIRST_STATEMENT does so.
"""


class now(FunctionElement[int]):
    """Whole milliseconds since 1970 by the clock of the database, as it runs the statement."""

    type: sa.BigInteger = sa.BigInteger()
    inherit_cache: bool | None = True


@compiles(now)
def _now(_: now, compiler: Any, **__: Any) -> str:
    return NOW[compiler.dialect.name]


# As texts: a new engine would compile them, which doubles the 2 ms of an opening.
_COLUMNS = map(str, sa.select(*METADATA.tables.values()).selected_columns)
_SELECT_NO_ROW = " ".join(
    ["SELECT", ", ".join(_COLUMNS), "FROM", ", ".join(METADATA.tables), "WHERE 1 = 0"]
)
_SELECT_VERSION = "SELECT MAX(version) FROM fsm_schema"


def in_transaction(
    engine: Engine,
    work: Callable[[Connection], ResultT],
    *,
    waits_for_server: bool = True,
    max_repeats: int | None = None,
) -> ResultT:
    """Return what ``work`` does in one transaction, which is repeated after a transient failure.

    That is a deadlock, a lock timeout, or a lost connection. A COMMIT whose response was lost may
    have taken place: ``work`` has to recognise what it has done.

    :param waits_for_server: repeat it also if the server cannot be reached.
    """

    def attempt() -> ResultT:
        with engine.begin() as connection:
            return work(connection)

    def may_retry(error: BaseException) -> bool:
        return _is_transient(error) or (waits_for_server and _is_unreachable(error))

    return _repeat(attempt, may_retry, max_repeats)


def _repeat(
    attempt: Callable[[], ResultT],
    may_retry: Callable[[BaseException], bool],
    max_repeats: int | None = None,
) -> ResultT:
    """Return what ``attempt`` returns, after as many repeats as its transient failures need."""
    if max_repeats is None:
        max_repeats = MAX_REPEATS
    stop = stop_after_attempt(max_repeats + 1)
    retry = retry_if_exception(may_retry)
    return Retrying(retry=retry, stop=stop, wait=_delay, reraise=True)(attempt)


def _delay(state: RetryCallState) -> float:
    """Return how many seconds to wait before the next attempt."""
    delay: float = 0.05 * 2 ** (state.attempt_number - 1)
    return random.uniform(0.5, 1) * min(delay, MAX_DELAY)  # noqa: S311


def _is_transient(error: BaseException) -> bool:
    """Return whether the same transaction may succeed if it is repeated."""
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError):
        return False
    arguments = getattr(error.orig, "args", None)
    error_number = str(arguments[0]) if arguments else ""
    is_known = _sqlstate(error) in TRANSIENT or error_number in TRANSIENT
    return error.connection_invalidated or is_known or "locked" in str(error.orig)


def _is_unreachable(error: BaseException) -> bool:
    """Return whether a server was not reached: such an error has no SQLSTATE."""
    if not isinstance(error, OperationalError) or isinstance(error.orig, sqlite3.Error):
        return False
    return not _sqlstate(error)


def _sqlstate(error: DBAPIError) -> str:
    code = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)
    return str(code or "")


def open_database(
    state_conn_id: str, get_hook: Callable[[str], Any] = BaseHook.get_hook, *, create: bool = True
) -> Engine:
    """Return the engine of the database that an Airflow connection names.

    A server that cannot be reached is not waited for. Without ``create``, nor is a lock on the
    tables: the page would be silent for minutes.

    :param create: make the tables if there are none. Who only reads, or changes what is there,
        makes nothing, not even the file of a SQLite database.
    :raises FsmInputError: if a package is missing, the connection is not of a database that lasts,
        its tables are not whole, or they are those of a newer version of this package.
    :raises FsmNoLedgerError: if there are no tables, and ``create`` is false.
    """
    prefix = f"state_conn_id: connection '{state_conn_id}'"  # of all messages
    url, extra = _read_connection(state_conn_id, get_hook, prefix)
    _check_connection(url, extra, prefix)
    shown_url = url.render_as_string(hide_password=True)
    no_ledger = FsmNoLedgerError(f"connection '{state_conn_id}'", shown_url)
    is_file_missing = url.get_backend_name() == "sqlite" and not Path(url.database or "").exists()
    if is_file_missing and not create:
        raise no_ledger  # SQLite would create the file
    engine = _make_engine(url)
    try:
        stored = _read_schema(engine, None if create else 0)
        if stored.version is None and create:
            _create_tables(engine, prefix)
            stored = _read_schema(engine)
        if not stored.tables:
            raise no_ledger
        _check_schema(stored, prefix, shown_url)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, DBAPIError):
            error.add_detail(f"{prefix}, {shown_url}")
        raise
    return engine


def database_url(state_conn_id: str, get_hook: Callable[[str], Any]) -> str:
    """Return the URL of the database that a connection names, without user and options."""
    prefix = f"state_conn_id: connection '{state_conn_id}'"
    url, _ = _read_connection(state_conn_id, get_hook, prefix)
    return sa.engine.URL.create(
        url.drivername, None, None, url.host, url.port, url.database
    ).render_as_string()


def _read_connection(
    state_conn_id: str, get_hook: Callable[[str], Any], prefix: str
) -> tuple[URL, Mapping[str, Any]]:
    """Return the URL of a connection's database, and the connection's extra."""
    try:
        hook = get_hook(state_conn_id)
        connection = hook.get_connection(state_conn_id)
        conn_type = connection.conn_type
        if not hasattr(hook, "get_sqlalchemy_engine"):
            raise FsmInputError(f"{prefix} is of type {conn_type}, not of a SQL database")
        if conn_type == "sqlite":
            url = _url_of_file(connection, prefix)
        else:
            url = hook.get_sqlalchemy_engine({"hide_parameters": True}).url
    except AirflowNotFoundException:
        text = f"state_conn_id: {explain_not_found(state_conn_id)}"
        raise AirflowNotFoundException(text) from None
    except Exception as error:
        is_package_missing = isinstance(error, ImportError | NoSuchModuleError)
        if not is_package_missing and "nknown hook type" not in str(error):
            raise
        raise FsmInputError(
            f"{prefix}: {error}: install apache-airflow-providers-postgres or "
            "apache-airflow-providers-mysql, with the database's driver"
        ) from None
    return url, connection.extra_dejson


def _url_of_file(connection: Any, prefix: str) -> URL:
    """Return the URL of the file that a connection names. Airflow's own decodes a % in the path."""
    path = connection.host or ""
    is_absolute = path.startswith("/") and not connection.schema
    if not is_absolute or not path.isprintable():
        text = "its host should be the absolute path of a file, the rest empty"
        raise FsmInputError(f"{prefix}: {text}")
    return sa.engine.URL.create("sqlite", database=path)


def _check_connection(url: URL, extra: Mapping[str, Any], prefix: str) -> None:
    """Refuse a database that we do not know, and ssl options that would be ignored."""
    dialect = url.get_backend_name()
    if dialect not in FIRST_STATEMENT:
        text = f"is {dialect}: it should be SQLite, PostgreSQL, MySQL or MariaDB"
        raise FsmInputError(f"{prefix}: {text}")
    unused = [name for name in extra if name.startswith("ssl") and name not in url.query]
    if unused:
        raise FsmInputError(
            f"{prefix}: {', '.join(unused)}: would be ignored here. For PostgreSQL, put it into "
            "the extra's sqlalchemy_query"
        )


def _make_engine(url: URL) -> Engine:
    """Return an engine whose transactions begin with our first statement; nothing is connected."""
    is_sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"}
    if is_sqlite:
        options = {"connect_args": {"timeout": SQLITE_LOCK_SECONDS}}
    if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": CONNECT_SECONDS})
    if url.get_driver_name() == "psycopg":
        # Behind a PgBouncer another connection has what was prepared. In SQL_ASCII, texts would be
        # bytes.
        options["connect_args"] = {"prepare_threshold": None, "client_encoding": "UTF8"}
    engine = sa.create_engine(url, hide_parameters=True, **options)
    if is_sqlite:
        sa.event.listen(engine, "connect", _begin_no_transactions)
    sa.event.listen(engine, "begin", _begin_with_our_statement)
    return engine


def _begin_no_transactions(connection: sqlite3.Connection, _: Any) -> None:
    """Have Python's module leave BEGIN to us: ours locks the file at once."""
    connection.isolation_level = None


def _begin_with_our_statement(connection: Connection) -> None:
    connection.exec_driver_sql(FIRST_STATEMENT[connection.dialect.name])


@dataclass(frozen=True)
class _StoredSchema:
    """What a database has of our tables.

    :param tables: the names of those that are there.
    :param version: None if the row is missing that is written last.
    :param missing: the names of tables, and of columns as ``table.column``, that are not.
    """

    tables: set[str]
    version: int | None
    missing: Collection[str] = ()


def _read_schema(engine: Engine, max_repeats: int | None = None) -> _StoredSchema:
    """Return what there is: by two queries, or table by table if something is missing."""
    with suppress(DBAPIError):
        return in_transaction(
            engine, _read_whole_schema, waits_for_server=False, max_repeats=max_repeats
        )
    return in_transaction(engine, _inspect_schema, waits_for_server=False, max_repeats=max_repeats)


def _read_whole_schema(connection: Connection) -> _StoredSchema:
    """Return what there is if nothing is missing.

    :raises DBAPIError: if something is. To list the columns of each table takes twice as long:
        PostgreSQL 24 ms in place of 12, at the beginning of each task.
    """
    connection.exec_driver_sql(_SELECT_NO_ROW)
    return _StoredSchema(set(METADATA.tables), connection.exec_driver_sql(_SELECT_VERSION).scalar())


def _inspect_schema(connection: Connection) -> _StoredSchema:
    inspector = sa.inspect(connection)
    version = None
    # At first, as it is written last: another process may be making the tables.
    if inspector.has_table(SCHEMA.name):
        version = connection.exec_driver_sql(_SELECT_VERSION).scalar()
    tables = set(METADATA.tables) & set(inspector.get_table_names())
    missing = set(METADATA.tables) - tables
    for name in tables:
        stored_columns = {column["name"] for column in inspector.get_columns(name)}
        columns = set(METADATA.tables[name].columns.keys())
        missing |= {f"{name}.{column}" for column in columns - stored_columns}
    return _StoredSchema(tables, version, missing)


def _check_schema(stored: _StoredSchema, prefix: str, shown_url: str) -> None:
    """Refuse tables that are not whole, or that a newer version of this package has made."""
    if stored.version is None:
        raise FsmInputError(
            f"{prefix}: {_listed(stored.tables)} in {shown_url}, but no row of {SCHEMA.name}: they "
            "were half made, or are not ours: restore a backup, or, if no task "
            "has written through them yet, drop them"
        )
    if stored.version > VERSION:
        raise FsmInputError(
            f"{prefix}: the tables in {shown_url} have version {stored.version}, and this "
            f"airflow-provider-fsm knows version {VERSION}: install the newer "
            "airflow-provider-fsm here as well"
        )
    if stored.missing:
        raise FsmInputError(
            f"{prefix}: {_listed(stored.missing)} missing in {shown_url}: restore a backup; "
            "nothing is created anew, since what was sent would be forgotten"
        )


def _listed(names: Collection[str]) -> str:
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(sorted(names))} {verb}"


def _create_tables(engine: Engine, prefix: str) -> None:
    """Create the tables, unless another process has done so."""
    if engine.dialect.name == "sqlite":
        _use_write_ahead_log(engine)
    try:
        is_new = in_transaction(engine, _create_once, waits_for_server=False)
    finally:
        engine.dispose()  # ends the session, and with it the lock of MySQL
    if is_new:
        text = "%s: its tables were created (%s): it knows nothing that was sent before"
        logger.warning(text, prefix, ", ".join(sorted(METADATA.tables)))


def _create_once(connection: Connection) -> bool:
    """Create all tables, and then the row of their version; return False if there is any of them.

    That is one transaction in SQLite and PostgreSQL. MySQL and MariaDB commit after each table: if
    this process is killed in between, the row is missing.
    """
    dialect = connection.dialect.name
    if dialect in LOCK_SCHEMA:
        connection.exec_driver_sql(LOCK_SCHEMA[dialect])
    if _inspect_schema(connection).tables:
        return False
    METADATA.create_all(connection)
    connection.execute(SCHEMA.insert().values(version=VERSION))
    return True


def _use_write_ahead_log(engine: Engine) -> None:
    """Have other programs read a SQLite file while a task writes. The file keeps this mode.

    Our own readers wait: each of our transactions locks the file as it begins.
    """

    def attempt() -> None:
        # Not in a transaction, in which the mode cannot be changed.
        with closing(engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA journal_mode=WAL")

    with suppress(sqlite3.Error):  # the ledger works without it
        _repeat(attempt, lambda error: "locked" in str(error))
