"""Connections that record whether anything was sent; some refuse to connect to a private network.

A response is never mistaken for that of another request: a connection is dropped if more bytes follow the
response, and after a write, unless its response was the expected one.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from ipaddress import ip_address
from typing import Any, Self

from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection

from fsm_provider.api.errors import FsmPdfUrlError
from fsm_provider.api.retry import TimeLimit

MAX_CONNECTIONS = 64
"""Kept alive; threads beyond that open a connection per request."""
MAX_IDLE_BEFORE_WRITE = 1.0
"""Seconds; a write does not reuse a connection that was idle for longer: it may have been dropped."""


@dataclass(eq=False)
class Exchange:
    """One request and its response: a block, at whose end a write's connection is closed unless it was kept.

    :param target: path and query, sent as they are, where urllib3 would write ``%2b`` as ``%2B``.
    :ivar has_begun: a byte of it may have been sent, not counting CONNECT.
    """

    target: str
    is_write: bool = False
    limit: TimeLimit | None = None
    has_begun: bool = False
    written_on: tuple[_Pool, _Connection] | None = None

    def __enter__(self) -> Self:
        if self.limit:
            self.limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.written_on:
            self.written_on[1].close()

    def keep_connection(self) -> None:
        """Return a write's connection to its pool: the response was the expected one."""
        if self.written_on:
            pool, connection = self.written_on
            self.written_on = None
            HTTPConnectionPool._put_conn(pool, connection)


_sent: ContextVar[Exchange] = ContextVar("fsm_exchange")
"""What the adapter is sending: urllib3 passes no argument on to its connections."""

for _name in ("urllib3.connectionpool", "urllib3.connection"):  # they log URLs, and heads that are malformed
    logging.getLogger(_name).addFilter(lambda _: _sent.get(None) is None)


class Adapter(HTTPAdapter):
    """Pools of our own connections, also through proxies; requests finds the proxy and sets up TLS.

    :param verify: whether certificates are checked, or the file or folder to check them against.
    :param public_only: refuse an IP address that is not public: that of the connected peer, so a host name
        cannot resolve differently between check and use. A proxy decides what can be reached through it.
    """

    def __init__(self, verify: Any, timeout: float, *, public_only: bool = False) -> None:
        super().__init__(pool_maxsize=MAX_CONNECTIONS)
        _adapt(self.poolmanager, _PublicConnection if public_only else _Connection)
        self._verify = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        self._timeout = Timeout(connect=timeout, read=timeout)
        self._latest: tuple[Any, Any] = None, None

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        _adapt(manager, _Connection)
        return manager

    def exchange(self, one: Exchange, request: PreparedRequest, proxies: dict[str, str]) -> BaseHTTPResponse:
        """Send; the body of the response is unread."""
        url = str(request.url)
        latest, pool = self._latest
        key = url.split("/", 3)[:3], proxies
        if key != latest:  # the look-up takes a tenth of a POST's time
            pool = self.get_connection_with_tls_context(request, self._verify, proxies)
            self._latest = key, pool
        token = _sent.set(one)
        try:
            response: BaseHTTPResponse = pool.urlopen(
                request.method,
                url,
                request.body,
                request.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
        finally:
            _sent.reset(token)
        return response

    def close(self) -> None:
        self._latest = None, None
        super().close()


def origin_of(error: BaseException) -> BaseException:
    """Return the first cause of an exception of urllib3 or requests: only its text is free of the URL."""
    inner = (*error.args, getattr(error, "reason", None), error.__cause__)
    causes = [one for one in inner if isinstance(one, BaseException)]
    return origin_of(causes[0]) if causes else error


class _Timed(RawIOBase):
    """Reads from a socket, until a limit on the time of all reads is reached: a socket has one for each."""

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
    """The final response, with a complete head: http.client skips 100 only, and accepts a head cut off."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._socket, self._raw = sock, _Timed(self.fp.detach(), sock, _sent.get().limit)
        self.fp = BufferedReader(self._raw)

    def begin(self, *args: Any, **kwargs: Any) -> None:
        super().begin(*args, **kwargs)
        while self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin(*args, **kwargs)
        if self._raw.at_end:
            raise HTTPException("its head is incomplete")

    def _close_conn(self) -> None:
        """Shut the connection, which the pool then discards, if more bytes follow the response."""
        if not self.will_close:
            timeout, self._raw.limit = self._socket.gettimeout(), None
            with suppress(OSError):  # raised by TLS if there are none; plain sockets return no bytes
                self._socket.settimeout(0)
                if self.fp.peek(1):
                    self._socket.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                self._socket.settimeout(timeout)
        super()._close_conn()  # type: ignore[misc]


class _Connection(HTTPConnection):
    """Checks the exchange's time limit before the first byte is sent."""

    response_class = _Response
    used_at = 0.0
    exchange = Exchange("")

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        target = _sent.get().target
        if self.proxy is not None and self._tunnel_host is None:  # the proxy forwards it
            target = f"{'/'.join(url.split('/', 3)[:3])}{target}"
        super().putrequest(method, target, *args, **kwargs)

    def endheaders(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is None:
            self.connect()
        self.exchange, self.used_at = _sent.get(), time.monotonic()
        if self.exchange.limit and self.exchange.limit.is_too_late():  # connecting may have been suspended
            raise TimeoutError("the connection was ready too late to send anything")
        self.exchange.has_begun = True
        super().endheaders(*args, **kwargs)


class _PublicConnection(_Connection):
    def _new_conn(self) -> socket.socket:
        connected = super()._new_conn()
        ip = ip_address(connected.getpeername()[0].partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if not ip.is_global:
            connected.close()
            raise FsmPdfUrlError(f"{ip} is not a public address: set allow_private_addresses to allow it")
        return connected


class _Pool(HTTPConnectionPool):
    def _get_conn(self, timeout: float | None = None) -> Any:
        conn: Any = super()._get_conn(timeout)
        if _sent.get().is_write and time.monotonic() - conn.used_at > MAX_IDLE_BEFORE_WRITE:
            conn.close()
        return conn

    def _put_conn(self, conn: Any) -> None:
        if conn is not None and conn.exchange.is_write:  # None is one that was broken
            conn.exchange.written_on = self, conn
        else:
            super()._put_conn(conn)


def _adapt(manager: PoolManager, connection_class: type[_Connection]) -> None:
    manager.pool_classes_by_scheme = {
        scheme: _adapted(pool_class, connection_class)  # type: ignore[arg-type]
        for scheme, pool_class in manager.pool_classes_by_scheme.items()
    }


@cache
def _adapted(theirs: type[HTTPConnectionPool], connection: type[_Connection]) -> type[HTTPConnectionPool]:
    """Combine urllib3's pool class, for HTTP, TLS or SOCKS, with ours."""
    if issubclass(theirs, _Pool):
        return theirs
    connections = type(connection.__name__, (connection, theirs.ConnectionCls), {})
    return type(_Pool.__name__, (_Pool, theirs), {"ConnectionCls": connections})
