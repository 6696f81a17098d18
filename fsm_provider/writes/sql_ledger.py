"""The ledger in a SQL database: one table, whose constraints keep two tasks from sending one write.

A change locks its rows, applies the rules of :mod:`fsm_provider.writes.ledger` to them as they are
now, and writes them, in one transaction. The primary key allows a key one row, the other constraint
a job.
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
from fsm_provider.state.database import METADATA, TABLE_OPTIONS, in_transaction, now
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Change, LedgerEntry, as_read, belongs_to_another

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

PRIMARY = ("scope", "id")
DIGESTS = ("service_digest", "digest", "subject", "task", "reference_digest")
TASK = ("airflow", "dag_id", "run_id", "task_id")
TEXTS = ("key", "service", "what", "property_id", "reference", *TASK, "error", "note")
TIMES = ("sent_at", "lease_until", "token_at")
MAX_TEXT = 2_000  # characters that are stored of a text; what is compared or unique is a digest
DAY = 86_400_000  # milliseconds
AT_ONCE = 500  # rows that one statement reads

LEDGER = sa.Table(
    "fsm_ledger",
    METADATA,
    *(sa.Column(name, sa.String(DIGITS), primary_key=True) for name in PRIMARY),
    *(sa.Column(name, sa.Text) for name in (*TEXTS, "result")),
    *(sa.Column(name, sa.String(DIGITS), nullable=False) for name in DIGESTS),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in TIMES),
    *(sa.Column(name, sa.String(64), nullable=False) for name in ("kind", "state", "owner")),
    sa.Column("map_index", sa.Integer, nullable=False),
    sa.Column("was_uncertain", sa.Boolean, nullable=False),
    sa.Column("token", sa.String(128)),
    sa.Column("result_id", sa.String(64)),
    sa.Column("job", sa.String(DIGITS)),
    sa.UniqueConstraint("service_digest", "job"),
    sa.Index("fsm_ledger_task", "task"),
    sa.Index("fsm_ledger_subject", "service_digest", "subject"),
    sa.Index("fsm_ledger_state", "service_digest", "state", "sent_at"),
    sa.Index("fsm_ledger_id", "service_digest", "id"),
    sa.Index("fsm_ledger_reference", "service_digest", "reference_digest"),
    **TABLE_OPTIONS,
)
"""A write each. ``job`` is the digest of a job's id; ``id``, ``subject`` and ``task`` are digests
as well.
"""

TASKS = sa.Table(
    "fsm_tasks",
    METADATA,
    sa.Column("task", sa.String(DIGITS), primary_key=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("id", sa.String(DIGITS), nullable=False),
    **TABLE_OPTIONS,
)
"""The service that a task of a run writes to, and a random id: another database has another."""

_UPDATE = LEDGER.update().where(
    *(LEDGER.c[name] == sa.bindparam(f"its_{name}") for name in PRIMARY)
)


def scope_of(task: Task, service: str, *, by_key: bool) -> str:
    """Return the scope in which a key is written once: a service, or a task of a run with all map
    indexes.
    """
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
        every, rows = sorted(ids), dict[str, LedgerEntry]()
        for start in range(0, len(every), AT_ONCE):
            rows |= self._read(LEDGER.c.id.in_(every[start : start + AT_ONCE]))
        return rows

    def rows_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        return self._read(LEDGER.c.task == task_digest(task))

    def plan(self, rows: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        """Add the rows that are missing; return all."""
        by_id = {row.id: row for row in rows}
        values = [self._values(by_id[one]) for one in sorted(by_id)]
        try:
            if values:
                in_transaction(self._engine, lambda one: one.execute(LEDGER.insert(), values))
            return by_id
        except IntegrityError:  # another task has just planned some of them
            if not (known := self.load(by_id)):
                raise
        return known | self.plan([row for one, row in by_id.items() if one not in known])

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Apply changes by id; return the rows as they are afterwards.

        That is one transaction, or one for each row if the id of a job is that of another row
        already.
        """
        try:
            return in_transaction(self._engine, partial(self._change, changes=changes))
        except IntegrityError:  # a job's id is that of another row
            ids = sorted(changes)
        if len(ids) > 1:
            return {one: self.change({one: changes[one]})[one] for one in ids}
        row = self.load(ids)[ids[0]]
        after = changes[row.id](row)
        is_holder = LEDGER.c.job == digest_for(after.result_id)
        with self._engine.connect() as connection:
            key = connection.execute(
                sa.select(LEDGER.c.key).where(_is_of(row.service), is_holder)
            ).scalar()
        shared = {row.id: partial(belongs_to_another, after, str(_unescaped(key) or ""))}
        return in_transaction(self._engine, partial(self._change, changes=shared))

    def rivals_of(self, row: LedgerEntry) -> list[str]:
        """Return the keys of other writes that may have made what a look-up for a row finds."""
        others = LEDGER.c.state.in_(("sending", "uncertain")) & (LEDGER.c.subject == row.subject)
        query = sa.select(LEDGER.c.scope, LEDGER.c.id, LEDGER.c.key).where(
            _is_of(row.service), others
        )
        mine = (self._scope, row.id)
        found = in_transaction(self._engine, lambda one: one.execute(query).all())
        return [key for scope, row_id, key in found if (scope, row_id) != mine]

    def _change(
        self, connection: Connection, changes: Mapping[str, Change]
    ) -> dict[str, LedgerEntry]:
        query = (
            self._select(LEDGER.c.id.in_(sorted(changes))).order_by(LEDGER.c.id).with_for_update()
        )
        rows, changed = {}, []
        for stored in connection.execute(query).mappings().all():
            row = row_from(stored)
            rows[row.id] = after = changes[row.id](row)
            if after is not row:
                values = self._values(after)
                changed.append(values | {f"its_{name}": values.pop(name) for name in PRIMARY})
        if len(rows) < len(changes):
            raise FsmInputError(
                f"state_conn_id: rows of {LEDGER.name} that a task was at work on are gone"
            )
        if changed:
            connection.execute(_UPDATE, changed)
        return rows

    def _read(self, some: ColumnElement[bool]) -> dict[str, LedgerEntry]:
        stored = in_transaction(
            self._engine, lambda one: one.execute(self._select(some)).mappings().all()
        )
        return {one["id"]: row_from(one) for one in stored}

    def _select(self, some: ColumnElement[bool]) -> Any:
        return sa.select(LEDGER, now().label("now")).where(LEDGER.c.scope == self._scope, some)

    def _values(self, row: LedgerEntry) -> dict[str, Any]:
        result_id = row.result_id
        is_job = row.kind == "job" and row.state == "done" and result_id is not None
        values = {**vars(row), **vars(row.by)}
        del values["by"], values["read_at"]
        return {
            **values,
            **{name: _escaped(values[name]) for name in TEXTS},
            "scope": self._scope,
            "service_digest": _service_digest(row.service),
            "task": task_digest(row.by),
            "subject": row.subject,
            "reference_digest": digest_for(row.reference),
            "result": None if row.result is None else json.dumps(row.result),
            "result_id": None if result_id is None else str(_escaped(str(result_id)))[:64],
            "job": digest_for(result_id) if is_job else None,
        }


