"""The PDF of a form: a file at an address that came in a record, on the service's own host or another.

The service names the address (2.3), so it is not trusted with more than it needs: nothing but its own
scheme, host and port gets the token, and no other host is reached on an inner network. A redirect is
followed by hand, each step under the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
from pydantic import SecretStr
from requests.sessions import SessionRedirectMixin
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import HTTPError

from fsm_provider.api.connections import refuse_unless_public
from fsm_provider.api.errors import (
    FsmAddressError,
    FsmApiError,
    FsmConnectionError,
    FsmFileError,
    FsmNotPdfError,
    FsmResponseError,
    error_class_for,
)
from fsm_provider.api.models import Form
from fsm_provider.api.settings import Settings, is_loopback
from fsm_provider.api.transport import REQUEST_ID_HEADER, USER_AGENT, Transport, seconds_to_wait

ResultT = TypeVar("ResultT")

MOST_REDIRECTS = 5
PIECE = 2**16
"""Bytes of a file in memory at once."""
_SIGNATURE = b"%PDF-"
_HEADERS = {"Accept": "application/pdf, */*;q=0.1", "Accept-Encoding": "identity", "User-Agent": USER_AGENT}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch.

    :param what: what it is, for messages, none of which holds the address.
    :param max_bytes: a larger one is refused.
    :param allow_private_addresses: whether another host may have an address that is not public.
    """

    what: str
    address: str = field(repr=False)
    max_bytes: int
    allow_private_addresses: bool

    @classmethod
    def of(cls, form: Form, max_bytes: int, allow_private_addresses: bool) -> Download:
        """Make that of a form's PDF.

        :raises FsmAddressError: where the form has no address.
        """
        what, address = f"the PDF of form {form.id}", form.form_pdf_url
        if not isinstance(address, str) or not address:
            raise FsmAddressError(f"{what}: its record has no formPDFURL")
        return cls(what, address, max_bytes, allow_private_addresses)


class Downloads:
    """Fetches files through a service's transport.

    :param wait_for_our_turn: called before each request to the service itself.
    """

    def __init__(
        self, transport: Transport, settings: Settings, wait_for_our_turn: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._allow_http = settings.allow_http
        self._own = _parts(settings.base_url)
        self._wait_for_our_turn = wait_for_our_turn

    def fetch(
        self, download: Download, token: SecretStr, read: Callable[[Iterator[bytes]], ResultT]
    ) -> ResultT:
        """Send once, follow what redirects there are, and have the file read piece by piece.

        :raises FsmError: as :meth:`fsm_provider.api.FsmClient.download_pdf` does.
        """
        try:
            with self._opened(download, token) as response:
                return read(self._pieces(response, download))
        except (FsmAddressError, FsmConnectionError, FsmFileError, FsmResponseError) as error:
            raise type(error)(f"{download.what}: {error.message}") from None

    @contextmanager
    def _opened(self, download: Download, token: SecretStr) -> Iterator[requests.Response]:
        address = download.address
        for _ in range(MOST_REDIRECTS + 1):
            request = _request(address)
            parts = urlsplit(str(request.url))
            self._admit(parts, download)
            ours = _origin(parts) == _origin(self._own)
            if ours:
                request.headers["Authorization"] = f"Bearer {token.get_secret_value()}"
                self._wait_for_our_turn()
            response = self._transport.send(
                request, confidential=True, elsewhere=not ours, public_only=self._is_kept_out(parts, download)
            )
            with response:
                target = SessionRedirectMixin().get_redirect_target(response)
                if target is None:
                    if response.status_code != 200:
                        raise _refusal(response, download, ours)
                    yield response
                    return
            address = urljoin(str(request.url), target)
        raise FsmAddressError(f"its address redirects more than {MOST_REDIRECTS} times")

    def _admit(self, parts: SplitResult, download: Download) -> None:
        if parts.scheme not in _PORTS or not parts.hostname:
            raise FsmAddressError("its address is not one of http or https")
        if "@" in parts.netloc:
            raise FsmAddressError("its address holds a user or password")
        host = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme == "http" and not (self._allow_http or is_loopback(parts.hostname)):
            raise FsmAddressError(f"{host} is not encrypted: set the connection's allow_http if it is meant")
        if self._is_kept_out(parts, download):
            with suppress(ValueError):  # a name; behind a proxy nobody else would look at a number
                refuse_unless_public(parts.hostname)

    def _is_kept_out(self, parts: SplitResult, download: Download) -> bool:
        return not download.allow_private_addresses and parts.hostname != self._own.hostname

    def _pieces(self, response: requests.Response, download: Download) -> Iterator[bytes]:
        too_large = FsmFileError(f"it is larger than max_bytes, {download.max_bytes:,}")
        if (response.raw.length_remaining or 0) > download.max_bytes:
            raise too_large
        received = 0
        while piece := self._next_piece(response):
            if not received and not piece.startswith(_SIGNATURE):
                break
            received += len(piece)
            if received > download.max_bytes:
                raise too_large
            yield piece
        if not received:
            kind = response.headers.get("Content-Type", "no type")[:60]
            raise FsmNotPdfError(f"what came is no PDF, but begins otherwise ({kind})")

    def _next_piece(self, response: requests.Response) -> bytes:
        try:
            piece: bytes = response.raw.read(PIECE, decode_content=True)
        except (HTTPError, OSError) as error:
            raise self._transport.unanswered(error) from None
        return piece


def _request(address: str) -> requests.PreparedRequest:
    request = requests.PreparedRequest()
    request.method = "GET"
    request.headers = CaseInsensitiveDict(_HEADERS)
    try:
        request.prepare_url(address, None)
        _parts(str(request.url))
    except (requests.RequestException, ValueError):
        raise FsmAddressError("its address is none that a request can be sent to") from None
    return request


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    _ = parts.port
    return parts


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _refusal(response: requests.Response, download: Download, ours: bool) -> FsmApiError:
    """Make the error of an answer that is no success; its body is not quoted, as it may repeat the address.

    What the classes of 4xx advise is about the connection, which is not to blame for another host's answer.
    """
    status = response.status_code
    says_why = status >= 500 or status == 429 or (ours and status >= 400)
    return (error_class_for(status) if says_why else FsmApiError)(
        status=status,
        method="GET",
        path=download.what,
        retry_after=seconds_to_wait(response.headers),
        request_id=response.headers.get(REQUEST_ID_HEADER),
    )
