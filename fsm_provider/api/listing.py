"""A listing that can continue after a failed page, and checks whether it was read completely."""

from __future__ import annotations

import gc
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any

from fsm_provider.api.log_once import warn_once
from fsm_provider.api.models import Page
from fsm_provider.api.pagination import CursorPaginator

logger: logging.Logger = logging.getLogger(__name__)

_RUNS_PER_PART = 20_000


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
        self._is_complete = paginator.cursor is None
        self._identifiers: _IntegerSet | None = None

    @property
    def finished(self) -> bool:
        """Whether the last page was read."""
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
        if number > 1:
            _collect_young_objects()
        page = self._fetch(self._paginator)
        self._paginator.advance(page)
        self.last_total = _total(page)
        if number == 1:
            self.first_total = self.last_total
            if self._is_complete and self.first_total is not None:
                self._identifiers = _IntegerSet()
        if self._identifiers is not None and not self._identifiers.add(self._paginator.identifiers):
            self._identifiers = None
        return page

    __next__ = next_page

    def fetch_like(self, other: Listing) -> None:
        """Fetch the remaining pages as another listing of the same URL does, with its token."""
        self._fetch = other._fetch

    @property
    def distinct(self) -> int | None:
        """The number of distinct identifiers read; None if they are not counted.

        They are counted if the listing started at its beginning, its first page has a total and all
        identifiers are integers.
        """
        return None if self._identifiers is None else len(self._identifiers)

    @property
    def mismatch(self) -> str | None:
        """How the records read differ from the service's totals; None if they agree or cannot be compared.

        Totals do not show everything: if one record left the listing and another entered it, they agree.
        """
        distinct, first, last = self.distinct, self.first_total, self.last_total
        if not self.finished or distinct is None or {distinct} == {first, last} - {None}:
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
        """Iterate over the pages, and log a mismatch after the last."""
        yield from self
        self.log_mismatch()


def _collect_young_objects() -> None:
    """Collect garbage between two pages, when no record is alive that was handled.

    A collection within a page takes its records for objects that live long, and after some of these Python
    collects everything: in a task that traverses all that Airflow holds, and takes longer than the page.
    """
    if gc.isenabled():
        gc.collect(1)


def _total(page: Page[Any]) -> int | None:
    text = str(getattr(page.meta, "total_records", ""))  # meta may be anything
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class _IntegerSet:
    """64-bit integers stored as runs: a listing in the order of its identifiers takes almost no memory."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")

    def add(self, integers: Iterable[Any]) -> bool:
        """Add all; return False at one that is not a 64-bit integer."""
        starts, ends = self._starts, self._ends
        try:
            for integer in integers:
                if type(integer) is not int:
                    return False
                if ends and integer == ends[-1] + 1:
                    ends[-1] = integer
                else:
                    starts.append(integer)
                    ends.append(integer)
        except OverflowError:
            return False
        return True

    def __len__(self) -> int:
        count, beyond = 0, -(2**63)
        for start, end in merge(*self._sorted_parts()):
            count += max(0, end + 1 - max(start, beyond))
            beyond = max(beyond, end + 1)
        return count

    def _sorted_parts(self) -> Iterator[Iterator[tuple[int, int]]]:
        """Sort some runs at a time: as a list of tuples, all of them would take ten times their memory."""
        for first in range(0, len(self._starts), _RUNS_PER_PART):
            part = slice(first, first + _RUNS_PER_PART)
            runs = sorted(zip(self._starts[part], self._ends[part], strict=True))
            starts, ends = (array("q", side) for side in zip(*runs, strict=True))
            yield zip(starts, ends, strict=True)
