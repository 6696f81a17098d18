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


def flight_of(entry: Entry, max_flight: float) -> float:
    """Return the seconds after which a request has arrived, or never will: the reader's, or the sender's."""
    return max(max_flight, float(entry.get("max_flight", 0.0)))


def may_arrive(entry: Entry, max_flight: float) -> bool:
    """Return whether the request of an intent may be on its way, by the clock."""
    if not is_intent(entry):
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(entry["sent"][2])
    return age.total_seconds() < flight_of(entry, max_flight)


def is_conflict(entry: Entry) -> bool:
    """Return whether an entry says that the service refused a write with HTTP 409."""
    return bool(entry.get("error", {}).get("type") == FsmConflictError.__name__)


def has_id(entry: Entry, kind: str, identifier: int) -> bool:
    """Return whether a write of this kind has this identifier as its result."""
    return bool(entry.get("kind", kind) == kind and entry.get("result", {}).get("id") == identifier)


def is_intent_of(entry: Entry, subject: dict[str, Any]) -> bool:
    """Return whether an entry is an intent with this subject."""
    return is_intent(entry) and bool(entry["sent"][3] == subject)


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

    def others_with(self, key: str, kind: str, identifier: int) -> list[tuple[str, Entry]]:
        """Return the entries with this identifier as their result, other than that of ``key``.

        In a database, those of other tasks and runs too.
        """
        return [(other, entry) for other, entry in self if other != key and has_id(entry, kind, identifier)]

    def intents_of_others(self, key: str, subject: dict[str, Any]) -> list[tuple[str, Entry]]:
        """Return the intents with this subject, other than that of ``key``; likewise."""
        return [(other, entry) for other, entry in self if other != key and is_intent_of(entry, subject)]

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
