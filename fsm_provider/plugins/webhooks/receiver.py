"""The receiver: an ASGI application that records authentic deliveries as asset events.

Every refusal has the same body. A delivery that is refused before its body is read costs no database query.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fsm_provider.metrics import AirflowMetrics
from fsm_provider.plugins.webhooks import URL_PREFIX, Message, Receive, Scope, Send
from fsm_provider.plugins.webhooks.config import (
    MAX_AGE,
    MAX_AGE_BEFORE_REFUSAL,
    Configuration,
    Route,
    RouteConfig,
)
from fsm_provider.plugins.webhooks.events import Outcome, record_delivery
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity, Headers, RefusedError, is_any_of, verify
from fsm_provider.storage.lineage import uri_for_records

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

BODY_SECONDS = 10.0
"""Seconds that a body may take to arrive."""
RESPONSE_SECONDS = 0.8
"""Seconds that a delivery may wait for the database before the sender is asked to retry."""
THREADS = 4
MAX_IN_FLIGHT = 64
"""Deliveries whose bodies are in memory at once; senders of further ones are asked to retry."""
UNKNOWN = Route("-", "-")

TYPE_NAMES = ("type", "eventType", "event_type", "event")
ID_NAMES = ("id", "jobID", "propertyID", "assetID", "contractID", "opportunityID", "appointmentID")
PAYLOAD_NAMES = ("data", "payload", "object")
MAX_HINT_LENGTH = 200


class _Refusal(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class Receiver:
    """Handles ``POST /fsm/webhooks/<connection>/<object>/<token>``."""

    def __init__(
        self, configuration: Configuration | None = None, *, response_seconds: float = RESPONSE_SECONDS
    ) -> None:
        self._configuration = configuration or Configuration()
        self._response_seconds = response_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fsm-webhooks")
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        (route, token), shown = _parse_path(scope), UNKNOWN
        _hide_path(scope, None)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            if scope["method"] != "POST":
                raise _Refusal(405, "method")
            started = time.monotonic()
            config = await self._config(route, token)
            shown = route  # not before its token is known: it may be anything
            _hide_path(scope, route)
            left = self._response_seconds - (time.monotonic() - started)
            await self._deliver(route, config, scope, receive, within=left)
        except _Refusal as refusal:
            status = refusal.status
            _count("refused", shown, refusal.reason)
            logger.warning("Delivery for %s refused: %s", shown, refusal.reason)
        except Exception as error:  # noqa: BLE001 - its text may quote the delivery
            status = 503
            _count("refused", shown, "error")
            logger.error("A delivery for %s failed with %s", shown, type(error).__name__)
            logger.debug("%s", "".join(traceback.format_tb(error.__traceback__)))
        else:
            status = 200
        await _respond(send, status)

    async def _config(self, route: Route, token: str) -> RouteConfig:
        """Return what the route accepts, if the token is one of its own."""
        for max_age in (MAX_AGE, MAX_AGE_BEFORE_REFUSAL):
            known = self._configuration.known(route, max_age)
            config = (
                known[0]
                if known
                else await self._in_thread(
                    partial(self._configuration.read, route, max_age), within=self._response_seconds
                )
            )
            tokens = config.tokens if config else []
            if is_any_of(token, tokens or [""]) and config and tokens:
                return config
        raise _Refusal(404, "path")

    async def _deliver(
        self, route: Route, config: RouteConfig, scope: Scope, receive: Receive, *, within: float
    ) -> None:
        if self._in_flight >= MAX_IN_FLIGHT:
            raise _Refusal(503, "busy")
        self._in_flight += 1
        try:
            headers = [
                (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
            ]
            _check_head(config.endpoint.max_body, dict(headers))
            body = await _read_body(receive, config.endpoint.max_body)
        except BaseException:
            self._end_delivery()
            raise
        started = time.monotonic()
        outcome = await self._in_thread(
            lambda: self._record(route, config, headers, body), within=within, on_done=self._end_delivery
        )
        if outcome == "no asset":  # no parsed DAG uses it
            raise _Refusal(503, "no asset")
        _count(outcome, route)
        logger.info("Delivery for %s %s in %.3f s", route, outcome, time.monotonic() - started)

    def _end_delivery(self) -> None:
        self._in_flight -= 1

    def _record(self, route: Route, config: RouteConfig, headers: Headers, body: bytes) -> Outcome:
        try:
            identity = self._verify(route, config, headers, body)
        except RefusedError as error:
            raise _Refusal(401, error.reason) from None
        extra = {**_hints(body), "received_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        if config.endpoint.keep_body:
            # As text, which every database and page of Airflow takes, whatever JSON it is.
            extra["body"] = body.decode(errors="replace").replace("\0", "")
        return record_delivery(uri_for_records(*route), identity, extra)

    def _verify(self, route: Route, config: RouteConfig, headers: Headers, body: bytes) -> DeliveryIdentity:
        try:
            return verify(config.endpoint, config.secrets, headers, body, now=time.time())
        except RefusedError:
            newer = self._configuration.read(route, MAX_AGE_BEFORE_REFUSAL)
            if newer is None or newer == config:
                raise
            return verify(newer.endpoint, newer.secrets, headers, body, now=time.time())

    async def _in_thread(
        self,
        function: Callable[[], T],
        *,
        within: float,
        on_done: Callable[[], None] = lambda: None,
    ) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        future.add_done_callback(lambda _: on_done())
        # Retrieve the error, as asyncio would log its text if nobody waits for it any more.
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(future), within)
        except TimeoutError:
            # The thread goes on. If it stores the delivery after all, the sender's retry is a repeat.
            raise _Refusal(503, "slow") from None


def _parse_path(scope: Scope) -> tuple[Route, str]:
    _, _, rest = scope["path"].partition(f"{URL_PREFIX}/")
    names, _, token = rest.rpartition("/")
    fsm_conn_id, _, watched = names.rpartition("/")
    return Route(fsm_conn_id, watched), token


def _hide_path(scope: Scope, route: Route | None) -> None:
    # The access logs of Airflow and uvicorn read the path from the scope after the response.
    path = f"{URL_PREFIX}/{route}/***" if route else f"{URL_PREFIX}/***"
    scope["path"], scope["raw_path"] = path, path.encode()
    scope["query_string"] = b""


def _check_head(max_body: int, headers: dict[str, str]) -> None:
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise _Refusal(415, "content encoding")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length[:20]) > max_body:
        raise _Refusal(413, "size")


async def _read_body(receive: Receive, max_size: int) -> bytes:
    """Read a body of at most ``max_size`` bytes, whatever length its headers claim."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refusal(400, "disconnected")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > max_size:
                    raise _Refusal(413, "size")
                if not message.get("more_body"):
                    return b"".join(chunks)
    except TimeoutError:
        raise _Refusal(408, "slow body") from None


def _hints(body: bytes) -> dict[str, str | int]:
    """Return type and identifier where the payload has them; its format is not specified."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(payload, dict):
        return {}
    inner: dict[str, Any] = next(
        (payload[name] for name in PAYLOAD_NAMES if isinstance(payload.get(name), dict)), {}
    )
    found = {"type": _first(TYPE_NAMES, payload), "id": _first(ID_NAMES, inner, payload)}
    return {name: value for name, value in found.items() if value is not None}


def _first(names: tuple[str, ...], *records: dict[str, Any]) -> str | int | None:
    for value in (record.get(name) for record in records for name in names):
        if isinstance(value, str) and 0 < len(value) <= MAX_HINT_LENGTH and value.isprintable():
            return value
        if type(value) is int and abs(value) < 2**63:
            return value
    return None


def _count(outcome: str, route: Route, reason: str | None = None) -> None:
    tags = {"connection": route.fsm_conn_id, "object": route.watched}
    AirflowMetrics(**tags, **{"reason": reason} if reason else {}).incr(f"webhooks.{outcome}")


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
