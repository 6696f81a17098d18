"""The tables of the SQL database that a connection names as ``state_conn_id``, on one page.

What is compared or unique is a digest; the texts beside it are for people, and may be cut.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGTEXT

from fsm_provider.api.digests import DIGITS

METADATA = sa.MetaData()
DIGEST = sa.String(DIGITS)
LONG_TEXT = sa.Text().with_variant(LONGTEXT(), "mysql").with_variant(LONGTEXT(), "mariadb")
TABLE_OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
VERSION = 1
"""The version of the tables below.

Raise it with a change after which older versions of this package must not write; a column that they
may leave out is none. The first such change also brings the code that changes tables of the version
before.
"""

SCHEMA = sa.Table(
    "fsm_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    **TABLE_OPTIONS,
)
"""One row, which is written last: where it is, all tables have been made."""

SERVICES = sa.Table(
    "fsm_services",
    METADATA,
    sa.Column("id", DIGEST, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("name_digest", DIGEST, nullable=False, unique=True),
    **TABLE_OPTIONS,
)
"""A service: a random id, to which rows refer, and the base URL and account that it has now."""

IS_OPEN = sa.text("state NOT IN ('free', 'done')")
"""Of a row of the ledger: neither free nor done, also in a state of another version."""


def _only_where(condition: sa.sql.elements.TextClause) -> dict[str, Any]:
    """Return the options of an index that has only some rows, where the database can do so."""
    return {"postgresql_where": condition, "sqlite_where": condition}


LEDGER = sa.Table(
    "fsm_ledger",
    METADATA,
    # Which write it is.
    sa.Column("scope", DIGEST, primary_key=True),
    sa.Column("id", DIGEST, primary_key=True),  # of the key
    sa.Column("key", sa.Text),
    sa.Column("service", sa.Text),  # its name then
    sa.Column("service_id", DIGEST, nullable=False),
    sa.Column("digest", DIGEST, nullable=False),  # of the request
    # What it writes.
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("what", sa.Text),
    sa.Column("property_id", sa.Text),
    sa.Column("reference", sa.Text),
    sa.Column("reference_digest", DIGEST, nullable=False),
    sa.Column("lookup_digest", DIGEST, nullable=False),  # of property and reference
    # Which task sent it last.
    sa.Column("airflow", sa.Text),
    sa.Column("dag_id", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("task_id", sa.Text),
    sa.Column("map_index", sa.Integer, nullable=False),
    sa.Column("task_digest", DIGEST, nullable=False),
    # How far it is. Times are milliseconds since 1970, by the database's clock.
    sa.Column("state", sa.String(64), nullable=False),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("sent_at", sa.BigInteger, nullable=False),
    sa.Column("lease_until", sa.BigInteger, nullable=False),
    sa.Column("was_uncertain", sa.Boolean, nullable=False),
    sa.Column("idempotency_header", sa.String(128)),
    sa.Column("idempotency_key", sa.String(128)),
    sa.Column("key_first_sent_at", sa.BigInteger, nullable=False),
    # What came of it.
    sa.Column("result", sa.Text),  # JSON
    sa.Column("result_id", sa.String(64)),
    sa.Column("job_digest", DIGEST),  # of the id of a job that was made
    sa.Column("error", sa.Text),
    sa.Column("note", sa.Text),
    sa.UniqueConstraint("service_id", "job_digest"),
    sa.Index("fsm_ledger_task", "task_digest"),
    sa.Index("fsm_ledger_lookup", "service_id", "lookup_digest"),
    sa.Index("fsm_ledger_open", "service_id", **_only_where(IS_OPEN)),
    sa.Index("fsm_ledger_note", "service_id", **_only_where(sa.text("note IS NOT NULL"))),
    sa.Index("fsm_ledger_id", "service_id", "id"),
    sa.Index("fsm_ledger_reference", "service_id", "reference_digest"),
    **TABLE_OPTIONS,
)
"""A row for each write. The primary key allows a key one row, the other constraint a job."""

TASKS = sa.Table(
    "fsm_tasks",
    METADATA,
    sa.Column("task_digest", DIGEST, primary_key=True),
    sa.Column("service_id", DIGEST, nullable=False),
    sa.Column("fsm_conn_id", sa.Text, nullable=False),
    sa.Column("ledger_id", DIGEST, nullable=False),
    **TABLE_OPTIONS,
)
"""The service that a task of a run writes to, by which connection, and a random id: another
database has another.
"""

ASSET_STATE = sa.Table(
    "fsm_asset_state",
    METADATA,
    sa.Column("digest", DIGEST, primary_key=True),  # of Airflow, connection, asset and key
    sa.Column("fsm_conn_id", sa.Text, nullable=False),
    sa.Column("asset_name", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("value", LONG_TEXT, nullable=False),  # JSON
    **TABLE_OPTIONS,
)
"""What the watchers of assets store before Airflow 3.3, which has a store of its own."""
