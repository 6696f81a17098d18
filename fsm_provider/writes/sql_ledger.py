"""The ledger in a SQL database: one table, whose constraints keep two tasks from sending one write.

A change locks its rows, applies the rules of :mod:`fsm_provider.writes.ledger` to them as they are now, and
writes them, in one transaction. The primary key lets a key have one row, the other constraint a job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
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
from fsm_provider.state.task import Task, digest_for
from fsm_provider.writes.ledger import DIGITS, Change, Row, belongs_to_another, found, seen_at

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

PRIMARY = ("service", "scope", "id")
DIGESTS = ("digest", "subject", "task")
TASK = ("airflow", "dag_id", "run_id", "task_id")
TEXTS = ("key", "what", "property_id", "reference", *TASK, "error", "note")
TIMES = ("sent_at", "lease_until", "token_at")
MAX_TEXT = 2_000
"""Characters that are stored of a text; what is compared or unique is a digest."""
AT_ONCE = 500
"""Rows that one statement reads."""

LEDGER = Table(
    "fsm_ledger",
    METADATA,
    *(Column(name, String(DIGITS), primary_key=True) for name in PRIMARY),
    *(Column(name, Text) for name in ("base_url", *TEXTS, "result")),
    *(Column(name, String(DIGITS), nullable=False) for name in DIGESTS),
    *(Column(name, BigInteger, nullable=False) for name in TIMES),
    *(Column(name, String(64), nullable=False) for name in ("kind", "state", "owner")),
    Column("map_index", Integer, nullable=False),
    Column("was_uncertain", Boolean, nullable=False),
    Column("token", String(128)),
    Column("result_id", String(64)),
    Column("job", String(DIGITS)),
    UniqueConstraint("service", "job"),
    Index("fsm_ledger_task", "service", "task"),
    Index("fsm_ledger_subject", "service", "subject"),
    **TABLE_OPTIONS,
)
"""A write each. ``job`` is the digest of a job's id; ``id``, ``subject`` and ``task`` are digests as well."""

TASKS = Table(
    "fsm_tasks",
    METADATA,
    Column("task", String(DIGITS), primary_key=True),
    Column("service", Text, nullable=False),
    Column("id", String(DIGITS), nullable=False),
    **TABLE_OPTIONS,
)
"""The service that a task of a run writes to, and a random id: another database has another."""

