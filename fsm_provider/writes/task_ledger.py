"""The ledger in the task state store of Airflow 3.3: the entries of one task instance, in pages.

Airflow refuses what a replaced attempt stores, so no other attempt writes here meanwhile: what an
earlier one was sending is uncertain. People write here only while the task is not at work.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.api.validation import JsonObject
from fsm_provider.state.task import Task
from fsm_provider.writes.advice import (
    CHANGED_MEANWHILE,
    NEWER_VERSION,
    PAGE_DAMAGED,
    TASK_IS_AT_WORK,
)
from fsm_provider.writes.ledger import (
    ANY_ENTRY,
    OPEN_STATES,
    Change,
    EntryFilter,
    LedgerEntry,
    Tally,
    as_read,
    id_for,
    mark_conflict,
    without_response,
)

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE as NEVER_EXPIRE
except ImportError:  # before Airflow 3.3, which has no such store
    NEVER_EXPIRE = None  # type: ignore[assignment]

PAGE_ENTRIES = 64
"""Entries under one key of the store: recording an entry stores its whole page."""
PAGE = "fsm_writes_"
"""The prefix of the keys of pages, which are numbered from 0."""
PAGE_FORMAT = 1
"""Of a page: ``{"version": 1, "entries": {id: {field: value}}}``, without fields that are empty."""
SECONDS_PER_DAY = 86_400

_STORED_FIELDS = tuple(
    field.name for field in fields(LedgerEntry) if field.name not in ("sent_by", "read_at")
)
_REQUIRED_TEXTS = ("key", "service", "digest", "kind", "what")


class TaskLedger:
    """The entries of one task instance, indexed in memory: a store can only be asked for a page.

    They are read once, when the ledger is opened. Each change is stored with the page that it is
    in, and then remembered: what could not be stored is not remembered either, and the same change
    may be tried again. It is used in one thread.

    Times are by the clock of the worker that sends. Where it was fast, they are ahead of ``now``.

    :param store: ``context["task_state_store"]``; None: nothing is recorded, outside of a task.
    :param now: milliseconds since 1970: nothing was sent later. None: by the clock of this process.
    """

    is_shared = False

    def __init__(self, store: Any, task: Task, now: int | None = None) -> None:
        if now is None:
            now = int(time.time() * 1000)
        self._store = store
        self._entries: dict[str, LedgerEntry] = {}
        self._pages: dict[int, JsonObject] = {}  # what is stored of each entry, by id
        self._page_of: dict[str, int] = {}
        self._holder_of_job: dict[Any, str] = {}
        while store is not None:
            number = len(self._pages)
            page = store.get(f"{PAGE}{number}")
            if page is None:  # that was all
                break
            self._pages[number] = {}
            for entry_id, stored in _entries_in(page, task).items():
                entry = as_read(entry_from(entry_id, stored, task))
                if entry.state == "sending":  # by an earlier attempt, which has ended
                    entry = without_response(entry)
                entry = _moved_before(entry, now)
                self._page_of[entry_id] = number
                self._pages[number][entry_id] = _as_stored(entry)
                self._remember(entry)

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        now = int(time.time() * 1000)
        known = [entry_id for entry_id in ids if entry_id in self._entries]
        return {entry_id: replace(self._entries[entry_id], read_at=now) for entry_id in known}

    def entries_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        return self._entries

    def plan(self, entries: Collection[LedgerEntry]) -> dict[str, LedgerEntry]:
        new = [entry for entry in entries if entry.id not in self._entries]
        sizes = Counter(self._page_of.values())
        number = max(sizes, default=0)
        for entry in new:
            if sizes[number] >= PAGE_ENTRIES:
                number += 1
            self._page_of[entry.id] = number
            sizes[number] += 1
        self._store_entries(new)
        return self.load([entry.id for entry in entries])

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
        changed = []
        for entry_id, before in self.load(changes).items():
            after = changes[entry_id](before)
            if after.kind == "job" and after.state == "done" and after.result_id is not None:
                holder_id = self._holder_of_job.setdefault(after.result_id, entry_id)
                if holder_id != entry_id:
                    after = mark_conflict(after, self._entries[holder_id].key, before)
            if after is not before:
                changed.append(after)
        self._store_entries(changed)
        return self.load(changes)

    def rivals_of(self, entry: LedgerEntry) -> list[str]:
        digest = entry.lookup_digest
        keys = []
        for other in self._entries.values():
            is_open = other.state in OPEN_STATES
            if is_open and other.id != entry.id and other.lookup_digest == digest:
                keys.append(other.key)
        return keys

    def _store_entries(self, entries: Iterable[LedgerEntry]) -> None:
        """Store entries page by page, in order: a missing page would hide those after it."""
        entries_by_page: dict[int, list[LedgerEntry]] = {}
        for entry in entries:
            entries_by_page.setdefault(self._page_of[entry.id], []).append(entry)
        for number in sorted(entries_by_page):
            stored = dict(self._pages.get(number, {}))
            for entry in entries_by_page[number]:
                stored[entry.id] = _as_stored(entry)
            if self._store is not None:
                page = {"version": PAGE_FORMAT, "entries": stored}
                self._store.set(f"{PAGE}{number}", page, retention=NEVER_EXPIRE)
            self._pages[number] = stored
            for entry in entries_by_page[number]:
                self._remember(entry)

    def _remember(self, entry: LedgerEntry) -> None:
        self._entries[entry.id] = entry
        if entry.kind == "job" and entry.state == "done":
            self._holder_of_job[entry.result_id] = entry.id


def _moved_before(entry: LedgerEntry, now: int) -> LedgerEntry:
    """Return an entry that was sent before ``now``; a time ahead of it is of a clock that was fast.

    Its lease keeps its length.
    """
    ahead = max(0, entry.sent_at - now)
    return replace(entry, sent_at=entry.sent_at - ahead, lease_until=entry.lease_until - ahead)


def _as_stored(entry: LedgerEntry) -> JsonObject:
    values = {name: getattr(entry, name) for name in _STORED_FIELDS}
    return {name: value for name, value in values.items() if value}


def _entries_in(page: Any, task: Task) -> dict[str, JsonObject]:
    """Return the entries of a page, by id.

    :raises FsmInputError: if a newer version has written it, or it is no page.
    """
    version = page.get("version", PAGE_FORMAT) if isinstance(page, dict) else None
    if isinstance(version, int) and version > PAGE_FORMAT:
        raise FsmInputError(
            f"task_state_store: the ledger of {task} was written by a newer version of "
            f"airflow-provider-fsm (format {version}): {NEWER_VERSION}"
        )
    entries = page.get("entries") if version == PAGE_FORMAT else None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise FsmInputError(
            f"task_state_store: the ledger of {task} cannot be read, and nothing was sent: "
            f"{PAGE_DAMAGED}"
        )
    return entries


def entry_from(entry_id: str, stored: Mapping[str, Any], task: Task) -> LedgerEntry:
    """Return an entry as it is stored, by whatever version of the package.

    A field that this version does not know is ignored, and one that is missing has its default;
    without its state, nobody knows what became of it.
    """
    known = {name: stored[name] for name in _STORED_FIELDS if name in stored}
    texts = dict.fromkeys(_REQUIRED_TEXTS, "")
    values = {**texts, "state": "uncertain", **known, "id": entry_id}
    return LedgerEntry(**values, sent_by=task)


class _StoredPage(NamedTuple):
    """A page in Airflow's database, as it was read."""

    row_id: int
    text: str
    stored_at: datetime


