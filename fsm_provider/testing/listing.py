"""Cursor pagination over an append-only list."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Criteria: TypeAlias = tuple[tuple[str, str], ...]


class CursorError(ValueError):
    """A cursor that was not issued, or not for these filters."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing; a cursor is an integer or a string, None where there is no such page."""

    records: tuple[T, ...]
    total: int
    next_cursor: int | str | None
    prev_cursor: int | str | None


@dataclass(frozen=True)
class _Bookmark:
    cursor: int | str
    criteria: Criteria
    number: int
    start: int
    total: int
    previous: int | str | None


class Listing(Generic[T]):
    """Records in the order they were added, read page by page.

    A cursor stands for its listing's filters and the position of its page's first record, so
    records added during a listing appear at its end and never shift a page.
    """

    def __init__(self) -> None:
        self.records: list[T] = []
        self._bookmarks: dict[tuple[str, Criteria], _Bookmark] = {}

    def page(
        self,
        criteria: Criteria,
        matches: Callable[[T], bool],
        *,
        cursor: str | None,
        size: int,
        string_cursors: bool,
        cursors_from_zero: bool,
    ) -> Page[T]:
        """Read the page at ``cursor``, or the first one.

        :param cursors_from_zero: whether cursors count the pages after the first, from 0.
        :raises CursorError: the cursor is unknown or belongs to other ``criteria``.
        """
        if cursor is None:
            total = sum(map(matches, self.records))
            here = _Bookmark(_new_cursor(string_cursors), criteria, 0, 0, total, previous=None)
        else:
            here = self._bookmark(cursor, criteria)
        positions = (
            position
            for position in range(here.start, len(self.records))
            if matches(self.records[position])
        )
        found = list(islice(positions, size + 1))
        next_cursor = None
        if len(found) > size:
            next_cursor = _new_cursor(string_cursors, here.number if cursors_from_zero else None)
            there = _Bookmark(
                next_cursor, criteria, here.number + 1, found[size], here.total, here.cursor
            )
            for bookmark in (here, there):
                self._bookmarks[str(bookmark.cursor), criteria] = bookmark
        return Page(
            records=tuple(self.records[position] for position in found[:size]),
            total=here.total,
            next_cursor=next_cursor,
            prev_cursor=here.previous,
        )

    def _bookmark(self, cursor: str, criteria: Criteria) -> _Bookmark:
        bookmark = self._bookmarks.get((cursor, criteria))
        if bookmark is not None:
            return bookmark
        if any(issued == cursor for issued, _ in self._bookmarks):
            raise CursorError(f"The cursor {cursor!r} was issued for other filters")
        raise CursorError(f"The cursor {cursor!r} was not issued by this listing")


def _new_cursor(as_string: bool, number: int | None = None) -> int | str:
    if number is not None:
        return str(number) if as_string else number
    return secrets.token_urlsafe(12) if as_string else secrets.randbits(48)
