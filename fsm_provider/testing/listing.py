"""Cursor pagination over an append-only list."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Criteria: TypeAlias = tuple[tuple[str, str], ...]


class CursorError(ValueError):
    """A cursor that was not issued, or not for these filters."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing.

    A cursor is an integer or a string; None where there is no such page.
    """

    records: tuple[T, ...]
    total: int
    next_cursor: int | str | None
    prev_cursor: int | str | None


@dataclass(frozen=True)
class _Bookmark:
    """What a cursor stands for: a page of a listing with these filters.

    :param number: of the page, from 0.
    :param start: the position of the page's first record in the listing's list.
    :param total: of the records that the filters let through when the first page was read.
    :param previous: the cursor of the page before.
    """

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
            page = _Bookmark(
                cursor=_opaque_cursor(string_cursors),
                criteria=criteria,
                number=0,
                start=0,
                total=sum(map(matches, self.records)),
                previous=None,
            )
        else:
            page = self._bookmark(cursor, criteria)

        positions = self._positions(page.start, matches, size + 1)
        next_cursor: int | str | None = None
        if len(positions) > size:
            if cursors_from_zero:
                next_cursor = _counting_cursor(page.number, string_cursors)
            else:
                next_cursor = _opaque_cursor(string_cursors)
            next_page = _Bookmark(
                cursor=next_cursor,
                criteria=criteria,
                number=page.number + 1,
                start=positions[size],
                total=page.total,
                previous=page.cursor,
            )
            self._keep(page)
            self._keep(next_page)
        return Page(
            records=tuple(self.records[position] for position in positions[:size]),
            total=page.total,
            next_cursor=next_cursor,
            prev_cursor=page.previous,
        )

    def _positions(self, start: int, matches: Callable[[T], bool], limit: int) -> list[int]:
        """Return the positions of the next records that match, at most so many."""
        positions: list[int] = []
        for position in range(start, len(self.records)):
            if matches(self.records[position]):
                positions.append(position)
            if len(positions) == limit:
                break
        return positions

    def _keep(self, bookmark: _Bookmark) -> None:
        self._bookmarks[str(bookmark.cursor), bookmark.criteria] = bookmark

    def _bookmark(self, cursor: str, criteria: Criteria) -> _Bookmark:
        bookmark = self._bookmarks.get((cursor, criteria))
        if bookmark is not None:
            return bookmark
        if any(issued == cursor for issued, _ in self._bookmarks):
            raise CursorError(f"The cursor {cursor!r} was issued for other filters")
        raise CursorError(f"The cursor {cursor!r} was not issued by this listing")


def _opaque_cursor(as_string: bool) -> int | str:
    if as_string:
        return secrets.token_urlsafe(12)
    return secrets.randbits(48)


def _counting_cursor(number: int, as_string: bool) -> int | str:
    if as_string:
        return str(number)
    return number
