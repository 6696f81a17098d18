"""Another host for the PDFs of forms: its URLs are signed, and it needs no token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import replace
from typing import Self

from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fsm_provider.testing.failing import FakeFaults
from fsm_provider.testing.front import serve
from fsm_provider.testing.server import BackgroundServer, listen
from fsm_provider.testing.service import FakeFieldService
from fsm_provider.testing.state import RecordedRequest, ServiceState

NEVER = "never"
"""As the time at which a URL expires."""


class FakeFileHost(FakeFaults):
    """Serves the PDFs of a service's forms, as an object storage does.

    While it runs, the service lists its URLs, signed anew at each listing::

        with FakeFieldService() as service, FakeFileHost(service, lifetime=60) as files:
            ...
            assert not any("authorization" in request.headers for request in files.requests)

    A 403 response repeats the URL that was requested. :meth:`fail` makes it fail.

    :param service: the running service.
    :param name: the host in the URLs; it must resolve to 127.0.0.1, where it listens.
    :param lifetime: seconds until a URL expires; None: never.
    """

    def __init__(
        self, service: FakeFieldService, *, name: str = "localhost", lifetime: float | None = None
    ) -> None:
        self.lifetime = lifetime
        self._service = service
        self._name = name
        self._key = secrets.token_bytes(16)
        self._recorded = ServiceState(None)
        FakeFaults.__init__(self, self._recorded.changed)
        self._server: BackgroundServer | None = None

    def __enter__(self) -> Self:
        listener = listen(0)
        self._port = listener.getsockname()[1]
        app = FastAPI(openapi_url=None)
        app.add_api_route("/forms/{form_id}/pdf", self._pdf)
        settings = replace(self._service.settings)
        self._server = serve(app, listener, settings, self._recorded, self._script)
        self._service.settings.pdf_url = self.pdf_url
        return self

    def __exit__(self, *_: object) -> None:
        self._service.settings.pdf_url = None
        self._running().stop()

    def pdf_url(self, form_id: int) -> str:
        """Return a signed URL of a form's PDF."""
        expires = NEVER
        if self.lifetime is not None:
            expires = f"{time.time() + self.lifetime:.3f}"
        query = f"expires={expires}&signature={self._signature(form_id, expires)}"
        return f"http://{self._name}:{self._port}/forms/{form_id}/pdf?{query}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests read so far, in the order of their responses."""
        with self._recorded.changed:
            return list(self._recorded.requests)

    async def _pdf(self, form_id: int, expires: str, signature: str, request: Request) -> Response:
        is_signed = hmac.compare_digest(signature, self._signature(form_id, expires))
        # What is not signed may be anything, and is not parsed.
        if not is_signed or _is_past(expires):
            raise HTTPException(403, f"Request has expired: {request.url}")
        try:
            content = self._service.pdf(form_id)
        except LookupError as error:
            raise HTTPException(404, str(error)) from error
        return Response(content, media_type="application/pdf")

    def _signature(self, form_id: int, expires: str) -> str:
        signed = f"{form_id} {expires}".encode()
        return hmac.digest(self._key, signed, hashlib.sha256).hex()


def _is_past(expires: str) -> bool:
    if expires == NEVER:
        return False
    return float(expires) < time.time()
