"""The entries of a task's ledger, by key, in pages of the task's state store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Lock
from typing import Any, Protocol

from fsm_provider.compat import never_expire

PAGE_ENTRIES = 64
"""Entries stored under one key of the store. Each write stores a full page."""
CURRENT = "fsm_writes_current"
"""A key that is written to check that this attempt is still allowed to write."""

Entry = dict[str, Any]


class StateStore(Protocol):
    """Values that outlive an attempt of a task: ``context["task_state_store"]`` of Airflow 3.3 and newer."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a JSON value."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a JSON value."""


class LedgerStore:
    """The entries of a ledger; thread-safe.

    :param store: where they are stored.
    :raises Exception: what the store raises. Nothing is known then.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._pages: list[dict[str, Entry]] = []
        self._unstored: set[int] = set()
        self._changes = self._stored_changes = 0
        self._changing, self._storing = Lock(), Lock()
        while (page := store.get(_page_key(len(self._pages)))) is not None:
            self._pages.append(page)

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        for page in self._pages:
            yield from page.items()

    def get(self, key: str) -> Entry | None:
        """Return an entry, or None."""
        number = self._page_for(key)
        return None if number is None else self._pages[number][key]

    def put(self, key: str, entry: Entry | None) -> None:
        """Set an entry, or remove it if None, in memory; :meth:`store` stores the change."""
        with self._changing:
            number = self._page_for(key)
            if number is None:
                if not self._pages or len(self._pages[-1]) >= PAGE_ENTRIES:
                    self._pages.append({})
                number = len(self._pages) - 1
            if entry is None:
                self._pages[number].pop(key, None)
            else:
                self._pages[number][key] = entry
            self._unstored.add(number)
            self._changes += 1

    def store(self) -> None:
        """Store all changes made before the call.

        While one thread stores, the others wait; the next of them stores the changes of all.
        """
        target = self._changes
        with self._storing:
            if self._stored_changes >= target:
                return
            with self._changing:
                changes = self._changes
                # In order: a missing page hides those after it.
                pages = {number: dict(self._pages[number]) for number in sorted(self._unstored)}
                self._unstored.clear()
            try:
                for number, page in pages.items():
                    self._store.set(_page_key(number), page, retention=never_expire())
            except BaseException:
                with self._changing:
                    self._unstored |= pages.keys()
                raise
            self._stored_changes = changes

    def check_current(self) -> None:
        """Store all changes; fails in an attempt that Airflow has replaced, whose data is out of date."""
        self.store()
        self._store.set(CURRENT, True, retention=never_expire())

    def _page_for(self, key: str) -> int | None:
        return next((number for number, page in enumerate(self._pages) if key in page), None)


def _page_key(number: int) -> str:
    return f"fsm_writes_{number}"
