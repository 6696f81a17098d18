"""Uvicorn in a background thread, quick to start and to stop."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

START_TIMEOUT = 10.0
GRACE = 0.5
"""Seconds that requests under way have to end in when the server stops."""


def listen(port: int) -> socket.socket:
    """Listen on 127.0.0.1; port 0 is any free one."""
    # Only where the protocol is named does asyncio set TCP_NODELAY, without which an answer's
    # body waits for the acknowledgement of its head: 40 ms each.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    listener.listen(2048)
    return listener


class BackgroundServer:
    """One run of an ASGI application on a listening socket, which it closes at the end.

    :param stopping: set when the server stops; the application answers then without delay.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, stopping: asyncio.Event) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
        )
        self._server = _Server(config, stopping)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="fsm-fake-service", daemon=True
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


class _Server(uvicorn.Server):
    """Uvicorn's own loop looks ten times a second whether to stop, and waits for idle clients.

    A suite that starts a service for each test would spend its time on that.
    """

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
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

    async def main_loop(self) -> None:
        # Tick 0 is one that renews the Date header.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), timeout=1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=GRACE)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