_UPDATE = LEDGER.update().where(*(LEDGER.c[name] == bindparam(f"its_{name}") for name in PRIMARY))


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
        self._is_here = [LEDGER.c[name] == value for name, value in self._here.items()]

    def close(self) -> None:
        self._engine.dispose()

    def load(self, ids: Iterable[str]) -> dict[str, Row]:
        """Return rows as they are now, by id; a lease that is over counts as uncertain."""
        every, rows = sorted(ids), dict[str, Row]()
        for start in range(0, len(every), AT_ONCE):
            rows |= self._read(LEDGER.c.id.in_(every[start : start + AT_ONCE]))
        return rows

    def rows_of_task(self, task: Task) -> dict[str, Row]:
        return self._read(LEDGER.c.task == task_digest(task))

    def rows_of_other_indexes(self, task: Task, digests: Collection[str]) -> dict[str, Row]:
        """Return what other map indexes of the task have sent with the same content."""
        others = LEDGER.c.digest.in_(list(digests)) & (LEDGER.c.map_index != task.map_index)
        return self._read(others & (LEDGER.c.state != "free")) if digests else {}

    def plan(self, rows: Collection[Row]) -> dict[str, Row]:
        """Add the rows that are missing; return all, as they are now."""
        while missing := {row.id: row for row in rows}.keys() - (known := self.load(row.id for row in rows)):
            values = [self._values(row) for row in sorted(rows, key=lambda row: row.id) if row.id in missing]
            try:
                in_transaction(self._engine, partial(_insert, values=values))
            except IntegrityError:
                if missing.isdisjoint(self.load(missing)):
                    raise
                # another task plans the same
        return known

    def change(self, changes: Mapping[str, Change]) -> dict[str, Row]:
        """Apply changes by id, in one transaction; return the rows as they are afterwards."""
        try:
            return in_transaction(self._engine, partial(self._change, changes=changes))
        except IntegrityError:  # a job's id is that of another row
            return {one: self._change_alone(one, changes[one]) for one in sorted(changes)}

    def change_one(self, one: str, change: Change) -> Row:
        return self.change({one: change})[one]

    def record_found(self, seen: Row, result: dict[str, Any]) -> Row:
        """Record what a look-up that has ended has found for a row; return the row as it is afterwards."""
        here, others = LEDGER.c.service == self._here["service"], LEDGER.c.state.in_(("sending", "uncertain"))
        rivals = select(LEDGER).where(here, LEDGER.c.subject == seen.subject, others)

        def work(connection: Connection) -> dict[str, Row]:
            keys = [
                one["key"]
                for one in connection.execute(rivals).mappings()
                if (one["scope"], one["id"]) != (self._here["scope"], seen.id)
            ]
            return self._change(connection, {seen.id: found(seen, result, keys)})

        try:
            return in_transaction(self._engine, work)[seen.id]
        except IntegrityError:
            return self.load([seen.id])[seen.id]

    def holder_of(self, job_id: Any) -> str:
        """Return the key of the row that has a job's id; empty if there is none."""
        is_job = (LEDGER.c.service == self._here["service"]) & (LEDGER.c.job == digest_for(job_id, DIGITS))
        with self._engine.connect() as connection:
            return str(_unescaped(connection.execute(select(LEDGER.c.key).where(is_job)).scalar()) or "")

    def _change_alone(self, one: str, change: Change) -> Row:
        try:
            return in_transaction(self._engine, partial(self._change, changes={one: change}))[one]
        except IntegrityError:
            row = self.load([one])[one]
            wanted = change(row, row.read_at)
            shared = belongs_to_another(wanted, wanted.result_id, self.holder_of(wanted.result_id))
            return in_transaction(self._engine, partial(self._change, changes={one: shared}))[one]

    def _change(self, connection: Connection, changes: Mapping[str, Change]) -> dict[str, Row]:
        query = select(LEDGER, now().label("now")).where(*self._is_here, LEDGER.c.id.in_(sorted(changes)))
        rows, changed = {}, []
        for stored in connection.execute(query.order_by(LEDGER.c.id).with_for_update()).mappings().all():
            row = row_from(stored)
            after = changes[row.id](row, stored["now"])
            rows[row.id] = seen_at(after, stored["now"])
            if after is not row:
                values = self._values(after)
                changed.append(values | {f"its_{name}": values.pop(name) for name in PRIMARY})
        if changed:
            connection.execute(_UPDATE, changed)
        return rows

    def _read(self, some: ColumnElement[bool]) -> dict[str, Row]:
        query = select(LEDGER, now().label("now")).where(*self._is_here, some)
        stored = in_transaction(self._engine, lambda one: one.execute(query).mappings().all())
        return {one["id"]: seen_at(row_from(one), one["now"]) for one in stored}

    def _values(self, row: Row) -> dict[str, Any]:
        result_id = row.result_id
        is_job = row.kind == "job" and row.state == "done" and result_id is not None
        values = {**vars(row), **vars(row.by), **self._here}
        del values["by"], values["read_at"]
        return {
            **values,
            **{name: _escaped(values[name]) for name in TEXTS},
            "base_url": _escaped(self._base_url),
            "task": task_digest(row.by),
            "subject": row.subject,
            "result": None if row.result is None else json.dumps(row.result),
            "result_id": None if result_id is None else str(_escaped(str(result_id)))[:64],
            "job": digest_for(result_id, DIGITS) if is_job else None,
        }


def rows_of_service(engine: Engine, service: str) -> list[tuple[str, Row]]:
    mine = select(LEDGER, now().label("now")).where(LEDGER.c.service == digest_for(service, DIGITS))
    with engine.connect() as connection:
        found = connection.execute(mine.order_by(LEDGER.c.sent_at)).mappings()
        return [(one["scope"], seen_at(row_from(one), one["now"])) for one in found]


def row_from(stored: Mapping[Any, Any]) -> Row:
    values = {name: stored[name] for name in Row.__dataclass_fields__ if name not in ("by", "read_at")}
    values |= {name: _unescaped(stored[name]) for name in TEXTS if name in values}
    values |= {"result": stored["result"] and json.loads(stored["result"])}
    task = Task(**{name: _unescaped(stored[name]) for name in TASK}, map_index=stored["map_index"])
    return Row(**values, by=task)


@lru_cache(maxsize=1_000)
def task_digest(task: Task) -> str:
    return digest_for([*vars(task).values()], DIGITS)


def register_task(engine: Engine, task: Task, service: str) -> tuple[str, str]:
    """Return the service that a task writes to, and its random id: those of its first attempt."""
    row = {"task": task_digest(task), "service": _escaped(service), "id": uuid4().hex}
    mine = select(TASKS.c.service, TASKS.c.id).where(TASKS.c.task == row["task"])

    def work(connection: Connection) -> tuple[str, str]:
        if (stored := connection.execute(mine).first()) is None:
            connection.execute(TASKS.insert().values(row))
            return service, str(row["id"])
        return str(_unescaped(stored.service)), stored.id

    try:
        return in_transaction(engine, work)
    except IntegrityError:  # another attempt has just done so
        return in_transaction(engine, work)


def _insert(connection: Connection, values: list[dict[str, Any]]) -> None:
    connection.execute(LEDGER.insert(), values)


def _escaped(value: Any) -> Any:
    """Return a text as every database can store it: ASCII, and not too long."""
    return json.dumps(value[:MAX_TEXT])[1:-1] if isinstance(value, str) else value


def _unescaped(value: Any) -> Any:
    return json.loads(f'"{value}"') if isinstance(value, str) and "\\" in value else value
