"""What can be chosen about the fake where the specification is silent or varies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from starlette.requests import Request
from starlette.responses import Response

Dialect: TypeAlias = Literal["specified", "typed", "string"]
EventTypesStyle: TypeAlias = Literal["last", "all", "brackets", "comma"]
AnswerHook: TypeAlias = Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]


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
    :param answer_hook: a coroutine function ``(request, handle) -> response`` around every
        request, as a Starlette HTTP middleware: it may answer instead of ``handle``, or replace
        what ``await handle(request)`` returned. It runs in the server's event loop; let its delays
        end when ``request.app.state.stopping``, an ``asyncio.Event``, is set.
    """

    token: str
    forbidden_tokens: frozenset[str]
    page_size: int
    dialect: Dialect
    cursor_param: str
    page_size_param: str | None
    event_types_style: EventTypesStyle
    latency: float
    answer_hook: AnswerHook | None = None

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
