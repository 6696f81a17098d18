"""Connections that record whether anything was sent; some refuse to connect to a private network.

A response is never mistaken for that of another request: a connection is dropped if more bytes follow the
response, and after a write, unless its response was the expected one; and a forked process opens its own.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, PoolManager
from urllib3.connection import HTTPConnection

from fsm_provider.api.limits import TimeLimit
from fsm_provider.api.public_hosts import require_public_ip

MAX_IDLE_BEFORE_WRITE = 1.0
"""Seconds; a write does not reuse a connection that was idle for longer. Load balancers and servers drop idle
connections silently, and then it is unknown whether the write arrived."""
MAX_INTERIM_RESPONSES = 100


@dataclass(eq=False)
class Exchange:
    """One request and its response: a block, at whose end a write's connection is closed unless it was kept.

    :param limit: until when it may begin, and how long it may take.
    :param is_confidential: its URL must not be logged.
    :param target: path and query to be sent as they are, where urllib3 would write ``%2b`` as ``%2B``.
    :ivar has_begun: a byte of it may have been sent, not counting CONNECT.
    """

    limit: TimeLimit | None = None
    is_confidential: bool = False
    target: str = ""
    has_begun: bool = False
    written_on: tuple[_WritePool, _Connection] | None = None

    def __enter__(self) -> Self:
        if self.limit:
            self.limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.limit:
            self.limit.pause()
        if self.written_on:
            self.written_on[1].close()

    def keep_connection(self) -> None:
        """Return a write's connection to its pool: the response was the expected one."""
        if self.written_on:
            pool, connection = self.written_on
            self.written_on, connection.idle_since = None, time.monotonic()
            HTTPConnectionPool._put_conn(pool, connection)


_sent: ContextVar[Exchange | None] = ContextVar("fsm_exchange", default=None)
"""What the adapter is sending: urllib3 passes no argument on to its connections."""


def _quote_nothing(record: logging.LogRecord) -> bool:
    """Leave URL and headers out of the warning that a response's head is malformed."""
    if _sent.get() is not None:
        record.msg, record.args, record.exc_info = "The head of a response is malformed", (), None
    return True


logging.getLogger("urllib3.connectionpool").addFilter(
    lambda _: not ((exchange := _sent.get()) and exchange.is_confidential)
)
logging.getLogger("urllib3.connection").addFilter(_quote_nothing)


class Adapter(HTTPAdapter):
    """requests' adapter with our own connections, also through proxies.

    :param public_only: refuse to send to an IP address that is not public. The address of the connected peer
        is checked, so a host name cannot resolve differently between check and use. Behind a proxy the peer
        is the proxy, which decides what can be reached through it.
    :param for_writes: reuse no connection that was idle for longer than ``MAX_IDLE_BEFORE_WRITE``, nor one
        whose exchange has not kept it.
    """

    def __init__(self, *, public_only: bool = False, for_writes: bool = False, **kwargs: Any) -> None:
        self._connection_class = _PublicConnection if public_only else _Connection
        self._pool_class = _WritePool if for_writes else _Pool
        self._latest: tuple[Any, Any] = None, None
        self._process = os.getpid()
        super().__init__(**kwargs)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        self._pool_arguments = args, kwargs
        super().init_poolmanager(*args, **kwargs)
        self._adapt(self.poolmanager, self._connection_class)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        self._adapt(manager, _Connection)
        return manager

    def exchange(self, exchange: Exchange, request: PreparedRequest, **kwargs: Any) -> Response:
        """Send; the body of the response is unread."""
        if self._process != os.getpid():
            self._leave_connections_to_parent()
        token = _sent.set(exchange)
        try:
            return self.send(request, stream=True, **kwargs)
        finally:
            _sent.reset(token)

    def close(self) -> None:
        self._latest = None, None
        super().close()

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        """Return the pool for a request; looking it up for each would take a tenth of a POST's time."""
        key = (str(request.url).split("/", 3)[:3], verify, proxies, cert)
        latest, pool = self._latest
        if pool is None or key != latest:
            pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
            self._latest = key, pool
        return pool

    def build_response(self, req: PreparedRequest, resp: Any) -> Response:
        """Make a response without cookies and the encoding of its text, which nobody asks for."""
        response = Response()
        response.status_code, response.headers, response.raw = resp.status, resp.headers, resp
        return response

    def _leave_connections_to_parent(self) -> None:
        """Open connections of this process's own after a fork; those of the parent stay open there."""
        self._latest = None, None
        self.proxy_manager = {}
        args, kwargs = self._pool_arguments
        self.init_poolmanager(*args, **kwargs)
        self._process = os.getpid()

    def _adapt(self, manager: PoolManager, connection_class: type[_Connection]) -> None:
        manager.pool_classes_by_scheme = {
            scheme: _adapted(pool_class, self._pool_class, connection_class)  # type: ignore[arg-type]
            for scheme, pool_class in manager.pool_classes_by_scheme.items()
        }


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception of requests, then its causes: only the last one's text is free of the URL."""
    current: BaseException | None = error
    while current is not None:
        yield current
        inner = (*current.args, getattr(current, "reason", None), current.__cause__)
        current = next((cause for cause in inner if isinstance(cause, BaseException)), None)


