"""The ledger in a SQL database: one table, whose constraints keep two tasks from sending one write.

A change locks its rows, applies the rules of :mod:`fsm_provider.writes.ledger` to them as they are now, and
writes them, in one transaction. The primary key allows a key one row, the other constraint a job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from fsm_provider.api.digests import DIGITS, digest_for
from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.database import in_transaction, now
from fsm_provider.state.schema import LEDGER, TASKS
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Change, LedgerEntry, as_read, belongs_to_another

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

MAX_TEXT = 2_000  # characters that are stored of a text; what is compared or unique is a digest
MILLISECONDS_PER_DAY = 86_400_000
ROWS_PER_QUERY = 500

TASK = ("airflow", "dag_id", "run_id", "task_id")
TEXTS = ("key", "service", "what", "property_id", "reference", *TASK, "error", "note")
"""Columns of text that somebody else has written."""

_UPDATE = LEDGER.update().where(
    LEDGER.c.scope == sa.bindparam("its_scope"), LEDGER.c.id == sa.bindparam("its_id")
)


def scope_of(task: Task, service: str, *, by_key: bool) -> str:
    """Return the scope in which a key is written once: a service, or a task of a run with all map indexes."""
    if by_key:
        return f"keys-{digest_for(service, DIGITS - 5)}"
    return digest_for([task.airflow, task.dag_id, task.run_id, task.task_id])


class SqlLedger:
    is_shared = True

    def __init__(self, engine: Engine, scope: str) -> None:
        self._engine = engine
        self._scope = scope

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        """Return rows as they are now, by id; a lease that is over counts as uncertain."""
        wanted = sorted(ids)
        rows: dict[str, LedgerEntry] = {}
        for start in range(0, len(wanted), ROWS_PER_QUERY):
            rows |= self._read(LEDGER.c.id.in_(wanted[start : start + ROWS_PER_QUERY]))
        return rows

    def rows_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        return self._read(LEDGER.c.task_digest == task_digest(task))

    def plan(self, rows: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        """Add the rows that are missing; return all."""
        by_id = {row.id: row for row in rows}
        if not by_id:
            return {}
        values = [self._values(by_id[row_id]) for row_id in sorted(by_id)]
        try:
            in_transaction(
                self._engine, lambda connection: connection.execute(LEDGER.insert(), values)
            )
        except IntegrityError:  # another task has just planned some of them
            known = self.load(by_id)
            if not known:
                raise
            missing = [row for row_id, row in by_id.items() if row_id not in known]
            return known | self.plan(missing)
        return by_id

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Apply changes by id; return the rows as they are afterwards.

        That is one transaction, or one for each row if the id of a job is that of another row already.
        """
        try:
            return in_transaction(self._engine, partial(self._change, changes=changes))
        except IntegrityError:  # a job's id is that of another row
            pass
        if len(changes) == 1:
            [(row_id, change)] = changes.items()
            return self._change_to_shared_job(row_id, change)
        rows: dict[str, LedgerEntry] = {}
        for row_id in sorted(changes):
            rows |= self.change({row_id: changes[row_id]})
        return rows

    def _change_to_shared_job(self, row_id: str, change: Change) -> dict[str, LedgerEntry]:
        """Record that the job which a change records is that of another row as well."""
        row = self.load([row_id])[row_id]
        after = change(row)
        holder = sa.select(LEDGER.c.key).where(
            _is_of(row.service), LEDGER.c.job_digest == digest_for(after.result_id)
        )
        with self._engine.connect() as connection:
            key = connection.execute(holder).scalar()
        shared = {row_id: partial(belongs_to_another, after, _unescaped(key) or "")}
        return in_transaction(self._engine, partial(self._change, changes=shared))

    def rivals_of(self, row: LedgerEntry) -> list[str]:
        """Return the keys of other writes that may have made what a look-up for a row finds."""
        query = sa.select(LEDGER.c.scope, LEDGER.c.id, LEDGER.c.key).where(
            _is_of(row.service),
            LEDGER.c.state.in_(("sending", "uncertain")),
            LEDGER.c.lookup_digest == row.lookup_digest,
        )
        found = in_transaction(self._engine, lambda connection: connection.execute(query).all())
        return [key for scope, row_id, key in found if (scope, row_id) != (self._scope, row.id)]

    def _change(
        self, connection: Connection, changes: Mapping[str, Change]
    ) -> dict[str, LedgerEntry]:
        query = (
            self._select(LEDGER.c.id.in_(sorted(changes))).order_by(LEDGER.c.id).with_for_update()
        )
        rows: dict[str, LedgerEntry] = {}
        changed = []
        for stored in connection.execute(query).mappings().all():
            before = row_from(stored)
            after = changes[before.id](before)
            rows[before.id] = after
            if after is not before:
                values = self._values(after)
                values["its_scope"] = values.pop("scope")
                values["its_id"] = values.pop("id")
                changed.append(values)
        if len(rows) < len(changes):
            raise FsmInputError(
                f"state_conn_id: rows of {LEDGER.name} that a task was at work on are gone"
            )
        if changed:
            connection.execute(_UPDATE, changed)
        return rows

    def _read(self, condition: ColumnElement[bool]) -> dict[str, LedgerEntry]:
        query = self._select(condition)
        found = in_transaction(
            self._engine, lambda connection: connection.execute(query).mappings().all()
        )
        return {stored["id"]: row_from(stored) for stored in found}

    def _select(self, condition: ColumnElement[bool]) -> Any:
        return sa.select(LEDGER, now().label("now")).where(LEDGER.c.scope == self._scope, condition)

    def _values(self, row: LedgerEntry) -> dict[str, Any]:
        """Return the columns of a row."""
        values = {**vars(row), **vars(row.by)}
        del values["by"], values["read_at"]
        for name in TEXTS:
            values[name] = _escaped(values[name])
        values["scope"] = self._scope
        values["service_digest"] = _service_digest(row.service)
        values["task_digest"] = task_digest(row.by)
        values["lookup_digest"] = row.lookup_digest
        values["reference_digest"] = digest_for(row.reference)
        values["result"] = None if row.result is None else json.dumps(row.result)
        values["result_id"] = None
        values["job_digest"] = None
        if row.result_id is not None:
            values["result_id"] = _escaped(str(row.result_id))[:64]
            if row.kind == "job" and row.state == "done":
                values["job_digest"] = digest_for(row.result_id)
        return values


