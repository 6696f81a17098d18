"""Send one request: return the body of a success, or raise a typed error.

It sends through requests' adapter. A session of requests would follow redirects, and replace the
token by what ``.netrc`` holds. Nothing is repeated here: the class of an error says whether a write
may have taken effect, and so whether it may be sent again.
"""

import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import mktime_tz, parsedate_tz
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import requests
from pydantic import SecretStr
from pydantic_core import to_json
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_environ_proxies, requote_uri, select_proxy
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api.connections import (
    Connection,
    Exchange,
    PublicConnection,
    before_path,
    connection_class,
    current,
    root_cause,
)
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
from fsm_provider.api.metrics import Metrics
from fsm_provider.api.parsing import parse_json, warn_once
from fsm_provider.api.redaction import excerpt, hide_in, may_hold, printable, request_id_in
from fsm_provider.api.request import ApiRequest, TimeLimit
from fsm_provider.api.settings import Settings, is_readable_on_the_way
from fsm_provider.api.validation import ResultT, parse_headers

logger: logging.Logger = logging.getLogger(__name__)

USER_AGENT = f"airflow-provider-fsm/{__version__}"
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": USER_AGENT,
}
_QUOTING = (BadStatusLine, UnknownProtocol, InvalidChunkLength, InvalidHeader)
"""Exceptions whose texts quote the response."""
UNREADABLE = (HTTPError, OSError, ValueError, OverflowError, MemoryError)
"""What urllib3 raises where no response arrives, or not all of its body.

The last three are for a body whose length is negative, or larger than any memory.
"""
MAX_ERROR_BODY = 2**20  # bytes, decoded: more are not read
RESPONSE_TIMEOUTS = 4
"""Timeouts of the connection in which a request is sent and its response complete.

It does not count where the caller has a limit of its own: a ledger's lease, a PDF's time.
"""
_CHUNK = 2**16  # bytes, decoded, that are read at once


