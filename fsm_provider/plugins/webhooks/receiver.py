"""The receiver: an ASGI application that records authentic deliveries as asset events.

Every refusal has the same body. A delivery that is refused before its body is read costs no
database query of its own: settings are read once a second at most.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fsm_provider.metrics import AirflowMetrics
from fsm_provider.plugins.webhooks import URL_PREFIX
from fsm_provider.plugins.webhooks.config import ReceiverConfiguration, RouteConfig
from fsm_provider.plugins.webhooks.events import (
    REFUSED,
    UNKNOWN_ROUTE,
    DeliveryOutcome,
    record_delivery,
)
from fsm_provider.plugins.webhooks.settings import HIDDEN
from fsm_provider.plugins.webhooks.signature import DeliveryRefusedError, is_any_of, verify
from fsm_provider.storage import uri_for_records

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger: logging.Logger = logging.getLogger(__name__)

RawHeaders = list[tuple[bytes, bytes]]

MAX_BODY = 1024 * 1024
"""Bytes."""
BODY_SECONDS = 10.0
"""Seconds that a body may take to arrive."""
RESPONSE_SECONDS = 0.8
"""Seconds that a delivery may wait for the database before the sender is asked to retry."""
THREADS = 4
MAX_IN_FLIGHT = 64
"""Deliveries that wait for the database or are being stored.

Senders of further ones are asked to retry.
"""
MAX_HINT_LENGTH = 200
"""Characters of a payload's text that is stored as a hint."""


