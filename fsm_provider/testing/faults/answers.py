"""Whole answers that are not the right ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from fsm_provider.testing.exchange import Answer, Exchange


@dataclass(frozen=True)
class RightAnswer:
    """No fault: exempts a call from a fault scripted before for every call."""

    async def play(self, exchange: Exchange) -> None:
        """Handle and answer."""
        await exchange.answer(await exchange.handle())


@dataclass(frozen=True)
class Status:
    """An answer instead of handling the request: nothing is stored.

    :param status: 200 to 599.
    :param body: text, bytes, or anything else as JSON.
    :param content_type: default: ``application/json`` for JSON, ``text/plain`` for text, none for bytes.
    :param headers: further headers.
    :param retry_after: the ``Retry-After`` header: seconds, an aware time, or the very text.
    """

    status: int
    body: Any = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | datetime | str | None = None

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise ValueError(f"status must be from 200 to 599, not {self.status}")
        if self.status in (204, 304) and self.body != b"":
            raise ValueError(f"An answer {self.status} has no body")
        if isinstance(self.retry_after, datetime) and self.retry_after.tzinfo is None:
            raise ValueError(f"retry_after has no time zone: {self.retry_after!r}")

    async def play(self, exchange: Exchange) -> None:
        """Answer at once."""
        headers = _lower(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = _retry_after(self.retry_after)
        if content_type := self.content_type or _content_type(self.body):
            headers["content-type"] = content_type
        await exchange.answer(Answer(self.status, _encoded(self.body), headers))


@dataclass(frozen=True)
class Redirect:
    """A redirection instead of handling the request.

    :param to: the ``Location``, e.g. at another host; default: the address of the request itself.
    :param status: 301, 302, 303, 307 or 308.
    """

    to: str | None = None
    status: int = 302

    async def play(self, exchange: Exchange) -> None:
        """Answer at once."""
        location = str(exchange.request.url) if self.to is None else self.to
        await exchange.answer(Answer(self.status, headers={"location": location}))


@dataclass(frozen=True)
class Body:
    """The request is handled, with success say, but the body says something else.

    :param body: text, bytes, or anything else as JSON: ``""``, ``"{"``, ``[]``, ``"<html>"``.
    :param content_type: default: that of the right answer.
    :param headers: further headers, e.g. ``{"content-encoding": "gzip"}`` for what isn't.
    """

    body: Any
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def play(self, exchange: Exchange) -> None:
        """Handle, and answer with the right status."""
        right = await exchange.handle()
        headers = {**right.headers, **_lower(self.headers)}
        if self.content_type is not None:
            headers["content-type"] = self.content_type
        await exchange.answer(Answer(right.status, _encoded(self.body), headers))


@dataclass(frozen=True)
class WrongContentType:
    """The right answer under another type; None: under none."""

    content_type: str | None = "text/plain"

    async def play(self, exchange: Exchange) -> None:
        """Handle, and answer with the right body."""
        right = await exchange.handle()
        headers = {name: value for name, value in right.headers.items() if name != "content-type"}
        if self.content_type is not None:
            headers["content-type"] = self.content_type
        await exchange.answer(replace(right, headers=headers))


@dataclass(frozen=True)
class Gzip:
    """The right answer, compressed."""

    async def play(self, exchange: Exchange) -> None:
        """Handle, and answer."""
        right = await exchange.handle()
        headers = {**right.headers, "content-encoding": "gzip"}
        await exchange.answer(Answer(right.status, gzip.compress(right.body), headers))


@dataclass(frozen=True)
class Huge:
    """The right answer, followed by blanks.

    :param size: bytes of the body.
    :param chunked: whether the body is chunked, rather than of a ``Content-Length``.
    """

    size: int
    chunked: bool = False

    async def play(self, exchange: Exchange) -> None:
        """Handle, and answer with more than there is."""
        right = await exchange.handle()
        body = right.body.ljust(self.size)
        await exchange.answer_in_part(replace(right, body=body), len(body), chunked=self.chunked)
        await exchange.end()


@dataclass(frozen=True)
class Rewrite:
    """The JSON of a right answer, rewritten; an answer that is no success is left as it is.

    :param function: is given the parsed body and returns the one to send, e.g.
        ``lambda page: {**page, "data": None}``.
    """

    function: Callable[[Any], Any]

    async def play(self, exchange: Exchange) -> None:
        """Handle, and answer with what the function returns."""
        await answer_rewritten(exchange, self.function)


async def answer_rewritten(exchange: Exchange, function: Callable[[Any], Any]) -> None:
    """Handle, and answer with what the function makes of the JSON of a success."""
    right = await exchange.handle()
    if 200 <= right.status < 300:
        right = replace(right, body=_json(function(json.loads(right.body))))
    await exchange.answer(right)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _encoded(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else _json(body)


def _content_type(body: Any) -> str | None:
    if isinstance(body, bytes):
        return None
    return "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"


def _retry_after(value: float | datetime | str) -> str:
    if isinstance(value, datetime):
        return format_datetime(value.astimezone(UTC), usegmt=True)
    return str(value)
