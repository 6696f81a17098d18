"""Connections that know the request they send, and take no response for that of another one.

A connection is dropped if more bytes follow the response, and after a write, unless its response
was the expected one.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import Any

from urllib3.connection import HTTPConnection

from fsm_provider.api.errors import FsmPdfUrlError
from fsm_provider.api.request import SAFE_METHODS, TimeLimit

MAX_IDLE_BEFORE_WRITE = 1.0  # seconds; a connection that was idle for longer may have been dropped


@dataclass(eq=False)
class Exchange:
    """One request as it is sent, and what is known of it.

    :param target: path and query, sent as they are, where urllib3 would write ``%2b`` as ``%2B``.
    :ivar began_at: since when a byte of it may have been sent, not counting CONNECT; 0 if none.
    :ivar is_confirmed: the response was the expected one.
    """

    method: str
    url: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None
    limit: TimeLimit | None = None
    began_at: float = 0.0
    is_confirmed: bool = False

    @property
    def is_write(self) -> bool:
        return self.method not in SAFE_METHODS


current: ContextVar[Exchange] = ContextVar(
    "fsm_exchange"
)  # urllib3 passes no argument to its connections

for _name in (
    "urllib3.connectionpool",
    "urllib3.connection",
):  # they log URLs, and heads that are malformed
    logging.getLogger(_name).addFilter(lambda _: current.get(None) is None)


def root_cause(error: BaseException) -> BaseException:
    """Return the first cause of an exception of urllib3 or requests: only its text is free of the
    URL.
    """
    inner = (*error.args, getattr(error, "reason", None), error.__cause__)
    causes = [one for one in inner if isinstance(one, BaseException)]
    return root_cause(causes[0]) if causes else error


class _Response(HTTPResponse):
    """The final response, with a complete head: http.client skips 100 only, and accepts a head cut
    off.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._socket, self._timeout, self._limit = sock, sock.gettimeout(), current.get().limit
        self._has_ended = False
        self.fp.raw.readinto = self._receive  # type: ignore[method-assign]

    def _receive(self, buffer: Any) -> int:
        """Receive within the limit on the time of all reads: a socket has one for each."""
        if self._limit:
            if (left := self._limit.left()) <= 0:
                raise TimeoutError("its time is over")
            self._socket.settimeout(left if self._timeout is None else min(left, self._timeout))
        count = self._socket.recv_into(buffer)
        self._has_ended = count == 0
        return count

    def begin(self, *args: Any, **kwargs: Any) -> None:
        super().begin(*args, **kwargs)
        while self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin(*args, **kwargs)
        if self._has_ended:
            raise HTTPException("its head is incomplete")

    def _close_conn(self) -> None:
        """Shut the connection, which the pool then discards, if more bytes follow the response."""
        if not self.will_close:
            self._limit = None
            with suppress(OSError):  # raised if there are none
                self._socket.settimeout(0)
                if self.fp.peek(1):
                    self._socket.shutdown(socket.SHUT_RDWR)
        super()._close_conn()  # type: ignore[misc]


class Connection(HTTPConnection):
    response_class: type[HTTPResponse] = _Response
    latest: Exchange | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a pool may use it for the current exchange, which is all that urllib3 asks it
        for.
        """
        if self.latest is None or (self.latest.is_write and not self.latest.is_confirmed):
            return False
        if (
            current.get().is_write
            and time.monotonic() - self.latest.began_at > MAX_IDLE_BEFORE_WRITE
        ):
            return False
        return super().is_connected

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        self.latest = exchange = current.get()
        target = exchange.target
        if self.proxy is not None and self._tunnel_host is None:  # the proxy forwards it
            target = f"{'/'.join(url.split('/', 3)[:3])}{target}"
        if self.sock is None:
            self.connect()
        if exchange.limit and exchange.limit.is_too_late():  # connecting may have been suspended
            raise TimeoutError("the connection was ready too late to send anything")
        exchange.began_at = time.monotonic()
        super().request(method, target, *args, **kwargs)


class PublicConnection(Connection):
    """Refuses an IP address that is not public: that of the connected peer, whatever its name
    resolves to.
    """

    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        ip = ip_address(connected.getpeername()[0].partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if not ip.is_global:
            connected.close()
            raise FsmPdfUrlError(
                f"{ip} is not a public address: set allow_private_addresses to allow it"
            )
        return connected


@cache
def connection_class(theirs: type[HTTPConnection], ours: type[Connection]) -> type[HTTPConnection]:
    """Combine urllib3's class of connections, for HTTP, TLS or SOCKS, with ours."""
    return theirs if issubclass(theirs, Connection) else type(ours.__name__, (ours, theirs), {})
