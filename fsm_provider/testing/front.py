"""Middleware that reads each request, plays its fault or handles it, and records it."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsm_provider.testing import parsing
from fsm_provider.testing.exchange import Exchange, Response
from fsm_provider.testing.faults import CorrectResponse
from fsm_provider.testing.script import Script
from fsm_provider.testing.server import BackgroundServer
from fsm_provider.testing.settings import Settings
from fsm_provider.testing.state import RecordedRequest, ServiceState


class Front:
    """An ASGI application around the one that handles requests.

    The server calls it for each request, in the thread of its event loop. It reads the request
    and asks the script for a fault; the fault decides whether the application handles the request,
    and what is sent. The exchange records the request in the state of the service.

    :param stopping: once set, ends pauses in requests under way.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        state: ServiceState,
        script: Script,
        *,
        base_path: str,
        stopping: asyncio.Event,
    ) -> None:
        self._app = app
        self._settings = settings
        self._state = state
        self._script = script
        self._base_path = base_path
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Play one request."""
        at = datetime.now(UTC)
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        path = request.url.path.removeprefix(self._base_path)

        def record(status: int | None) -> None:
            self._state.record_request(
                RecordedRequest(
                    method=request.method,
                    path=path,
                    query=tuple(request.query_params.multi_items()),
                    headers=_without_token(request, self._settings.token),
                    json=parsing.parse_json(body),
                    status=status,
                    connection=tuple(scope["client"]),
                    at=at,
                )
            )

        exchange = Exchange(
            request,
            self._settings,
            handle=lambda: _handle(self._app, scope, body),
            send=send,
            record=record,
            stopping=self._stopping,
        )
        fault = self._script.next_fault(request.method, path) or CorrectResponse()
        try:
            await fault.play(exchange)
        except Exception:
            exchange.record(500)
            raise


def serve(
    app: ASGIApp,
    listener: socket.socket,
    settings: Settings,
    state: ServiceState,
    script: Script,
    base_path: str = "",
) -> BackgroundServer:
    """Start a server of an application, with a record of its requests and with scripted faults."""
    stopping = asyncio.Event()
    front = Front(app, settings, state, script, base_path=base_path, stopping=stopping)
    server = BackgroundServer(front, listener, stopping)
    server.start()
    return server


async def _handle(app: ASGIApp, scope: Scope, body: bytes) -> Response:
    """Have the application handle a request that was read, and collect its response."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    await app({**scope}, receive, send)
    start, *parts = messages
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    headers.pop("content-length", None)
    response_body = b"".join(part.get("body", b"") for part in parts)
    return Response(start["status"], response_body, headers)


def _without_token(request: Request, token: str) -> dict[str, str]:
    headers = dict(request.headers)
    if "authorization" in headers:
        is_correct = headers["authorization"] == f"Bearer {token}"
        headers["authorization"] = "Bearer ***" if is_correct else "***"
    return headers
