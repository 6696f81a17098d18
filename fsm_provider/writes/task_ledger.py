"""The ledger in the task state store of Airflow 3.3: the rows of one task instance, in pages.

Airflow refuses what a replaced attempt stores, so nobody else writes here: what an earlier attempt
was sending is uncertain.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from airflow.providers.common.compat.sdk import conf

from fsm_provider.api.errors import FsmInputError, FsmRefusedError
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Change, LedgerEntry, belongs_to_another

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE as NEVER_EXPIRE
except ImportError:  # before Airflow 3.3, which has no such store
    NEVER_EXPIRE = None  # type: ignore[assignment]

PAGE_ROWS = 64
"""Rows under one key of the store: recording a row stores its whole page."""
PAGE = "fsm_writes_"
"""The prefix of the keys of pages, which are numbered from 0."""


class TaskLedger:
    """The rows of one task instance, all of which are read at once; its methods are those of
    ``SqlLedger``.

    :param store: ``context["task_state_store"]``; None: nothing is recorded, outside of a task.
    """

    is_shared = False

    def __init__(self, store: Any, task: Task) -> None:
        self._store = store
        self._rows: dict[str, LedgerEntry] = {}
        self._pages: list[dict[str, Any]] = []
        self._page_of: dict[str, int] = {}
        self._jobs: dict[Any, str] = {}
        while store is not None and (page := store.get(f"{PAGE}{len(self._pages)}")) is not None:
            self._page_of |= dict.fromkeys(page, len(self._pages))
            self._pages.append(page)
            for stored in page.values():
                row = LedgerEntry(**stored, by=task)
                if row.state == "sending":
                    row = replace(row, state="uncertain", error="no response was recorded")
                self._put(row)

    def load(self, ids: Iterable[str]) -> dict[str, LedgerEntry]:
        now = int(time.time() * 1000)
        return {one: replace(self._rows[one], read_at=now) for one in ids if one in self._rows}

    def rows_of_task(self, task: Task) -> dict[str, LedgerEntry]:
        return self._rows

    def plan(self, rows: Iterable[LedgerEntry]) -> dict[str, LedgerEntry]:
        by_id = {row.id: row for row in rows}
        missing = [one for one in by_id if one not in self._rows]
        for one in missing:
            if not self._pages or len(self._pages[-1]) >= PAGE_ROWS:
                self._pages.append({})
            self._page_of[one] = len(self._pages) - 1
            self._put(by_id[one])
        self._write(missing)
        return self.load(by_id)

    def change(self, changes: Mapping[str, Change]) -> dict[str, LedgerEntry]:
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

    def rivals_of(self, row: LedgerEntry) -> list[str]:
        others = [
            one
            for one in self._rows.values()
            if one.lookup_digest == row.lookup_digest and one.id != row.id
        ]
        return [one.key for one in others if one.state in ("sending", "uncertain")]

    def _put(self, row: LedgerEntry) -> None:
        stored = {
            name: value
            for name, value in vars(row).items()
            if value and name not in ("by", "read_at")
        }
        self._rows[row.id] = row
        self._pages[self._page_of[row.id]][row.id] = stored
        if row.kind == "job" and row.state == "done":
            self._jobs[row.result_id] = row.id

    def _write(self, ids: Iterable[str]) -> None:
        for number in sorted(
            {self._page_of[one] for one in ids}
        ):  # a missing page would hide those after it
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
                raise FsmRefusedError(f"its task is {state}: wait until it has ended")
            changed: Any = session.execute(change)
            if changed.rowcount != 1:
                raise FsmRefusedError("the ledger has changed meanwhile: look again")


class AirflowLedgers:
    """The ledgers of a service in Airflow's own database, or in so many of its ``newest`` entries."""

    def __init__(self, service: str, newest: int | None) -> None:
        if conf.get("workers", "state_store_backend", fallback=""):
            raise FsmInputError("only workers read what is in state_store_backend of airflow.cfg")
        try:
            from airflow.models.task_state_store import TaskStateStoreModel as Stored
        except ImportError:
            text = "is missing: before Airflow 3.3 the ledger is in the SQL database that it names"
            raise FsmInputError(f"state_conn_id: {text}") from None
        from airflow.utils.session import create_session
        from sqlalchemy import func, select

        of_task = (Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index)
        query = select(*of_task, Stored.key, Stored.id, Stored.value, Stored.updated_at).order_by(
            *of_task
        )
        query = query.where(Stored.key.startswith(PAGE, autoescape=True))
        of_service = f'"service": {json.dumps(service)}'
        with create_session() as session:
            if (
                newest is not None
            ):  # and the other pages of their runs: those of a task are read together
                is_new = Stored.id > (session.scalar(select(func.max(Stored.id))) or 0) - newest
                query = query.where(Stored.dag_run_id.in_(select(Stored.dag_run_id).where(is_new)))
            self._pages = [one for one in session.execute(query) if of_service in one.value]

    def rows(
        self, states: Collection[str] = (), text: str | None = None, latest: int | None = None
    ) -> list[tuple[TaskLedger, LedgerEntry]]:
        words = (
            [json.dumps(text), f'"id": {text}'] if text else [f'"state": "{one}"' for one in states]
        )
        found: list[tuple[TaskLedger, LedgerEntry]] = []
        for task, some in groupby(self._pages, key=lambda one: Task(*one[:4])):
            pages = {one.key: (one.id, one.value) for one in some}
            if words and not any(word in value for word in words for _, value in pages.values()):
                continue  # to parse them takes much longer
            ledger = TaskLedger(IdleTaskStore(task, pages), task)
            for row in ledger.rows_of_task(task).values():
                is_named = not text or text in (row.key, row.reference, str(row.result_id or ""))
                if is_named and (not states or row.state in states):
                    found.append((ledger, row))
        return sorted(found, key=lambda one: one[1].sent_at)[-(latest or 0) :]

    def days(self, first: int) -> Counter[tuple[int, str]]:
        """Count as ``SqlLedgers`` does, but by the day on which a page was stored."""
        counts: Counter[tuple[int, str]] = Counter()
        for one in self._pages:
            for state in ("done", "sending", "uncertain"):
                day = int(one.updated_at.timestamp()) // 86_400
                counts[day, state] += one.value.count(f'"state": "{state}"')
        return counts
