"""Records on this machine's disk between a listing, which has no order, and files, which have one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import NamedTuple, Self

CACHE_KIB = 16 * 1024
"""What is kept in memory; the rest is on the disk."""

_CREATE = """CREATE TABLE spool (
    id INTEGER PRIMARY KEY, folder TEXT, moment TEXT, version TEXT, lines INTEGER, content BLOB
)"""
_ADD = """INSERT INTO spool VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    folder = excluded.folder, moment = excluded.moment, version = excluded.version,
    lines = excluded.lines, content = excluded.content
    WHERE (excluded.version, excluded.content) > (version, content)"""


class Entry(NamedTuple):
    """What a record comes to.

    :param id: of 64 bits; the greatest ``(version, content)`` of one id stays.
    :param folder: which of the export's folders it belongs into.
    :param moment: what entries are sorted by, before ``id``.
    :param lines: how many rows it makes, in ``content``.
    """

    id: int
    folder: str
    moment: str
    version: str
    lines: int
    content: bytes


Piece = tuple[str, int, bytes]
"""Folder, rows and content of an entry."""


class Spool:
    """Entries in a file without a name: it is gone when the process is, however that ends.

    SQLite puts it where ``SQLITE_TMPDIR`` or ``TMPDIR`` say, else into ``/var/tmp``. It takes about as many
    bytes as what is written from it.
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
        """Take in all entries, once."""
        self._database.execute("BEGIN")
        self._database.executemany(_ADD, entries)
        self._database.execute("CREATE INDEX sorted ON spool (folder, moment, id)")

    def folders(self) -> Iterator[str]:
        """Give the folders that have entries."""
        return (folder for (folder,) in self._database.execute("SELECT DISTINCT folder FROM spool"))

    def in_order(self) -> Iterator[Piece]:
        """Give what the entries hold, sorted by folder, moment and id."""
        return self._database.execute("SELECT folder, lines, content FROM spool ORDER BY folder, moment, id")

    def by_folder(self) -> Iterator[tuple[str, Iterator[Piece]]]:
        """Give the same, folder by folder."""
        return groupby(self.in_order(), itemgetter(0))
