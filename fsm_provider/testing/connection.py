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
    """All connections of a server, and whether to reset them."""

    def __init__(self) -> None:
        super().__init__()
        self.resets_left: float = 0
        self.reset_at_accept = False
        self.was_reset: list[tuple[str, int]] = []


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
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reset the new connection, or wait for a request."""
        super().connection_made(transport)
        if self.server_state.reset_at_accept:
            self._reset_if_due()

    def data_received(self, data: bytes) -> None:
        """Reset the connection, or read the request."""
        if not self._reset_if_due():
            super().data_received(data)

    def _reset_if_due(self) -> bool:
        if self.server_state.resets_left <= 0 or self.client is None:
            return False
        self.server_state.resets_left -= 1
        self.server_state.was_reset.append(self.client)
        self.reset()
        return True

    def close_when_idle(self) -> None:
        """Close the connection now, or after the response under way."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def write(self, data: bytes) -> None:
        """Write raw bytes, bypassing HTTP; nothing but :meth:`close` and :meth:`reset` may follow."""
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
            lingering = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, lingering
            )
            self.transport.abort()

    def _abandon_response(self) -> None:
        # Otherwise uvicorn logs that the application returned without completing the response.
        if self.cycle is not None:
            self.cycle.disconnected = True
