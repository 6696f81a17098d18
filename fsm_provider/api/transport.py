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
from dataclasses import dataclass, field
from email.utils import formatdate, mktime_tz, parsedate_tz
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from json import dumps
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import requests
from pydantic import SecretStr
from requests.structures import CaseInsensitiveDict
from requests.utils import get_environ_proxies, requote_uri
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api.adapter import Adapter, Exchange, origin_of
from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmResponseError,
    error_class_for,
)
from fsm_provider.api.redaction import excerpt, printable, request_id_in
from fsm_provider.api.retry import Metrics, TimeLimit
from fsm_provider.api.settings import Settings, is_loopback
from fsm_provider.api.validation import HALF_A_CHARACTER, parse_headers

ResultT = TypeVar("ResultT")

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
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD", "OPTIONS")


class Transport:
    """Kept-alive connections to one service, and to other hosts that it names."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        with requests.Session() as session:
            self._verify = session.merge_environment_settings(
                *(settings.base_url, {}, True, settings.ca_bundle or settings.verify_ssl, None)
            )["verify"]
        self._proxies = _environment_proxies(settings.base_url)
        self._base_url = ""
        self._open()

    def _open(self) -> None:
        self._process, timeout = os.getpid(), self._settings.timeout
        self._adapter = Adapter(self._verify, timeout)
        self._public_adapter = Adapter(self._verify, timeout, public_only=True)

    def close(self) -> None:
        self._adapter.close()
        self._public_adapter.close()

    def request(self, call: ApiRequest, token: SecretStr, read: Callable[[bytes], ResultT]) -> ResultT:
        """Send once and return ``read(body)`` of a successful response.

        :raises FsmConnectionError: if nothing was sent.
        :raises FsmResponseError: if no complete response arrived.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        request = self._prepare(call, token)
        with Exchange(request.path_url, call.writes, call.limit) as exchange:
            with self.send(request, exchange, elsewhere=False, public_only=False) as response:
                succeeded = 200 <= response.status < 300
                try:
                    body = self._body_of(response, succeeded)
                except UNREADABLE as error:
                    if succeeded:
                        raise self.incomplete_response(error) from None
                    body = b""
            if not succeeded:
                said = excerpt(body, token.get_secret_value(), call.confidential)
                what: Any = {"method": call.method, "path": call.path, "body_excerpt": said}
                if response.status == 404:
                    what["url"] = f"{self._settings.base_url}{call.path}"
                raise refusal(response, token, **what)
            result = read(_in_utf8(body, response.headers.get("Content-Type", "")))
            exchange.keep_connection()
        return result

    def _body_of(self, response: BaseHTTPResponse, succeeded: bool) -> bytes:
        most = self._settings.max_response_mb * 2**20 if succeeded else MAX_ERROR_BODY
        length = response.headers.get("Content-Length", "")
        if "Content-Encoding" not in response.headers and length.isdecimal() and int(length) <= most:
            return response.read()
        body = bytearray()
        while len(body) <= most and (chunk := response.read(2**16, decode_content=True)):
            body += chunk
        if succeeded and len(body) > most:
            raise FsmResponseError(f"the response is larger than {most // 2**20} MiB, its max_response_mb")
        return bytes(body)

    def send(
        self, request: requests.PreparedRequest, exchange: Exchange, *, elsewhere: bool, public_only: bool
    ) -> BaseHTTPResponse:
        """Send once and return the response, its body unread.

        :param elsewhere: the URL is not on the service's host, so its proxies have to be looked up.
        """
        if self._process != os.getpid():  # after a fork, the connections are those of the parent
            self._open()
        url, status = str(request.url), "none"
        adapter = self._public_adapter if public_only else self._adapter
        proxies = _environment_proxies(url) if elsewhere else self._proxies
        try:
            response = adapter.exchange(exchange, request, proxies)
            status = str(response.status)
            return response
        except UNREADABLE as error:
            failure = self._failure(error, exchange, url if elsewhere else None)
        finally:
            self._metrics.incr("requests", method=str(request.method), status=status)
        raise failure  # not inside except: urllib3's error holds the token and the URL

    def _failure(self, error: BaseException, exchange: Exchange, other_url: str | None) -> FsmError:
        origin = origin_of(error)
        if exchange.has_begun:
            return self.incomplete_response(error)
        if isinstance(origin, UnicodeError | LocationParseError):  # their texts quote the input
            return FsmInputError("the request, or the proxy's URL, user or password, is not valid HTTP")
        host = "/".join(other_url.split("/", 3)[:3]) if other_url else self._settings.base_url
        return FsmConnectionError(f"{host} was not reached: {origin}")

    def _prepare(self, call: ApiRequest, token: SecretStr) -> requests.PreparedRequest:
        if not self._base_url:
            parts = as_sent(self._settings.base_url, FsmInputError("host: is not a valid URL"))
            self._base_url = parts.geturl().rstrip("/")
        request = requests.PreparedRequest()
        request.method = call.method
        headers = {**_HEADERS, **parse_headers("headers", call.headers)}
        request.headers = CaseInsensitiveDict(headers, Authorization=f"Bearer {token.get_secret_value()}")
        try:
            items = call.params.items() if isinstance(call.params, Mapping) else call.params or ()
            query = urlencode([(name, value) for name, value in items if value is not None], doseq=True)
        except (TypeError, ValueError) as error:
            raise FsmInputError(f"params: cannot be written into a URL ({type(error).__name__})") from None
        request.url = f"{self._base_url}{requote_uri(call.path)}{f'?{query}' if query else ''}"
        if call.json is not None:
            try:
                request.body = dumps(call.json, allow_nan=False).encode()
                if b"\\ud" in request.body:
                    dumps(call.json, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise FsmInputError(f"json: {HALF_A_CHARACTER}") from None
            except (TypeError, ValueError, RecursionError) as error:
                raise FsmInputError(f"json: {error}") from None
            request.headers.setdefault("Content-Type", "application/json")
        return request

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


def _environment_proxies(url: str) -> dict[str, str]:
    """Return the environment's proxies; none for http to this machine, which would leave it in the clear."""
    parts = urlsplit(url)
    stays_here = parts.scheme == "http" and is_loopback(parts.hostname)
    return {} if stays_here else dict(get_environ_proxies(url))


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