class Receiver:
    """Handles ``POST /fsm/webhooks/<connection>/<object>/<path token>``.

    Airflow's API server calls it for each request, on its event loop. The event loop has the
    settings read again, checks the path token, and reads the body. One of ``THREADS`` threads
    verifies the signature and stores the delivery. The event loop waits for settings and thread at
    most ``response_seconds`` in all; then it answers with HTTP 503, and the thread goes on.
    """

    def __init__(
        self,
        configuration: ReceiverConfiguration,
        *,
        response_seconds: float = RESPONSE_SECONDS,
    ) -> None:
        self._configuration = configuration
        self._response_seconds = response_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fsm-webhooks")
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, _, path = scope["path"].partition(f"{URL_PREFIX}/")
        route, _, path_token = path.rpartition("/")
        _hide_path(scope, UNKNOWN_ROUTE)
        if scope["type"] != "http":
            return
        shown_route = UNKNOWN_ROUTE
        try:
            if scope["method"] != "POST":
                raise DeliveryRefusedError("method", 405)
            started = time.monotonic()
            await self._configuration.refresh(self._response_seconds)
            self._find_config(route, path_token)  # refuses what has none
            seconds_left = self._response_seconds - (time.monotonic() - started)
            # Not shown before the path token is known: until then it may be any text.
            shown_route = route
            _hide_path(scope, route)
            _refuse_encoded_body(scope["headers"])
            body = await _read_body(receive)
            await self._store(route, path_token, scope["headers"], body, within=seconds_left)
            status = 200
        except DeliveryRefusedError as refusal:
            status = refusal.status
            logger.warning("Delivery for %s refused: %s", shown_route, refusal.reason)
            _count("refused", shown_route, refusal.reason)
        except Exception as error:  # noqa: BLE001 - its text may quote the delivery
            status = 503
            logger.error("A delivery for %s failed with %s", shown_route, type(error).__name__)
            logger.debug("%s", "".join(traceback.format_tb(error.__traceback__)))
            _count("refused", shown_route, "error")
        await _respond(send, status)

    def _find_config(self, route: str, path_token: str) -> RouteConfig:
        """Return what a route accepts; refuse a path that does not end with one of its tokens."""
        routes = self._configuration.routes()
        if routes is None:
            raise DeliveryRefusedError("settings", 503)
        config = routes.get(route)
        # Compare also where the route is unknown, so that the time does not reveal that it is.
        path_tokens = [""] if config is None else config.path_tokens
        is_token_known = is_any_of(path_token, path_tokens)
        if config is None or not is_token_known:
            raise DeliveryRefusedError("path", 404)
        return config

    async def _store(
        self, route: str, path_token: str, headers: RawHeaders, body: bytes, *, within: float
    ) -> None:
        """Verify a delivery and store it in a thread, in so many seconds, or refuse it."""
        if self._in_flight >= MAX_IN_FLIGHT:
            raise DeliveryRefusedError("busy", 503)
        self._in_flight += 1
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._threads, self._verify_and_record, route, path_token, headers, body
        )
        future.add_done_callback(self._on_thread_done)
        try:
            outcome = await asyncio.wait_for(asyncio.shield(future), within)
        except TimeoutError:
            # The thread goes on. If it stores the delivery after all, the sender's retry is a
            # repeat.
            raise DeliveryRefusedError("slow", 503) from None
        if outcome == "no asset":
            raise DeliveryRefusedError("no asset", 503)
        logger.info("Delivery for %s %s in %.3f s", route, outcome, time.monotonic() - started)
        _count(outcome, route)

    def _verify_and_record(
        self, route: str, path_token: str, headers: RawHeaders, body: bytes
    ) -> DeliveryOutcome:
        """Verify a delivery and store it as an asset event; called in a thread.

        :raises DeliveryRefusedError: if it is not authentic.
        """
        config = self._find_config(route, path_token)  # it may have changed as the body came
        decoded = [
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers
        ]
        delivery = verify(config.endpoint, config.signing_secrets, decoded, body, now=time.time())
        extra = _hints_in(body)
        extra["received_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        if config.endpoint.keep_body:
            # As text, which every database and page of Airflow takes, whatever JSON it is.
            extra["body"] = body.decode(errors="replace").replace("\0", "")
        fsm_conn_id, watched = route.split("/")
        return record_delivery(uri_for_records(fsm_conn_id, watched), delivery, extra)

    def _on_thread_done(self, future: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        # Retrieve the error, as asyncio would log its text if nobody waits for it any more.
        if not future.cancelled():
            future.exception()


def _hide_path(scope: Scope, route: str) -> None:
    """Replace the request's path, which holds a path token, by that of a route.

    The access logs of Airflow and uvicorn read the path from the scope after the response.
    """
    path = f"{URL_PREFIX}/{route}/{HIDDEN}"
    scope["path"] = path
    scope["raw_path"] = path.encode()
    scope["query_string"] = b""


def _refuse_encoded_body(headers: RawHeaders) -> None:
    for name, value in headers:
        if name == b"content-encoding" and value != b"identity":
            raise DeliveryRefusedError("content encoding", 415)


async def _read_body(receive: Receive) -> bytes:
    """Read a body of at most ``MAX_BODY`` bytes, whatever length its headers claim."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise DeliveryRefusedError("disconnected", 400)
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    raise DeliveryRefusedError("size", 413)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise DeliveryRefusedError("slow body", 408) from None


def _hints_in(body: bytes) -> dict[str, Any]:
    """Return the ``type`` and ``id`` of a payload, as far as it has them; the ``id`` of its data.

    Section 6 of the service's specification does not show the payload's format.
    """
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(payload, dict):
        return {}
    hints = {"type": payload.get("type"), "id": payload.get("id")}
    data = payload.get("data")
    if isinstance(data, dict) and "id" in data:
        hints["id"] = data["id"]
    return {name: value for name, value in hints.items() if _is_hint(value)}


def _is_hint(value: Any) -> bool:
    """Return whether a value is short, and a text or an integer that every database can hold."""
    if isinstance(value, str):
        return 0 < len(value) <= MAX_HINT_LENGTH and value.isprintable()
    return type(value) is int and abs(value) < 2**63


def _count(outcome: str, route: str, reason: str | None = None) -> None:
    """Count a delivery in Airflow's metrics; one with a reason was refused."""
    fsm_conn_id, watched = route.split("/")
    tags = {"connection": fsm_conn_id, "object": watched}
    if reason:
        REFUSED[route][reason] += 1
        tags["reason"] = reason
    AirflowMetrics(tags).incr(f"webhooks.{outcome}")


async def _respond(send: Send, status: int) -> None:
    is_accepted = status == 200
    body = json.dumps({"accepted": is_accepted}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 405:
        headers.append((b"allow", b"POST"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if not is_accepted:
        # Closing the connection ends a body that nobody reads.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


app: Receiver = Receiver(ReceiverConfiguration())
