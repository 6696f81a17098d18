"""Send one request: return the body of a success, or raise a typed error.

It uses requests' adapter without a session: proxies and CA bundle are looked up in the environment only once,
``.netrc``, which would replace the token, is ignored, and no redirect is followed. A failure before the first
byte was sent is distinguished from later ones: only then may a write be repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate, mktime_tz, parsedate_tz
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from json import dumps
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, urlencode, urlsplit

import requests
from pydantic import SecretStr
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, requote_uri, select_proxy
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api.adapter import Connection, Exchange, PublicConnection, adapted, current, origin_of
from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmResponseError,
    FsmUncertainWriteError,
    error_class_for,
    is_refusal,
)
from fsm_provider.api.redaction import excerpt, printable, request_id_in
from fsm_provider.api.retry import Metrics, TimeLimit
from fsm_provider.api.settings import Settings, is_readable_on_the_way
from fsm_provider.api.validation import HALF_A_CHARACTER, parse_headers

ResultT = TypeVar("ResultT")

MAX_CONNECTIONS = 64
"""Kept alive; threads beyond that open a connection per request."""
USER_AGENT = f"airflow-provider-fsm/{__version__}"
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": USER_AGENT}
_QUOTING = (BadStatusLine, UnknownProtocol, InvalidChunkLength, InvalidHeader)
"""Errors whose text quotes the response."""
UNREADABLE = (HTTPError, OSError, ValueError, OverflowError, MemoryError)
"""Errors of reading a body: the last three are of one whose length is negative, or larger than any memory."""
MAX_ERROR_BODY = 2**20
"""Bytes of the response of an error, decoded: more are not read."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request.

    :param subject: of a write, for :class:`FsmUncertainWriteError`.
    :param confidential: texts that no error or log may contain, even if the service repeats them.
    """

    method: str
    path: str
    params: Mapping[str, Any] | list[tuple[str, str]] | None = None
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: dict[str, Any] = field(default_factory=dict)
    confidential: tuple[str, ...] = ()
    limit: TimeLimit | None = None

    @property
    def is_write(self) -> bool:
        return self.method not in ("GET", "HEAD", "OPTIONS")


class Transport:
    """Kept-alive connections to one service, and to other hosts that it names.

    :param throttle: waits until the service may be sent a request.
    """

    def __init__(self, settings: Settings, metrics: Metrics, throttle: Callable[[], None]) -> None:
        self.base = as_sent(settings.base_url, FsmInputError("host: is not a valid URL"))
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

    def request(self, call: ApiRequest, read: Callable[[bytes], ResultT], token: SecretStr) -> ResultT:
        """Send once and return ``read(body)`` of a successful response.

        :raises FsmConnectionError: if nothing was sent.
        :raises FsmUncertainWriteError: if a write may have taken effect nevertheless.
        :raises FsmResponseError: if no complete response arrived, to another request.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        if call.limit is None:
            self.throttle()
        attempted_at, said = datetime.now(UTC).isoformat(timespec="seconds"), ""
        exchange = self._prepare(call, token)
        try:
            with self.send(exchange) as response:
                body = self._body_of(response)
            if not 200 <= response.status < 300:
                said = excerpt(body, token.get_secret_value(), call.confidential)
                url, conn_id = f"{self._settings.base_url}{call.path}", self._settings._connection
                about = {"body_excerpt": said, "url": url, "connection": conn_id}
                raise refusal(response, token, None, method=call.method, path=call.path, **about)
            result = read(_in_utf8(body, response.headers.get("Content-Type", "")))
        except FsmApiError as error:
            if not exchange.is_write or is_refusal(error.status):
                raise
            reason, said = str(replace(error, body_excerpt="")), error.body_excerpt
        except FsmResponseError as error:
            if not exchange.is_write:
                raise FsmResponseError(f"{call.method} {call.path}: {error}") from None
            reason = str(error)
        else:
            exchange.is_confirmed = True
            return result
        raise FsmUncertainWriteError(call.method, call.path, reason, attempted_at, call.subject, said)

    def _body_of(self, response: BaseHTTPResponse) -> bytes:
        """Read the body; of an error, no more than its start, and nothing if it is incomplete."""
        succeeded = 200 <= response.status < 300
        most = self._settings.max_response_mb * 2**20 if succeeded else MAX_ERROR_BODY
        length = response.headers.get("Content-Length", "")
        body = bytearray()
        try:
            if "Content-Encoding" not in response.headers and length.isdecimal() and int(length) <= most:
                return response.read()
            while len(body) <= most and (chunk := response.read(2**16, decode_content=True)):
                body += chunk
        except UNREADABLE as error:
            if succeeded:
                raise self.incomplete_response(error) from None
            return b""
        if succeeded and len(body) > most:
            raise FsmResponseError(f"the response is larger than {most // 2**20} MiB, its max_response_mb")
        return bytes(body)

    def send(
        self, exchange: Exchange, *, elsewhere: bool = False, public_only: bool = False
    ) -> BaseHTTPResponse:
        """Send once and return the response, its body unread.

        :param elsewhere: the URL is not on the service's host.
        :param public_only: refuse an IP address that is not public.
        """
        if self._process != os.getpid():  # after a fork, the connections are those of the parent
            self._adapters = [HTTPAdapter(pool_maxsize=MAX_CONNECTIONS) for _ in (False, True)]
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
            response: BaseHTTPResponse = pool.urlopen(
                exchange.method,
                exchange.url,
                exchange.body,
                exchange.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
            status = str(response.status)
            return response
        except UNREADABLE as error:
            failure = self._failure(error, exchange)
        finally:
            current.reset(token)
            self._metrics.incr("requests", method=exchange.method, status=status)
        raise failure  # not inside except: urllib3's error holds the token and the URL

    def _pool_for(self, url: str, public_only: bool = False) -> HTTPConnectionPool:
        """Look up the connections to a host, or to its proxy, which then decides what can be reached.

        The environment's proxies are not for http to this machine, which would leave it in the clear.
        """
        parts = urlsplit(url)
        stays_here = parts.scheme == "http" and not is_readable_on_the_way(parts)
        proxies: Any = {} if stays_here else get_environ_proxies(url)
        request = requests.PreparedRequest()
        request.url = url
        adapter = self._adapters[public_only]
        pool: Any = adapter.get_connection_with_tls_context(request, self._verify, proxies)
        ours = PublicConnection if public_only and not select_proxy(url, proxies) else Connection
        pool.ConnectionCls = adapted(pool.ConnectionCls, ours)
        return cast(HTTPConnectionPool, pool)

    def _failure(self, error: BaseException, exchange: Exchange) -> FsmError:
        origin = origin_of(error)
        if exchange.began_at:
            return self.incomplete_response(error)
        if isinstance(origin, UnicodeError | LocationParseError):  # their texts quote the input
            return FsmInputError("the request, or the proxy's URL, user or password, is not valid HTTP")
        host = "/".join(exchange.url.split("/", 3)[:3])
        hint = "; does the host speak http?" if "WRONG_VERSION_NUMBER" in str(origin) else ""
        return FsmConnectionError(f"{host} was not reached: {origin}{hint}")

    def _prepare(self, call: ApiRequest, token: SecretStr) -> Exchange:
        given = {**_HEADERS, **parse_headers("headers", call.headers)}
        headers = CaseInsensitiveDict(given, Authorization=f"Bearer {token.get_secret_value()}")
        try:
            items = call.params.items() if isinstance(call.params, Mapping) else call.params or ()
            query = urlencode([(name, value) for name, value in items if value is not None], doseq=True)
        except (TypeError, ValueError) as error:
            raise FsmInputError(f"params: cannot be written into a URL ({type(error).__name__})") from None
        target = f"{self.base.path.rstrip('/')}{requote_uri(call.path)}{f'?{query}' if query else ''}"
        body = None
        if call.json is not None:
            try:
                body = dumps(call.json, allow_nan=False).encode()
                if b"\\ud" in body:
                    dumps(call.json, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise FsmInputError(f"json: {HALF_A_CHARACTER}") from None
            except (TypeError, ValueError, RecursionError) as error:
                raise FsmInputError(f"json: {error}") from None
            headers.setdefault("Content-Type", "application/json")
        url = f"{self.base.scheme}://{self.base.netloc}{target}"
        return Exchange(call.method, url, target, headers, body, call.is_write, call.limit)

    def incomplete_response(self, error: BaseException) -> FsmResponseError:
        """Make the error for a response that is missing or incomplete, quoting nothing of it."""
        origin = origin_of(error)
        what = type(origin).__name__
        if isinstance(origin, RemoteDisconnected) or not isinstance(origin, _QUOTING):
            what += f": {origin}"
        what += f" (timeout {self._settings.timeout:g} s)"
        return FsmResponseError(f"no complete response arrived: {what}")


def as_sent(url: str, error: FsmError) -> SplitResult:
    """Split a URL, its host as it is sent; raise ``error`` if it is not valid, without quoting it."""
    request = requests.PreparedRequest()
    with suppress(requests.RequestException, ValueError):
        request.prepare_url(url, None)
        parts = urlsplit(str(request.url))
        _ = parts.port
        return parts
    raise error


def refusal(
    response: BaseHTTPResponse, token: SecretStr, kind: type[FsmApiError] | None = None, **what: str
) -> FsmApiError:
    """Make the error for a response that is not a success, by default of the class of its status."""
    return (kind or error_class_for(response.status))(
        status=response.status,
        retry_after=seconds_to_wait(response.headers),
        request_id=request_id_in(response.headers, token.get_secret_value()),
        **what,
    )


def _in_utf8(body: bytes, content_type: str) -> bytes:
    declared = _CHARSET.search(content_type)
    if declared is None or declared[1].lower() in ("utf-8", "utf8", "us-ascii"):
        return body
    try:
        return body.decode(declared[1]).encode()
    except (LookupError, UnicodeError):
        raise FsmResponseError(f"the body is not in its declared charset, {printable(declared[1])}") from None


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After, in seconds or as an HTTP-date relative to the service's clock.

    A time in the past gives 0, one in more than thirty years these, an invalid value None.
    """
    value: Any = headers.get("Retry-After", "").strip()
    try:
        if not value.removeprefix("-").isdecimal():
            until: Any = parsedate_tz(value)
            now: Any = parsedate_tz(headers.get("Date", formatdate()))
            value = mktime_tz(until) - mktime_tz(now)
        return min(max(0.0, float(value)), 1e9)
    except (ValueError, TypeError, OverflowError):
        return None
