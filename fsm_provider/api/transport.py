"""One exchange with the service: a request out, the body of a success back, or a typed error.

It sends through requests' adapter, without the session around it: what that looks up in the
environment for every request (proxies, CA bundle) is looked up once, ``.netrc``, which would replace
the token, never, and a redirect is never followed. A failure before the first byte
of a request has left is told apart from any later one: only the former may be repeated for a write.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import requests
from pydantic import SecretStr
from requests.exceptions import InvalidJSONError, InvalidURL
from requests.structures import CaseInsensitiveDict
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, NewConnectionError

from fsm_provider import __version__
from fsm_provider.api.connections import Adapter, causes
from fsm_provider.api.discretion import addresses_unlogged
from fsm_provider.api.errors import FsmConnectionError, FsmInputError, FsmResponseError, error_class_for
from fsm_provider.api.settings import Settings

EXCERPT_LENGTH = 300
USER_AGENT = f"airflow-provider-fsm/{__version__}"
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": USER_AGENT,
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
    """Kept-alive connections to one service, and to other hosts that it names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._adapter = Adapter(pool_maxsize=MOST_CONNECTIONS)
        self._public_adapter = Adapter(pool_maxsize=MOST_CONNECTIONS, public_only=True)
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
        self._public_adapter.close()

    def exchange(self, call: Call, token: SecretStr) -> bytes:
        """Send once and give the body of a success.

        :raises FsmInputError: where the call holds what JSON cannot.
        :raises FsmConnectionError: where nothing was sent.
        :raises FsmResponseError: where no whole answer came.
        :raises FsmApiError: for any status that is not a success, whatever its body.
        """
        request = call.prepared or self._prepare(call)
        request.headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        response = self.send(request, confidential=bool(call.confidential))
        succeeded = 200 <= response.status_code < 300
        with response:
            try:
                body: bytes = response.raw.read(decode_content=True)
            except (HTTPError, OSError) as error:
                if succeeded:
                    raise self.unanswered(error) from None
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

    def send(
        self,
        request: requests.PreparedRequest,
        *,
        confidential: bool = False,
        elsewhere: bool = False,
        public_only: bool = False,
    ) -> requests.Response:
        """Send once and give the answer, of which the body is still to be read.

        :param confidential: the address holds what no log may.
        :param elsewhere: it is not the service's own, for which the environment's proxies are known.
        :param public_only: see :class:`~fsm_provider.api.connections.Adapter`.
        :raises FsmConnectionError: where nothing was sent.
        :raises FsmResponseError: where no answer came.
        """
        url = str(request.url)
        adapter = self._public_adapter if public_only else self._adapter
        try:
            with addresses_unlogged(confidential):
                return adapter.send(
                    request,
                    stream=True,
                    timeout=self._settings.timeout,
                    verify=self._verify,
                    proxies=get_environ_proxies(url) if elsewhere else self._proxies,
                )
        except (requests.RequestException, HTTPError, OSError) as error:
            *_, origin = causes(error)
            if any(isinstance(cause, NewConnectionError) for cause in causes(error)):
                parts = urlsplit(url)
                host = f"{parts.scheme}://{parts.netloc}" if elsewhere else self._settings.base_url
                raise FsmConnectionError(f"{host} was not reached: {origin}") from None
            raise self.unanswered(error) from None

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

    def unanswered(self, error: BaseException) -> FsmResponseError:
        """Say that an answer did not come, or not whole."""
        *_, origin = causes(error)
        return FsmResponseError(
            f"no whole answer came: {type(origin).__name__}: {origin} (timeout {self._settings.timeout:g} s)"
        )


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
