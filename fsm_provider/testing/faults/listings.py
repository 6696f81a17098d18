"""Faults of listings: within a page, and from page to page."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fsm_provider.testing.exchange import Exchange
from fsm_provider.testing.faults.responses import Rewrite, respond_rewritten


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.name


ABSENT = _Absent.ABSENT
"""As the value of a field: leave the field out."""


def pagination(**fields: Any) -> Rewrite:
    """Replace pagination fields of a page by values of any type.

    For example ``pagination(hasMore="maybe")``, ``pagination(hasMore=True, nextCursor=None)`` or
    ``pagination(hasMore=ABSENT)``.
    """

    def rewrite(page: Any) -> Any:
        return {**page, "pagination": _replaced(page["pagination"], fields)}

    return Rewrite(rewrite)


def record(index: int, **fields: Any) -> Rewrite:
    """Replace or add fields of one record of a page by values of any type.

    For example ``record(0, id=ABSENT)`` or ``record(-1, propertyID=["7"], unknown=1)``. To change
    every response, change the record: ``service.add_form(propertyID=["7"])``.

    :param index: of the record in the page; negative: from the end.
    """

    def rewrite(page: Any) -> Any:
        records = list(page["data"])
        records[index] = _replaced(records[index], fields)
        return {**page, "data": records}

    return Rewrite(rewrite)


def _replaced(values: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return values with fields replaced or added, and without those that are ABSENT."""
    replaced = {**values, **fields}
    return {name: value for name, value in replaced.items() if value is not ABSENT}


@dataclass(frozen=True)
class RepeatedCursor:
    """An endless listing, since its cursors repeat; to be played at every call.

    Each page is the correct one for its cursor. A first page resets the fault, so listings may be
    read in turn; concurrent ones are not distinguished.

    :param cycle: number of cursors before the first repeats; 1: a page's next cursor is its own.
        The listing must have more pages than that.
    """

    cycle: int = 1
    _issued: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """The next cursors of the pages so far, in order."""

    def __post_init__(self) -> None:
        if self.cycle < 1:
            raise ValueError(f"cycle must be at least 1, not {self.cycle}")

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond with the next cursor of the cycle."""

        def rewrite(page: Any) -> Any:
            if _is_first_page(exchange):
                self._issued.clear()
            fields = dict(page["pagination"])
            if len(self._issued) >= self.cycle:
                is_text = isinstance(fields["hasMore"], str)
                fields["hasMore"] = "true" if is_text else True
                fields["nextCursor"] = self._issued[-self.cycle]
            self._issued.append(fields["nextCursor"])
            return {**page, "pagination": fields}

        await respond_rewritten(exchange, rewrite)


@dataclass(frozen=True)
class RepeatedRecords:
    """Pages that overlap: each begins with the last records of the one before.

    To be played at every call; for concurrent listings, see :class:`RepeatedCursor`.

    :param count: records that are repeated.
    """

    count: int = 1
    _last: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last records of the page before."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, not {self.count}")

    async def play(self, exchange: Exchange) -> None:
        """Handle, and prepend the last records of the page before."""

        def rewrite(page: Any) -> Any:
            if _is_first_page(exchange):
                self._last.clear()
            overlapping = [*self._last, *page["data"]]
            self._last.clear()
            self._last.extend(page["data"][-self.count :])
            return {**page, "data": overlapping}

        await respond_rewritten(exchange, rewrite)


def _is_first_page(exchange: Exchange) -> bool:
    return exchange.settings.cursor_param not in exchange.request.query_params
