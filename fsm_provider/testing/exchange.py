"""One request and its response, with the methods that faults are written with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Send

from fsm_provider.testing.connection import Connection
from fsm_provider.testing.settings import Settings


@dataclass(frozen=True)
class Response:
    """A status, headers and a complete body.

    :param headers: names in lower case; ``content-length`` is not among them but made from the
        body.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """A request that was read, and the methods to respond correctly, wrongly or not at all.

    A fault calls these methods in the server's event loop, in any order that makes sense: to
    handle, to send all or parts of a response, or to break the connection. The request is recorded
    once, before the first byte of a response is sent or the connection breaks: a client that has
    seen either finds it among the service's requests.

    :param request: the request, its body read.
    :param settings: those of the service.
    """

    def __init__(
        self,
        request: Request,
        settings: Settings,
        *,
        handle: Callable[[], Awaitable[Response]],
        send: Send,
        record: Callable[[int | None], None],
        stopping: asyncio.Event,
    ) -> None:
        self.request = request
        self.settings = settings
        self._handle = handle
        self._send = send
        self._record = record
        self._recorded = False
        self._stopping = stopping
        self._connection: Connection = request.scope["state"]["connection"]

    async def handle(self) -> Response:
        """Handle the request, e.g. store the job; return the correct response, unsent."""
        return await self._handle()

    def record(self, status: int | None) -> None:
        """Record the request, unless it is recorded already.

        :param status: None where none is sent.
        """
        if not self._recorded:
            self._recorded = True
            self._record(status)

    async def respond(self, response: Response, *, after: float = 0.0) -> None:
        """Send a complete response, after ``after`` seconds plus the service's latency."""
        self.record(response.status)
        delay = after + self.settings.latency
        if delay:
            await self.pause(delay)
        await self._begin(response)
        await self._send_body(response.body, more=False)

    async def respond_in_part(
        self, response: Response, at: int | None, *, chunked: bool = False
    ) -> None:
        """Send the headers of the complete response and its body up to ``at``.

        :param at: bytes; default: half of them; negative: all but so many.
        :param chunked: with chunked encoding instead of ``Content-Length``.
        """
        self.record(response.status)
        await self._begin(response, chunked=chunked)
        end = len(response.body) // 2 if at is None else at
        await self.send_part(response.body[:end])

    async def send_part(self, part: bytes) -> None:
        """Send more of a body that :meth:`respond_in_part` began."""
        await self._send_body(part, more=True)

    async def end(self) -> None:
        """End a response sent in part; the connection stays open."""
        await self._send_body(b"", more=False)

    async def pause(self, seconds: float | None = None) -> None:
        """Wait so many seconds, None: forever. Ends when the service stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def write(self, data: bytes) -> None:
        """Send bytes that need not be HTTP, instead of a response."""
        self.record(None)
        self._connection.write(data)

    def close(self) -> None:
        """Close the connection in order (FIN), once all is sent."""
        self.record(None)
        self._connection.close()

    def reset(self) -> None:
        """Reset the connection (RST)."""
        self.record(None)
        self._connection.reset()

    async def _begin(self, response: Response, *, chunked: bool = False) -> None:
        headers = dict(response.headers)
        if response.status not in (204, 304) and not chunked:
            headers["content-length"] = str(len(response.body))
        encoded_headers = []
        for name, value in headers.items():
            encoded_headers.append((name.encode("latin-1"), value.encode("latin-1")))
        message: dict[str, Any] = {
            "type": "http.response.start",
            "status": response.status,
            "headers": encoded_headers,
        }
        await self._send(message)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        message: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send(message)
