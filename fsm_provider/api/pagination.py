"""The cursor of one listing, as a state machine without requests; it keeps one page's identifiers.

The specification does not name the cursor's query parameter, so that is a setting. A wrong one repeats the
first page, which is detected at the second.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from fsm_provider.api.errors import FsmPaginationError
from fsm_provider.api.models import Page, Pagination, Record

DEFAULT_MAX_PAGES = 10_000


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
        """The query parameters that the current page adds to the listing's own."""
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
