"""A listing: its cursor, and its pages, which are checked for being complete.

The cursor is a state machine without requests.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise, starmap
from operator import attrgetter, gt, lt
from typing import Any

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.models import Page
from fsm_provider.api.parsing import warn_once
from fsm_provider.api.validation import pluralize

logger: logging.Logger = logging.getLogger(__name__)

DEFAULT_MAX_PAGES = 10_000
_TOTAL = re.compile("[0-9]{1,18}")  # records
_COUNTED_AT_ONCE = 2**17  # identifiers, about, that are in a set at one time


class CursorPaginator:
    """Follow one listing from its first page to its end, or to an :class:`FsmPaginationError`.

    Its owner fetches a page with ``params``, gives it to ``advance``, and goes on so until it is
    ``finished``. After an error it still stands at the same page.

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
        if self.cursor is None:
            return {}
        return {self._cursor_param: str(self.cursor)}

    def advance(self, page: Page[Any]) -> None:
        """Record the current page and move to the next, or finish.

        :raises FsmPaginationError: if it does not advance, or does not say whether it ends; it
            stays here.
        """
        identifiers = _identifiers_of(page.data)
        if identifiers and identifiers == self.identifiers:
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
        self.identifiers = identifiers

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

    def _error(self, problem: str) -> FsmPaginationError:
        return FsmPaginationError(f"page {self.page_number} of the listing {problem}")


def _identifiers_of(records: list[Any]) -> list[Any]:
    """Return what identifies each record: its identifier, or, if one has none, the records."""
    if not records:
        return records
    identity_field = getattr(records[0], "identity_field", None)
    if identity_field:
        identifiers = [getattr(record, identity_field, None) for record in records]
    else:  # parsed JSON
        identifiers = [
            record.get("id") if isinstance(record, dict) else record for record in records
        ]
    if None in identifiers:
        return records
    return identifiers


def records_of(pages: Iterable[Page[Any]]) -> Iterator[Any]:
    """Yield the records of pages.

    A loop's variable would hold a page while the next one is read: see ``matching_forms``.
    """
    return chain.from_iterable(map(attrgetter("data"), pages))


class Listing(Iterator[Page[Any]]):
    """The pages of one listing, fetched as they are iterated.

    After an error, ``next`` requests the same page again. Once all pages were iterated,
    ``mismatch`` compares their records with the service's totals. One thread uses it.

    :param fetch: fetches the paginator's current page.
    :ivar first_total: ``meta.totalRecords`` of the first page; None if it has none.
    :ivar last_total: likewise of the latest page.
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
        """Those of all records read so far; None once one is no integer, as nothing counts them."""

    def __next__(self) -> Page[Any]:
        if self.paginator.finished:
            raise StopIteration
        is_first = self.paginator.page_number == 1
        page = self._fetch(self.paginator)
        self.paginator.advance(page)
        total = str(getattr(page.meta, "total_records", ""))  # meta may be anything
        is_number = _TOTAL.fullmatch(total)
        self.last_total = int(total) if is_number else None
        if is_first:
            self.first_total = self.last_total
            if not is_number and total not in ("", "None"):
                warn_once(
                    logger,
                    ("total", self.url),
                    "GET %s: meta.totalRecords is %.30r: "
                    "whether the listing is complete cannot be checked",
                    self.url,
                    total,
                )
        if self.first_total is not None and self._identifiers is not None:
            try:
                self._identifiers.extend(self.paginator.identifiers)
            except (TypeError, OverflowError):  # they are no integers of 64 bits
                self._identifiers = None
        return page

    @property
    def mismatch(self) -> str | None:
        """How the records read differ from the service's totals; None if they do not.

        None as well if that cannot be said: if the listing was not read to its end, its first page
        has no total, or identifiers are no integers.
        """
        if not self.paginator.finished or self._identifiers is None or self.first_total is None:
            return None
        distinct = _count_distinct(self._identifiers)
        agrees_at_last = self.last_total is None or self.last_total == distinct
        if self.first_total == distinct and agrees_at_last:
            return None
        verb = "was" if distinct == 1 else "were"
        were_read = f"{pluralize(distinct, 'distinct record')} {verb} read"
        counted = f"the service counted {self.first_total} at the first page"
        if self.last_total is not None:
            counted += f" and {self.last_total} at the last"
        return (
            f"{were_read}, {counted}: the listing may have shifted while it was read, records may "
            "be missing - or the service's total means something else"
        )

    def pages_with_warning(self) -> Iterator[Page[Any]]:
        """Yield the pages, and log a mismatch at their end, once per process and URL."""
        yield from self
        mismatch = self.mismatch
        if mismatch:
            warn_once(logger, ("mismatch", self.url), "GET %s: %s", self.url, mismatch)


def _count_distinct(identifiers: array[int]) -> int:
    """Count distinct integers, in a few MiB beside their array.

    Most listings are in order: a million take 0.1 s there, and 0.5 s in no order. They are counted
    in parts, as a million in one set would take 67 MiB rather than 8.
    """
    is_ascending = all(starmap(lt, pairwise(identifiers)))
    is_descending = all(starmap(gt, pairwise(identifiers)))
    if is_ascending or is_descending:
        return len(identifiers)
    parts = len(identifiers) // _COUNTED_AT_ONCE + 1
    distinct = 0
    for part in range(parts):
        distinct += len({identifier for identifier in identifiers if identifier % parts == part})
    return distinct
