"""The entries of a ledger in memory, and how their changes reach a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from fsm_provider.api.errors import FsmConflictError

Entry = dict[str, Any]


def is_intent(entry: Entry) -> bool:
    """Return whether an entry says that a write is about to be sent, and not what became of it."""
    return "result" not in entry and "error" not in entry


def may_arrive(entry: Entry, max_flight: float) -> bool:
    """Return whether an intent is less than so many seconds old: its request may be on its way."""
    if not is_intent(entry):
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(entry["sent"][2])
    return age.total_seconds() < max_flight


def is_conflict(entry: Entry) -> bool:
    """Return whether an entry says that the service refused a write with HTTP 409."""
    return bool(entry.get("error", {}).get("type") == FsmConflictError.__name__)


class SupersededError(AirflowException):
    """A later attempt of this task has begun; this one must not send anything any more."""


def superseded(attempt: str) -> SupersededError:
    """Make the error of an attempt, e.g. ``attempt 1``."""
    return SupersededError(
        f"another attempt of this task has begun since {attempt}, which sends nothing more; the other one "
        "knows what was sent"
    )


class LedgerEntries(ABC):
    """The entries of a ledger, by key; thread-safe.

    :raises Exception: what the store raises. Nothing is known then.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._unstored: set[str] = set()
        self._changes = self._stored_changes = 0
        self._changing, self._storing = Lock(), Lock()

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        with self._changing:
            return iter(list(self._entries.items()))

    def get(self, key: str) -> Entry | None:
        """Return an entry, or None."""
        return self._entries.get(key)

    def put(self, key: str, entry: Entry | None) -> None:
        """Set an entry, or remove it if None, in memory; :meth:`store` stores the change."""
        with self._changing:
            self._set(key, entry)
            self._unstored.add(key)
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
                changed = {key: self._entries.get(key) for key in self._unstored}
                self._unstored.clear()
            try:
                self._write(changed)
            except BaseException:
                with self._changing:
                    self._unstored |= changed.keys()
                raise
            self._stored_changes = changes

    def close(self) -> None:  # noqa: B027 - not all have something to close
        """Close connections; they are opened again where they are needed."""

    @abstractmethod
    def load(self, keys: Collection[str]) -> None:
        """Read the entries of these keys that others may have written."""

    @abstractmethod
    def check_current(self) -> None:
        """Raise if a later attempt of this task has begun: what this one knows is out of date."""

    @abstractmethod
    def _write(self, changed: Mapping[str, Entry | None]) -> None:
        """Store entries; None removes one. An entry that another task has written meanwhile is loaded."""

    def _set(self, key: str, entry: Entry | None) -> None:
        if entry is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