class SqlLedgers:
    def __init__(self, engine: Engine, service: str) -> None:
        self._engine, self._mine = engine, _is_of(service)

    def rows(
        self, states: Collection[str] = (), text: str | None = None, latest: int | None = None
    ) -> list[tuple[SqlLedger, LedgerEntry]]:
        """Return rows as they were sent, each with its ledger; ``text``: a key, reference or job's
        id.
        """
        which = self._mine
        if (
            text is not None
        ):  # an index for each, which SQLite would not find for the service and any of them
            number = int(text) if text.isdecimal() and len(text) < 20 else text
            names = {
                "id": digest_for(text),
                "reference_digest": digest_for(text),
                "job": digest_for(number),
            }
            which = sa.or_(*(self._mine & (LEDGER.c[name] == one) for name, one in names.items()))
        query = sa.select(LEDGER, now().label("now")).where(which)
        if states:
            query = query.where(LEDGER.c.state.in_(states))
        with self._engine.connect() as connection:
            found = (
                connection.execute(query.order_by(LEDGER.c.sent_at.desc()).limit(latest))
                .mappings()
                .all()
            )
        return [(SqlLedger(self._engine, one["scope"]), row_from(one)) for one in reversed(found)]

    def days(self, first: int) -> Counter[tuple[int, str]]:
        """Return how many rows were sent on a day, and are in a state; days are numbered from 1970."""
        begin = LEDGER.c.sent_at - LEDGER.c.sent_at % DAY
        query = sa.select(begin, LEDGER.c.state, sa.func.count()).group_by(begin, LEDGER.c.state)
        with self._engine.connect() as connection:
            found = connection.execute(
                query.where(self._mine, LEDGER.c.sent_at >= first * DAY)
            ).all()
        return Counter({(int(at) // DAY, state): count for at, state, count in found})


def row_from(stored: Mapping[Any, Any]) -> LedgerEntry:
    values = dict(stored)
    values |= {name: _unescaped(values[name]) for name in TEXTS}
    values |= {
        "result": values["result"] and json.loads(values["result"]),
        "read_at": values["now"],
    }
    values["by"] = Task(**{name: values[name] for name in (*TASK, "map_index")})
    return as_read(LedgerEntry(**{name: values[name] for name in LedgerEntry.__dataclass_fields__}))


_service_digest = lru_cache(digest_for)


@lru_cache(maxsize=1_000)
def task_digest(task: Task) -> str:
    return digest_for([*vars(task).values()])


def register(engine: Engine, task: Task, service: str) -> dict[str, str]:
    """Return the service that a task writes to, and its random id: those of its first attempt."""
    mine = sa.select(TASKS.c.service, TASKS.c.id).where(TASKS.c.task == task_digest(task))
    row = {"task": task_digest(task), "service": _escaped(service), "id": uuid4().hex}

    def work(connection: Connection) -> dict[str, str]:
        if (known := connection.execute(mine).mappings().first()) is None:
            connection.execute(TASKS.insert(), row)
        return {name: str(_unescaped((known or row)[name])) for name in ("service", "id")}

    try:
        return in_transaction(engine, work)
    except IntegrityError:  # another attempt has just done so
        return in_transaction(engine, work)


def _is_of(service: str) -> ColumnElement[bool]:
    return LEDGER.c.service_digest == _service_digest(service)


def _escaped(value: Any) -> Any:
    """Return a text as every database can store it: ASCII, and not too long."""
    return encode_basestring_ascii(value[:MAX_TEXT])[1:-1] if isinstance(value, str) else value


def _unescaped(value: Any) -> Any:
    return json.loads(f'"{value}"') if isinstance(value, str) and "\\" in value else value
