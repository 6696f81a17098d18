"""Download the PDF of a form from the URL in its record, on the service's own host or another.

The URL is not trusted: the token goes only to the service's own scheme, host and port, and no other
host may be on a private network. Redirects are followed here, each step under the same rules.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import SplitResult, urljoin

from pydantic import SecretStr
from urllib3 import BaseHTTPResponse

from fsm_provider.api.connections import Exchange
from fsm_provider.api.errors import (
    FsmApiError,
    FsmConnectionError,
    FsmDownloadTimeoutError,
    FsmNotPdfError,
    FsmPdfError,
    FsmPdfUrlError,
    FsmResponseError,
    error_class_for,
)
from fsm_provider.api.models import Form
from fsm_provider.api.redaction import printable
from fsm_provider.api.request import TimeLimit
from fsm_provider.api.settings import DEFAULT_PORTS, is_readable_on_the_way
from fsm_provider.api.transport import (
    UNREADABLE,
    USER_AGENT,
    Transport,
    error_for,
    split_as_sent,
)
from fsm_provider.api.validation import MAX_PDF_BYTES, MAX_PDF_SECONDS, ResultT

MAX_REDIRECTS = 5
ENDS = 1024
"""Bytes at either end of a PDF that hold its %PDF- and %%EOF; readers search no further either."""
_CHUNK = 2**16  # bytes, decoded, that are read at once
_PLAIN_URL = re.compile(r"(?i:https?)://[^/?#\\\s]+([/?][!-\"$-~]*|)(?:#.*)?")
"""A URL in printable ASCII, and its path and query."""
_UNNAMED = (
    FsmPdfUrlError,
    FsmConnectionError,
    FsmPdfError,
    FsmResponseError,
)
"""Errors whose texts do not say which form's PDF it is."""
_HEADERS = {
    "Accept": "application/pdf, */*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
}


class PdfLimits(TypedDict, total=False):
    """The limits of :meth:`fsm_provider.api.FsmClient.download_pdf`, for ``**limits``."""

    max_bytes: int
    max_seconds: float
    allow_private_addresses: bool


