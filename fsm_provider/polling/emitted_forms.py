"""The versions of forms that were emitted, in chunks of an hour: a state machine without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SEEN = "seen/"
"""Prefix of a chunk's key; its hour follows, in UTC."""


class EmittedForms:
    """Remembers one version of each form; a change is stored with little, as it changes few chunks.

    A version is a JSON value. An hour is text such as ``2026-01-31T12``.
    """

    def __init__(self) -> None:
        self._chunks: dict[str, dict[str, Any]] = {}
        self._hour_by_id: dict[str, str] = {}
        self._unsaved: set[str] = set()
        self._left: set[str] = set()
        self._saving: set[str] = set()
        self._saving_left: set[str] = set()

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._hour_by_id

    def __getitem__(self, identifier: str) -> Any:
        return self._chunks[self._hour_by_id[identifier]][identifier]

    def restore(self, key: str, versions: Mapping[str, Any], *, is_own: bool = True) -> None:
        """Restore a chunk of :meth:`to_store` by its key and its value.

        :param is_own: whether it is stored below the key of this configuration. What is not has to be stored
            there: the other configuration may be forgotten.
        """
        hour = key.removeprefix(SEEN)
        if not is_own:
            self._unsaved.add(hour)
        for identifier, version in versions.items():
            if self._hour_by_id.get(identifier, "") <= hour:
                self._put(identifier, version, hour)

    def add(self, identifier: str, version: Any, hour: str) -> None:
        """Remember a version that was emitted, in the chunk of an hour, in place of the one before."""
        self._unsaved |= {self._put(identifier, version, hour), hour}

    def keep(self, identifier: str, hour: str) -> None:
        """Move a version that a poll returned again to the chunk of the poll's hour."""
        if self._hour_by_id[identifier] < hour:
            self._unsaved.add(hour)
            self._left.add(self._put(identifier, self[identifier], hour))

    def remove(self, is_removed: Callable[[Any], bool]) -> None:
        """Forget the versions that a function selects; what is left is stored in full the next time."""
        for hour, chunk in self._chunks.items():
            for identifier in [one for one, version in chunk.items() if is_removed(version)]:
                del chunk[identifier], self._hour_by_id[identifier]
            self._unsaved.add(hour)

    def forget_before(self, oldest: str) -> None:
        """Drop the chunks of the hours before one, and those that are empty."""
        for hour in [hour for hour, chunk in self._chunks.items() if hour < oldest or not chunk]:
            for identifier in self._chunks.pop(hour):
                del self._hour_by_id[identifier]
            self._unsaved.add(hour)

    def keys(self) -> list[str]:
        """Return the keys of all chunks."""
        return [SEEN + hour for hour in sorted(self._chunks)]

    def to_store(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return what to store by key, and the keys to delete; call :meth:`stored` once that is done.

        What changes in between is part of the next call's result.
        """
        self._saving |= self._unsaved
        self._saving_left |= self._left
        self._unsaved, self._left = set(), set()
        changed = {SEEN + hour: dict(self._chunks[hour]) for hour in self._saving if hour in self._chunks}
        return changed, [SEEN + hour for hour in self._saving if hour not in self._chunks]

    def stored(self) -> None:
        """Note that the last :meth:`to_store` was stored.

        A chunk that a version has left is stored the next time. If it were stored before the watermark that
        lists the version's new chunk, a restart between the two would forget the version.
        """
        self._unsaved |= self._saving_left & self._chunks.keys()
        self._saving, self._saving_left = set(), set()

    def _put(self, identifier: str, version: Any, hour: str) -> str:
        """Return the hour of the version before, or its own."""
        before = self._hour_by_id.get(identifier, hour)
        if before != hour:
            del self._chunks[before][identifier]
        self._chunks.setdefault(hour, {})[identifier] = version
        self._hour_by_id[identifier] = hour
        return before
