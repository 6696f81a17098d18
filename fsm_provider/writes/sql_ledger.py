"""The ledger in a SQL database: one table, whose constraints keep two tasks from sending one write.

A change locks its rows, applies the rules of :mod:`fsm_provider.writes.ledger` to the entries as
they are now, and writes them, in one transaction. The primary key allows a key one row, the other
constraint a job.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, replace
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from fsm_provider.api.digests import DIGITS, digest_for
from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.state.database import in_transaction, now
from fsm_provider.state.schema import IS_OPEN, LEDGER, SCHEMA, SERVICES, TASKS
from fsm_provider.state.task import Task
from fsm_provider.writes import advice
from fsm_provider.writes.ledger import (
    ANY_ENTRY,
    Change,
    EntryFilter,
    LedgerEntry,
    Tally,
    as_read,
    id_for,
    mark_conflict,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.sql.elements import ColumnElement

MAX_TEXT = 2_000  # characters of a text, before it is escaped; what is compared is a digest
MAX_KEY = 10_000  # of a key, which people give to find its row; MySQL stores no more once escaped
MAX_RESULT_ID = 64  # characters
MAX_BIGINT_DIGITS = 19
MILLISECONDS_PER_DAY = 86_400_000
ROWS_PER_QUERY = 500

_UPDATE = LEDGER.update().where(
    LEDGER.c.scope == sa.bindparam("its_scope"), LEDGER.c.id == sa.bindparam("its_id")
)


def scope_of(task: Task, service_id: str, *, by_key: bool) -> str:
    """Return the scope in which a key is written once.

    It is a service, or a task of a run with all its map indexes that write to that service.
    """
    if by_key:
        return f"keys-{service_id}"[:DIGITS]
    return digest_for([task.airflow, task.dag_id, task.run_id, task.task_id, service_id])


class SqlLedger:
    """The ledger of one scope. It holds no state: each method is a transaction of its own.

    :param service_id: of the service to which all writes in the scope go.
    """

    is_shared = True

    def __init__(self, engine: Engine, scope: str, service_id: str) -> None:
        self._engine = engine
        self._scope = scope
        self._service_id = service_id

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        wanted = sorted(ids)
        entries = {}
        for start in range(0, len(wanted), ROWS_PER_QUERY):
            part = wanted[start : start + ROWS_PER_QUERY]
            entries.update(self._read(LEDGER.c.id.in_(part)))
        return entries

    def entries_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        return self._read(LEDGER.c.task_digest == task_digest(task))

    def plan(self, entries: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        missing = {entry.id: entry for entry in entries}
        planned: dict[str, LedgerEntry] = {}
        while missing:
            try:
                self._insert(missing)
                return {**planned, **missing}
            except IntegrityError:  # another task has just planned some of them
                theirs = self.load(missing)
                if not theirs:
                    raise
                planned.update(theirs)
                for entry_id in theirs:
                    del missing[entry_id]
        return planned

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        """Apply changes, by id; return the entries as they are then.

        It is one transaction, or one for each entry if the id of a job is that of another already.
        """
        try:
            return self._apply(changes)
        except IntegrityError:  # a job's id is that of another entry
            pass
        entries = {}
        for entry_id in sorted(changes):
            entries.update(self._change_or_mark(entry_id, changes[entry_id]))
        return entries

    def rivals_of(self, entry: LedgerEntry) -> list[str]:
        is_another = sa.or_(LEDGER.c.scope != self._scope, LEDGER.c.id != entry.id)
        query = sa.select(LEDGER.c.key).where(
            LEDGER.c.service_id == self._service_id,
            IS_OPEN,
            LEDGER.c.lookup_digest == entry.lookup_digest,
            is_another,
        )
        return in_transaction(
            self._engine, lambda connection: list(connection.execute(query).scalars())
        )

    def _insert(self, entries: Mapping[str, LedgerEntry]) -> None:
        rows = [self._row_of(entries[entry_id]) for entry_id in sorted(entries)]
        in_transaction(self._engine, lambda connection: connection.execute(LEDGER.insert(), rows))

    def _apply(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        query = self._select(LEDGER.c.id.in_(sorted(changes))).order_by(LEDGER.c.id)

        def apply(connection: Connection) -> dict[str, LedgerEntry]:
            entries = {}
            changed = []
            for row in connection.execute(query.with_for_update()).mappings().all():
                before = entry_from(row)
                after = changes[before.id](before)
                entries[before.id] = after
                if after is not before:
                    columns = self._row_of(after)
                    columns["its_scope"] = columns.pop("scope")  # the key selects the row
                    columns["its_id"] = columns.pop("id")
                    changed.append(columns)
            if len(entries) < len(changes):
                raise FsmInputError(
                    f"state_conn_id: rows of {LEDGER.name} that a task was at work on are gone: "
                    f"{advice.ROWS_GONE}"
                )
            if changed:
                connection.execute(_UPDATE, changed)
            return entries

        return in_transaction(self._engine, apply)

    def _change_or_mark(self, entry_id: str, change: Change) -> dict[str, LedgerEntry]:
        """Apply one change, or record that the job in it is that of another entry as well."""
        try:
            return self._apply({entry_id: change})
        except IntegrityError:
            pass
        entry = self.load([entry_id])[entry_id]
        after = change(entry)
        holder = sa.select(LEDGER.c.key).where(
            LEDGER.c.service_id == self._service_id,
            LEDGER.c.job_digest == digest_for(after.result_id),
        )
        with self._engine.connect() as connection:
            key = connection.execute(holder).scalar()
        mark = partial(mark_conflict, after, _unescaped(key) or "")
        return self._apply({entry_id: mark})

    def _read(self, condition: ColumnElement[bool]) -> dict[str, LedgerEntry]:
        query = self._select(condition)
        rows = in_transaction(
            self._engine, lambda connection: connection.execute(query).mappings().all()
        )
        return {row["id"]: entry_from(row) for row in rows}

    def _select(self, condition: ColumnElement[bool]) -> Any:
        return _select_entries().where(LEDGER.c.scope == self._scope, condition)

    def _row_of(self, entry: LedgerEntry) -> dict[str, Any]:
        """Return the columns of an entry, in the order of the table."""
        task = entry.sent_by
        result = None if entry.result is None else json.dumps(entry.result)
        result_id = None
        job_digest = None
        if entry.result_id is not None:
            result_id = _escaped(str(entry.result_id))[:MAX_RESULT_ID]
            if entry.kind == "job" and entry.state == "done":
                job_digest = digest_for(entry.result_id)
        return {
            "scope": self._scope,
            "id": entry.id,
            "key": _escaped(entry.key, MAX_KEY),
            "service": _escaped(entry.service),
            "service_id": self._service_id,
            "digest": entry.digest,
            "kind": entry.kind,
            "what": _escaped(entry.what),
            "property_id": _escaped(entry.property_id),
            "reference": _escaped(entry.reference),
            "reference_digest": digest_for(entry.reference),
            "lookup_digest": entry.lookup_digest,
            "airflow": _escaped(task.airflow),
            "dag_id": _escaped(task.dag_id),
            "run_id": _escaped(task.run_id),
            "task_id": _escaped(task.task_id),
            "map_index": task.map_index,
            "task_digest": task_digest(task),
            "state": entry.state,
            "owner": entry.owner,
            "sent_at": entry.sent_at,
            "lease_until": entry.lease_until,
            "was_uncertain": entry.was_uncertain,
            "idempotency_header": entry.idempotency_header,
            "idempotency_key": entry.idempotency_key,
            "key_first_sent_at": entry.key_first_sent_at,
            "result": result,
            "result_id": result_id,
            "job_digest": job_digest,
            "error": _escaped(entry.error),
            "note": _escaped(entry.note and entry.note[-MAX_TEXT:]),  # what was said last
        }


class SqlLedgers:
    """All ledgers of some services in a database; None: of all services."""

    def __init__(self, engine: Engine, services: Iterable[str] | None) -> None:
        self._engine = engine
        self._ids = sa.select(SERVICES.c.id)
        if services is not None:
            digests = list(map(digest_for, services))
            self._ids = self._ids.where(SERVICES.c.name_digest.in_(digests))
        self._is_ours: ColumnElement[bool] = LEDGER.c.service_id.in_(self._ids)

    def entries(
        self, wanted: EntryFilter = ANY_ENTRY, latest: int | None = None
    ) -> list[tuple[SqlLedger, LedgerEntry]]:
        # A service may have been renamed since.
        query = (
            _select_entries()
            .add_columns(SERVICES.c.name.label("service_now"))
            .join(SERVICES, SERVICES.c.id == LEDGER.c.service_id)
            .where(self._is_ours, *_conditions_for(wanted))
            .order_by(LEDGER.c.sent_at.desc())
            .limit(latest)
        )
        with self._engine.connect() as connection:
            latest_first = connection.execute(query).mappings().all()
        entries = []
        for row in reversed(latest_first):
            entry = replace(entry_from(row), service=_unescaped(row["service_now"]))
            entries.append((SqlLedger(self._engine, row["scope"], row["service_id"]), entry))
        return entries

    def number_of(self, wanted: EntryFilter) -> int:
        query = (
            sa.select(sa.func.count())
            .select_from(LEDGER)
            .where(self._is_ours, *_conditions_for(wanted))
        )
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def counts(self) -> Counter[Tally]:
        begin_of_day = LEDGER.c.sent_at - LEDGER.c.sent_at % MILLISECONDS_PER_DAY
        is_being_sent = (LEDGER.c.state == "sending") & (LEDGER.c.lease_until >= now())
        state = sa.case((sa.and_(IS_OPEN, ~is_being_sent), "uncertain"), else_=LEDGER.c.state)
        columns = (LEDGER.c.airflow, LEDGER.c.dag_id, begin_of_day, state)
        query = (
            sa.select(*columns, sa.func.count())
            .where(self._is_ours, LEDGER.c.sent_at > 0)
            .group_by(*columns)
        )
        counts = Counter[Tally]()
        with self._engine.connect() as connection:
            for airflow, dag_id, begin, state_then, count in connection.execute(query):
                day = int(begin) // MILLISECONDS_PER_DAY
                tally = Tally(_unescaped(airflow), _unescaped(dag_id), day, state_then)
                counts[tally] = count
        return counts

    def services(self) -> list[tuple[str, str]]:
        """Return all services of the database, each with each connection that has led to it."""
        return in_transaction(self._engine, _services)

    def add_service(self, name: str) -> bool:
        """Add a service; return False if the ledger has it already."""
        try:
            in_transaction(self._engine, partial(_add_service, name))
        except IntegrityError:
            return False
        return True

    def rename_service(self, old: str, new: str) -> None:
        """Say that a service has another base URL or account now.

        :raises FsmRefusedError: if there is none of the old name, or one of the new name.
        """
        change = (
            SERVICES.update()
            .where(SERVICES.c.name_digest == digest_for(old))
            .values(name=_escaped(new), name_digest=digest_for(new))
        )
        try:
            changed = in_transaction(self._engine, lambda connection: connection.execute(change))
        except IntegrityError:
            raise FsmRefusedError(
                f"'{new}' is another service of this ledger: nothing was renamed. "
                f"{advice.SERVICE_IS_THERE}"
            ) from None
        if changed.rowcount == 0:
            raise FsmRefusedError(
                f"no service of this ledger is '{old}': {advice.SERVICE_IS_NOT_THERE}"
            )


def _conditions_for(wanted: EntryFilter) -> list[ColumnElement[bool] | sa.TextClause]:
    """Return what :meth:`EntryFilter.includes` checks; the case of letters beyond ASCII counts."""
    conditions: list[ColumnElement[bool] | sa.TextClause] = []
    for name, texts in wanted.sent_by.items():
        conditions.append(sa.cast(LEDGER.c[name], sa.Text).in_(list(map(_escaped, texts))))
    if wanted.key is not None:
        conditions.append(LEDGER.c.id == id_for(wanted.key))
    if wanted.job_id is not None:
        conditions.append(LEDGER.c.job_digest == digest_for(wanted.job_id))
    if wanted.is_open:
        conditions.append(IS_OPEN)
    if wanted.property_id:
        conditions.append(LEDGER.c.property_id == _escaped(wanted.property_id))
    if wanted.has_note:
        conditions.append(LEDGER.c.note.is_not(None))
    if wanted.part:
        part = _escaped(wanted.part).lower()
        is_named = [
            sa.func.lower(column).contains(part, autoescape=True)
            for column in (LEDGER.c.key, LEDGER.c.reference)
        ]
        is_its_id = LEDGER.c.result_id == _escaped(wanted.part)
        is_its_key = LEDGER.c.id == id_for(wanted.part)
        conditions.append(sa.or_(*is_named, is_its_id, is_its_key))
    return conditions


def _select_entries() -> Any:
    return sa.select(LEDGER, now().label("now"))


def entry_from(row: Mapping[Any, Any]) -> LedgerEntry:
    """Return the entry of a row that was read with the time ``now``."""
    task = Task(
        dag_id=_unescaped(row["dag_id"]),
        run_id=_unescaped(row["run_id"]),
        task_id=_unescaped(row["task_id"]),
        map_index=row["map_index"],
        airflow=_unescaped(row["airflow"]),
    )
    entry = LedgerEntry(
        id=row["id"],
        key=_unescaped(row["key"]),
        service=_unescaped(row["service"]),
        digest=row["digest"],
        kind=row["kind"],
        what=_unescaped(row["what"]),
        sent_by=task,
        property_id=_unescaped(row["property_id"]),
        reference=_unescaped(row["reference"]),
        state=row["state"],
        owner=row["owner"],
        sent_at=row["sent_at"],
        lease_until=row["lease_until"],
        was_uncertain=row["was_uncertain"],
        idempotency_header=row["idempotency_header"],
        idempotency_key=row["idempotency_key"],
        key_first_sent_at=row["key_first_sent_at"],
        result=json.loads(row["result"]) if row["result"] else None,
        error=_unescaped(row["error"]),
        note=_unescaped(row["note"]),
        read_at=row["now"],
    )
    return as_read(entry)


# The services of a database, and what its tasks keep to.


def register_task(engine: Engine, task: Task, service: str, fsm_conn_id: str) -> dict[str, str]:
    """Return what the first attempt of a task has written to, and where it was recorded.

    :param service: to which this attempt would write.
    :return: ``service``, by the name that it has now, ``service_id``, and ``id``, a random one: of
        the ledger.
    :raises FsmInputError: if this is the first attempt, and the service may be one that the ledger
        knows under another name.
    """
    query = (
        sa.select(SERVICES.c.name, SERVICES.c.id, TASKS.c.ledger_id)
        .join(TASKS, TASKS.c.service_id == SERVICES.c.id)
        .where(TASKS.c.task_digest == task_digest(task))
    )

    def read_or_insert(connection: Connection) -> dict[str, str]:
        row = connection.execute(query).first()
        if row is None:
            new = TASKS.insert().values(
                task_digest=task_digest(task),
                service_id=_find_or_add_service(connection, service, fsm_conn_id),
                fsm_conn_id=_escaped(fsm_conn_id),
                ledger_id=uuid4().hex,
            )
            connection.execute(new)
            row = connection.execute(query).one()
        name, service_id, ledger_id = row
        return {"service": _unescaped(name), "service_id": service_id, "id": ledger_id}

    try:
        return in_transaction(engine, read_or_insert)
    except IntegrityError:  # another process has just inserted the task, or the service
        return in_transaction(engine, read_or_insert)


def _find_or_add_service(connection: Connection, service: str, fsm_conn_id: str) -> Any:
    """Return the id of a service, which is added unless it may be another one, renamed."""
    query = sa.select(SERVICES.c.id).where(SERVICES.c.name_digest == digest_for(service))
    service_id = connection.execute(query).scalar()
    if service_id is None:
        # This row is the lock: of processes that find no service, one adds it, and the others then
        # see it.
        connection.execute(sa.select(SCHEMA.c.version).with_for_update())
        service_id = connection.execute(query).scalar()
    if service_id is not None:
        return service_id
    known = _services(connection)
    names = {name for name, conn_id in known if conn_id == fsm_conn_id}
    if not names:  # a new connection may lead to what another has led to
        names = {name for name, _ in known if _host_of(name) == _host_of(service)}
    if names:
        raise FsmInputError(
            f"host: the connection leads to {service}, which the ledger does not know. It knows "
            "what this connection was used for before, or what has the same host. Nothing was sent."
            f"{advice.for_unknown_service(fsm_conn_id, sorted(names), service)}"
        )
    return _add_service(service, connection)


def _host_of(service: str) -> str | None:
    url = service.partition(" ")[0]
    return urlsplit(url).hostname


def _services(connection: Connection) -> list[tuple[str, str]]:
    """Return the names of services, each with each connection by which tasks have written to it."""
    query = (
        sa.select(SERVICES.c.name, TASKS.c.fsm_conn_id)
        .outerjoin(TASKS, TASKS.c.service_id == SERVICES.c.id)
        .distinct()
    )
    rows = connection.execute(query)
    return sorted((_unescaped(name), _unescaped(conn_id) or "-") for name, conn_id in rows)


def _add_service(name: str, connection: Connection) -> str:
    """Add a service; return its id."""
    service_id = uuid4().hex
    new = SERVICES.insert().values(id=service_id, name=_escaped(name), name_digest=digest_for(name))
    connection.execute(new)
    return service_id


@lru_cache(maxsize=1_000)
def task_digest(task: Task) -> str:
    return digest_for(astuple(task))


def _escaped(value: Any, max_characters: int = MAX_TEXT) -> Any:
    """Return a text as every database can store it: ASCII, and not too long."""
    if not isinstance(value, str):
        return value
    return encode_basestring_ascii(value[:max_characters])[1:-1]


def _unescaped(value: Any) -> Any:
    if not isinstance(value, str) or "\\" not in value:
        return value
    return json.loads(f'"{value}"')
