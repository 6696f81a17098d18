"""Send one request: return the body of a success, or raise a typed error.

It uses requests' adapter without a session: ``.netrc``, which would replace the token, is ignored,
and no redirect is followed. A write may be repeated only if none of its bytes was sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import requests
from pydantic import SecretStr
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, requote_uri, select_proxy
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Retry, Timeout
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api import errors
from fsm_provider.api.connections import (
    Connection,
    Exchange,
    PublicConnection,
    connection_class,
    current,
    root_cause,
)
from fsm_provider.api.metrics import Metrics
from fsm_provider.api.redaction import excerpt, printable, request_id_in
from fsm_provider.api.request import ApiRequest, TimeLimit
from fsm_provider.api.settings import Settings, is_readable_on_the_way
from fsm_provider.api.validation import ResultT, parse_headers

USER_AGENT = f"airflow-provider-fsm/{__version__}"
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": USER_AGENT,
}
_OPTIONS: Any = {"retries": False, "redirect": False, "assert_same_host": False}
_OPTIONS |= {"preload_content": False, "decode_content": False}
_QUOTING = (
    BadStatusLine,
    UnknownProtocol,
    InvalidChunkLength,
    InvalidHeader,
)  # they quote the response
# Of a body; the last three are of one whose length is negative, or larger than any memory.
UNREADABLE = (HTTPError, OSError, ValueError, OverflowError, MemoryError)
MAX_ERROR_BODY = 2**20  # bytes, decoded: more are not read


class Transport:
    """Kept-alive connections to one service, which ``throttle`` waits for, and to other hosts it
    names.
    """

    def __init__(self, settings: Settings, metrics: Metrics, throttle: Callable[[], None]) -> None:
        self.base: SplitResult = as_sent(
            settings.base_url, errors.FsmInputError("host: is not a valid URL")
        )
        self.throttle = throttle
        self._settings = settings
        self._metrics = metrics
        with requests.Session() as session:
            verify = session.merge_environment_settings(
                *(settings.base_url, {}, True, settings.ca_bundle or settings.verify_ssl, None)
            )["verify"]
        self._verify = DEFAULT_CA_BUNDLE_PATH if verify is True else verify
        self._timeout = Timeout(connect=settings.timeout, read=settings.timeout)
        self._process = 0
        self._adapters: list[HTTPAdapter] = []
        self._pool: HTTPConnectionPool | None = None

    def close(self) -> None:
        self._process, self._pool = 0, None
        for adapter in self._adapters:
            adapter.close()

    def request(
        self,
        call: ApiRequest,
        read: Callable[[bytes], ResultT],
        token: SecretStr,
        limit: TimeLimit | None = None,
    ) -> ResultT:
        if limit is None:
            self.throttle()
        attempted_at, said = datetime.now(UTC).isoformat(timespec="seconds"), ""
        exchange = self._prepare(call, token, limit)
        try:
            with self.send(exchange) as response:
                body = self._body_of(response)
            if not 200 <= response.status < 300:
                said = excerpt(body, token.get_secret_value(), call.confidential)
                url, conn_id = f"{self._settings.base_url}{call.path}", self._settings._connection
                about = {"body_excerpt": said, "url": url, "connection": conn_id}
                raise refusal(response, token, None, method=call.method, path=call.path, **about)
            result = read(_in_utf8(body, response.headers.get("Content-Type", "")))
        except errors.FsmApiError as error:
            if not exchange.is_write or errors.is_refusal(error.status):
                raise
            reason, said = str(replace(error, body_excerpt="")), error.body_excerpt
        except errors.FsmResponseError as error:
            if not exchange.is_write:
                raise errors.FsmResponseError(f"{call.method} {call.path}: {error}") from None
            reason = str(error)
        else:
            exchange.is_confirmed = True
            return result
        raise errors.FsmUncertainWriteError(
            call.method, call.path, reason, attempted_at, call.subject, said
        )

    def _body_of(self, response: BaseHTTPResponse) -> bytes:
        """Read the body; of an error, its start, and nothing if it is incomplete."""
        succeeded = 200 <= response.status < 300
        most = self._settings.max_response_mb * 2**20 if succeeded else MAX_ERROR_BODY
        length = response.headers.get("Content-Length", "")
        body = bytearray()
        try:
            if (
                "Content-Encoding" not in response.headers
                and length.isdecimal()
                and int(length) <= most
            ):
                return response.read()
            while len(body) <= most and (chunk := response.read(2**16, decode_content=True)):
                body += chunk
        except UNREADABLE as error:
            if succeeded:
                raise self.incomplete_response(error) from None
            return b""
        if succeeded and len(body) > most:
            large = f"larger than {most // 2**20} MiB, its max_response_mb"
            raise errors.FsmResponseError(f"the response is {large}")
        return bytes(body)

    def send(
        self, exchange: Exchange, *, elsewhere: bool = False, public_only: bool = False
    ) -> BaseHTTPResponse:
        """Send once and return the response, its body unread; ``elsewhere``: not on the service's
        host.
        """
        if self._process != os.getpid():  # after a fork, the connections are those of the parent
            self._adapters = [HTTPAdapter(pool_maxsize=64) for _ in (False, True)]
            self._pool = None
            self._process = os.getpid()
        if exchange.limit:
            exchange.limit.start()
        status, token = "none", current.set(exchange)
        try:
            if elsewhere:
                pool = self._pool_for(exchange.url, public_only)
            else:  # looked up once: it takes a tenth of a POST's time
                pool = self._pool = self._pool or self._pool_for(exchange.url)
            what = exchange.method, exchange.url, exchange.body, exchange.headers
            response: BaseHTTPResponse = pool.urlopen(*what, timeout=self._timeout, **_OPTIONS)
            status = str(response.status)
            return response
        except UNREADABLE as error:
            origin, failure = root_cause(error), self.incomplete_response(error)
        finally:
            current.reset(token)
            self._metrics.incr("requests", method=exchange.method, status=status)
        # Not inside except: urllib3's error holds the token and the URL.
        if exchange.began_at:
            raise failure
        if isinstance(origin, UnicodeError | LocationParseError):  # their texts quote the input
            raise errors.FsmInputError(
                "the request, or the proxy's URL, user or password, is not valid HTTP"
            )
        host = "/".join(exchange.url.split("/", 3)[:3])
        hint = "; does the host speak http?" if "WRONG_VERSION_NUMBER" in str(origin) else ""
        raise errors.FsmConnectionError(f"{host} was not reached: {origin}{hint}")

    def _pool_for(self, url: str, public_only: bool = False) -> HTTPConnectionPool:
        """Look up the connections to a host, or to its proxy, which then decides what can be
        reached.
        """
        parts = urlsplit(url)
        # Through a proxy, http to this machine would leave it in the clear.
        stays_here = parts.scheme == "http" and not is_readable_on_the_way(parts)
        proxies: Any = {} if stays_here else get_environ_proxies(url)
        request = requests.PreparedRequest()
        request.url = url
        adapter = self._adapters[public_only]
        pool: Any = adapter.get_connection_with_tls_context(request, self._verify, proxies)
        ours = PublicConnection if public_only and not select_proxy(url, proxies) else Connection
        pool.ConnectionCls = connection_class(pool.ConnectionCls, ours)
        return cast(HTTPConnectionPool, pool)

    def _prepare(self, call: ApiRequest, token: SecretStr, limit: TimeLimit | None) -> Exchange:
        given = {**_HEADERS, **parse_headers("headers", call.headers)}
        headers = CaseInsensitiveDict(given, Authorization=f"Bearer {token.get_secret_value()}")
        if call.body is not None:
            headers.setdefault("Content-Type", "application/json")
        target = f"{self.base.path.rstrip('/')}{requote_uri(call.path)}"
        if call.query:
            target += f"?{call.query}"
        url = f"{self.base.scheme}://{self.base.netloc}{target}"
        return Exchange(call.method, url, target, headers, call.body, limit)

    def incomplete_response(self, error: BaseException) -> errors.FsmResponseError:
        """Make the error for a response that is missing or incomplete, quoting nothing of it."""
        origin = root_cause(error)
        is_quoting = isinstance(origin, _QUOTING) and not isinstance(origin, RemoteDisconnected)
        what = type(origin).__name__ + ("" if is_quoting else f": {origin}")
        timeout = f"(timeout {self._settings.timeout:g} s)"
        return errors.FsmResponseError(f"no complete response arrived: {what} {timeout}")


def as_sent(url: str, error: errors.FsmError) -> SplitResult:
    """Split a URL, its host as it is sent; raise ``error`` if it is not valid, without quoting it."""
    request = requests.PreparedRequest()
    with suppress(requests.RequestException, ValueError):
        request.prepare_url(url, None)
        parts = urlsplit(str(request.url))
        _ = parts.port
        return parts
    raise error


def refusal(
    response: BaseHTTPResponse,
    token: SecretStr,
    kind: type[errors.FsmApiError] | None = None,
    **what: str,
) -> errors.FsmApiError:
    """Make the error for a response that is not a success, by default of the class of its status."""
    retry_after: Any = Retry()
    try:
        retry_after = min(retry_after.get_retry_after(response), 1e9)
    except (TypeError, ValueError, OverflowError, InvalidHeader):  # it is absent or invalid
        retry_after = None
    request_id = request_id_in(response.headers, token.get_secret_value())
    made = kind or errors.error_class_for(response.status)
    return made(response.status, retry_after=retry_after, request_id=request_id, **what)


def _in_utf8(body: bytes, content_type: str) -> bytes:
    declared = _CHARSET.search(content_type)
    if declared is None or declared[1].lower() in ("utf-8", "utf8", "us-ascii"):
        return body
    try:
        return body.decode(declared[1]).encode()
    except (LookupError, UnicodeError):
        problem = f"is not in its declared charset, {printable(declared[1])}"
        raise errors.FsmResponseError(f"the body {problem}") from None
