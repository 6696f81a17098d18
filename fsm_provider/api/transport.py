"""Send one request: return the body of a success, or raise a typed error.

It uses requests' adapter without a session: proxies and CA bundle are looked up in the environment only once,
``.netrc``, which would replace the token, is ignored, and no redirect is followed. A failure before the first
byte was sent is distinguished from later ones: only then may a write be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, RemoteDisconnected, UnknownProtocol
from json import dumps
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import requests
from pydantic import SecretStr
from requests.exceptions import InvalidJSONError, InvalidURL
from requests.structures import CaseInsensitiveDict
from requests.utils import get_environ_proxies
from urllib3 import Timeout
from urllib3.exceptions import HTTPError, InvalidChunkLength, InvalidHeader, LocationParseError

from fsm_provider import __version__
from fsm_provider.api.adapter import Adapter, Exchange, causes
from fsm_provider.api.errors import (
    READS,
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
from fsm_provider.api.validation import parse_headers, refuse_half_characters

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

    :param prepared: the prepared request without the token; default: prepared on sending.
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
    prepared: requests.PreparedRequest | None = None
    limit: TimeLimit | None = None

    def with_query(self, params: Mapping[str, str]) -> ApiRequest:
        """Add query parameters to a prepared request without preparing it again."""
        if self.prepared is None or not params:
            return self
        prepared = copy(self.prepared)
        url = str(prepared.url)
        prepared.url = f"{url}{'&' if '?' in url else '?'}{urlencode(params)}"
        return replace(self, prepared=prepared)

    @property
    def writes(self) -> bool:
        """Whether a repeat could take effect twice."""
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

    def close(self) -> None:
        """Close the connections."""
        for adapter in (self._adapter, self._write_adapter, self._public_adapter):
            adapter.close()

    def request(self, call: ApiRequest, token: SecretStr, read: Callable[[bytes], ResultT]) -> ResultT:
        """Send once and return ``read(body)`` of a successful response.

        :raises FsmInputError: if the request cannot be written as HTTP and JSON.
        :raises FsmConnectionError: if nothing was sent.
        :raises FsmResponseError: if no complete response arrived.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        request = call.prepared or self._prepare(call)
        request.headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        with Exchange(call.limit, bool(call.confidential)) as exchange:
            result = read(self._body(call, request, token, exchange))
            exchange.keep_connection()
        return result

    def _body(
        self, call: ApiRequest, request: requests.PreparedRequest, token: SecretStr, exchange: Exchange
    ) -> bytes:
        response = self.send(request, exchange)
        succeeded = 200 <= response.status_code < 300
        limit = self._settings.max_response_mb
        with response:
            try:
                body = _body_of(response, limit * 2**20 if succeeded else MAX_ERROR_BODY)
                if succeeded and len(body) > limit * 2**20:
                    raise FsmResponseError(f"the response is larger than {limit} MiB, its max_response_mb")
            except UNREADABLE as error:
                if succeeded:
                    raise self.incomplete_response(error) from None
                body = b""
        if not succeeded:
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
            raise failure
        return _in_utf8(body, response.headers.get("Content-Type", ""))

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
        :param public_only: see :class:`~fsm_provider.api.adapter.Adapter`.
        :raises FsmInputError: if the request cannot be written as HTTP.
        :raises FsmConnectionError: if nothing was sent.
        :raises FsmResponseError: if no response arrived.
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

    def prepared(self, call: ApiRequest) -> ApiRequest:
        """Prepare a request once, for all pages of a listing."""
        return replace(call, prepared=self._prepare(call))

    def _prepare(self, call: ApiRequest) -> requests.PreparedRequest:
        request = requests.PreparedRequest()
        request.method = call.method
        parse_headers("headers", call.headers)
        request.headers = CaseInsensitiveDict({**_HEADERS, **call.headers})
        try:
            request.prepare_url(self._settings.base_url + call.path, call.params)
        except InvalidURL:
            raise FsmInputError("host: is not a valid URL") from None
        except (TypeError, ValueError) as error:
            raise FsmInputError(f"params: cannot be written into a URL ({type(error).__name__})") from None
        try:
            request.prepare_body(None, None, call.json)
        except (InvalidJSONError, TypeError, RecursionError) as error:
            raise FsmInputError(f"json: {error}") from None
        _check_characters(request.body, call.json)
        request.headers = dict(request.headers)  # type: ignore[assignment] # urllib3 copies it for each page
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


def _body_of(response: requests.Response, most: int) -> bytes:
    """Return the decoded body of a response, or its beginning if it is longer than ``most`` bytes."""
    length = response.headers.get("Content-Length", "")
    if "Content-Encoding" not in response.headers and length.isdecimal() and int(length) <= most:
        return bytes(response.raw.read())
    body = bytearray()
    while len(body) <= most and (chunk := response.raw.read(_CHUNK, decode_content=True)):
        body += chunk
    return bytes(body)


def _in_utf8(body: bytes, content_type: str) -> bytes:
    """Return JSON in UTF-8, whatever charset is declared.

    :raises FsmResponseError: naming the charset, if it is unknown or the body is not in it.
    """
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


def _check_characters(body: Any, json: Any) -> None:
    if not body or b"\\ud" not in body:
        return
    parts = {f"json.{name}": value for name, value in json.items()} if isinstance(json, Mapping) else {}
    for name, part in {**parts, "json": json}.items():
        refuse_half_characters(name, dumps(part, ensure_ascii=False))


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
