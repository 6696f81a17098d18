"""Settings of the fake, where the specification is silent or varies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, TypeAlias, get_args

Dialect: TypeAlias = Literal["specified", "typed", "string"]
EventTypesStyle: TypeAlias = Literal["last", "all", "brackets", "comma"]


def parse_iso(text: str) -> datetime:
    """Parse an ISO 8601 time, as UTC if it has no zone.

    :raises ValueError: if it is not one.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time


@dataclass
class Settings:
    """The fake's behaviour; a change applies from the next request.

    The others are described at :class:`~fsm_provider.testing.FakeFieldService`.

    :param ignore_cursor: every page is the first, whatever the cursor, and has a new next cursor.
    :param ignore_filters: every form is listed whatever the filters.
    :param cursors_from_zero: the next cursor of the first page is 0, of the second 1, instead of an
        opaque one.
    :param parse_time: parses the bound of a time filter as an aware time; a ValueError refuses it.
    :param server_timezone: zone of ``meta.serverTime`` in the asset listing.
    :param clock_offset: by how much its clock is ahead.
    :param pdf_url: makes the ``formPDFURL`` of a form's identifier, anew at each listing; None: it
        is the record's, by default at the service itself.
    """

    token: str
    forbidden_tokens: frozenset[str]
    page_size: int
    dialect: Dialect
    cursor_param: str
    page_size_param: str | None
    event_types_style: EventTypesStyle
    latency: float
    idempotency_header: str | None = None
    ignore_cursor: bool = False
    ignore_filters: bool = False
    cursors_from_zero: bool = False
    parse_time: Callable[[str], datetime] = parse_iso
    server_timezone: tzinfo = UTC
    clock_offset: timedelta = timedelta(0)
    pdf_url: Callable[[int], str] | None = None

    def now(self) -> datetime:
        """Return the time by the fake's clock, in UTC."""
        return datetime.now(UTC) + self.clock_offset

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")
        for name, choices in {"dialect": Dialect, "event_types_style": EventTypesStyle}.items():
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, not {value!r}")