@dataclass(eq=False)
class Download:
    """The download of one form's PDF.

    The client makes one, and calls ``fetch`` until it succeeds or is not to be repeated. The time
    of all these attempts together is limited: it begins with the first request.
    """

    form: Form
    transport: Transport
    allow_http: bool
    max_bytes: int = MAX_PDF_BYTES
    max_seconds: float = MAX_PDF_SECONDS
    allow_private_addresses: bool = False

    def __post_init__(self) -> None:
        self._name = f"the PDF of form {self.form.id}"
        if not isinstance(self.form.form_pdf_url, str) or not self.form.form_pdf_url:
            raise FsmPdfUrlError(f"{self._name}: its record has no formPDFURL")
        self._limit = TimeLimit(self.max_seconds)

    def fetch(self, read: Callable[[Iterator[bytes]], ResultT], token: SecretStr) -> ResultT:
        """Return what ``read`` makes of the file's chunks; errors name the form, and no URL."""
        try:
            with self._open(token) as response:
                return read(self._chunks(response))
        except _UNNAMED as error:
            if self._limit.left() <= 0:
                raise FsmDownloadTimeoutError(
                    f"{self._name}: it did not arrive within {self.max_seconds:g} s"
                ) from None
            raise type(error)(f"{self._name}: {error.message}") from None

    @contextmanager
    def _open(self, token: SecretStr) -> Iterator[BaseHTTPResponse]:
        """Yield the response that has the file. The URL of a redirect is checked like the first."""
        url = str(self.form.form_pdf_url)
        for _ in range(MAX_REDIRECTS + 1):
            parts = split_as_sent(url)
            if parts is None:
                raise FsmPdfUrlError("its URL is not valid")
            self._check_url(parts)
            is_service = self._is_service(parts)
            with self._send(url, parts, is_service, token) as response:
                if response.status == 200:
                    yield response
                    return
                location = response.get_redirect_location()
                if not isinstance(location, str):
                    raise self._error_for(response, is_service, token)
            url = _redirect_url(parts, location)
            if not url:
                raise FsmPdfUrlError("it redirects to a URL that is not valid")
        raise FsmPdfUrlError(f"its URL redirects more than {MAX_REDIRECTS} times")

    def _check_url(self, parts: SplitResult) -> None:
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise FsmPdfUrlError("its URL is not http or https")
        if "@" in parts.netloc:
            raise FsmPdfUrlError("its URL contains a user or password")
        if is_readable_on_the_way(parts) and not self.allow_http:
            raise FsmPdfUrlError(
                f"{parts.scheme}://{parts.netloc} is not encrypted: "
                "set the connection's allow_http to allow it"
            )

    def _is_service(self, parts: SplitResult) -> bool:
        """Return whether a URL has the service's own scheme, host and port."""
        base = self.transport.base
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        base_port = base.port or DEFAULT_PORTS[base.scheme]
        return parts.scheme == base.scheme and parts.hostname == base.hostname and port == base_port

    def _send(
        self, url: str, parts: SplitResult, is_service: bool, token: SecretStr
    ) -> BaseHTTPResponse:
        """Send one request. The token goes only to the service's own scheme, host and port."""
        headers = dict(_HEADERS)
        if is_service:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
            self.transport.throttle()
        exchange = Exchange("GET", parts.geturl(), _target(url, parts), headers, limit=self._limit)
        is_service_host = parts.hostname == self.transport.base.hostname
        may_be_private = self.allow_private_addresses or is_service_host
        return self.transport.open_response(
            exchange, elsewhere=not is_service, public_only=not may_be_private
        )

    def _error_for(
        self, response: BaseHTTPResponse, is_service: bool, token: SecretStr
    ) -> FsmApiError:
        """Make the error for a response without a file.

        Of another host, the 4xx classes would give advice about the connection. Nor is the body
        quoted, since it may repeat the URL.
        """
        status = response.status
        error_class = FsmApiError
        if status >= 500 or status == 429 or (is_service and status >= 400):
            error_class = error_class_for(status)
        return error_for(response, token, error_class, method="GET", path=self._name)

    def _chunks(self, response: BaseHTTPResponse) -> Iterator[bytes]:
        """Yield the chunks of the file.

        :raises FsmError: before the first chunk, if it does not begin as a PDF; after the
            last, if it may be incomplete.
        """
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise self._too_large()
        chunk = b""
        while len(chunk) < ENDS:  # or all of a shorter file
            more = self._next_chunk(response)
            if not more:
                break
            chunk += more
        if b"%PDF-" not in chunk[:ENDS]:
            kind = printable(response.headers.get("Content-Type", "no type")[:60])
            raise FsmNotPdfError(
                f"the response is not a PDF, its first bytes are not %PDF- ({kind})"
            )
        received = 0
        tail = b""
        while chunk:
            received += len(chunk)
            if received > self.max_bytes:
                raise self._too_large()
            tail = (tail + chunk)[-ENDS:]
            yield chunk
            chunk = self._next_chunk(response)
        if b"%%EOF" not in tail:
            _check_complete_without_end(response, received)

    def _too_large(self) -> FsmPdfError:
        return FsmPdfError(f"it is larger than max_bytes, {self.max_bytes:,}")

    def _next_chunk(self, response: BaseHTTPResponse) -> bytes:
        try:
            return response.read(_CHUNK, decode_content=True)
        except UNREADABLE as error:
            raise self.transport.incomplete_response(error) from None


def _target(url: str, parts: SplitResult) -> str:
    """Return the path and query to send: those of a plain URL as they are written there."""
    plain = _PLAIN_URL.fullmatch(url)
    if plain:
        target = plain[1]
    elif parts.query:
        target = f"{parts.path}?{parts.query}"
    else:
        target = parts.path
    return target if target.startswith("/") else f"/{target}"


def _redirect_url(parts: SplitResult, location: str) -> str:
    """Return the URL that a redirect leads to; an empty text if it is not valid."""
    try:
        target = location.encode("latin-1").decode()
        joined = urljoin(parts.geturl(), target)
    except ValueError:  # it quotes the URL
        return ""
    return target if _PLAIN_URL.fullmatch(target) else joined


def _check_complete_without_end(response: BaseHTTPResponse, received: int) -> None:
    """Check a file without %%EOF at its end: HTTP's chunks may show that it is complete.

    A length does not, as it may be too short. Nor do chunks of a file that is compressed, as it may
    have been cut off before that.
    """
    missing = f"{received:,} bytes without %%EOF at the end"
    is_chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
    is_compressed = "Content-Encoding" in response.headers
    if not is_chunked or is_compressed:
        raise FsmResponseError(f"no complete response arrived: {missing}")
    if received < ENDS:
        raise FsmNotPdfError(f"the response is not a PDF: {missing}")