class IdleTaskStore:
    """The task state store of a task instance that is not at work, in Airflow's own database.

    :param pages: by key.
    """

    def __init__(self, task: Task, pages: Mapping[str, _StoredPage]) -> None:
        self._task = task
        self._pages = pages

    def get(self, key: str) -> Any:
        if key not in self._pages:
            return None
        return json.loads(self._pages[key].text)

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        """Store a page, unless its task may be at work, or the page has changed meanwhile."""
        from airflow.models import TaskInstance
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.utils.session import create_session
        from airflow.utils.state import State
        from sqlalchemy import select, update

        page = self._pages[key]
        state_of_task = select(TaskInstance.state).filter_by(
            dag_id=self._task.dag_id,
            run_id=self._task.run_id,
            task_id=self._task.task_id,
            map_index=self._task.map_index,
        )
        change = (
            update(TaskStateStoreModel)
            .where(TaskStateStoreModel.id == page.row_id, TaskStateStoreModel.value == page.text)
            .values(value=json.dumps(value))
        )
        with create_session() as session:
            state = session.scalar(state_of_task)
            if state is not None and state in State.unfinished:
                raise FsmRefusedError(f"its task is {state}: {TASK_IS_AT_WORK}")
            changed: Any = session.execute(change)
            if changed.rowcount != 1:
                raise FsmRefusedError(f"the ledger has changed meanwhile: {CHANGED_MEANWHILE}")