class SqlLedgers:
    def __init__(self, engine: Engine, service: str) -> None:
        self._engine = engine
        self._mine = _is_of(service)

    def rows(
        self, states: Collection[str] = (), text: str | None = None, latest: int | None = None
    ) -> list[tuple[SqlLedger, LedgerEntry]]:
        """Return rows as they were sent, each with its ledger; ``text``: a key, reference or job's id."""
        query = sa.select(LEDGER, now().label("now")).where(self._mine)
        if text is not None:
            query = sa.select(LEDGER, now().label("now")).where(self._is_named(text))
        if states:
            query = query.where(LEDGER.c.state.in_(states))
        query = query.order_by(LEDGER.c.sent_at.desc()).limit(latest)
        with self._engine.connect() as connection:
            found = connection.execute(query).mappings().all()
        return [
            (SqlLedger(self._engine, stored["scope"]), row_from(stored))
            for stored in reversed(found)
        ]

    def _is_named(self, text: str) -> ColumnElement[bool]:
        is_number = text.isdecimal() and len(text) < 20
        job_id = int(text) if is_number else text
        # An index for each, which SQLite would not find for the service and any of them.
        return sa.or_(
            self._mine & (LEDGER.c.id == digest_for(text)),
            self._mine & (LEDGER.c.reference_digest == digest_for(text)),
            self._mine & (LEDGER.c.job_digest == digest_for(job_id)),
        )

    def days(self, first: int) -> Counter[tuple[int, str]]:
        """Return how many rows were sent on a day, and are in a state; days are numbered from 1970."""
        day = LEDGER.c.sent_at - LEDGER.c.sent_at % MILLISECONDS_PER_DAY
        query = sa.select(day, LEDGER.c.state, sa.func.count()).group_by(day, LEDGER.c.state)
        query = query.where(self._mine, LEDGER.c.sent_at >= first * MILLISECONDS_PER_DAY)
        counts: Counter[tuple[int, str]] = Counter()
        with self._engine.connect() as connection:
            for begin, state, count in connection.execute(query):
                counts[int(begin) // MILLISECONDS_PER_DAY, state] = count
        return counts


def row_from(stored: Mapping[Any, Any]) -> LedgerEntry:
    values = dict(stored)
    for name in TEXTS:
        values[name] = _unescaped(values[name])
    if values["result"]:
        values["result"] = json.loads(values["result"])
    values["read_at"] = values["now"]
    values["by"] = Task(**{name: values[name] for name in (*TASK, "map_index")})
    return as_read(LedgerEntry(**{name: values[name] for name in LedgerEntry.__dataclass_fields__}))


_service_digest = lru_cache(digest_for)


@lru_cache(maxsize=1_000)
def task_digest(task: Task) -> str:
    return digest_for([*vars(task).values()])


def register(engine: Engine, task: Task, service: str) -> dict[str, str]:
    """Return the service that a task writes to, and its random id: those of its first attempt."""
    query = sa.select(TASKS.c.service, TASKS.c.ledger_id).where(
        TASKS.c.task_digest == task_digest(task)
    )
    row = {
        "task_digest": task_digest(task),
        "service": _escaped(service),
        "ledger_id": uuid4().hex,
    }

    def work(connection: Connection) -> dict[str, str]:
        known = connection.execute(query).mappings().first()
        if known is None:
            connection.execute(TASKS.insert(), row)
        found = known or row
        return {"service": str(_unescaped(found["service"])), "id": found["ledger_id"]}

    try:
        return in_transaction(engine, work)
    except IntegrityError:  # another attempt has just done so
        return in_transaction(engine, work)


def _is_of(service: str) -> ColumnElement[bool]:
    return LEDGER.c.service_digest == _service_digest(service)


def _escaped(value: Any) -> Any:
    """Return a text as every database can store it: ASCII, and not too long."""
    if not isinstance(value, str):
        return value
    return encode_basestring_ascii(value[:MAX_TEXT])[1:-1]


def _unescaped(value: Any) -> Any:
    if not isinstance(value, str) or "\\" not in value:
        return value
    return json.loads(f'"{value}"')
