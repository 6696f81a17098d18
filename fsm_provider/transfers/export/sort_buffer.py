"""Sorts records on the local disk: a listing has no order, files have one."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import NamedTuple, Self

CACHE_KIB = 16 * 1024
"""Held in memory; the rest is on the disk."""

_CREATE = """CREATE TABLE entries (
    id INTEGER PRIMARY KEY, folder TEXT, sort_time TEXT, version TEXT, lines INTEGER, content BLOB
)"""
_ADD = """INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    folder = excluded.folder, sort_time = excluded.sort_time, version = excluded.version,
    lines = excluded.lines, content = excluded.content
    WHERE (excluded.version, excluded.content) > (version, content)"""


class Entry(NamedTuple):
    """The rows of a record.

    :param id: 64 bits; of several entries with one id, the greatest ``(version, content)`` stays.
    :param folder: the export's folder that it belongs to.
    :param sort_time: entries are sorted by it, then by ``id``.
    :param lines: number of rows in ``content``.
    """

    id: int
    folder: str
    sort_time: str
    version: str
    lines: int
    content: bytes


StoredEntry = tuple[str, int, bytes]
"""Folder, rows and content of an entry."""


class SortBuffer:
    """Entries in a nameless file, which disappears with the process, even one that is killed.

    SQLite puts it in ``SQLITE_TMPDIR`` or ``TMPDIR``, else in ``/var/tmp``. It is about as large as what is
    written from it.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute(_CREATE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._database.close()

    def fill(self, entries: Iterable[Entry]) -> None:
        """Store all entries; call this once."""
        self._database.execute("BEGIN")
        self._database.executemany(_ADD, entries)
        self._database.execute("CREATE INDEX sorted ON entries (folder, sort_time, id)")

    def digest_of_identifiers(self) -> bytes:
        """Return a digest of the set of ids."""
        digest = hashlib.sha256()
        for (identifier,) in self._database.execute("SELECT id FROM entries ORDER BY id"):
            digest.update(b"%d," % identifier)
        return digest.digest()

    def folders(self) -> Iterator[str]:
        """Yield the folders that have entries."""
        return (folder for (folder,) in self._database.execute("SELECT DISTINCT folder FROM entries"))

    def in_order(self) -> Iterator[StoredEntry]:
        """Yield the entries, sorted by folder, time and id."""
        return self._database.execute(
            "SELECT folder, lines, content FROM entries ORDER BY folder, sort_time, id"
        )

    def by_folder(self) -> Iterator[tuple[str, Iterator[StoredEntry]]]:
        """Yield the same, folder by folder."""
        return groupby(self.in_order(), itemgetter(0))
