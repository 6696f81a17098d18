"""A listing: its cursor, a state machine without requests, and its pages, checked for being complete.

The specification does not name the cursor's query parameter, so that is a setting. A wrong one repeats the
first page, which is detected at the second.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.models import Page, Pagination, Record
from fsm_provider.api.parsing import warn_once

logger: logging.Logger = logging.getLogger(__name__)

DEFAULT_MAX_PAGES = 10_000
_COUNTED_AT_ONCE = 2**17
"""Identifiers; as objects, all of a large listing would take ten times their memory."""


class CursorPaginator:
    """Follow one listing from its first page to its end, or to an :class:`FsmPaginationError`.

    :param cursor_param: the query parameter that carries the cursor.
    :param start: the cursor to start from; default: the beginning.
    :param max_pages: a longer listing is treated as endless.
    :ivar identifiers: of the records of the latest page.
    """

    def __init__(
        self,
        cursor_param: str,
        *,
        start: int | str | None = None,
        max_pages: int = DEFAULT_MAX_PAGES,
    ) -> None:
        self.page_number: int = 1
        self.cursor = start
        self.finished: bool = False
        self._cursor_param = cursor_param
        self._max_pages = max_pages
        self._cursors: set[str] = set() if start is None else {str(start)}
        self.identifiers: list[Any] = []

    @property
    def params(self) -> dict[str, str]:
        return {} if self.cursor is None else {self._cursor_param: str(self.cursor)}

    def advance(self, page: Page[Any]) -> None:
        """Record the current page and move to the next, or finish.

        :raises FsmPaginationError: if the listing does not advance, or does not say whether it ends. The
            paginator stays at this page.
        """
        records = _identities(page.data)
        if records and records == self.identifiers:
            raise self._error("holds the same records as the page before it")
        if not self._has_more(page.pagination):
            self.identifiers = records
            self.finished = True
            return
        cursor = page.pagination.next_cursor if page.pagination else None
        if cursor is None or cursor in ("", "null"):
            raise self._error("says that there is more, but gives no nextCursor")
        if isinstance(cursor, bool) or not isinstance(cursor, int | str):
            raise self._error("gives a nextCursor that is neither text nor integer")
        if str(cursor) in self._cursors:
            raise self._error("gives a nextCursor that the listing had before")
        if self.page_number >= self._max_pages:
            raise self._error(f"is the last of max_pages={self._max_pages}, and there is more")
        self._cursors.add(str(cursor))
        self.identifiers = records
        self.cursor = cursor
        self.page_number += 1

    def _has_more(self, pagination: Pagination | None) -> bool:
        value = getattr(pagination, "has_more", None)
        value = value.lower() if isinstance(value, str) else value
        if isinstance(value, bool | int | str):
            if value in (True, "true", "1"):
                return True
            if value in (False, "false", "0"):
                return False
        raise self._error("does not say whether there is more: pagination.hasMore is no boolean")

    def _error(self, what: str) -> FsmPaginationError:
        return FsmPaginationError(
            f"page {self.page_number} of the listing {what}. Cursors are sent as the query "
            f"parameter '{self._cursor_param}': if the service calls it otherwise, set "
            "cursor_param on the connection."
        )


def _identities(items: list[Any]) -> list[Any]:
    """Return what identifies each record: its identifier, or the complete record if it has none."""
    kind = type(items[0]) if items else None
    if kind is not None and issubclass(kind, Record):
        if kind.identity_field not in kind.model_fields:
            return items
        return list(map(attrgetter(kind.identity_field), items))
    identifiers = [item.get("id") if isinstance(item, dict) else item for item in items]
    return items if None in identifiers else identifiers


class Listing(Iterator[Page[Any]]):
    """The pages of one listing, fetched lazily.

    After a failed page, :meth:`next_page` requests the same page again.

    :param url: the listing's URL, for messages.
    :param paginator: positioned at the first page.
    :param fetch: fetches the paginator's current page.
    :ivar first_total: ``meta.totalRecords`` of the first page, None if absent or unreadable.
    :ivar last_total: ``meta.totalRecords`` of the latest page, likewise.
    """

    def __init__(
        self, url: str, paginator: CursorPaginator, fetch: Callable[[CursorPaginator], Page[Any]]
    ) -> None:
        self.url = url
        self.first_total: int | None = None
        self.last_total: int | None = None
        self._paginator = paginator
        self._fetch = fetch
        self._identifiers: array[int] | None = array("q") if paginator.cursor is None else None

    @property
    def finished(self) -> bool:
        return self._paginator.finished

    @property
    def page_number(self) -> int:
        """The number of the next page, from 1; after the end, that of the last page."""
        return self._paginator.page_number

    def next_page(self) -> Page[Any]:
        """Return the next page; after an error, the one that failed.

        :raises FsmError: if it cannot be read; the listing stays at this page.
        :raises StopIteration: after the last page.
        """
        if self.finished:
            raise StopIteration
        number = self.page_number
        page = self._fetch(self._paginator)
        self._paginator.advance(page)
        self.last_total = _total(page)
        if number == 1:
            self.first_total = self.last_total
            if self.first_total is None:
                self._identifiers = None
        if self._identifiers is not None:
            try:
                self._identifiers.extend(self._paginator.identifiers)
            except (TypeError, OverflowError):
                self._identifiers = None
        return page

    __next__ = next_page

    @property
    def mismatch(self) -> str | None:
        """How the records read differ from the service's totals; None if they agree or cannot be compared.

        They can be if the listing started at its beginning, its first page has a total and all identifiers
        are integers. If one record left the listing and another entered it, they agree.
        """
        ids, first, last = self._identifiers, self.first_total, self.last_total
        if not self.finished or ids is None:
            return None
        parts = len(ids) // _COUNTED_AT_ONCE + 1
        distinct = sum(len({one for one in ids if one % parts == part}) for part in range(parts))
        if {distinct} == {first, last} - {None}:
            return None
        at_the_last = "" if last is None else f" and {last} at the last"
        return (
            f"{distinct} distinct records were read, the service counted {first} at the first page"
            f"{at_the_last}: the listing may have shifted while it was read, records may be missing - "
            "or the service's total means something else"
        )

    def log_mismatch(self) -> None:
        """Log a mismatch as a warning, once per process and URL."""
        if mismatch := self.mismatch:
            warn_once(logger, ("mismatch", self.url), "GET %s: %s", self.url, mismatch)

    def pages_with_warning(self) -> Iterator[Page[Any]]:
        yield from self
        self.log_mismatch()


def _total(page: Page[Any]) -> int | None:
    text = str(getattr(page.meta, "total_records", ""))  # meta may be anything
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
