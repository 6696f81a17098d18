"""Connections that know the request they send, and take no response for that of another one.

A connection is dropped if more bytes follow the response, and after a write, unless its response
was the expected one.
"""

import logging
import math
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

MAX_IDLE_BEFORE_WRITE = 1.0
"""Seconds since the latest exchange of a connection began; it was idle for no longer than that.

One that was idle for longer may have been dropped.
"""


@dataclass(eq=False)
class Exchange:
    """One request as it is sent, and what is known of it.

    The transport makes it, and sends it once. The connection that sends it sets ``began_at`` and
    ``has_reused_connection``. The transport sets ``may_reuse_connection`` before, and
    ``is_confirmed`` after, which the connection reads before it is used again.

    :param target: path and query, sent as they are, where urllib3 would write ``%2b`` as ``%2B``.
    :param limit: of the time in which it is sent and its response complete.
    :ivar may_reuse_connection: it may go over a connection that was used before.
    :ivar has_reused_connection: it went over such a connection.
    :ivar began_at: since when a byte of it may have been sent, not counting CONNECT; 0 if none.
    :ivar is_confirmed: the response was the expected one.
    """

    method: str
    url: str
    target: str
    headers: Mapping[str, str]
    limit: TimeLimit
    body: bytes | None = None
    may_reuse_connection: bool = True
    has_reused_connection: bool = False
    began_at: float = 0.0
    is_confirmed: bool = False

    @property
    def is_write(self) -> bool:
        return self.method not in SAFE_METHODS


current: ContextVar[Exchange] = ContextVar("fsm_exchange")
"""The exchange that this thread sends: urllib3 passes no argument to its connections."""


def _is_outside_exchange(_: logging.LogRecord) -> bool:
    """Filter what urllib3 logs during an exchange: URLs, and heads that are malformed."""
    return current.get(None) is None


logging.getLogger("urllib3.connectionpool").addFilter(_is_outside_exchange)
logging.getLogger("urllib3.connection").addFilter(_is_outside_exchange)


def root_cause(error: BaseException) -> BaseException:
    """Return the first cause of an exception of urllib3 or requests.

    The texts of those that wrap it quote the URL.
    """
    for value in (*error.args, getattr(error, "reason", None), error.__cause__):
        if isinstance(value, BaseException):
            return root_cause(value)
    return error


def before_path(url: str) -> str:
    """Return a URL's scheme, host and port: what stands before its path."""
    return "/".join(url.split("/", 3)[:3])


class _Response(HTTPResponse):
    """The final response, with a complete head.

    http.client skips only a 100, and accepts a head that is cut off. A connection makes one for
    each exchange; urllib3 calls ``begin``, reads the body, and then closes it. All of its reads
    together keep to the exchange's limit, where a socket has a timeout for each.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._socket = sock
        self._timeout = sock.gettimeout() or math.inf
        self._limit: TimeLimit | None = current.get().limit
        self._has_ended = False
        self.fp.raw.readinto = self._receive  # type: ignore[method-assign]

    def _receive(self, buffer: Any) -> int:
        limit = self._limit
        if limit:
            self._socket.settimeout(min(limit.left_or_raise(), self._timeout))
        try:
            count = self._socket.recv_into(buffer)
        except TimeoutError:
            if limit:
                limit.left_or_raise()
            raise
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
        if not self.will_close:  # else it is closed in any case
            self._limit = None  # else _receive would set another timeout
            with suppress(OSError):  # which a socket without bytes raises
                self._socket.settimeout(0)  # do not wait for any
                if self.fp.peek(1):
                    self._socket.shutdown(socket.SHUT_RDWR)
        super()._close_conn()  # type: ignore[misc]


class Connection(HTTPConnection):
    """A kept-alive connection that knows the exchange it sends, and the one before.

    Before an exchange, a pool asks ``is_connected``: if it is not, urllib3 closes it, and
    ``request`` connects it anew. One thread uses it at a time.

    :ivar latest: the exchange that it has sent last; None if none since it was connected.
    """

    response_class: type[HTTPResponse] = _Response
    latest: Exchange | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the current exchange may use it, which is all that urllib3 asks it for."""
        latest = self.latest
        if latest is None:
            return False
        if latest.is_write and not latest.is_confirmed:
            return False
        exchange = current.get()
        if not exchange.may_reuse_connection:
            return False
        if exchange.is_write:
            since_latest = time.monotonic() - latest.began_at
            if since_latest > MAX_IDLE_BEFORE_WRITE:
                return False
        return super().is_connected

    def connect(self) -> None:
        self.latest = None
        super().connect()

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        exchange = current.get()
        target = exchange.target
        is_forwarded = self.proxy is not None and self._tunnel_host is None
        if is_forwarded:  # a proxy that reads the request needs all of the URL
            target = before_path(url) + target
        if self.sock is None:
            self.connect()
        if exchange.limit.is_too_late():  # the machine may have slept while it connected
            raise TimeoutError("the connection was ready too late to send anything")
        exchange.has_reused_connection = self.latest is not None
        self.latest = exchange
        exchange.began_at = time.monotonic()
        super().request(method, target, *args, **kwargs)


class PublicConnection(Connection):
    """Refuses a peer whose IP address is not public, whatever its name resolves to."""

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
    is_combined = issubclass(theirs, Connection)
    if is_combined:
        return theirs
    return type(ours.__name__, (ours, theirs), {})
