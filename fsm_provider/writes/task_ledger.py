"""The ledger in the task state store of Airflow 3.3: the rows of one task instance, in pages.

Airflow refuses what a replaced attempt stores, so nobody else writes here: what an earlier attempt was
sending is uncertain.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError
from fsm_provider.cli import RefusedError
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Change, Row, belongs_to_another, day_of

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE as NEVER_EXPIRE
except ImportError:  # before Airflow 3.3, which has no such store
    NEVER_EXPIRE = None  # type: ignore[assignment]

PAGE_ROWS = 64
"""Rows under one key of the store: recording a row stores its whole page."""
PAGE = "fsm_writes_"
"""The prefix of the keys of pages, which are numbered from 0."""
NEWEST = 10_000
"""Entries of Airflow's store that the page reads: they have no index by key or by time."""


class TaskLedger:
    """The rows of one task instance, all of which are read at once; its methods are those of ``SqlLedger``.

    :param store: ``context["task_state_store"]``; None: nothing is recorded, outside of a task.
    """

    is_shared = False

    def __init__(self, store: Any, task: Task) -> None:
        self._store = store
        self._rows: dict[str, Row] = {}
        self._pages: list[dict[str, Any]] = []
        self._page_of: dict[str, int] = {}
        self._jobs: dict[Any, str] = {}
        while store is not None and (page := store.get(f"{PAGE}{len(self._pages)}")) is not None:
            self._page_of |= dict.fromkeys(page, len(self._pages))
            self._pages.append(page)
            for stored in page.values():
                row = Row(**stored, by=task)
                if row.state == "sending":
                    row = replace(row, state="uncertain", error="no response was recorded")
                self._put(row)

    def load(self, ids: Iterable[str]) -> dict[str, Row]:
        now = int(time.time() * 1000)
        return {one: replace(self._rows[one], read_at=now) for one in ids if one in self._rows}

    def rows_of_task(self, task: Task) -> dict[str, Row]:
        return self._rows

    def plan(self, rows: Iterable[Row]) -> dict[str, Row]:
        by_id = {row.id: row for row in rows}
        missing = [one for one in by_id if one not in self._rows]
        for one in missing:
            if not self._pages or len(self._pages[-1]) >= PAGE_ROWS:
                self._pages.append({})
            self._page_of[one] = len(self._pages) - 1
            self._put(by_id[one])
        self._write(missing)
        return self.load(by_id)

    def change(self, changes: Mapping[str, Change]) -> dict[str, Row]:
        changed = []
        for one, row in self.load(changes).items():
            after = changes[one](row)
            if after.kind == "job" and after.state == "done" and after.result_id is not None:
                other = self._jobs.get(after.result_id, one)
                if other != one:
                    after = belongs_to_another(after, self._rows[other].key, row)
            if after is not row:
                self._put(after)
                changed.append(one)
        self._write(changed)
        return self.load(changes)

    def rivals_of(self, row: Row) -> list[str]:
        others = [one for one in self._rows.values() if one.subject == row.subject and one.id != row.id]
        return [one.key for one in others if one.state in ("sending", "uncertain")]

    def _put(self, row: Row) -> None:
        stored = {name: value for name, value in vars(row).items() if value and name not in ("by", "read_at")}
        self._rows[row.id] = row
        self._pages[self._page_of[row.id]][row.id] = stored
        if row.kind == "job" and row.state == "done":
            self._jobs[row.result_id] = row.id

    def _write(self, ids: Iterable[str]) -> None:
        for number in sorted({self._page_of[one] for one in ids}):  # a missing page would hide those after it
            if self._store is not None:
                self._store.set(f"{PAGE}{number}", self._pages[number], retention=NEVER_EXPIRE)


