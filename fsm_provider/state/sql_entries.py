"""The entries of a ledger in a SQL database, shared by tasks, runs and Airflows.

A write is claimed by the INSERT of its row, whose primary key is service, scope and key: of two tasks one
succeeds, and the other loads what it has written. A row belongs to the attempt that wrote it last; another
one replaces it only if it has not changed since it was read. Claims need that no later attempt of the same
task has begun; an attempt may always record what became of its own claims.

All of this is in one short transaction for each :meth:`SqlEntries.store`. No connection is held meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from itertools import islice
from secrets import randbelow
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import and_, bindparam, case, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, NotSupportedError, ProgrammingError
from tenacity import (
    Retrying,
    before_sleep_log,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import Entry, LedgerEntries, is_intent, superseded
from fsm_provider.state.sql_rows import (
    Found,
    entry_in,
    history_values,
    intents_of,
    state_for,
    storable,
    task_in,
    text_of,
    utc_now,
    with_id,
)
from fsm_provider.state.sql_tables import ATTEMPTS, DIGITS, HISTORY, LEDGER
from fsm_provider.state.task import Task, began_after

if TYPE_CHECKING:
    from sqlalchemy import Case, Column, Update
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.engine.row import Row
    from sqlalchemy.sql.elements import ColumnElement

logger: logging.Logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""How long a transaction is repeated that fails, e.g. while the database restarts."""
KEYS_PER_QUERY = 500
ROWS_PER_UPDATE = 50
MAX_FIRST_VERSION = 2**30
"""A row that is deleted and inserted again has another version, so that it is not taken for the same."""

Result = TypeVar("Result")

# Made once: SQLAlchemy takes longer to make a statement than SQLite to run it.
_IN_SCOPE = and_(LEDGER.c.service == bindparam("this_service"), LEDGER.c.scope == bindparam("this_scope"))
_IS_ROW = and_(_IN_SCOPE, LEDGER.c.key_digest == bindparam("this_key"))
_SELECT = select(LEDGER).where(_IN_SCOPE, LEDGER.c.key_digest.in_(bindparam("these_keys", expanding=True)))
_SELECT_LOCKED = _SELECT.with_for_update()
_INSERT = LEDGER.insert()
_UPDATE = LEDGER.update().where(_IS_ROW).values(version=LEDGER.c.version + 1)
_DELETE = LEDGER.delete().where(_IS_ROW)
_STORED_BY_LATEST = (
    ATTEMPTS.update()
    .where(ATTEMPTS.c.task == bindparam("this_task"), ATTEMPTS.c.attempt == bindparam("this_attempt"))
    .values(stored_at=bindparam("now"))
)


@cache
def _update_of_own(number: int) -> Update:
    """Make the statement that updates so many rows of an attempt: one round trip for all."""
    keys = [bindparam(f"key_{row}", type_=LEDGER.c.key_digest.type) for row in range(number)]

    def by_key(column: Column[str]) -> Case[str]:
        values = [bindparam(f"{column.name}_{row}", type_=column.type) for row in range(number)]
        return case(*((LEDGER.c.key_digest == key, value) for key, value in zip(keys, values, strict=True)))

    return (
        LEDGER.update()
        .where(_IN_SCOPE, LEDGER.c.key_digest.in_(keys), LEDGER.c.attempt == bindparam("this_attempt"))
        .values(
            version=LEDGER.c.version + 1,
            state=by_key(LEDGER.c.state),
            entry=by_key(LEDGER.c.entry),
            updated_at=bindparam("now"),
        )
    )


