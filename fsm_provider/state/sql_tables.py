"""The tables of a SQL database that holds ledgers and what is stored with assets, created on first use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, Text, inspect, select
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from fsm_provider.api.errors import FsmInputError
from fsm_provider.compat import unreadable_variable_is_named

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

logger: logging.Logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
DIGITS = 32
"""Length of the digests that identify a service, a scope, a key and a task."""

CREATE_PAUSE = 0.5
"""Seconds before the tables are created again that another task may be creating."""

METADATA = MetaData()
TABLE_OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
LONG_TEXT = Text().with_variant(LONGTEXT(), "mysql").with_variant(LONGTEXT(), "mariadb")

LEDGER = Table(
    "fsm_ledger",
    METADATA,
    Column("service", String(DIGITS), primary_key=True),
    Column("scope", String(DIGITS), primary_key=True),
    Column("key_digest", String(DIGITS), primary_key=True),
    Column("key", Text, nullable=False),
    Column("base_url", Text, nullable=False),
    # The task that has written the entry last, and its attempt.
    Column("dag_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("attempt", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("entry", LONG_TEXT, nullable=False),
    Column("updated_at", DateTime, nullable=False),
    **TABLE_OPTIONS,
)
"""One entry of a ledger each. ``entry`` is JSON; the columns beside it are for the eye, in UTC."""

ATTEMPTS = Table(
    "fsm_ledger_attempts",
    METADATA,
    Column("task", String(DIGITS), primary_key=True),
    Column("attempt", String(64), nullable=False),
    Column("stored_at", DateTime, nullable=False),
    **TABLE_OPTIONS,
)
"""The latest attempt of each task instance. No other attempt of it claims anything."""

HISTORY = Table(
    "fsm_ledger_history",
    METADATA,
    # Sorts by time. The database numbers nothing: that needs rights of its own.
    Column("id", String(DIGITS), primary_key=True),
    Column("service", String(DIGITS), nullable=False),
    Column("scope", String(DIGITS), nullable=False),
    Column("key_digest", String(DIGITS), nullable=False),
    Column("key", Text, nullable=False),
    Column("at", DateTime, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("entry", LONG_TEXT, nullable=False),
    **TABLE_OPTIONS,
)
"""What people have changed, each in the transaction that changed it. ``entry`` is what was there before."""

_SCHEMA = Table(
    "fsm_ledger_schema",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    **TABLE_OPTIONS,
)


def engine_for(state_conn_id: str, get_hook: Callable[[str], Any] = BaseHook.get_hook) -> Engine:
    """Return the engine of the database that an Airflow connection names.

    :param get_hook: returns the hook of a connection.
    :raises FsmInputError: if it is not a connection of a database, or names none that lasts.
    :raises AirflowNotFoundException: if it is not defined.
    """
    try:
        with unreadable_variable_is_named(state_conn_id):
            hook = get_hook(state_conn_id)
    except AirflowNotFoundException as error:
        raise AirflowNotFoundException(f"state_conn_id: {error}") from None
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise FsmInputError(
            f"state_conn_id: connection '{state_conn_id}' is of type {getattr(hook, 'conn_type', '?')}, "
            "not of a SQL database"
        )
    engine: Engine = hook.get_sqlalchemy_engine({"hide_parameters": True})
    if engine.dialect.name == "sqlite" and not (engine.url.database or "").startswith("/"):
        raise FsmInputError(
            f"state_conn_id: the host of connection '{state_conn_id}' should be the absolute path of a file, "
            "and its other fields empty"
        )
    extra = hook.get_connection(state_conn_id).extra_dejson
    if unused := [name for name in extra if name.startswith("ssl") and name not in engine.url.query]:
        raise FsmInputError(
            f"state_conn_id: connection '{state_conn_id}': {', '.join(unused)}: would be ignored here. For "
            "PostgreSQL, put it into the extra's sqlalchemy_query"
        )
    if engine.dialect.name in ("mysql", "mariadb"):
        # Otherwise InnoDB locks the gaps between keys, and inserts of two tasks wait for each other.
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    return engine


def check_tables(engine: Engine) -> None:
    """Create the tables where there are none.

    :raises FsmInputError: if they cannot be created, with the statements that do; or are of a newer version.
    """
    for is_last in (False, False, True):
        if has_tables(engine):
            return
        _create(engine, is_last)


def all_tables() -> MetaData:
    """Return the tables, with that of the other module."""
    from fsm_provider.state.assets import asset_state

    asset_state()
    return METADATA


def has_tables(engine: Engine) -> bool:
    """Return whether there are tables of this version.

    :raises FsmInputError: if there are those of another.
    """
    version = _schema_version(engine)
    if version not in (None, SCHEMA_VERSION):
        raise FsmInputError(
            f"the ledger's tables are of version {version}, and this provider knows {SCHEMA_VERSION}: "
            "install the provider that made them, or a newer one"
        )
    return version is not None


def statements(engine: Engine) -> str:
    """Return the statements that create the tables, for a user who may do so."""
    tables = [str(CreateTable(table).compile(engine)).strip() for table in all_tables().sorted_tables]
    version = _SCHEMA.insert().values(version=SCHEMA_VERSION)
    insert = version.compile(engine, compile_kwargs={"literal_binds": True})
    return ";\n".join([*tables, f"{insert};"])


def _schema_version(engine: Engine) -> int | None:
    """Return the version of the tables, None if there are none."""
    try:
        return _read_version(engine)
    except DBAPIError:
        if not inspect(engine).has_table(_SCHEMA.name):
            return None
        return _read_version(engine)  # another task may just have created it


def _read_version(engine: Engine) -> int | None:
    with engine.connect() as connection:
        return connection.execute(select(_SCHEMA.c.version)).scalar()


def _create(engine: Engine, is_last: bool) -> None:
    try:
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                # A transaction then waits once for the disk, not three times.
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        with engine.begin() as connection:
            all_tables().create_all(connection)
            connection.execute(_SCHEMA.insert().values(version=SCHEMA_VERSION))
    except SQLAlchemyError as error:
        # Another task may be creating them. Where the database is away, the next query says so.
        if _schema_version(engine) is None and is_last:
            raise FsmInputError(
                "state_conn_id: the ledger's tables cannot be created "
                f"({getattr(error, 'orig', error)}). Have a user who may create tables run\n"
                f"{statements(engine)}"
            ) from None
        time.sleep(CREATE_PAUSE)
    else:
        logger.info("Created the tables %s", ", ".join(METADATA.tables))
