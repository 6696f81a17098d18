"""What can be chosen about the fake where the specification is silent or varies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Literal, TypeAlias, get_args

Dialect: TypeAlias = Literal["specified", "typed", "string"]
EventTypesStyle: TypeAlias = Literal["last", "all", "brackets", "comma"]


def read_iso(text: str) -> datetime:
    """Read an ISO 8601 time; one without a zone is taken as UTC.

    :raises ValueError: it is none.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass
class Settings:
    """How the fake behaves; may be changed while it runs, which holds from the next request.

    :param token: the one accepted bearer token (section 5).
    :param forbidden_tokens: tokens that are answered with 403 (section 5).
    :param page_size: records a page (section 8: not shown).
    :param dialect: types of the pagination fields (section 2.5). ``specified``: booleans and
        integers for assets, strings for forms. ``typed`` and ``string``: the one or the other
        for both.
    :param cursor_param: query parameter that carries a cursor (section 2.5: not shown).
    :param page_size_param: query parameter that asks for another page size, a positive integer;
        None: there is none.
    :param event_types_style: how several event types are read from the query (section 4.5: not
        shown). ``last``: of a repeated ``eventTypes`` only the last; ``all``: each of them;
        ``brackets``: each ``eventTypes[]``; ``comma``: the last, split at commas.
    :param latency: seconds between handling a request and answering it.
    :param ignore_cursor: a listing is read from its beginning whatever the cursor, and each page
        promises another cursor.
    :param ignore_filters: every form is listed whatever the filters.
    :param cursors_from_zero: the next cursor of a first page is 0, of a second 1, instead of an
        opaque one.
    :param read_time: reads the bound of a time filter (section 4.5: not shown) as an aware time; a ValueError
        refuses it.
    :param server_timezone: in which ``meta.serverTime`` of the asset listing is written (section 2.5).
    :param pdf_address: given a form's identifier, makes its ``formPDFURL`` anew at each listing; None: it
        is what the record says, at the service itself unless it was added otherwise.
    """

    token: str
    forbidden_tokens: frozenset[str]
    page_size: int
    dialect: Dialect
    cursor_param: str
    page_size_param: str | None
    event_types_style: EventTypesStyle
    latency: float
    ignore_cursor: bool = False
    ignore_filters: bool = False
    cursors_from_zero: bool = False
    read_time: Callable[[str], datetime] = read_iso
    server_timezone: tzinfo = UTC
    pdf_address: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")
        if self.dialect not in get_args(Dialect):
            raise ValueError(f"dialect must be one of {get_args(Dialect)}, not {self.dialect!r}")
        if self.event_types_style not in get_args(EventTypesStyle):
            raise ValueError(
                f"event_types_style must be one of {get_args(EventTypesStyle)}, "
                f"not {self.event_types_style!r}"
            )
