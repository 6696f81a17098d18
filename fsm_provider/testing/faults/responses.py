"""Complete but wrong responses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from fsm_provider.testing.exchange import Exchange, Response


@dataclass(frozen=True)
class CorrectResponse:
    """No fault: exempts a call from an earlier fault that is scripted for every call."""

    async def play(self, exchange: Exchange) -> None:
        """Handle and respond."""
        correct = await exchange.handle()
        await exchange.respond(correct)


@dataclass(frozen=True)
class Status:
    """A response instead of handling the request: nothing is stored.

    :param status: 200 to 599.
    :param body: text, bytes, or anything else as JSON.
    :param content_type: default: ``application/json`` for JSON, ``text/plain`` for text, none for
        bytes.
    :param headers: further headers.
    :param retry_after: the ``Retry-After`` header: seconds, an aware time, or literal text.
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
            raise ValueError(f"A response {self.status} has no body")
        if isinstance(self.retry_after, datetime) and self.retry_after.tzinfo is None:
            raise ValueError(f"retry_after has no time zone: {self.retry_after!r}")

    async def play(self, exchange: Exchange) -> None:
        """Respond at once."""
        headers = _in_lower_case(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = _retry_after(self.retry_after)
        content_type = self.content_type or _content_type(self.body)
        if content_type:
            headers["content-type"] = content_type
        response = Response(self.status, _encoded(self.body), headers)
        await exchange.respond(response)


@dataclass(frozen=True)
class Redirect:
    """A redirection instead of handling the request.

    :param to: the ``Location``, e.g. at another host; default: the request's own URL.
    :param status: 301, 302, 303, 307 or 308.
    """

    to: str | None = None
    status: int = 302

    async def play(self, exchange: Exchange) -> None:
        """Respond at once."""
        location = self.to
        if location is None:
            location = str(exchange.request.url)
        response = Response(self.status, headers={"location": location})
        await exchange.respond(response)


@dataclass(frozen=True)
class Body:
    """The request is handled, but the body is replaced.

    :param body: text, bytes, or anything else as JSON: ``""``, ``"{"``, ``[]``, ``"<html>"``.
    :param content_type: default: that of the correct response.
    :param headers: further headers, e.g. ``{"content-encoding": "gzip"}`` for a body that isn't.
    """

    body: Any
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond with the correct status."""
        correct = await exchange.handle()
        headers = {**correct.headers, **_in_lower_case(self.headers)}
        if self.content_type is not None:
            headers["content-type"] = self.content_type
        response = Response(correct.status, _encoded(self.body), headers)
        await exchange.respond(response)


@dataclass(frozen=True)
class WrongContentType:
    """The correct response with another ``Content-Type``; None: without one."""

    content_type: str | None = "text/plain"

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond with the correct body."""
        correct = await exchange.handle()
        headers = dict(correct.headers)
        headers.pop("content-type", None)
        if self.content_type is not None:
            headers["content-type"] = self.content_type
        await exchange.respond(replace(correct, headers=headers))


@dataclass(frozen=True)
class Gzip:
    """The correct response, compressed."""

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond."""
        correct = await exchange.handle()
        headers = {**correct.headers, "content-encoding": "gzip"}
        response = Response(correct.status, gzip.compress(correct.body), headers)
        await exchange.respond(response)


@dataclass(frozen=True)
class Huge:
    """The correct response, padded with spaces.

    :param size: bytes of the body.
    :param chunked: with chunked encoding instead of ``Content-Length``.
    """

    size: int
    chunked: bool = False

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond with padding."""
        correct = await exchange.handle()
        padded = replace(correct, body=correct.body.ljust(self.size))
        await exchange.respond_in_part(padded, len(padded.body), chunked=self.chunked)
        await exchange.end()


@dataclass(frozen=True)
class Rewrite:
    """The correct response with its JSON rewritten; an error is left as it is.

    :param function: receives the parsed body and returns the one to send, e.g.
        ``lambda page: {**page, "data": None}``.
    """

    function: Callable[[Any], Any]

    async def play(self, exchange: Exchange) -> None:
        """Handle, and respond with what the function returns."""
        await respond_rewritten(exchange, self.function)


async def respond_rewritten(exchange: Exchange, function: Callable[[Any], Any]) -> None:
    """Handle, and respond with the JSON rewritten if the request succeeded."""
    response = await exchange.handle()
    if 200 <= response.status < 300:
        rewritten = function(json.loads(response.body))
        response = replace(response, body=_json(rewritten))
    await exchange.respond(response)


def _in_lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _json(value: Any) -> bytes:
    # A lone surrogate is written escaped, as some services do.
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _encoded(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return _json(body)


def _content_type(body: Any) -> str | None:
    if isinstance(body, bytes):
        return None
    if isinstance(body, str):
        return "text/plain; charset=utf-8"
    return "application/json"


def _retry_after(value: float | datetime | str) -> str:
    if isinstance(value, datetime):
        return format_datetime(value.astimezone(UTC), usegmt=True)
    return str(value)
