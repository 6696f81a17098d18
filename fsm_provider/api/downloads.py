"""Download the PDF of a form from the URL in its record, on the service's own host or another.

The URL is not trusted: the token goes only to the service's own scheme, host and port, and no other
host may be on a private network. Redirects are followed here, each step under the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypedDict
from urllib.parse import SplitResult, urljoin

from pydantic import SecretStr
from urllib3 import BaseHTTPResponse

from fsm_provider.api import errors
from fsm_provider.api.connections import Exchange
from fsm_provider.api.models import Form
from fsm_provider.api.redaction import printable
from fsm_provider.api.request import TimeLimit
from fsm_provider.api.settings import DEFAULT_PORTS, is_readable_on_the_way
from fsm_provider.api.transport import UNREADABLE, USER_AGENT, Transport, as_sent, refusal
from fsm_provider.api.validation import MAX_PDF_BYTES, MAX_PDF_SECONDS, ResultT

MAX_REDIRECTS = 5
ENDS = 1024  # bytes at either end of a PDF that hold its %PDF- and %%EOF; readers search no further either
_PLAIN_URL = re.compile(r"(?i:https?)://[^/?#\\\s]+([/?][!-\"$-~]*|)(?:#.*)?")
"""A URL in printable ASCII, and its path and query."""
_UNNAMED = (
    errors.FsmPdfUrlError,
    errors.FsmConnectionError,
    errors.FsmPdfError,
    errors.FsmResponseError,
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
    form: Form
    transport: Transport
    allow_http: bool
    max_bytes: int = MAX_PDF_BYTES
    max_seconds: float = MAX_PDF_SECONDS
    allow_private_addresses: bool = False

    def __post_init__(self) -> None:
        self._what = f"the PDF of form {self.form.id}"
        if not isinstance(self.form.form_pdf_url, str) or not self.form.form_pdf_url:
            raise errors.FsmPdfUrlError(f"{self._what}: its record has no formPDFURL")
        self._limit = TimeLimit(self.max_seconds)

    def fetch(self, read: Callable[[Iterator[bytes]], ResultT], token: SecretStr) -> ResultT:
        try:
            with self._opened(token) as response:
                return read(self._chunks(response))
        except _UNNAMED as error:
            if self._limit.left() <= 0:
                late = f"it did not arrive within {self.max_seconds:g} s"
                raise errors.FsmDownloadTimeoutError(f"{self._what}: {late}") from None
            raise type(error)(f"{self._what}: {error.message}") from None

    @contextmanager
    def _opened(self, token: SecretStr) -> Iterator[BaseHTTPResponse]:
        url = str(self.form.form_pdf_url)
        for _ in range(MAX_REDIRECTS + 1):
            parts = as_sent(url, errors.FsmPdfUrlError("its URL is not valid"))
            self._check_url(parts)
            base = self.transport.base
            both = [
                (at.scheme, at.hostname, at.port or DEFAULT_PORTS[at.scheme])
                for at in (parts, base)
            ]
            ours = both[0] == both[1]
            headers = dict(_HEADERS)
            if ours:
                headers["Authorization"] = f"Bearer {token.get_secret_value()}"
                self.transport.throttle()
            plain = _PLAIN_URL.fullmatch(url)
            target = (
                plain[1] if plain else f"{parts.path}{f'?{parts.query}' if parts.query else ''}"
            )
            target = target if target.startswith("/") else f"/{target}"
            exchange = Exchange("GET", parts.geturl(), target, headers, limit=self._limit)
            public_only = not (self.allow_private_addresses or parts.hostname == base.hostname)
            with self.transport.send(
                exchange, elsewhere=not ours, public_only=public_only
            ) as response:
                status = response.status
                if status == 200:
                    yield response
                    return
                location = response.get_redirect_location()
                if not isinstance(location, str):
                    # Of another host, the 4xx classes would give advice about the connection. Nor
                    # is the body quoted, since it may repeat the URL.
                    is_specific = status >= 500 or status == 429 or (ours and status >= 400)
                    kind = None if is_specific else errors.FsmApiError
                    raise refusal(response, token, kind, method="GET", path=self._what)
            url = ""
            with suppress(ValueError):  # it quotes the URL
                target = location.encode("latin-1").decode()
                joined = urljoin(parts.geturl(), target)  # raises if it is not valid
                url = target if _PLAIN_URL.fullmatch(target) else joined
            if not url:
                raise errors.FsmPdfUrlError("it redirects to a URL that is not valid")
        raise errors.FsmPdfUrlError(f"its URL redirects more than {MAX_REDIRECTS} times")

    def _check_url(self, parts: SplitResult) -> None:
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise errors.FsmPdfUrlError("its URL is not http or https")
        if "@" in parts.netloc:
            raise errors.FsmPdfUrlError("its URL contains a user or password")
        if is_readable_on_the_way(parts) and not self.allow_http:
            problem = "is not encrypted: set the connection's allow_http to allow it"
            raise errors.FsmPdfUrlError(f"{parts.scheme}://{parts.netloc} {problem}")

    def _chunks(self, response: BaseHTTPResponse) -> Iterator[bytes]:
        too_large = errors.FsmPdfError(f"it is larger than max_bytes, {self.max_bytes:,}")
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise too_large
        next_chunk = partial(self._next_chunk, response)
        received, head, tail = 0, b"", b""
        while len(head) < ENDS and (chunk := next_chunk()):
            head += chunk
        if b"%PDF-" not in head[:ENDS]:
            kind = printable(response.headers.get("Content-Type", "no type")[:60])
            raise errors.FsmNotPdfError(
                f"the response is not a PDF, its first bytes are not %PDF- ({kind})"
            )
        for chunk in chain([head], iter(next_chunk, b"")):
            received += len(chunk)
            if received > self.max_bytes:
                raise too_large
            tail = (tail + chunk)[-ENDS:]
            yield chunk
        if b"%%EOF" in tail:
            return
        # HTTP's framing may show beyond doubt that it is complete; but a length may be too short,
        # and a file may have been cut off before it was compressed.
        missing = f"{received:,} bytes without %%EOF at the end"
        is_chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
        if not is_chunked or "Content-Encoding" in response.headers:
            raise errors.FsmResponseError(f"no complete response arrived: {missing}")
        if received < ENDS:
            raise errors.FsmNotPdfError(f"the response is not a PDF: {missing}")

    def _next_chunk(self, response: BaseHTTPResponse) -> bytes:
        try:
            return response.read(2**16, decode_content=True)
        except UNREADABLE as error:
            raise self.transport.incomplete_response(error) from None
