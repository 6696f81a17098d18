"""Empty databases for a ledger.

``FSM_DATABASES`` names others than SQLite: ``postgresql,mariadb``, as ``make test-databases`` does.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy

from tests.distributed.backends import mariadb, postgresql

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
def server(kind: str) -> Iterator[str | int | None]:
    """Run the server of a database, if it needs one; give what :func:`empty_database` needs."""
    if kind == "postgresql":
        with postgresql() as url:
            yield url
    elif kind == "mariadb":
        with mariadb() as port:
            yield port
    else:
        yield None


def empty_database(kind: str, at: str | int | None, folder: Path) -> Database:
    """Make an empty database on a server."""
    name = f"ledger{next(_numbers)}"
    if kind == "sqlite":
        file = folder / f"{name}.db"
        return Database({"conn_type": "sqlite", "host": str(file)}, f"sqlite:///{file}")
    if kind == "mariadb":
        url = f"mysql+mysqldb://root@127.0.0.1:{at}"
        Database({}, url).execute(f"CREATE DATABASE {name}")
        login = {"conn_type": "mysql", "host": "127.0.0.1", "port": at, "login": "root"}
        return Database({**login, "schema": name}, f"{url}/{name}")
    port = sqlalchemy.engine.make_url(f"postgresql://{at}").port
    url = f"postgresql+psycopg2://{at}"
    Database({}, url).execute(f"CREATE ROLE {name} LOGIN", f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    login = {"conn_type": "postgres", "host": "127.0.0.1", "port": port, "login": name, "schema": "postgres"}
    return Database(login, url.replace("postgres@", f"{name}@"))