class _Timed(RawIOBase):
    """Reads from a socket, until a limit on the time of all reads is reached: a socket has one for each.

    :ivar at_end: the other side has closed the connection.
    """

    def __init__(self, raw: RawIOBase, sock: socket.socket, limit: TimeLimit | None) -> None:
        self.limit = limit
        self.at_end = False
        self._raw, self._socket, self._timeout = raw, sock, sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self.limit:
            if (left := self.limit.left()) <= 0:
                raise TimeoutError("its time is over")
            self._socket.settimeout(left if self._timeout is None else min(left, self._timeout))
        count = self._raw.readinto(buffer)
        self.at_end = count == 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    """The final response, with all interim ones skipped: http.client skips 100 only.

    Its head must be complete: http.client also accepts one that the end of the connection cuts off.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._socket, exchange = sock, _sent.get()
        self._raw = _Timed(self.fp.detach(), sock, exchange.limit if exchange else None)
        self.fp = BufferedReader(self._raw)
        self._status_lines = 0

    def begin(self, *args: Any, **kwargs: Any) -> None:
        super().begin(*args, **kwargs)
        while self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin(*args, **kwargs)
        if self._raw.at_end:
            raise HTTPException("its head is incomplete")
        if len(set(self.headers.get_all("Content-Length", ()))) > 1:
            raise HTTPException("it has conflicting Content-Length headers")

    def _read_status(self) -> Any:
        self._status_lines += 1
        if self._status_lines > MAX_INTERIM_RESPONSES + 1:
            raise HTTPException(f"more than {MAX_INTERIM_RESPONSES} interim responses")
        return super()._read_status()  # type: ignore[misc]

    def _close_conn(self) -> None:
        if not self.will_close and self._has_more_bytes():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the pool then discards it
        super()._close_conn()  # type: ignore[misc]

    def _has_more_bytes(self) -> bool:
        timeout, self._raw.limit = self._socket.gettimeout(), None
        try:
            self._socket.settimeout(0)
            return bool(self.fp.peek(1))
        except OSError:  # raised by TLS only; plain sockets return no bytes
            return False
        finally:
            with suppress(OSError):
                self._socket.settimeout(timeout)


class _Connection(HTTPConnection):
    """Checks the exchange's time limit before the first byte is sent."""

    response_class = _Response
    idle_since = float("inf")
    exchange: Exchange

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        if (exchange := _sent.get()) and exchange.target:
            parts = urlsplit(url)  # with scheme and host, if a proxy needs them
            url = urlunsplit((parts.scheme, parts.netloc, "", "", "")) + exchange.target
        super().putrequest(method, url, *args, **kwargs)

    def endheaders(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is None:
            self.connect()
        self.exchange = _sent.get() or Exchange()
        if (limit := self.exchange.limit) and limit.is_too_late():  # connecting may have been suspended
            raise TimeoutError("the connection was ready too late to send anything")
        self.exchange.has_begun = True
        super().endheaders(*args, **kwargs)


class _PublicConnection(_Connection):
    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        try:
            require_public_ip(connected.getpeername()[0])
        except BaseException:
            connected.close()
            raise
        return connected


class _Pool(HTTPConnectionPool):
    pass


class _WritePool(_Pool):
    def _put_conn(self, conn: Any) -> None:
        if conn is None:  # it was broken
            super()._put_conn(conn)
        else:
            conn.exchange.written_on = self, conn

    def _get_conn(self, timeout: float | None = None) -> Any:
        conn: Any = super()._get_conn(timeout)
        if time.monotonic() - conn.idle_since > MAX_IDLE_BEFORE_WRITE:
            conn.close()
        return conn


@cache
def _adapted(
    theirs: type[HTTPConnectionPool], pool: type[_Pool], connection: type[_Connection]
) -> type[HTTPConnectionPool]:
    """Combine urllib3's pool class, for HTTP, TLS or SOCKS, with ours."""
    if issubclass(theirs, _Pool):
        return theirs
    connections = type(connection.__name__, (connection, theirs.ConnectionCls), {})
    return type(pool.__name__, (pool, theirs), {"ConnectionCls": connections})
