"""A connection of the fake that faults can break: uvicorn's, with access to its transport."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class Connections(ServerState):
    """All connections of a server, and whether to reset them.

    :class:`~fsm_provider.testing.server.BackgroundServer` sets what is below, in the thread of a
    test; each :class:`Connection` reads it and counts, in the server's thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.resets_left: float = 0
        """Connections that are still to be reset; infinite: all."""
        self.reset_at_accept = False
        """Whether a new one is reset before its first bytes."""
        self.was_reset: list[tuple[str, int]] = []
        """The client's host and port of each that was reset."""


class Connection(H11Protocol):
    """One connection. A request finds it as ``scope["state"]["connection"]``."""

    server_state: Connections

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        state = {**app_state, "connection": self}
        super().__init__(config, server_state, state, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reset the new connection, or wait for a request."""
        super().connection_made(transport)
        if self.server_state.reset_at_accept and self._is_reset_due():
            self._count_and_reset()

    def data_received(self, data: bytes) -> None:
        """Reset the connection, or read the request."""
        if self._is_reset_due():
            self._count_and_reset()
            return
        super().data_received(data)

    def _is_reset_due(self) -> bool:
        return self.server_state.resets_left > 0 and self.client is not None

    def _count_and_reset(self) -> None:
        self.server_state.resets_left -= 1
        if self.client is not None:
            self.server_state.was_reset.append(self.client)
        self.reset()

    def close_when_idle(self) -> None:
        """Close the connection now, or after the response under way."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def write(self, data: bytes) -> None:
        """Write raw bytes, bypassing HTTP.

        Nothing but :meth:`close` and :meth:`reset` may follow.
        """
        self._abandon_response()
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Send what was written, then FIN."""
        self._abandon_response()
        self.transport.close()

    def reset(self) -> None:
        """Send RST, discarding what was not sent yet."""
        self._abandon_response()
        if not self.transport.is_closing():
            do_not_linger = struct.pack("ii", 1, 0)
            tcp_socket = self.transport.get_extra_info("socket")
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, do_not_linger)
            self.transport.abort()

    def _abandon_response(self) -> None:
        # Otherwise uvicorn logs that the application returned without completing the response.
        if self.cycle is not None:
            self.cycle.disconnected = True
