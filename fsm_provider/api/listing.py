"""A listing: its cursor, a state machine without requests, and its pages, checked for being
complete.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from operator import gt, lt
from typing import Any

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.models import Page
from fsm_provider.api.parsing import warn_once
from fsm_provider.api.validation import pluralize

logger: logging.Logger = logging.getLogger(__name__)

DEFAULT_MAX_PAGES = 10_000
_COUNTED_AT_ONCE = (
    2**17
)  # identifiers; all of a large listing as objects would take ten times their memory


class CursorPaginator:
    """Follow one listing from its first page to its end, or to an :class:`FsmPaginationError`.

    :ivar identifiers: of the records of the latest page.
    """

    def __init__(self, cursor_param: str, *, max_pages: int = DEFAULT_MAX_PAGES) -> None:
        self.page_number: int = 1
        self.cursor: int | str | None = None
        self.finished: bool = False
        self.identifiers: list[Any] = []
        self._cursor_param = cursor_param
        self._hint = (
            f"Cursors are sent as '{cursor_param}': if that is not their name, set cursor_param"
        )
        self._max_pages = max_pages
        self._cursors: set[str] = set()

    @property
    def params(self) -> dict[str, str]:
        return {} if self.cursor is None else {self._cursor_param: str(self.cursor)}

    def advance(self, page: Page[Any]) -> None:
        """Record the current page and move to the next, or finish.

        :raises FsmPaginationError: if it does not advance, or does not say whether it ends; it
            stays here.
        """
        records = _identities(page.data)
        if records and records == self.identifiers:
            raise self._error(f"holds the same records as the page before it. {self._hint}")
        has_more = str(getattr(page.pagination, "has_more", None)).lower()
        if has_more in ("true", "1"):
            self._go_on(getattr(page.pagination, "next_cursor", None))
        elif has_more in ("false", "0"):
            self.finished = True
        else:
            raise self._error(
                "does not say whether there is more: pagination.hasMore is no boolean"
            )
        self.identifiers = records

    def _go_on(self, cursor: Any) -> None:
        if cursor in (None, "", "null"):
            raise self._error("says that there is more, but gives no nextCursor")
        if type(cursor) not in (int, str):
            raise self._error("gives a nextCursor that is neither text nor integer")
        if str(cursor) in self._cursors:
            raise self._error(f"gives a nextCursor that the listing had before. {self._hint}")
        if self.page_number >= self._max_pages:
            raise self._error(f"is the last of max_pages={self._max_pages}, and there is more")
        self._cursors.add(str(cursor))
        self.cursor = cursor
        self.page_number += 1

    def _error(self, what: str) -> FsmPaginationError:
        return FsmPaginationError(f"page {self.page_number} of the listing {what}")


def _identities(items: list[Any]) -> list[Any]:
    """Return what identifies each record: its identifier, or the complete record if it has none."""
    name = getattr(items[0], "identity_field", None) if items else None
    if name:
        identifiers = [getattr(item, name, None) for item in items]
    else:
        identifiers = [item.get("id") if isinstance(item, dict) else item for item in items]
    return items if None in identifiers else identifiers


class Listing(Iterator[Page[Any]]):
    """The pages of one listing, fetched lazily. After an error, ``next`` requests the same page
    again.

    :param fetch: fetches the paginator's current page.
    :ivar first_total: ``meta.totalRecords`` of the first page, or None; ``last_total``: of the
        latest.
    """

    def __init__(
        self, url: str, paginator: CursorPaginator, fetch: Callable[[CursorPaginator], Page[Any]]
    ) -> None:
        self.url = url
        self.first_total: int | None = None
        self.last_total: int | None = None
        self.paginator = paginator
        self._fetch = fetch
        self._identifiers: array[int] | None = array("q")

    def __next__(self) -> Page[Any]:
        if self.paginator.finished:
            raise StopIteration
        is_first = self.paginator.page_number == 1
        page = self._fetch(self.paginator)
        self.paginator.advance(page)
        total = str(getattr(page.meta, "total_records", ""))  # meta may be anything
        is_readable = total.isascii() and total.isdecimal() and len(total) < 19
        self.last_total = int(total) if is_readable else None
        if is_first:
            self.first_total = self.last_total
            if self.first_total is None and total not in ("", "None"):
                text = "GET %s: meta.totalRecords is %.30r: whether the listing is complete cannot be checked"
                warn_once(logger, ("total", self.url), text, self.url, total)
        try:
            if self.first_total is not None and self._identifiers is not None:
                self._identifiers.extend(self.paginator.identifiers)
        except (TypeError, OverflowError):
            self._identifiers = None
        return page

    @property
    def mismatch(self) -> str | None:
        """How the records read differ from the service's totals; None if they agree or cannot be
        compared.

        They can be if the first page has a total and all identifiers are integers.
        """
        ids, first, last = self._identifiers, self.first_total, self.last_total
        if not self.paginator.finished or ids is None or first is None:
            return None
        parts = len(ids) // _COUNTED_AT_ONCE + 1
        if any(all(map(comes, ids, islice(ids, 1, None))) for comes in (lt, gt)):
            distinct = len(ids)
        else:
            distinct = sum(
                len({one for one in ids if one % parts == part}) for part in range(parts)
            )
        if {distinct} == {first, last} - {None}:
            return None
        at_the_last = "" if last is None else f" and {last} at the last"
        were_read = (
            f"{pluralize(distinct, 'distinct record')} {'was' if distinct == 1 else 'were'} read"
        )
        return (
            f"{were_read}, the service counted {first} at the first page{at_the_last}: the listing "
            "may have shifted while it was read, records may be missing - or the service's total "
            "means something else"
        )

    def pages_with_warning(self) -> Iterator[Page[Any]]:
        """Yield the pages, and log a mismatch at their end, once per process and URL."""
        yield from self
        if mismatch := self.mismatch:
            warn_once(logger, ("mismatch", self.url), "GET %s: %s", self.url, mismatch)
