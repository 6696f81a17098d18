"""Entries as rows of the ledger's table, and back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from sqlalchemy import and_, select

from fsm_provider.api.errors import FsmInputError, error_from_dict
from fsm_provider.state.digest import digest_for
from fsm_provider.state.entries import Entry, flight_of, has_id, is_conflict, is_intent, is_intent_of
from fsm_provider.state.sql_tables import DIGITS, LEDGER
from fsm_provider.state.task import Task

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.engine.row import Row
    from sqlalchemy.sql.elements import ColumnElement


class Found(NamedTuple):
    """An entry that was found, with its key."""

    row: Row[Any]
    key: str
    entry: Entry


def state_for(entry: Entry) -> str:
    """Return what is known of a write: ``sent``, ``done``, ``uncertain`` or ``conflict``."""
    if is_intent(entry):
        return "sent"
    if "result" in entry:
        return "done"
    return "conflict" if is_conflict(entry) else "uncertain"


def text_of(key: str, entry: Entry) -> str:
    """Return an entry as it is stored."""
    return json.dumps({"key": key, **entry})


def task_in(row: Row[Any]) -> Task:
    """Return the task that has written a row last, for the eye."""
    return Task(row.dag_id, row.run_id, row.task_id, row.map_index)


def entry_in(row: Row[Any]) -> tuple[str, Entry]:
    """Return the key and the entry that a row holds.

    :raises FsmInputError: if somebody has changed it, so that it cannot be read.
    """
    try:
        entry: Entry = json.loads(row.entry)
        key = entry.pop("key")
        if digest_for(key, DIGITS) != row.key_digest:
            raise ValueError(key)
        _check(entry)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(row) from None
    return key, entry


def _check(entry: Entry) -> None:
    """Check what everything reads of an entry, and of those before it.

    :raises Exception: if it is not there.
    """
    _, _, sent_at, subject = entry["sent"]
    is_complete = {"digest", "generation", "kind"} <= entry.keys() and isinstance(subject, dict)
    if not is_complete or datetime.fromisoformat(sent_at).tzinfo is None:
        raise ValueError(sent_at)
    Task(**entry["by"])
    flight_of(entry, 0.0)
    if "error" in entry:
        error_from_dict(entry["error"])
    if "before" in entry:
        _check(entry["before"])


def with_id(connection: Connection, service: str, kind: str, identifier: int) -> list[Found]:
    """Return the entries with this identifier as their result."""
    mentions = LEDGER.c.entry.contains(f'"id": {identifier}')
    found = _search(connection, service, and_(LEDGER.c.state == "done", mentions))
    return [one for one in found if has_id(one.entry, kind, identifier)]


def intents_of(connection: Connection, service: str, subject: dict[str, Any]) -> list[Found]:
    """Return the intents with this subject."""
    found = _search(connection, service, LEDGER.c.state == "sent")
    return [one for one in found if is_intent_of(one.entry, subject)]


def _search(connection: Connection, service: str, which: ColumnElement[bool]) -> Iterator[Found]:
    """Yield the entries of a service; not those that are damaged."""
    for row in connection.execute(select(LEDGER).where(LEDGER.c.service == service, which)):
        with suppress(FsmInputError):
            yield Found(row, *entry_in(row))


def history_values(row: Mapping[str, Any], action: str, who: str, why: str) -> dict[str, Any]:
    """Return the row of the history that keeps a row of the ledger.

    :param row: its columns.
    :param who: who has changed it, or could not.
    """
    return {
        **{name: row[name] for name in ("service", "scope", "key_digest", "key", "entry")},
        "id": f"{time.time_ns():016x}{uuid4().hex[:16]}",
        "at": utc_now(),
        "who": storable(who),
        "why": storable(why),
        "action": action,
    }


def damaged(row: Row[Any]) -> FsmInputError:
    """Make the error of a row that somebody has changed."""
    return FsmInputError(
        f"{LEDGER.name}: the entry of '{row.key}' was changed and cannot be read, so what was sent is not "
        "known: look in the service, and restore or delete the row"
    )


def storable(text: str) -> str:
    """Replace what a database does not take as text: half a surrogate pair, and NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def utc_now() -> datetime:
    """Return the time as the tables hold it."""
    return datetime.now(UTC).replace(tzinfo=None)
