"""The ledger in a SQL database: one table, whose constraints keep two tasks from sending one write.

A change locks its rows, applies the rules of :mod:`fsm_provider.writes.ledger` to them as they are now, and
writes them, in one transaction. The primary key lets a key have one row, the other constraint a job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
)
from sqlalchemy.exc import IntegrityError

from fsm_provider.state.database import METADATA, TABLE_OPTIONS, in_transaction, now
from fsm_provider.state.digest import digest_for
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import DIGITS, Change, Row, belongs_to_another, found, seen_at

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

TASK = ("airflow", "dag_id", "run_id", "task_id", "map_index")
TEXTS = ("key", "what", "airflow", "dag_id", "run_id", "task_id", "property_id", "reference", "error", "note")
MAX_TEXT = 2_000
"""Characters that are stored of a text; what is compared or unique is a digest."""
AT_ONCE = 500
"""Rows that one statement reads."""

LEDGER = Table(
    "fsm_ledger",
    METADATA,
    Column("service", String(DIGITS), primary_key=True),
    Column("scope", String(DIGITS), primary_key=True),
    Column("id", String(DIGITS), primary_key=True),
    Column("base_url", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", String(DIGITS), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("what", Text, nullable=False),
    Column("property_id", Text),
    Column("reference", Text),
    Column("subject", String(DIGITS), nullable=False),
    *(Column(name, Integer if name == "map_index" else Text, nullable=False) for name in TASK),
    Column("task", String(DIGITS), nullable=False),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("sent_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("was_uncertain", Boolean, nullable=False),
    Column("token", String(128)),
    Column("token_at", BigInteger, nullable=False),
    Column("result", Text),
    Column("result_id", String(64)),
    Column("job", String(DIGITS)),
    Column("error", Text),
    Column("note", Text),
    UniqueConstraint("service", "job"),
    Index("fsm_ledger_task", "service", "task"),
    Index("fsm_ledger_subject", "service", "subject"),
    Index("fsm_ledger_result", "result_id"),
    **TABLE_OPTIONS,
)
"""A write each. ``job`` is the digest of a job's id; ``id``, ``subject`` and ``task`` are digests as well."""

TASKS = Table(
    "fsm_tasks",
    METADATA,
    Column("task", String(DIGITS), primary_key=True),
    Column("service", String(DIGITS), nullable=False),
    Column("base_url", Text, nullable=False),
    Column("id", String(DIGITS), nullable=False),
    **TABLE_OPTIONS,
)
"""The service that a task of a run writes to, and a random id: another database has another."""

_PRIMARY = ("service", "scope", "id")
_UPDATE = (
    LEDGER.update()
    .where(*(LEDGER.c[name] == bindparam(f"its_{name}") for name in _PRIMARY))
    .values({name: bindparam(name) for name in (one.name for one in LEDGER.c) if name not in _PRIMARY})
)