def _may_hold(pages: Iterable[_StoredPage], words: Collection[str]) -> bool:
    """Return whether the text of a page has one of the words; if there are none, it may.

    To parse 600 full pages takes 0.35 s, and to search their text 11 ms; the page in Airflow's
    menu does so at each view.
    """
    if not words:
        return True
    return any(word in page.text for word in words for page in pages)


class AirflowLedgers:
    """The ledgers of services in Airflow's own database.

    All pages are read at once, as text; those of a task are parsed where they may hold what is
    asked for.

    :param services: None: of all.
    :param newest: read only the runs that have one of so many last rows of Airflow's task state
        store, of whatever key; None: all.
    """

    def __init__(self, services: Iterable[str] | None, newest: int | None) -> None:
        if conf.get("workers", "state_store_backend", fallback=""):
            raise FsmInputError("only workers read what is in state_store_backend of airflow.cfg")
        try:
            from airflow.models.task_state_store import TaskStateStoreModel as Stored
        except ImportError:
            raise FsmInputError(
                "state_conn_id: is missing: before Airflow 3.3 the ledger is in the SQL database "
                "that it names"
            ) from None
        from airflow.utils.session import create_session
        from sqlalchemy import select

        task_columns = (Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index)
        query = (
            select(*task_columns, Stored.key, Stored.id, Stored.value, Stored.updated_at)
            .where(Stored.key.startswith(PAGE, autoescape=True))
            .order_by(*task_columns)
        )
        names = ['"service": ']
        if services is not None:
            names = [_field_text("service", service) for service in services]
        airflow = conf.get("fsm", "airflow_name", fallback="")
        self._pages_by_task: dict[Task, dict[str, _StoredPage]] = {}
        with create_session() as session:
            if newest is not None:
                # And the other pages of their runs: those of a task are read together.
                by_age = select(Stored.id).order_by(Stored.id.desc())
                oldest_id = session.scalar(by_age.offset(newest - 1).limit(1)) or 0
                is_new = Stored.id >= oldest_id
                query = query.where(Stored.dag_run_id.in_(select(Stored.dag_run_id).where(is_new)))
            for row in session.execute(query):
                if any(name in row.value for name in names):
                    task = Task(row.dag_id, row.run_id, row.task_id, row.map_index, airflow)
                    pages = self._pages_by_task.setdefault(task, {})
                    pages[row.key] = _StoredPage(row.id, row.value, row.updated_at)

    def entries(
        self, wanted: EntryFilter = ANY_ENTRY, latest: int | None = None
    ) -> list[tuple[TaskLedger, LedgerEntry]]:
        words = []  # in a page that has such an entry
        if wanted.key is not None:
            words.append(id_for(wanted.key))
        if wanted.job_id is not None:
            words.append(f'"id": {wanted.job_id}')
        if wanted.has_note:
            words.append('"note": ')
        selected = []
        for task, pages in self._pages_by_task.items():
            if wanted.is_open and not any(map(_count_open, pages.values())):
                continue
            if not _may_hold(pages.values(), words):
                continue
            stored_at = max(page.stored_at.timestamp() for page in pages.values())
            ledger = TaskLedger(IdleTaskStore(task, pages), task, int(stored_at * 1000))
            entries = ledger.load(ledger.entries_of_task(task)).values()
            selected += [(ledger, entry) for entry in entries if wanted.includes(entry)]
        selected.sort(key=lambda ledger_and_entry: ledger_and_entry[1].sent_at)
        return selected if latest is None else selected[-latest:]

    def number_of(self, wanted: EntryFilter) -> int:
        return len(self.entries(wanted))

    def counts(self) -> Counter[Tally]:
        """Count by the day on which a page was stored; what is ``sending`` counts as uncertain."""
        counts = Counter[Tally]()
        for task, pages in self._pages_by_task.items():
            for page in pages.values():
                day = int(page.stored_at.timestamp()) // SECONDS_PER_DAY
                unsent = page.text.count('"key": ') - page.text.count('"sent_at": ')
                numbers = {
                    "free": page.text.count(_field_text("state", "free")) - unsent,
                    "done": page.text.count(_field_text("state", "done")),
                    "uncertain": _count_open(page),
                }
                for state, number in numbers.items():
                    counts[Tally(task.airflow, task.dag_id, day, state)] += number
        return counts


def _count_open(page: _StoredPage) -> int:
    """Count the entries of a page that are neither free nor done, which are read as uncertain."""
    states = [_field_text("state", state) for state in ("free", "done")]
    closed = sum(page.text.count(state) for state in states)
    return page.text.count('"key": ') - closed


def _field_text(name: str, value: str) -> str:
    """Return a field as it stands in the text of a page."""
    return f"{json.dumps(name)}: {json.dumps(value)}"