class Transport:
    """Sends requests over connections that are kept alive: to one service, and to hosts it names.

    A client makes one, and its threads share it. The first request makes the pools of connections.
    After a fork, the first request of the child makes others, as those that are there are the
    parent's; so does a request after ``close``. Writes may go over connections that were used
    before, until no response comes over such a connection to the service: from then on, each write
    begins on a new one.

    :param throttle: waits until a request to the service may begin.
    :ivar base: the service's base URL, its host as it is sent.
    """

    def __init__(self, settings: Settings, metrics: Metrics, throttle: Callable[[], None]) -> None:
        base = split_as_sent(settings.base_url)
        if base is None:
            raise FsmInputError("host: is not a valid URL")
        self.base: SplitResult = base
        self.throttle = throttle
        self._settings = settings
        self._metrics = metrics
        self._verify = _certificates_for(settings)
        self._timeout = Timeout(connect=settings.timeout, read=settings.timeout)
        self._may_reuse_for_writes = True
        self._pools_process = 0  # identifier of the process that made the pools; 0: there are none
        self._adapters: dict[type[Connection], HTTPAdapter] = {}
        self._service_pool: HTTPConnectionPool | None = None

    def close(self) -> None:
        self._pools_process = 0
        self._service_pool = None
        for adapter in self._adapters.values():
            adapter.close()

    def send_once(
        self,
        request: ApiRequest,
        read: Callable[[bytes], ResultT],
        token: SecretStr,
        limit: TimeLimit | None = None,
    ) -> ResultT:
        """Send a request once; return what ``read`` makes of the body of a success.

        :param limit: of a request whose turn the caller has reserved; None: it waits here for its
            turn, and has ``RESPONSE_TIMEOUTS`` timeouts of the connection.
        :raises FsmUncertainWriteError: if a write may have taken effect nevertheless; any
            other FsmError: it has not.
        """
        if limit is None:
            self.throttle()
            limit = TimeLimit(RESPONSE_TIMEOUTS * self._settings.timeout)
        exchange = self._prepare(request, token, limit)
        attempted_at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            return self._send_and_read(request, exchange, read, token)
        except FsmApiError as error:
            if not exchange.is_write or is_refusal(error.status):
                raise
            reason = str(replace(error, body_excerpt=""))
            body_excerpt = error.body_excerpt
        except FsmResponseError as error:
            if not exchange.is_write:
                raise FsmResponseError(f"{request.method} {request.path}: {error}") from None
            reason = str(error)
            body_excerpt = ""
        # A write whose response is neither a success nor a refusal may have taken effect.
        # Not inside except: a log of this error would show the other one as well.
        raise FsmUncertainWriteError(
            request.method, request.path, reason, attempted_at, request.subject, body_excerpt
        )

    def _send_and_read(
        self,
        request: ApiRequest,
        exchange: Exchange,
        read: Callable[[bytes], ResultT],
        token: SecretStr,
    ) -> ResultT:
        """Return what ``read`` makes of a success, which confirms the exchange.

        :raises FsmApiError: for any other status.
        :raises FsmResponseError: if no complete and readable response arrives.
        """
        with self.open_response(exchange) as response:
            is_success = 200 <= response.status < 300
            body = self._read_body(response, is_success)
        token_text = token.get_secret_value()
        if not is_success:
            raise error_for(
                response,
                token,
                error_class_for(response.status),
                method=request.method,
                path=request.path,
                body_excerpt=excerpt(body, token_text, request.confidential),
                url=f"{self._settings.base_url}{request.path}",
                connection=self._settings._connection,
            )
        body = _to_utf8(body, response.headers.get("Content-Type", ""))
        if may_hold(body, token_text):  # what is read may be stored
            body = to_json(hide_in(parse_json(body), token_text))
        result = read(body)
        exchange.is_confirmed = True
        return result

    def _read_body(self, response: BaseHTTPResponse, is_success: bool) -> bytes:
        """Return the body of a success; of an error, its start, or nothing if it is incomplete."""
        max_bytes = self._settings.max_response_mb * 2**20 if is_success else MAX_ERROR_BODY
        try:
            body = _read_until(response, max_bytes)
        except UNREADABLE as error:
            if is_success:
                raise self.incomplete_response(error) from None
            return b""
        if is_success and len(body) > max_bytes:
            raise FsmResponseError(
                f"the response is larger than {max_bytes // 2**20} MiB, its max_response_mb"
            )
        return body

    def open_response(
        self, exchange: Exchange, *, elsewhere: bool = False, public_only: bool = False
    ) -> BaseHTTPResponse:
        """Send an exchange, and return its response, the body unread.

        :param elsewhere: to another place than the service's own scheme, host and port.
        :param public_only: refuse a host whose address is not public.
        """
        exchange.limit.start()
        exchange.may_reuse_connection = self._may_reuse_for_writes or not exchange.is_write
        status = "none"
        reset_to = current.set(exchange)
        try:
            pool = self._pool_for(exchange.url, elsewhere, public_only)
            response = pool.urlopen(
                exchange.method,
                exchange.url,
                exchange.body,
                exchange.headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
            status = str(response.status)
            return response
        except UNREADABLE as error:
            cause = root_cause(error)
        finally:
            current.reset(reset_to)
            self._metrics.incr("requests", method=exchange.method, status=status)
        if exchange.has_reused_connection and not elsewhere:
            self._may_reuse_for_writes = False
            warn_once(
                logger,
                ("used connection", self._settings.base_url),
                "%s: no response came over a connection that was used before: writes begin on new "
                "connections from now on",
                self._settings.base_url,
                level=logging.INFO,
            )
        # Not inside except: urllib3's error holds the token and the URL.
        raise self._error_without_response(exchange, cause)

    def _error_without_response(self, exchange: Exchange, cause: BaseException) -> FsmError:
        """Make the error for a request without a response: its class says whether it was sent."""
        if exchange.began_at:
            return self.incomplete_response(cause)
        if isinstance(cause, UnicodeError | LocationParseError):  # their texts quote the input
            return FsmInputError(
                "the request, or the proxy's URL, user or password, is not valid HTTP"
            )
        hint = ""
        if "WRONG_VERSION_NUMBER" in str(cause):
            hint = "; if it speaks http, begin host with http://"
        host = before_path(exchange.url)
        return FsmConnectionError(f"{host} was not reached: {cause}{hint}")

    def _pool_for(self, url: str, elsewhere: bool, public_only: bool) -> HTTPConnectionPool:
        """Return connections to a host; after a fork, those that are there are the parent's.

        Those to the service are looked up once: it takes a tenth of a POST's time.
        """
        if self._pools_process != os.getpid():
            self._adapters = {
                Connection: HTTPAdapter(pool_maxsize=64),
                PublicConnection: HTTPAdapter(pool_maxsize=64),
            }
            self._service_pool = None
            self._pools_process = os.getpid()
        if elsewhere:
            return self._look_up_pool(url, public_only)
        pool = self._service_pool  # another thread may close the client meanwhile
        if pool is None:
            pool = self._look_up_pool(url, public_only=False)
            self._service_pool = pool
        return pool

    def _look_up_pool(self, url: str, public_only: bool) -> HTTPConnectionPool:
        """Look up the connections to a host, or to its proxy, which decides what can be reached."""
        parts = urlsplit(url)
        # Through a proxy, http to this machine would leave it in the clear.
        stays_here = parts.scheme == "http" and not is_readable_on_the_way(parts)
        proxies = {} if stays_here else get_environ_proxies(url)
        request = requests.PreparedRequest()
        request.url = url
        # Each class of connections has its own adapter, as each pool keeps one class.
        adapter = self._adapters[PublicConnection if public_only else Connection]
        pool: Any = adapter.get_connection_with_tls_context(request, self._verify, proxies)
        # Through a proxy, the peer is the proxy.
        checks_peer = public_only and not select_proxy(url, proxies)
        pool.ConnectionCls = connection_class(
            pool.ConnectionCls, PublicConnection if checks_peer else Connection
        )
        return cast(HTTPConnectionPool, pool)

    def _prepare(self, request: ApiRequest, token: SecretStr, limit: TimeLimit) -> Exchange:
        """Make the exchange of a request: its URL, and its headers with the token."""
        headers = CaseInsensitiveDict({**_HEADERS, **parse_headers("headers", request.headers)})
        headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        if request.body is not None:
            headers.setdefault("Content-Type", "application/json")
        target = self.base.path.rstrip("/") + requote_uri(request.path)
        if request.query:
            target += f"?{request.query}"
        url = f"{self.base.scheme}://{self.base.netloc}{target}"
        return Exchange(request.method, url, target, headers, limit, request.body)

    def incomplete_response(self, error: BaseException) -> FsmResponseError:
        """Make the error for a response that is missing or incomplete, quoting nothing of it."""
        cause = root_cause(error)
        reason = type(cause).__name__
        quotes_response = isinstance(cause, _QUOTING) and not isinstance(cause, RemoteDisconnected)
        if not quotes_response:
            reason += f": {cause}"
        return FsmResponseError(
            f"no complete response arrived: {reason} (timeout {self._settings.timeout:g} s)"
        )


def split_as_sent(url: str) -> SplitResult | None:
    """Split a URL, its host as it is sent; return None if it is not valid."""
    request = requests.PreparedRequest()
    try:
        request.prepare_url(url, None)
        parts = urlsplit(str(request.url))
        _ = parts.port  # raises ValueError if it is no port
    except (requests.RequestException, ValueError):
        return None
    return parts


def error_for(
    response: BaseHTTPResponse,
    token: SecretStr,
    error_class: type[FsmApiError],
    **details: str,
) -> FsmApiError:
    """Make the error for a response that is not a success.

    :param details: further fields of the error, such as ``method`` and ``path``.
    """
    return error_class(
        response.status,
        retry_after=_retry_after(response),
        request_id=request_id_in(response.headers, token.get_secret_value()),
        **details,
    )


def _certificates_for(settings: Settings) -> bool | str:
    """Return the path of the certificates to trust, False to trust any.

    If the settings name none, the environment may, as for requests.
    """
    verify = settings.ca_bundle or settings.verify_ssl
    # This session reads the environment, and sends nothing.
    with requests.Session() as session:
        merged = session.merge_environment_settings(settings.base_url, {}, True, verify, None)
    if merged["verify"] is True:
        return DEFAULT_CA_BUNDLE_PATH
    return cast(bool | str, merged["verify"])


def _read_until(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    """Read a body, decoded, to its end, or until it is longer than ``max_bytes``."""
    length = response.headers.get("Content-Length", "")
    is_encoded = "Content-Encoding" in response.headers
    if not is_encoded and length.isdecimal() and int(length) <= max_bytes:
        return response.read()
    body = bytearray()
    while len(body) <= max_bytes:
        chunk = response.read(_CHUNK, decode_content=True)
        if not chunk:
            break
        body += chunk
    return bytes(body)


def _to_utf8(body: bytes, content_type: str) -> bytes:
    declared = _CHARSET.search(content_type)
    if declared is None or declared[1].lower() in ("utf-8", "utf8", "us-ascii"):
        return body
    try:
        return body.decode(declared[1]).encode()
    except (LookupError, UnicodeError):
        raise FsmResponseError(
            f"the body is not in its declared charset, {printable(declared[1])}"
        ) from None


def _retry_after(response: BaseHTTPResponse) -> float | None:
    """Return the seconds that the service asks to wait; None if it does not, or not readably.

    A date is one of the service's clock, which its Date header shows.
    """
    asked = response.headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        return min(float(asked), 1e9)
    until = _http_date(asked)
    if until is None:
        return None
    now = _http_date(response.headers.get("Date", ""))
    if now is None:
        now = time.time()
    return min(max(until - now, 0.0), 1e9)


def _http_date(text: str) -> float | None:
    """Return the time of an HTTP date, in seconds since 1970; None if it is not readable."""
    try:
        parts = parsedate_tz(text)
        return None if parts is None else float(mktime_tz(parts))
    except (TypeError, ValueError, OverflowError):
        return None