class SqlLedger:
    """The rows of one service and scope.

    :param service: base URL and account.
    :param scope: identifies a task of a run; empty: a key is written once, whoever asks.
    """

    is_shared = True

    def __init__(self, engine: Engine, service: str, scope: str) -> None:
        self._engine = engine
        self._base_url = service
        self._here = {"service": digest_for(service, DIGITS), "scope": scope}

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def load(self, ids: Iterable[str]) -> dict[str, Row]:
        """Return rows as they are now, by id; a lease that is over counts as uncertain."""
        rows: dict[str, Row] = {}
        for some in _in_parts(sorted(ids)):
            rows |= in_transaction(self._engine, partial(self._read, some=LEDGER.c.id.in_(some)))
        return rows

    def of_task(self, task: Task) -> dict[str, Row]:
        """Return the rows that a task has planned or sent last."""
        mine = LEDGER.c.task == task_digest(task)
        return in_transaction(self._engine, partial(self._read, some=mine))

    def of_other_indexes(self, task: Task, digests: Iterable[str]) -> dict[str, Row]:
        """Return what other map indexes of the task have sent with the same content."""
        if not (wanted := list(digests)):
            return {}
        others = LEDGER.c.digest.in_(wanted) & (LEDGER.c.map_index != task.map_index)
        sent = others & (LEDGER.c.state != "free")
        return in_transaction(self._engine, partial(self._read, some=sent))

    def plan(self, rows: Collection[Row]) -> dict[str, Row]:
        """Add the rows that are missing; return all, as they are now."""
        for _ in range(AT_ONCE):
            known = self.load(row.id for row in rows)
            missing = {row.id: self._values(row) for row in rows if row.id not in known}
            if not missing:
                return known
            values = [missing[one] for one in sorted(missing)]
            try:
                in_transaction(self._engine, partial(_insert, values=values))
            except IntegrityError:
                continue  # another task plans the same
        raise AssertionError

    def change(self, changes: Mapping[str, Change]) -> dict[str, Row]:
        """Apply changes by id, in one transaction; return the rows as they are afterwards."""
        try:
            return in_transaction(self._engine, lambda one: self._change(one, changes))
        except IntegrityError:  # a job's id is that of another row
            return {
                name: row
                for one, change in sorted(changes.items())
                for name, row in self._change_alone(one, change).items()
            }

    def change_one(self, one: str, change: Change) -> Row:
        """Apply a change to a row; return it as it is afterwards."""
        return self.change({one: change})[one]

    def find(self, seen: Row, result: dict[str, Any]) -> Row:
        """Record what a look-up that has ended has found for a row; return the row as it is afterwards."""

        def work(connection: Connection) -> dict[str, Row]:
            others = (LEDGER.c.subject == seen.subject) & LEDGER.c.state.in_(("sending", "uncertain"))
            rivals = select(LEDGER.c.key, LEDGER.c.scope, LEDGER.c.id).where(
                LEDGER.c.service == self._here["service"], others
            )
            keys = [
                row.key
                for row in connection.execute(rivals)
                if (row.scope, row.id) != (self._here["scope"], seen.id)
            ]
            return self._change(connection, {seen.id: found(seen, result, keys)})

        try:
            return in_transaction(self._engine, work)[seen.id]
        except IntegrityError:
            return self.load([seen.id])[seen.id]

    def holder_of(self, job_id: int | str) -> str | None:
        """Return the key of the row that has a job's id."""
        holds = select(LEDGER.c.key).where(
            LEDGER.c.service == self._here["service"], LEDGER.c.job == digest_for(job_id, DIGITS)
        )
        with self._engine.connect() as connection:
            return connection.execute(holds).scalar()

    def _change_alone(self, one: str, change: Change) -> dict[str, Row]:
        try:
            return in_transaction(self._engine, lambda connection: self._change(connection, {one: change}))
        except IntegrityError:
            row = self.load([one])[one]
            wanted = change(row, row.sent_at)
            other = self.holder_of(cast("int | str", wanted.result_id)) or "another"
            shared = belongs_to_another(wanted, wanted.result_id, other)
            return in_transaction(self._engine, lambda connection: self._change(connection, {one: shared}))

    def _change(self, connection: Connection, changes: Mapping[str, Change]) -> dict[str, Row]:
        ids = sorted(changes)
        query = select(LEDGER, now().label("now")).where(*self._mine, LEDGER.c.id.in_(ids))
        rows, changed = {}, []
        for stored in connection.execute(query.order_by(LEDGER.c.id).with_for_update()).mappings():
            row = row_from(stored)
            after = changes[row.id](row, stored["now"])
            rows[row.id] = seen_at(after, stored["now"])
            if after is not row:
                values = self._values(after)
                changed.append({**values, **{f"its_{name}": values[name] for name in _PRIMARY}})
        if changed:
            connection.execute(_UPDATE, changed)
        return rows

    @property
    def _mine(self) -> Iterator[ColumnElement[bool]]:
        return (LEDGER.c[name] == value for name, value in self._here.items())

    def _read(self, connection: Connection, some: ColumnElement[bool]) -> dict[str, Row]:
        query = select(LEDGER, now().label("now")).where(*self._mine, some)
        stored = connection.execute(query).mappings()
        return {one["id"]: seen_at(row_from(one), one["now"]) for one in stored}

    def _values(self, row: Row) -> dict[str, Any]:
        result_id = row.result_id
        is_job = row.kind == "job" and row.state == "done" and result_id is not None
        values = {
            **vars(row),
            **vars(row.by),
            **self._here,
            "base_url": _escaped(self._base_url),
            "task": task_digest(row.by),
            "subject": row.subject,
            "result": None if row.result is None else json.dumps(row.result),
            "result_id": None if result_id is None else _escaped(str(result_id))[:64],
            "job": digest_for(result_id, DIGITS) if is_job else None,
        }
        del values["by"], values["read_at"]
        return {**values, **{name: _escaped(values[name]) for name in TEXTS}}


def rows_of_service(engine: Engine, service: str) -> list[tuple[str, Row]]:
    """Return the rows of a service, each with its scope, as they are now."""
    mine = select(LEDGER, now().label("now")).where(LEDGER.c.service == digest_for(service, DIGITS))
    with engine.connect() as connection:
        found = connection.execute(mine.order_by(LEDGER.c.sent_at)).mappings()
        return [(one["scope"], seen_at(row_from(one), one["now"])) for one in found]


def row_from(stored: Mapping[Any, Any]) -> Row:
    """Return the row that is stored."""
    values = {name: stored[name] for name in Row.__dataclass_fields__ if name not in ("by", "read_at")}
    task = Task(**{name: _unescaped(stored[name]) for name in TASK})
    texts = {name: _unescaped(values[name]) for name in TEXTS if name in values}
    result = None if stored["result"] is None else json.loads(stored["result"])
    return Row(
        **{**values, **texts, "by": task, "result": result, "was_uncertain": bool(stored["was_uncertain"])}
    )


def task_digest(task: Task) -> str:
    """Return the digest of a task of a run."""
    return digest_for([*vars(task).values()], DIGITS)


def register_task(engine: Engine, task: Task, service: str) -> tuple[str, str]:
    """Return the service that a task writes to, and the id that its first attempt has drawn.

    The first attempt's primary key decides both.
    """
    row = {"task": task_digest(task), "service": digest_for(service, DIGITS), "base_url": _escaped(service)}
    mine = select(TASKS.c.base_url, TASKS.c.id).where(TASKS.c.task == row["task"])

    def work(connection: Connection) -> tuple[str, str]:
        stored = connection.execute(mine).first()
        if stored is None:
            connection.execute(TASKS.insert().values(**row, id=uuid4().hex))
            stored = connection.execute(mine).one()
        return str(_unescaped(stored.base_url)), stored.id

    try:
        return in_transaction(engine, work)
    except IntegrityError:  # another attempt has just done so
        return in_transaction(engine, work)


def _insert(connection: Connection, values: list[dict[str, Any]]) -> None:
    connection.execute(LEDGER.insert(), values)


def _in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE))


def _escaped(value: Any) -> Any:
    return json.dumps(value[:MAX_TEXT])[1:-1] if isinstance(value, str) else value


def _unescaped(value: Any) -> Any:
    return json.loads(f'"{value}"') if isinstance(value, str) and "\\" in value else value
