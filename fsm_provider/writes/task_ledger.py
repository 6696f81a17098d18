"""The ledger in the task state store of Airflow 3.3: the rows of one task instance, in pages.

Airflow refuses what a replaced attempt stores, so nobody else writes here: what an earlier attempt was
sending is uncertain.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fsm_provider.compat import never_expire
from fsm_provider.state.task import Task
from fsm_provider.writes.ledger import Change, Row, belongs_to_another, found, seen_at

SERVICE = "fsm_service"
"""Key of the task state store: the service that the task writes to, and the id that its database gave it."""
PAGE_ROWS = 64
"""Rows under one key of the store: each write stores a full page."""
PAGE = "fsm_writes_"
"""The prefix of the keys of pages, which are numbered from 0."""


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
            for one in page.values():
                row = row_in(one, task)
                is_sent = row.state == "sending"
                self._put(
                    replace(row, state="uncertain", error="no response was recorded") if is_sent else row
                )

    def close(self) -> None:
        """Do nothing: each change is stored at once."""

    def load(self, ids: Iterable[str]) -> dict[str, Row]:
        now = _now()
        return {one: seen_at(self._rows[one], now) for one in ids if one in self._rows}

    def rows_of_task(self, task: Task) -> dict[str, Row]:
        return self._rows

    def rows_of_other_indexes(self, task: Task, digests: Iterable[str]) -> dict[str, Row]:
        return {}  # a task sees no other index

    def plan(self, rows: Collection[Row]) -> dict[str, Row]:
        missing = [row for row in rows if row.id not in self._rows]
        for row in missing:
            if not self._pages or len(self._pages[-1]) >= PAGE_ROWS:
                self._pages.append({})
            self._page_of[row.id] = len(self._pages) - 1
            self._put(row)
        self._write(row.id for row in missing)
        return self.load(row.id for row in rows)

    def change(self, changes: Mapping[str, Change]) -> dict[str, Row]:
        now, changed = _now(), []
        for one, change in changes.items():
            row = self._rows[one]
            after = change(row, now)
            if after.kind == "job" and after.state == "done" and after.result_id is not None:
                other = self._jobs.setdefault(after.result_id, one)
                if other != one:
                    shared = belongs_to_another(after, after.result_id, self._rows[other].key)
                    after = shared(row, now)
            if after is not row:
                self._put(after)
                changed.append(one)
        self._write(changed)
        return self.load(changes)

    def record_found(self, seen: Row, result: dict[str, Any]) -> Row:
        rivals = [
            row.key
            for row in self._rows.values()
            if row.subject == seen.subject and row.id != seen.id and row.state in ("sending", "uncertain")
        ]
        return self.change({seen.id: found(seen, result, rivals)})[seen.id]

    def _put(self, row: Row) -> None:
        self._rows[row.id] = row
        self._pages[self._page_of[row.id]][row.id] = stored(row)
        if row.kind == "job" and row.state == "done":
            self._jobs[row.result_id] = row.id

    def _write(self, ids: Iterable[str]) -> None:
        for number in sorted({self._page_of[one] for one in ids}):  # a missing page would hide those after it
            if self._store is not None:
                self._store.set(f"{PAGE}{number}", self._pages[number], retention=never_expire())


def stored(row: Row) -> dict[str, Any]:
    """Return a row as JSON values: what is not its default, without its task."""
    return {name: value for name, value in vars(row).items() if name not in ("by", "read_at") and value}


def row_in(values: Mapping[str, Any], by: Task) -> Row:
    return Row(**values, by=by)


def _now() -> int:
    return int(time.time() * 1000)
