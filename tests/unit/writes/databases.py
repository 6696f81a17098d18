"""Empty databases for a ledger.

``FSM_DATABASES`` names others than SQLite, as ``make test-databases`` does: ``postgresql`` and
``psycopg2`` are one server by two drivers, ``pgbouncer`` is one behind a PgBouncer that pools
transactions, and there is ``mariadb``.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy

from tests.distributed.backends import USER, Server, mariadb, postgresql
from tests.system.local_airflow import free_port

DATABASES = os.environ.get("FSM_DATABASES", "sqlite").split(",")
_numbers = count(1)


@dataclass(frozen=True)
class Database:
    """An empty database.

    :param connection: as an Airflow connection.
    :param url: as SQLAlchemy wants it.
    """

    connection: dict[str, Any]
    url: str

    @cached_property
    def engine(self) -> sqlalchemy.engine.Engine:
        """For what the test itself asks."""
        return sqlalchemy.create_engine(self.url, poolclass=sqlalchemy.pool.NullPool)

    @property
    def connection_json(self) -> str:
        """The connection, as a variable ``AIRFLOW_CONN_...`` has it."""
        return json.dumps(self.connection)

    def rows(self, table: str = "fsm_ledger") -> list[Any]:
        """Give all rows of a table."""
        with self.engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text(f"SELECT * FROM {table}")))

    def execute(self, *statements: str) -> None:
        """Execute statements, each in a transaction of its own."""
        for statement in statements:
            with self.engine.begin() as connection:
                connection.execute(sqlalchemy.text(statement))


@contextmanager
def pgbouncer(behind: str) -> Iterator[str]:
    """Run a PgBouncer in front of a PostgreSQL, and give its URL, without a scheme.

    Three sessions of the server serve all clients of a user, each for a transaction.
    """
    at = sqlalchemy.engine.make_url(f"postgresql://{behind}")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fsm-pgbouncer-") as folder:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": f"{folder}/users",
            "auth_user": USER,
            "pool_mode": "transaction",
            "default_pool_size": 3,
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = ["[databases]", f"* = host={at.host} port={at.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        Path(folder, "ini").write_text("\n".join(lines) + "\n")
        Path(folder, "users").write_text(f'"{USER}" ""\n')
        as_user = []
        if os.geteuid() == 0:  # as which it does not run
            shutil.chown(folder, USER, USER)
            as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
        command = [*as_user, shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", f"{folder}/ini"]
        probe = ["bash", "-c", f"echo > /dev/tcp/127.0.0.1/{port}"]
        url = f"{USER}@127.0.0.1:{port}/postgres"
        with Server(url, command, probe, Path(folder), signal.SIGINT) as running:
            yield running.url


@contextmanager
def server(kind: str) -> Iterator[str | int | None]:
    """Run the server of a database, if it needs one; give what :func:`empty_database` needs."""
    if kind in ("postgresql", "psycopg2"):
        with postgresql() as url:
            yield url
    elif kind == "pgbouncer":
        with postgresql() as url, pgbouncer(url) as pooled:
            yield pooled
    elif kind == "mariadb":
        with mariadb() as port:
            yield port
    else:
        yield None


def empty_database(kind: str, at: str | int | None, folder: Path, encoding: str = "") -> Database:
    """Make an empty database on a server.

    :param encoding: of a PostgreSQL, else it is UTF-8.
    """
    name = f"ledger{next(_numbers)}"
    if kind == "sqlite":
        file = folder / f"{name}.db"
        return Database({"conn_type": "sqlite", "host": str(file)}, f"sqlite:///{file}")
    if kind == "mariadb":
        url = f"mysql+mysqldb://root@127.0.0.1:{at}"
        Database({}, url).execute(f"CREATE DATABASE {name}")
        login = {"conn_type": "mysql", "host": "127.0.0.1", "port": at, "login": "root"}
        return Database({**login, "schema": name}, f"{url}/{name}")
    url = sqlalchemy.engine.make_url(f"postgresql+psycopg2://{at}")
    admin = Database({}, str(url))
    admin.execute(f"CREATE ROLE {name} LOGIN")
    if encoding:
        with admin.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            made = f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0 ENCODING '{encoding}'"
            connection.execute(sqlalchemy.text(made))
    else:
        admin.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    database = name if encoding else "postgres"
    connection = {
        "conn_type": "postgres",
        "host": url.host,
        "port": url.port,
        "login": name,
        "schema": database,
        "extra": {},
    }
    if kind == "psycopg2":
        connection["extra"] = {"sqlalchemy_scheme": "postgresql+psycopg2"}
    return Database(connection, str(url.set(username=name, database=database)))
