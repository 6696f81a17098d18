"""Uvicorn in a background thread, quick to start and to stop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, TypeVar, cast

import uvicorn
from starlette.types import ASGIApp

from fsm_provider.testing.connection import Connection, Connections

T = TypeVar("T")

START_TIMEOUT = 10.0
BACKLOG = 2048
GRACE = 0.5
"""Seconds that requests under way get to finish when the server stops."""
TURNS_TO_ACCEPT = 3
"""Turns of the event loop until a connection that it has accepted is known to the server."""


def listen(port: int) -> socket.socket:
    """Listen on 127.0.0.1; port 0 is any free one."""
    listener = bind(port)
    listener.listen(BACKLOG)
    return listener


def bind(port: int) -> socket.socket:
    """Reserve a port of 127.0.0.1; without a listener, connections are refused."""
    # asyncio sets TCP_NODELAY only if the protocol is explicit. Without it a response's body waits
    # 40 ms for the acknowledgement of its headers.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener


class BackgroundServer:
    """One run of an ASGI application on a listening socket, which it closes at the end.

    The thread of a test calls its methods. :meth:`start` begins a thread of its own, in whose event
    loop the application runs; :meth:`stop` ends it. It cannot be started again.

    :param stopping: set when the server stops; the application responds then without delay.
    :param config: of uvicorn's, in place of the fake service's; only a :class:`Connection` can be
        reset.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        stopping: asyncio.Event,
        **config: Any,
    ) -> None:
        options = {
            "loop": "asyncio",
            "http": Connection,
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "proxy_headers": False,
            "server_header": False,
            "timeout_keep_alive": 75,
            **config,
        }
        self._server = _Server(uvicorn.Config(app, **options), stopping)
        self._thread = threading.Thread(
            target=self._server.run,
            args=([listener],),
            name="fsm-fake-service",
            daemon=True,
        )

    def start(self) -> None:
        """Return once connections are accepted."""
        self._thread.start()
        if not self._server.accepting.wait(START_TIMEOUT):
            raise RuntimeError("The fake service did not start")

    def stop(self) -> None:
        """Close all connections and wait for the thread to end."""
        self._server.stop()
        self._thread.join()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections while reserving the port."""
        reserved = self._server.run_in_loop(self._server.stop_listening())
        try:
            yield
        finally:
            if self._thread.is_alive():
                self._server.run_in_loop(self._server.startup([reserved]))
            else:
                reserved.close()

    @contextmanager
    def resetting(self, count: int | None, *, at_accept: bool) -> Iterator[list[tuple[str, int]]]:
        """Reset ``count`` connections, None: all."""
        connections = self._server.connections
        connections.was_reset = []
        connections.reset_at_accept = at_accept
        connections.resets_left = inf if count is None else count
        try:
            yield connections.was_reset
        finally:
            connections.resets_left = 0


class _Server(uvicorn.Server):
    """Uvicorn with a faster stop.

    Its own loop checks only ten times a second whether to stop, and waits for idle clients. A test
    suite that starts a service for each test would spend its time on that.
    """

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self.connections = Connections()
        self.server_state = self.connections
        self._stopping = stopping
        self.accepting = threading.Event()

    def stop(self) -> None:
        """Ask the server to stop, from any thread."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.accepting.set()

    def run_in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the server, from another thread."""
        result = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return result.result(START_TIMEOUT)

    async def stop_listening(self) -> socket.socket:
        """Close the listener and idle connections; return a socket that reserves the port."""
        [server] = self.servers
        _, port = server.sockets[0].getsockname()
        await self._stop_accepting(server)
        reserved = bind(port)
        for connection in list(self.connections.connections):
            cast(Connection, connection).close_when_idle()
        await asyncio.sleep(0)  # Lets the transports close their sockets.
        return reserved

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        # A connection that is being accepted while the server closes would stay open, and nothing
        # would know of it.
        for listener in server.sockets:
            self._loop.remove_reader(listener)
        for _ in range(TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
        server.close()

    async def main_loop(self) -> None:
        # Tick 0 renews the Date header.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), timeout=1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            await self._stop_accepting(server)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=GRACE)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
