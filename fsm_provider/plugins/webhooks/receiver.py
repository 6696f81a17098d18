"""The receiver: an ASGI application that records authentic deliveries as asset events.

Every refusal has the same body. A delivery that is refused before its body is read costs no
database query.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeGuard, TypeVar

from fsm_provider.metrics import AirflowMetrics
from fsm_provider.plugins.webhooks import URL_PREFIX
from fsm_provider.plugins.webhooks.config import Configuration, RouteConfig
from fsm_provider.plugins.webhooks.events import REFUSED, UNKNOWN, Outcome, record_delivery
from fsm_provider.plugins.webhooks.signature import DeliveryRefusedError, is_any_of, verify
from fsm_provider.storage import uri_for_records

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY = 1024 * 1024
BODY_SECONDS = 10.0
"""Seconds that a body may take to arrive."""
RESPONSE_SECONDS = 0.8
"""Seconds that a delivery may wait for the database before the sender is asked to retry."""
THREADS = 4
MAX_IN_FLIGHT = 64
"""Deliveries that wait for the database or are being stored; senders of further ones are asked to
retry.
"""
MAX_HINT_LENGTH = 200


class Receiver:
    """Handles ``POST /fsm/webhooks/<connection>/<object>/<token>``."""

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        response_seconds: float = RESPONSE_SECONDS,
    ) -> None:
        self._configuration = configuration or Configuration()
        self._response_seconds = response_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fsm-webhooks")
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, _, token = scope["path"].partition(f"{URL_PREFIX}/")[2].rpartition("/")
        shown = _show_route(scope, UNKNOWN)
        if scope["type"] != "http":
            return
        try:
            if scope["method"] != "POST":
                raise DeliveryRefusedError("method", 405)
            started = time.monotonic()
            config = await self._config(route, token)
            shown = _show_route(scope, route)  # not before its token is known: it may be anything
            left = self._response_seconds - (time.monotonic() - started)
            if any(
                name == b"content-encoding" and value != b"identity"
                for name, value in scope["headers"]
            ):
                raise DeliveryRefusedError("content encoding", 415)
            body = await _read_body(receive)
            started = time.monotonic()
            record = partial(_record, route, config, scope["headers"], body)
            outcome = await self._in_thread(record, within=left)
            if outcome == "no asset":  # no parsed DAG uses it
                raise DeliveryRefusedError("no asset", 503)
            logger.info("Delivery for %s %s in %.3f s", route, outcome, time.monotonic() - started)
            _count(outcome, route)
            status = 200
        except DeliveryRefusedError as refusal:
            status = refusal.status
            logger.warning("Delivery for %s refused: %s", shown, refusal.reason)
            _count("refused", shown, refusal.reason)
        except Exception as error:  # noqa: BLE001 - its text may quote the delivery
            status = 503
            logger.error("A delivery for %s failed with %s", shown, type(error).__name__)
            logger.debug("%s", "".join(traceback.format_tb(error.__traceback__)))
            _count("refused", shown, "error")
        await _respond(send, status)

    async def _config(self, route: str, token: str) -> RouteConfig:
        routes = self._configuration.known()
        if routes is None:
            routes = await self._in_thread(self._configuration.read, within=self._response_seconds)
        config = routes.get(route)
        if not is_any_of(token, config.tokens if config else [""]) or config is None:
            raise DeliveryRefusedError("path", 404)
        return config

    async def _in_thread(self, function: Callable[[], T], *, within: float) -> T:
        if self._in_flight >= MAX_IN_FLIGHT:
            raise DeliveryRefusedError("busy", 503)
        self._in_flight += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        future.add_done_callback(self._end)
        try:
            return await asyncio.wait_for(asyncio.shield(future), within)
        except TimeoutError:
            # The thread goes on. If it stores the delivery after all, the sender's retry is a
            # repeat.
            raise DeliveryRefusedError("slow", 503) from None

    def _end(self, done: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        # Retrieve the error, as asyncio would log its text if nobody waits for it any more.
        if not done.cancelled():
            done.exception()


def _show_route(scope: Scope, route: str) -> str:
    # The access logs of Airflow and uvicorn read the path from the scope after the response.
    path = f"{URL_PREFIX}/{route}/***"
    scope["path"], scope["raw_path"], scope["query_string"] = path, path.encode(), b""
    return route


def _record(route: str, config: RouteConfig, headers: Any, body: bytes) -> Outcome:
    decoded = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    delivery = verify(config.endpoint, config.secrets, decoded, body, now=time.time())
    extra = {**_hints(body), "received_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    if config.endpoint.keep_body:
        # As text, which every database and page of Airflow takes, whatever JSON it is.
        extra["body"] = body.decode(errors="replace").replace("\0", "")
    return record_delivery(uri_for_records(*route.split("/")), delivery, extra)


async def _read_body(receive: Receive) -> bytes:
    """Read a body of at most ``MAX_BODY`` bytes, whatever length its headers claim."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise DeliveryRefusedError("disconnected", 400)
                body += message.get("body", b"")
                if len(body) > MAX_BODY:
                    raise DeliveryRefusedError("size", 413)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise DeliveryRefusedError("slow body", 408) from None


def _hints(body: bytes) -> dict[str, str | int]:
    """Return type and identifier where the payload has them; its format is not specified."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(payload, dict):
        return {}
    data = payload.get("data")
    inner = data if isinstance(data, dict) else {}
    found = {"type": payload.get("type"), "id": inner.get("id", payload.get("id"))}
    return {name: value for name, value in found.items() if _is_short(value)}


def _is_short(value: Any) -> TypeGuard[str | int]:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_HINT_LENGTH and value.isprintable()
    return type(value) is int and abs(value) < 2**63


def _count(outcome: str, route: str, reason: str | None = None) -> None:
    fsm_conn_id, watched = route.split("/")
    tags = {"connection": fsm_conn_id, "object": watched}
    if reason:
        REFUSED[route][reason] += 1
    AirflowMetrics(tags | ({"reason": reason} if reason else {})).incr(f"webhooks.{outcome}")


async def _respond(send: Send, status: int) -> None:
    accepted = status == 200
    body = json.dumps({"accepted": accepted}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"POST"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if not accepted:
        # Closing the connection ends a body that nobody reads.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


app: Receiver = Receiver()