class SqlEntries(LedgerEntries):
    """The entries of one scope as an attempt of a task sees them.

    Those of a run are read now, and again by :meth:`load`; of all others, only what that asks for.

    :param engine: the database; its tables exist.
    :param base_url: identifies the service.
    :param scope: what shares entries: those of one run, or "" for those of all.
    :param task: whose attempt this is.
    :param attempt: as :func:`~fsm_provider.state.task.attempt_id` returns it.
    :raises SupersededError: if a later attempt has begun.
    """

    def __init__(self, engine: Engine, *, base_url: str, scope: str, task: Task, attempt: str) -> None:
        super().__init__()
        self._engine = engine
        self._base_url = base_url
        self._service = digest_for(base_url, DIGITS)
        self._scope = scope
        self._in_scope = {"this_service": self._service, "this_scope": scope}
        self._task = task
        self._by_this = task.as_dict()
        self._task_digest = digest_for(self._by_this, DIGITS)
        self._attempt = attempt
        self._versions: dict[str, int] = {}
        self._own: set[str] = set()
        self._is_away = False
        is_first = self._in_transaction(self._take_over)
        if scope:
            self._in_transaction(lambda connection: self._read(connection, _IN_SCOPE))
        elif not is_first:
            self._in_transaction(lambda connection: self._read(connection, self._left_by_this()))

    def close(self) -> None:
        """Close connections; they are opened again where they are needed."""
        self._engine.dispose()

    def load(self, keys: Collection[str]) -> None:
        """Read the entries of these keys."""
        if keys:
            self._in_transaction(partial(self._read_keys, keys=keys))

    def others_with(self, key: str, kind: str, identifier: int) -> list[tuple[str, Entry]]:
        """Return the entries with this identifier as their result, other than that of ``key``."""
        found = self._in_transaction(lambda connection: with_id(connection, self._service, kind, identifier))
        return [*self._of_others(found, key), *super().others_with(key, kind, identifier)]

    def intents_of_others(self, key: str, subject: dict[str, Any]) -> list[tuple[str, Entry]]:
        """Return the intents with this subject, other than that of ``key``."""
        found = self._in_transaction(lambda connection: intents_of(connection, self._service, subject))
        return [*self._of_others(found, key), *super().intents_of_others(key, subject)]

    def _of_others(self, found: list[Found], key: str) -> list[tuple[str, Entry]]:
        return [(at, entry) for row, at, entry in found if (row.scope, at) != (self._scope, key)]

    def has_entries_elsewhere(self) -> bool:
        """Return whether this task has written entries in another scope: with another ``once_per``."""
        query = select(LEDGER.c.version).where(
            LEDGER.c.service == self._service, LEDGER.c.scope != self._scope, *self._is_of_this_task()
        )
        return self._in_transaction(lambda connection: connection.execute(query.limit(1)).first() is not None)

    def check_current(self) -> None:
        """Raise if a later attempt has begun. If the database is away, that is unknown, and only logged.

        :raises SupersededError: if a later attempt has begun.
        """
        query = select(ATTEMPTS.c.attempt).where(ATTEMPTS.c.task == self._task_digest)
        self.close()  # as it is not repeated, over a connection that is not stale
        try:
            with self._engine.connect() as connection:
                latest = connection.execute(query).scalar()
        except DBAPIError as error:
            logger.warning("Whether a later attempt has begun could not be read: %r", error)
            return
        finally:
            self.close()
        if latest != self._attempt:
            raise superseded("this one")

    def _left_by_this(self) -> ColumnElement[bool]:
        """Return the condition of what earlier attempts of this task have sent, whose outcome is unknown."""
        is_left = LEDGER.c.state.in_(["sent", "uncertain"])
        return and_(_IN_SCOPE, is_left, *self._is_of_this_task())

    def _is_of_this_task(self) -> list[ColumnElement[bool]]:
        columns = (LEDGER.c.dag_id, LEDGER.c.run_id, LEDGER.c.task_id)
        return [column == storable(getattr(self._task, column.name)) for column in columns]

    def _take_over(self, connection: Connection) -> bool:
        """Become the latest attempt of the task; return whether it is the first."""
        mine = ATTEMPTS.c.task == self._task_digest
        # Locks the row: SQLite locks nothing by reading.
        if not connection.execute(ATTEMPTS.update().where(mine).values(stored_at=utc_now())).rowcount:
            values = {"task": self._task_digest, "attempt": self._attempt, "stored_at": utc_now()}
            connection.execute(ATTEMPTS.insert().values(**values))
            return True
        if began_after(
            connection.execute(select(ATTEMPTS.c.attempt).where(mine)).scalar_one(), self._attempt
        ):
            raise superseded("this one")
        connection.execute(ATTEMPTS.update().where(mine).values(attempt=self._attempt))
        return False

    def _write(self, changed: Mapping[str, Entry | None]) -> None:
        others: dict[str, Row[Any]] = {}
        try:
            self._in_transaction(partial(self._write_expected, changed=changed))
        except _UnexpectedRowError:
            refused, others = self._in_transaction(partial(self._write_rows, changed=changed))
            for key, row in others.items():
                self._take_in(key, row.version, entry_in(row)[1])
            if refused:
                raise superseded("this one") from None
        for key, entry in changed.items():
            if entry and key not in others and self._is_by_this(entry):
                self._own.add(key)
            else:
                self._own.discard(key)

    def _write_expected(self, connection: Connection, changed: Mapping[str, Entry | None]) -> None:
        """Write new rows, and those that this attempt has written, without reading them first.

        :raises _UnexpectedRowError: if a row is not as expected, or a later attempt has begun.
        """
        entries = {key: entry for key, entry in sorted(changed.items()) if entry and self._is_by_this(entry)}
        if len(entries) < len(changed) or any(key in self._versions for key in entries.keys() - self._own):
            raise _UnexpectedRowError
        if any(map(is_intent, entries.values())) and not self._is_latest(connection):
            raise _UnexpectedRowError
        own = iter([item for item in entries.items() if item[0] in self._own])
        while some := list(islice(own, ROWS_PER_UPDATE)):
            if self._update_own(connection, some) < len(some):
                raise _UnexpectedRowError
        new = [self._values_of_new(key, entry) for key, entry in entries.items() if key not in self._own]
        try:
            if new:
                connection.execute(_INSERT, new)
        except IntegrityError:
            raise _UnexpectedRowError from None

    def _update_own(self, connection: Connection, entries: list[tuple[str, Entry]]) -> int:
        """Update rows that this attempt has written; return how many there are."""
        values: dict[str, Any] = {**self._in_scope, "this_attempt": self._attempt, "now": utc_now()}
        for number, (key, entry) in enumerate(entries):
            values[f"key_{number}"] = digest_for(key, DIGITS)
            values[f"state_{number}"] = state_for(entry)
            values[f"entry_{number}"] = text_of(key, entry)
        return connection.execute(_update_of_own(len(entries)), values).rowcount

    def _is_by_this(self, entry: Entry) -> bool:
        return bool(entry["by"] == self._by_this)

    def _write_rows(
        self, connection: Connection, changed: Mapping[str, Entry | None]
    ) -> tuple[bool, dict[str, Row[Any]]]:
        """Write rows; return whether a claim is refused, as a later attempt has begun, and others' rows.

        The history keeps a result that is not stored. Nothing else changes: what was read is out of date if
        the transaction is repeated.
        """
        is_latest = self._is_latest(connection)  # first, as SQLite then locks before it reads
        refused, others = False, {}
        rows = {row.key_digest: row for row in self._rows(connection, changed, lock=True)}
        new, late = [], []
        for key in sorted(changed):
            entry, row = changed[key], rows.get(digest_for(key, DIGITS))
            if entry is not None and is_intent(entry) and not is_latest:
                refused = True
            elif row is None:
                if entry is not None:
                    new.append(self._values_of_new(key, entry))
            elif row.attempt == self._attempt or (
                entry is not None and row.version == self._versions.get(key)
            ):
                self._replace(connection, key, entry)
            else:
                if entry is not None and not is_intent(entry):
                    by = task_in(row)
                    who = "a settlement or a later attempt of this task" if by == self._task else by
                    logger.warning("The outcome of '%s' is not stored: %s has replaced it", key, who)
                    if "result" in entry:
                        values, why = self._values(key, entry), f"{who} had replaced the entry"
                        late.append(history_values(values, "late response", str(self._task), why))
                others[key] = row
        if new:
            connection.execute(_INSERT, new)
        if late:
            connection.execute(HISTORY.insert(), late)
        return refused, others

    def _replace(self, connection: Connection, key: str, entry: Entry | None) -> None:
        if entry is None:
            connection.execute(_DELETE, self._this(key))
        else:
            connection.execute(_UPDATE, {**self._this(key), **self._values(key, entry)})

    def _is_latest(self, connection: Connection) -> bool:
        """Lock the row of the latest attempt, and return whether that is this one."""
        this = {"this_task": self._task_digest, "this_attempt": self._attempt, "now": utc_now()}
        return bool(connection.execute(_STORED_BY_LATEST, this).rowcount)

    def _this(self, key: str) -> dict[str, str]:
        return {**self._in_scope, "this_key": digest_for(key, DIGITS)}

    def _values_of_new(self, key: str, entry: Entry) -> dict[str, Any]:
        return {**self._values(key, entry), "version": randbelow(MAX_FIRST_VERSION)}

    def _values(self, key: str, entry: Entry) -> dict[str, Any]:
        task = entry["by"]
        return {
            "service": self._service,
            "scope": self._scope,
            "key_digest": digest_for(key, DIGITS),
            "key": storable(key),
            "base_url": storable(self._base_url),
            **{name: storable(task[name]) for name in ("dag_id", "run_id", "task_id")},
            "map_index": task["map_index"],
            "attempt": self._attempt,
            "state": state_for(entry),
            "entry": text_of(key, entry),
            "updated_at": utc_now(),
        }

    def _read(self, connection: Connection, which: ColumnElement[bool]) -> None:
        for row in connection.execute(select(LEDGER).where(which), self._in_scope):
            key, entry = entry_in(row)
            self._take_in(key, row.version, entry)

    def _read_keys(self, connection: Connection, keys: Collection[str]) -> None:
        found: dict[str, tuple[int, Entry]] = {}
        for row in self._rows(connection, keys):
            key, entry = entry_in(row)
            found[key] = row.version, entry
        for key in keys:
            self._take_in(key, *found.get(key, (None, None)))

    def _take_in(self, key: str, version: int | None, entry: Entry | None) -> None:
        """Replace an entry in memory by what is stored, unless it has changed since it was stored."""
        with self._changing:
            if key in self._unstored:
                return
            self._own.discard(key)
            if version is None:
                self._versions.pop(key, None)  # a row that is made again has the same
            else:
                self._versions[key] = version
            self._set(key, entry)

    def _rows(
        self, connection: Connection, keys: Collection[str], *, lock: bool = False
    ) -> Iterator[Row[Any]]:
        digests = iter(sorted(digest_for(key, DIGITS) for key in keys))
        while some := list(islice(digests, KEYS_PER_QUERY)):
            these = {**self._in_scope, "these_keys": some}
            yield from connection.execute(_SELECT_LOCKED if lock else _SELECT, these)

    def _in_transaction(self, work: Callable[[Connection], Result]) -> Result:
        """Call a function as :func:`in_transaction` does.

        Once that has failed for long enough, each function is called once, so that not every thread waits as
        long.
        """
        try:
            result = in_transaction(self._engine, work, retry=not self._is_away)
        except Exception as error:
            self._is_away = _may_pass(error)
            raise
        self._is_away = False
        return result


class _UnexpectedRowError(Exception):
    """A row is not as this attempt has left it, or a later attempt has begun."""


def in_transaction(engine: Engine, work: Callable[[Connection], Result], *, retry: bool = True) -> Result:
    """Call a function within a transaction; again if it fails for a reason that may pass.

    Done twice, it has the same result: whether a COMMIT that failed has taken place is unknown.

    :param retry: whether to call it again, for ``RETRY_SECONDS``.
    :raises sqlalchemy.exc.SQLAlchemyError: if the database fails.
    """
    retrying = Retrying(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_delay(RETRY_SECONDS if retry else 0.0),
        wait=wait_random_exponential(0.05, max=2.0),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    )
    return retrying(lambda: _in_one_transaction(engine, work))


def _in_one_transaction(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    with engine.begin() as connection:
        return work(connection)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ProgrammingError | DataError | NotSupportedError):
        return False
    # A full disk: threads would wait for one another, as smaller writes succeed in between.
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlite_errorname", "") != "SQLITE_FULL"