class IdleTaskStore:
    """The task state store of a task instance that is not at work, in Airflow's own database."""

    def __init__(self, task: Task, pages: Mapping[str, tuple[int, str]]) -> None:
        self._task, self._pages = task, pages

    def get(self, key: str) -> Any:
        return json.loads(self._pages[key][1]) if key in self._pages else None

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        """Store a page, unless its task may be at work, or the page has changed since it was read."""
        from airflow.models import TaskInstance
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.utils.session import create_session
        from airflow.utils.state import State
        from sqlalchemy import select, update

        page, text = self._pages[key]
        of_task = {name: one for name, one in vars(self._task).items() if name != "airflow"}
        as_read = (TaskStateStoreModel.id == page) & (TaskStateStoreModel.value == text)
        change = update(TaskStateStoreModel).where(as_read).values(value=json.dumps(value))
        with create_session() as session:
            state = session.scalar(select(TaskInstance.state).filter_by(**of_task))
            if state is not None and state in State.unfinished:
                raise RefusedError(f"its task is {state}: wait until it has ended")
            changed: Any = session.execute(change)
            if changed.rowcount != 1:
                raise RefusedError("the ledger has changed meanwhile: look again")


class AirflowLedgers:
    """The ledgers of a service in Airflow's own database."""

    def __init__(self, service: str) -> None:
        if conf.get("workers", "state_store_backend", fallback=""):
            raise FsmInputError("only workers read what is in state_store_backend of airflow.cfg")
        try:
            from airflow.models.task_state_store import TaskStateStoreModel
        except ImportError:
            text = "is missing: before Airflow 3.3 the ledger is in the SQL database that it names"
            raise FsmInputError(f"state_conn_id: {text}") from None
        self._service, self._stored = service, TaskStateStoreModel

    def rows(
        self, states: Collection[str] = (), text: str | None = None, latest: int | None = None
    ) -> list[tuple[TaskLedger, Row]]:
        """Return rows as ``SqlLedgers`` does; the latest are among those that ``NEWEST`` tells."""
        from airflow.utils.session import create_session
        from sqlalchemy import or_, select, tuple_

        stored = self._stored
        of_task = (stored.dag_id, stored.run_id, stored.task_id, stored.map_index)
        tasks = select(*of_task).where(*(self._newest if latest else self._pages))
        in_json = [f'"state": "{state}"' for state in states]
        if text is not None:
            in_json = [f'": {json.dumps(text)}', f'"id": {text}']
        if in_json:  # what else is in these pages is dropped below
            tasks = tasks.where(or_(*(stored.value.contains(one, autoescape=True) for one in in_json)))
        query = select(*of_task, stored.key, stored.id, stored.value).where(tuple_(*of_task).in_(tasks))
        query = query.where(stored.key.startswith(PAGE, autoescape=True)).order_by(*of_task)
        with create_session() as session:
            found = session.execute(query).all()
        rows = []
        for task, pages in groupby(found, key=lambda one: Task(*one[:4])):
            store = IdleTaskStore(task, {key: (page, value) for *_, key, page, value in pages})
            ledger = TaskLedger(store, task)
            for row in ledger.rows_of_task(task).values():
                is_named = text is None or text in (row.key, row.reference, str(row.result_id))
                if is_named and row.service == self._service and (not states or row.state in states):
                    rows.append((ledger, row))
        return sorted(rows, key=lambda one: one[1].sent_at)[-(latest or 0) :]

    def days(self, since: datetime) -> Counter[tuple[str, str]]:
        from airflow.utils.session import create_session
        from sqlalchemy import select

        query = select(self._stored.value).where(*self._newest, self._stored.updated_at >= since)
        with create_session() as session:
            rows = [row for text in session.scalars(query) for row in json.loads(text).values()]
        return Counter((day_of(row.get("sent_at", 0)), row["state"]) for row in rows)

    @property
    def _pages(self) -> tuple[Any, Any]:
        """Return the conditions of pages with rows of the service."""
        named = self._stored.key.startswith(PAGE, autoescape=True)
        return named, self._stored.value.contains(f'"service": {json.dumps(self._service)}', autoescape=True)

    @property
    def _newest(self) -> tuple[Any, ...]:
        from sqlalchemy import func, select

        newest = select(func.max(self._stored.id)).scalar_subquery()
        return (self._stored.id > newest - NEWEST, *self._pages)
