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
from typing import Any, TypeVar

from fsm_provider.metrics import AirflowMetrics
from fsm_provider.plugins.webhooks import URL_PREFIX, Message, Receive, Scope, Send
from fsm_provider.plugins.webhooks.config_cache import Configuration, Route
from fsm_provider.plugins.webhooks.events import DeliveryRecorder
from fsm_provider.plugins.webhooks.log_limit import LogLimit
from fsm_provider.plugins.webhooks.payload_summary import summarize_payload
from fsm_provider.plugins.webhooks.settings import WebhookEndpoint
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
MAX_UNKNOWN_PER_MINUTE = 60


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
        self._recorder = DeliveryRecorder()
        self._log_limit = LogLimit(logger)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fsm-webhooks")
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] not in ("http", "websocket"):
            return
        route, token = _parse_path(scope)
        endpoint: WebhookEndpoint | None = None
        _hide_path(scope, None)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            if scope["method"] != "POST":
                raise _Refusal(405, "method")
            started = time.monotonic()
            endpoint = await self._endpoint(route, token)
            if endpoint is None:
                raise _Refusal(404, "path")
            _hide_path(scope, route)
            left = self._response_seconds - (time.monotonic() - started)
            await self._deliver(route, endpoint, scope, receive, within=left)
        except _Refusal as refusal:
            status, reason = refusal.status, refusal.reason
        except Exception as error:  # noqa: BLE001 - its text may quote the delivery
            origin = error.__traceback__
            self._log_limit.log(
                logging.ERROR,
                f"A delivery for {route if endpoint else UNKNOWN} failed with {type(error).__name__}",
                lambda: "\n" + "".join(traceback.format_tb(origin)),
            )
            status, reason = 503, "error"
        else:
            await _respond(send, 200)
            return
        status = self._count_refusal(route if endpoint else UNKNOWN, endpoint, status, reason)
        await _respond(send, status)

    async def _deliver(
        self, route: Route, endpoint: WebhookEndpoint, scope: Scope, receive: Receive, *, within: float
    ) -> None:
        if self._in_flight >= MAX_IN_FLIGHT:
            raise _Refusal(503, "busy")
        self._in_flight += 1
        try:
            headers = [
                (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
            ]
            _check_head(endpoint, headers)
            body = await _read_body(receive, endpoint.max_body)
        except BaseException:
            self._end_delivery()
            raise
        started = time.monotonic()
        outcome = await self._in_thread(
            lambda: self._record(route, endpoint, headers, body), within=within, on_done=self._end_delivery
        )
        if outcome == "no asset":
            asset = uri_for_records(route.fsm_conn_id, route.watched)
            self._log_limit.log(
                logging.WARNING,
                f"A delivery was refused, as no parsed DAG uses the asset {asset}",
            )
            raise _Refusal(503, "no asset")
        _count(outcome, route)
        logger.info("Delivery for %s %s in %.3f s", route, outcome, time.monotonic() - started)

    def _end_delivery(self) -> None:
        self._in_flight -= 1

    async def _endpoint(self, route: Route, token: str) -> WebhookEndpoint | None:
        """Return the endpoint of the route if the token is valid, or None."""
        if self._configuration.is_fresh(route):
            return self._with_token(route, token, fresher=False)
        return await self._in_thread(
            lambda: (
                self._with_token(route, token, fresher=False) or self._with_token(route, token, fresher=True)
            ),
            within=self._response_seconds,
        )

    def _with_token(self, route: Route, token: str, *, fresher: bool) -> WebhookEndpoint | None:
        endpoint = self._configuration.endpoint(route, fresher=fresher)
        tokens = self._configuration.tokens(route, fresher=fresher) if endpoint else []
        return endpoint if is_any_of(token, tokens or [""]) and tokens else None

    def _record(self, route: Route, endpoint: WebhookEndpoint, headers: Headers, body: bytes) -> str:
        identity = self._verify(route, endpoint, headers, body)
        extra: dict[str, Any] = {
            **summarize_payload(body, keep_body=endpoint.keep_body),
            "received_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        return self._recorder.record(uri_for_records(route.fsm_conn_id, route.watched), identity, extra)

    def _verify(
        self, route: Route, endpoint: WebhookEndpoint, headers: Headers, body: bytes
    ) -> DeliveryIdentity:
        tried, refusal = None, _Refusal(503, "secrets")
        for fresher in (False, True):
            secrets = self._configuration.secrets(route, endpoint, fresher=fresher)
            if secrets is None:
                refusal = _Refusal(503, "secrets")
            elif secrets != tried:
                tried = secrets
                try:
                    return verify(endpoint, secrets, headers, body, now=time.time())
                except RefusedError as error:
                    refusal = _Refusal(401, error.reason)
        raise refusal

    def _count_refusal(self, route: Route, endpoint: WebhookEndpoint | None, status: int, reason: str) -> int:
        _count("refused", route, reason)
        if status == 503:
            return status
        limit = endpoint.refusals_per_minute if endpoint else MAX_UNKNOWN_PER_MINUTE
        if self._log_limit.exceeds(limit, f"Refused deliveries for {route}"):
            return 429
        logger.warning("Delivery for %s refused: %s", route, reason)
        return status

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


def _check_head(endpoint: WebhookEndpoint, headers: Headers) -> None:
    given = dict(headers)
    if given.get("content-encoding", "identity").strip().lower() != "identity":
        raise _Refusal(415, "content encoding")
    content_type = given.get("content-type", "").partition(";")[0].strip().lower()
    if endpoint.content_type is not None and content_type != endpoint.content_type.lower():
        raise _Refusal(415, "content type")
    length = given.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length[:20]) > endpoint.max_body:
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


def _count(outcome: str, route: Route, reason: str | None = None) -> None:
    tags = {"connection": route.fsm_conn_id, "object": route.watched}
    AirflowMetrics(**tags, **{"reason": reason} if reason else {}).incr(f"webhooks.{outcome}")


async def _respond(send: Send, status: int) -> None:
    accepted = status == 200
    body = json.dumps({"accepted": accepted}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"POST"))
    if status in (429, 503):
        headers.append((b"retry-after", b"60" if status == 429 else b"1"))
    if not accepted:
        # Closing the connection ends a body that nobody reads.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
