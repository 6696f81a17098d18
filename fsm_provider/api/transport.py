"""Send one request: return the body of a success, or raise a typed error.

It uses requests' adapter without a session: proxies and CA bundle are looked up in the environment only once,
``.netrc``, which would replace the token, is ignored, and no redirect is followed. A failure before the first
byte was sent is distinguished from later ones: only then may a write be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from json import dumps
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import requests
from pydantic import SecretStr
from requests.exceptions import InvalidJSONError, InvalidURL
from requests.structures import CaseInsensitiveDict
from requests.utils import get_environ_proxies, requote_uri
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api.adapter import Adapter, Exchange, causes
from fsm_provider.api.errors import (
    READS,
    FsmApiError,
    FsmConnectionError,
    FsmError,
    FsmInputError,
    FsmNotFoundError,
    FsmResponseError,
    error_class_for,
)
from fsm_provider.api.limits import TimeLimit
from fsm_provider.api.metrics import Metrics
from fsm_provider.api.redaction import excerpt, printable, request_id_in
from fsm_provider.api.settings import Settings, is_loopback
from fsm_provider.api.validation import HALF_A_CHARACTER, parse_headers

ResultT = TypeVar("ResultT")

USER_AGENT = f"airflow-provider-fsm/{__version__}"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": USER_AGENT,
}
_QUOTING = (BadStatusLine, UnknownProtocol, InvalidChunkLength, InvalidHeader)
"""Errors whose text quotes the response."""
UNREADABLE = (HTTPError, OSError, ValueError, OverflowError, MemoryError)
"""Errors of reading a body: the last three are of one whose length is negative, or larger than any memory."""
MAX_ERROR_BODY = 2**20
"""Bytes of the response of an error, decoded: more are not read."""
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_CHUNK = 2**16
MAX_CONNECTIONS = 64
"""Kept alive; threads beyond that open a connection per request."""
MAX_RETRY_AFTER = 1e9
"""Seconds; a longer Retry-After is cut to this."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request.

    :param subject: the subject of a write, for :class:`FsmUncertainWriteError`.
    :param confidential: texts that no error or log may contain, even if the service repeats them.
    :param limit: until when it may begin, and how long it may take.
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
        return self.method not in READS

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Kept-alive connections to one service, and to other hosts that it names.

    :param metrics: counts the requests.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._timeout = Timeout(connect=settings.timeout, read=settings.timeout)
        self._adapter = Adapter(pool_maxsize=MAX_CONNECTIONS)
        self._write_adapter = Adapter(pool_maxsize=MAX_CONNECTIONS, for_writes=True)
        self._public_adapter = Adapter(pool_maxsize=MAX_CONNECTIONS, public_only=True)
        with requests.Session() as session:
            environment = session.merge_environment_settings(
                settings.base_url,
                {},
                stream=True,
                verify=settings.ca_bundle or settings.verify_ssl,
                cert=None,
            )
        self._proxies = _environment_proxies(settings.base_url)
        self._verify = cast(bool | str, environment["verify"])

    @cached_property
    def _base_url(self) -> str:
        request = requests.PreparedRequest()
        try:
            request.prepare_url(self._settings.base_url, None)
        except InvalidURL:
            raise FsmInputError("host: is not a valid URL") from None
        return str(request.url).rstrip("/")

    def close(self) -> None:
        for adapter in (self._adapter, self._write_adapter, self._public_adapter):
            adapter.close()

    def request(self, call: ApiRequest, token: SecretStr, read: Callable[[bytes], ResultT]) -> ResultT:
        """Send once and return ``read(body)`` of a successful response.

        :raises FsmInputError: if the request cannot be written as HTTP and JSON.
        :raises FsmConnectionError: if nothing was sent.
        :raises FsmResponseError: if no complete response arrived.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        request = self._prepare(call, token)
        with Exchange(call.limit, bool(call.confidential)) as exchange:
            response = self.send(request, exchange)
            succeeded = 200 <= response.status_code < 300
            with response:
                try:
                    body = self._body_of(response, succeeded)
                except UNREADABLE as error:
                    if succeeded:
                        raise self.incomplete_response(error) from None
                    body = b""
            if not succeeded:
                raise self._refusal(call, response, body, token)
            result = read(_in_utf8(body, response.headers.get("Content-Type", "")))
            exchange.keep_connection()
        return result

    def _body_of(self, response: requests.Response, succeeded: bool) -> bytes:
        """Return the decoded body of a response; of an error's, the beginning if it is large."""
        most = self._settings.max_response_mb * 2**20 if succeeded else MAX_ERROR_BODY
        length = response.headers.get("Content-Length", "")
        if "Content-Encoding" not in response.headers and length.isdecimal() and int(length) <= most:
            return bytes(response.raw.read())
        body = bytearray()
        while len(body) <= most and (chunk := response.raw.read(_CHUNK, decode_content=True)):
            body += chunk
        if succeeded and len(body) > most:
            raise FsmResponseError(f"the response is larger than {most // 2**20} MiB, its max_response_mb")
        return bytes(body)

    def _refusal(
        self, call: ApiRequest, response: requests.Response, body: bytes, token: SecretStr
    ) -> FsmApiError:
        failure = error_class_for(response.status_code)(
            status=response.status_code,
            method=call.method,
            path=call.path,
            body_excerpt=excerpt(body, token.get_secret_value(), call.confidential),
            retry_after=seconds_to_wait(response.headers),
            request_id=request_id_in(response.headers, token.get_secret_value()),
        )
        if isinstance(failure, FsmNotFoundError):
            failure.url = f"{self._settings.base_url}{call.path}"
        return failure

    def send(
        self,
        request: requests.PreparedRequest,
        exchange: Exchange,
        *,
        elsewhere: bool = False,
        public_only: bool = False,
    ) -> requests.Response:
        """Send once and return the response, its body unread.

        :param elsewhere: the URL is not on the service's host, so its proxies have to be looked up.
        """
        url = str(request.url)
        adapter = self._adapter if request.method in READS else self._write_adapter
        if public_only:
            adapter = self._public_adapter
        status = "none"
        try:
            response = adapter.exchange(
                exchange,
                request,
                timeout=self._timeout,
                verify=self._verify,
                proxies=_environment_proxies(url) if elsewhere else self._proxies,
            )
            status = str(response.status_code)
            return response
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            failure = self._failure(error, exchange, url if elsewhere else None)
        finally:
            self._metrics.incr("requests", method=str(request.method), status=status)
        raise failure  # not inside except: requests' error holds the token and the URL

    def _failure(self, error: BaseException, exchange: Exchange, other_url: str | None) -> FsmError:
        *_, origin = causes(error)
        if exchange.has_begun:
            return self.incomplete_response(error)
        if isinstance(origin, UnicodeError | LocationParseError):  # their texts quote the input
            return FsmInputError("the request, or the proxy's URL, user or password, is not valid HTTP")
        host = "{0.scheme}://{0.netloc}".format(urlsplit(other_url)) if other_url else self._settings.base_url
        return FsmConnectionError(f"{host} was not reached: {origin}")

    def _prepare(self, call: ApiRequest, token: SecretStr) -> requests.PreparedRequest:
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
        try:
            request.prepare_body(None, None, call.json)
            if b"\\ud" in (request.body or b""):
                dumps(call.json, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise FsmInputError(f"json: {HALF_A_CHARACTER}") from None
        except (InvalidJSONError, TypeError, RecursionError) as error:
            raise FsmInputError(f"json: {error}") from None
        return request

    def incomplete_response(self, error: BaseException) -> FsmResponseError:
        """Make the error for a response that is missing or incomplete, quoting nothing of it."""
        *_, origin = causes(error)
        what = type(origin).__name__
        if isinstance(origin, RemoteDisconnected) or not isinstance(origin, _QUOTING):
            what += f": {origin}"
        return FsmResponseError(
            f"no complete response arrived: {what} (timeout {self._settings.timeout:g} s)"
        )


def _in_utf8(body: bytes, content_type: str) -> bytes:
    """Return JSON in UTF-8, whatever charset is declared."""
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
    if parts.scheme == "http" and is_loopback(parts.hostname):
        return {}
    return dict(get_environ_proxies(url))


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After, in seconds or as an HTTP-date relative to the service's clock.

    A time in the past gives 0; an invalid value gives None.
    """
    value = headers.get("Retry-After", "").strip()
    try:
        if value.removeprefix("-").isdecimal():
            seconds = float(value)
        else:
            until = _http_date(value)
            now = _http_date(headers["Date"]) if "Date" in headers else datetime.now(UTC)
            seconds = (until - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def _http_date(text: str) -> datetime:
    date = parsedate_to_datetime(text)
    return date if date.tzinfo else date.replace(tzinfo=UTC)  # the form of asctime has no zone
