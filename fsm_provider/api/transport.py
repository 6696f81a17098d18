"""One exchange with the service: a request out, the body of a success back, or a typed error.

It sends through requests' adapter, without the session around it: what that looks up in the
environment for every request (proxies, CA bundle) is looked up once, ``.netrc``, which would replace
the token, never, and a redirect is never followed. A failure before the first byte
of a request has left is told apart from any later one: only the former may be repeated for a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import quote, urlencode

import requests
import urllib3
from pydantic import SecretStr
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidJSONError, InvalidURL
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError

from fsm_provider import __version__
from fsm_provider.api.discretion import addresses_unlogged
from fsm_provider.api.errors import FsmConnectionError, FsmInputError, FsmResponseError, error_class_for
from fsm_provider.api.settings import Settings

EXCERPT_LENGTH = 300
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": f"airflow-provider-fsm/{__version__}",
}
MOST_CONNECTIONS = 64
"""Kept alive; a thread beyond that makes a connection for each of its requests."""
A_LONG_TIME = 1e9
"""Seconds; a longer Retry-After is read as this."""
REQUEST_ID_HEADER = "X-Request-ID"


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    :param prepared: the request as it is sent, but for the token; made where there is none.
    :param subject: what a write is about, for the error that says that it is uncertain.
    :param confidential: texts that no error may quote, should the service repeat them, and no log.
    """

    method: str
    path: str
    params: Mapping[str, Any] | list[tuple[str, str]] | None = None
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: dict[str, Any] = field(default_factory=dict)
    confidential: tuple[str, ...] = ()
    prepared: requests.PreparedRequest | None = None

    def with_query(self, params: Mapping[str, str]) -> Call:
        """Add parameters to a prepared call, without preparing it anew."""
        if self.prepared is None or not params:
            return self
        prepared = copy(self.prepared)
        url = str(prepared.url)
        prepared.url = f"{url}{'&' if '?' in url else '?'}{urlencode(params)}"
        return replace(self, prepared=prepared)

    @property
    def writes(self) -> bool:
        """Whether a repeat could do twice what was asked once."""
        return self.method not in ("GET", "HEAD", "OPTIONS")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Kept-alive connections to one service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._adapter = _Adapter(pool_maxsize=MOST_CONNECTIONS)
        with requests.Session() as session:
            environment = session.merge_environment_settings(
                settings.base_url,
                {},
                stream=True,
                verify=settings.ca_bundle or settings.verify_ssl,
                cert=None,
            )
        self._proxies = environment["proxies"]
        self._verify = cast(bool | str, environment["verify"])

    def close(self) -> None:
        """Close the connections."""
        self._adapter.close()

    def exchange(self, call: Call, token: SecretStr) -> bytes:
        """Send once and give the body of a success.

        :raises FsmInputError: where the call holds what JSON cannot.
        :raises FsmConnectionError: where nothing was sent.
        :raises FsmResponseError: where no whole answer came.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        request = call.prepared or self._prepare(call)
        request.headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        try:
            with addresses_unlogged(bool(call.confidential)):
                response = self._adapter.send(
                    request,
                    stream=True,
                    timeout=self._settings.timeout,
                    verify=self._verify,
                    proxies=self._proxies,
                )
        except (requests.RequestException, HTTPError, OSError) as error:
            *_, origin = _causes(error)
            if any(isinstance(cause, NewConnectionError) for cause in _causes(error)):
                raise FsmConnectionError(f"{self._settings.base_url} was not reached: {origin}") from None
            raise self._unanswered(origin) from None
        succeeded = 200 <= response.status_code < 300
        with response:
            try:
                body: bytes = response.raw.read(decode_content=True)
            except (HTTPError, OSError) as error:
                if succeeded:
                    *_, origin = _causes(error)
                    raise self._unanswered(origin) from None
                body = b""
        if not succeeded:
            raise error_class_for(response.status_code)(
                status=response.status_code,
                method=call.method,
                path=call.path,
                body_excerpt=_excerpt(body, (token.get_secret_value(), *call.confidential)),
                retry_after=seconds_to_wait(response.headers),
                request_id=response.headers.get(REQUEST_ID_HEADER),
            )
        return body

    def prepared(self, call: Call) -> Call:
        """Prepare a call once, for the pages of a listing."""
        return replace(call, prepared=self._prepare(call))

    def _prepare(self, call: Call) -> requests.PreparedRequest:
        request = requests.PreparedRequest()
        request.method = call.method
        request.headers = CaseInsensitiveDict({**_HEADERS, **call.headers})
        try:
            request.prepare_url(self._settings.base_url + call.path, call.params)
            request.prepare_body(None, None, call.json)
        except InvalidJSONError as error:
            raise FsmInputError(f"json: {error}") from None
        except InvalidURL:
            raise FsmInputError("host: is an address that no request can be sent to") from None
        return request

    def _unanswered(self, origin: BaseException) -> FsmResponseError:
        return FsmResponseError(
            f"no whole answer came: {type(origin).__name__}: {origin} (timeout {self._settings.timeout:g} s)"
        )


class _SaysWhenUnconnected:
    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except NewConnectionError:
            raise
        except (OSError, HTTPError) as error:
            raise NewConnectionError(self, str(error)) from error  # type: ignore[arg-type]


class _Connection(_SaysWhenUnconnected, HTTPConnection):
    pass


class _TLSConnection(_SaysWhenUnconnected, HTTPSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._use_our_pools(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # a SOCKS proxy's pools do its tunnelling
            self._use_our_pools(manager)
        return manager

    @staticmethod
    def _use_our_pools(manager: urllib3.PoolManager) -> None:
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Walk from what requests raised down to what happened on the socket.

    Their texts on the way hold the address with its query; the last one's does not.
    """
    current: BaseException | None = error
    while current is not None:
        yield current
        inner = (*current.args, getattr(current, "reason", None), current.__cause__)
        current = next((cause for cause in inner if isinstance(cause, BaseException)), None)


def _excerpt(body: bytes, confidential: tuple[str, ...]) -> str:
    text = " ".join(body.decode(errors="replace").split())
    for secret in confidential:
        for written in (secret, secret.replace("/", "\\/"), quote(secret, safe="")):
            text = text.replace(written, "***")
    return text[:EXCERPT_LENGTH]


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, in seconds or as an HTTP-date, against the service's own clock.

    A time that has passed gives 0; what is neither gives None.
    """
    value = headers.get("Retry-After", "").strip()
    if value.removeprefix("-").isdecimal():
        return min(max(0.0, float(value)), A_LONG_TIME)
    try:
        until = parsedate_to_datetime(value)
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
