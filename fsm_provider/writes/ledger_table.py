"""The entries of a ledger in a SQL database, as a person looks at them and changes them.

A change and its record in the history are one transaction, which changes nothing if a task has written the
entry since it was read. A task that wrote it before, and still runs, cannot replace it afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import and_, func, select

from fsm_provider.api.endpoints import CREATE_JOB, REGISTER_WEBHOOK
from fsm_provider.api.errors import FsmInputError
from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import Entry, flight_of, may_arrive
from fsm_provider.state.sql_rows import (
    damaged,
    entry_in,
    history_values,
    state_for,
    storable,
    task_in,
    utc_now,
    with_id,
)
from fsm_provider.state.sql_tables import ATTEMPTS, DIGITS, HISTORY, LEDGER
from fsm_provider.state.task import Task
from fsm_provider.terminal import RefusedError
from fsm_provider.writes.outcomes import id_and_link
from fsm_provider.writes.write import describe_entry, error_from

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.engine.row import Row
    from sqlalchemy.sql.elements import ColumnElement

JOB, WEBHOOK = (f"{one.method} {one.path}" for one in (CREATE_JOB, REGISTER_WEBHOOK))
"""The kinds of the entries of jobs and webhooks; any other is that of a request."""
KEPT = ("generation", "digest", "sent", "kind", "by")
"""What an entry keeps when it is settled."""


@dataclass(frozen=True)
class Stored:
    """An entry as it is stored; of one that somebody has edited, only the row's other columns are known.

    :param max_flight: seconds after which what was sent and not recorded is uncertain.
    """

    row: Row[Any]
    max_flight: float

    @cached_property
    def _read(self) -> tuple[str, Entry | None]:
        try:
            return entry_in(self.row)
        except FsmInputError:
            return self.row.key, None

    @property
    def key(self) -> str:
        """The key."""
        return self._read[0]

    @property
    def is_damaged(self) -> bool:
        """Whether somebody has changed the entry, so that it cannot be read."""
        return self._read[1] is None

    @property
    def entry(self) -> Entry:
        """The entry.

        :raises RefusedError: if it is damaged, with what a person can do.
        """
        if (entry := self._read[1]) is None:
            raise RefusedError(str(damaged(self.row)))
        return entry

    @property
    def task(self) -> Task:
        """The task that has sent it last."""
        return task_in(self.row) if self.is_damaged else Task(**self.entry["by"])

    @property
    def sent_at(self) -> datetime:
        """When it was sent."""
        return datetime.fromisoformat(self.entry["sent"][2])

    @property
    def job_id(self) -> int | None:
        """The job, if it is one and known."""
        if self.is_damaged or self.entry["kind"] != JOB or "result" not in self.entry:
            return None
        return id_and_link(self.entry["result"])[0]

    @property
    def under_way(self) -> bool:
        """Whether a task may be sending it at this moment."""
        return not self.is_damaged and may_arrive(self.entry, self.max_flight)

    def as_json(self) -> dict[str, Any]:
        """Return all that is known, as JSON values."""
        entry: Entry = {} if self.is_damaged else self.entry
        method, path, sent_at, subject = entry.get("sent", [None] * 4)
        error: Exception | None = None
        if self.is_damaged:
            error = damaged(self.row)
        elif "result" not in entry:
            error = error_from(entry, under_way=self.under_way)
        return {
            "key": self.key,
            "state": self.row.state,
            "under_way": self.under_way,
            "once_per": "run" if self.row.scope else "key",
            "jobID": self.job_id,
            **self.task.as_dict(),
            "sent_at": sent_at,
            "updated_at": _iso(self.row.updated_at),
            "method": method,
            "path": path,
            "subject": subject,
            "result": entry.get("result"),
            "error": None if error is None else str(error),
            "idempotency": entry.get("idempotency"),
            "base_url": self.row.base_url,
        }

    def __str__(self) -> str:
        what = "which cannot be read" if self.is_damaged else describe_entry(self.entry)
        return f"'{self.key}', {what}, by {self.task}"


class LedgerTable:
    """The entries of a service.

    :param engine: the database; its tables exist.
    :param base_url: identifies the service.
    :param max_flight: as of :class:`Stored`.
    :raises sqlalchemy.exc.SQLAlchemyError: by each method, if the database fails.
    """

    def __init__(self, engine: Engine, base_url: str, max_flight: float) -> None:
        self._engine = engine
        self._service = digest_for(base_url, DIGITS)
        self._max_flight = max_flight

    def find(
        self,
        *,
        key: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        once_per: str | None = None,
        states: Iterable[str] = (),
    ) -> list[Stored]:
        """Return the entries that match all that is given, the oldest first."""
        conditions = self._conditions(LEDGER, key, once_per)
        for column, value in (("dag_id", dag_id), ("run_id", run_id), ("task_id", task_id)):
            if value is not None:
                conditions.append(LEDGER.c[column] == storable(value))
        if states:
            conditions.append(LEDGER.c.state.in_(list(states)))
        query = select(LEDGER).where(*conditions).order_by(LEDGER.c.updated_at, LEDGER.c.key_digest)
        with self._engine.connect() as connection:
            return [Stored(row, self._max_flight) for row in connection.execute(query)]

    def settle(
        self, stored: Stored, result: dict[str, Any] | None, *, force: bool, who: str, why: str
    ) -> str:
        """Record what a person has found out of a write whose outcome is unknown, or was a conflict.

        :param result: ``{"id": …}`` of a job, ``{"answer": …}`` of a request; None if nothing was written.
        :param force: settle it even if a task may be sending it at this moment, or another key has the job.
        :return: what is recorded now.
        :raises RefusedError: if the outcome is known, or the result is not that of such a write.
        """
        self._check_result(stored, result)
        if stored.row.state == "done":
            if result and result.get("id", 0) == stored.job_id:
                return f"{stored}: job {stored.job_id} is recorded already; nothing was changed"
            known = "its response" if stored.job_id is None else f"job {stored.job_id}"
            raise RefusedError(f"{stored}: is done: {known} is recorded; see forget")
        if stored.under_way and not force:
            until = stored.sent_at + timedelta(seconds=flight_of(stored.entry, self._max_flight))
            raise RefusedError(
                f"{stored}: was sent at {stored.sent_at:%F %T} UTC and may be under way: wait until "
                f"{until:%F %T} UTC (it is {datetime.now(UTC):%T}), or add --force if the task has ended"
            )
        if result is None:
            earlier = stored.entry.get("before")
            while earlier and "result" not in earlier:
                earlier = earlier.get("before")
            self._change(stored, earlier, action="not created", who=who, why=why)
            if earlier:
                return f"{stored}: was not created; what was sent before it is recorded again"
            return f"{stored}: was not created; the next attempt may send it"
        if "id" in result:
            with self._engine.connect() as connection:
                holders = with_id(connection, self._service, JOB, result["id"])
            if holders and not force:
                raise RefusedError(
                    f"{stored}: job {result['id']} is that of '{holders[0].key}'; add --force if it does both"
                )
            result = {**stored.entry["sent"][3], **result}
        action = f"job {result['id']}" if "id" in result else "answer"
        kept = {name: stored.entry[name] for name in KEPT}
        self._change(stored, {**kept, "result": result}, action=action, who=who, why=why)
        return f"{stored}: {action} is recorded; nothing sends it again"

    @staticmethod
    def _check_result(stored: Stored, result: dict[str, Any] | None) -> None:
        """Check that a result is one of such a write."""
        kind = stored.entry["kind"]
        if result is None:
            return
        if kind == WEBHOOK:
            raise RefusedError(f"{stored}: is a webhook; its operator registers it again with force=True")
        if ("id" in result) != (kind == JOB):
            fits = "--job-id or --not-created" if kind == JOB else "--answer or --not-created"
            raise RefusedError(f"{stored}: settle it with {fits}")

    def forget(self, stored: Stored, *, who: str, why: str) -> None:
        """Delete an entry that is done.

        :raises RefusedError: if another has taken its place meanwhile.
        """
        self._change(stored, None, action="forgotten", who=who, why=why)

    def prune(
        self, before: datetime, *, with_keys: bool, dry_run: bool, who: str, why: str
    ) -> tuple[list[Stored], int]:
        """Delete what is done and was written last before a time (UTC); and old attempts of any service.

        :param with_keys: also what is sent once for each key.
        :param dry_run: delete nothing.
        :return: the entries, and the number of attempts.
        :raises RefusedError: if some have changed meanwhile.
        """
        old = and_(LEDGER.c.service == self._service, LEDGER.c.state == "done", LEDGER.c.updated_at < before)
        old = old if with_keys else and_(old, LEDGER.c.scope != "")
        old_attempts = ATTEMPTS.c.stored_at < before
        query = select(LEDGER).where(old).order_by(LEDGER.c.updated_at, LEDGER.c.key_digest)
        with self._engine.begin() as connection:
            rows = connection.execute(query if dry_run else query.with_for_update()).all()
            if dry_run:
                count = select(func.count()).select_from(ATTEMPTS).where(old_attempts)
                attempts = connection.execute(count).scalar_one()
            else:
                if connection.execute(LEDGER.delete().where(old)).rowcount != len(rows):
                    raise RefusedError("entries have changed meanwhile; nothing was deleted")
                attempts = connection.execute(ATTEMPTS.delete().where(old_attempts)).rowcount
                self._record(connection, rows, action="pruned", who=who, why=why)
        return [Stored(row, self._max_flight) for row in rows], attempts

    def history(
        self, *, key: str | None = None, once_per: str | None = None, **task: str | None
    ) -> list[dict[str, Any]]:
        """Return what people have changed, the oldest first, as JSON values.

        :param task: the fields that the task has that had sent it; None for any.
        """
        wanted = {name: value for name, value in task.items() if value is not None}
        query = select(HISTORY).where(*self._conditions(HISTORY, key, once_per)).order_by(HISTORY.c.id)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        found = []
        for row in rows:
            before = _readable(row)
            if wanted.items() <= before.get("by", {}).items():
                found.append(
                    {
                        "at": _iso(row.at),
                        "action": row.action,
                        "key": before.get("key", row.key),
                        "who": row.who,
                        "why": row.why,
                        "before": before or None,
                    }
                )
        return found

    def _conditions(self, table: Table, key: str | None, once_per: str | None) -> list[ColumnElement[bool]]:
        conditions = [table.c.service == self._service]
        if key is not None:
            conditions.append(table.c.key_digest == digest_for(key, DIGITS))
        if once_per is not None:
            conditions.append(table.c.scope == "" if once_per == "key" else table.c.scope != "")
        return conditions

    def _change(self, stored: Stored, entry: Entry | None, *, action: str, who: str, why: str) -> None:
        row = stored.row
        identity = ("service", "scope", "key_digest", "attempt", "version")
        unchanged = and_(*(LEDGER.c[name] == getattr(row, name) for name in identity))
        with self._engine.begin() as connection:
            if entry is None:
                changed = connection.execute(LEDGER.delete().where(unchanged))
            else:
                values = {
                    # After "not created" the response may still come, and is recorded.
                    "attempt": row.attempt if action == "not created" else f"settled {uuid4().hex}",
                    "version": row.version + 1,
                    "state": state_for(entry),
                    "entry": json.dumps({"key": stored.key, **entry}),
                    "updated_at": utc_now(),
                }
                changed = connection.execute(LEDGER.update().where(unchanged).values(**values))
            if not changed.rowcount:
                raise RefusedError(f"{stored}: has changed meanwhile: look at it again")
            self._record(connection, [row], action=action, who=who, why=why)

    def _record(
        self, connection: Connection, rows: Sequence[Row[Any]], *, action: str, who: str, why: str
    ) -> None:
        """Record what was there before a change."""
        history = [history_values(row._asdict(), action, who, why) for row in rows]
        if history:
            connection.execute(HISTORY.insert(), history)


def _readable(row: Row[Any]) -> Entry:
    """Return the entry that was there before a change, with its key; nothing if somebody has edited it."""
    try:
        key, entry = entry_in(row)
    except FsmInputError:
        return {}
    return {"key": key, **entry}


def _iso(at: datetime) -> str:
    return at.replace(tzinfo=UTC).isoformat(timespec="seconds")
