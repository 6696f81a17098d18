"""The entries of a task's ledger in pages of the task's state store, in Airflow itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Protocol

from fsm_provider.compat import never_expire
from fsm_provider.state.entries import Entry, LedgerEntries

PAGE_ENTRIES = 64
"""Entries stored under one key of the store. Each write stores a full page."""
CURRENT = "fsm_writes_current"
"""A key that is written to check that this attempt is still allowed to write."""


class StateStore(Protocol):
    """Values that outlive an attempt of a task: ``context["task_state_store"]`` of Airflow 3.3 and newer."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a JSON value."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a JSON value."""


class TaskEntries(LedgerEntries):
    """The entries of one task instance, all of which are read at once.

    :param store: where they are stored.
    """

    def __init__(self, store: StateStore) -> None:
        super().__init__()
        self._store = store
        self._pages: list[dict[str, Entry]] = []
        self._page_numbers: dict[str, int] = {}
        while (page := store.get(page_key(len(self._pages)))) is not None:
            self._page_numbers |= dict.fromkeys(page, len(self._pages))
            self._pages.append(page)
            self._entries |= page

    def load(self, keys: Collection[str]) -> None:
        """Do nothing: no other task writes into this store."""

    def check_current(self) -> None:
        """Store all changes; fails in an attempt that Airflow has replaced."""
        self.store()
        self._store.set(CURRENT, True, retention=never_expire())

    def _write(self, changed: Mapping[str, Entry | None]) -> None:
        numbers = {self._change_page(key, entry) for key, entry in changed.items()}
        for number in sorted(numbers):  # a missing page would hide those after it
            self._store.set(page_key(number), self._pages[number], retention=never_expire())

    def _change_page(self, key: str, entry: Entry | None) -> int:
        if (number := self._page_numbers.get(key)) is None:
            if not self._pages or len(self._pages[-1]) >= PAGE_ENTRIES:
                self._pages.append({})
            number = self._page_numbers[key] = len(self._pages) - 1
        if entry is None:
            self._pages[number].pop(key, None)
        else:
            self._pages[number][key] = entry
        return number


def page_key(number: int) -> str:
    """Return the key of the store under which a page is."""
    return f"fsm_writes_{number}"
