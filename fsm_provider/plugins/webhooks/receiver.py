"""The receiver: an ASGI application that makes asset events of deliveries it believes.

Every refusal has the same text. What is refused before a body is asked for costs no database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from fsm_provider.compat import count
from fsm_provider.lineage import records_of
from fsm_provider.plugins.webhooks import URL_PREFIX, Message, Receive, Scope, Send
from fsm_provider.plugins.webhooks.configuration import Configuration, Route
from fsm_provider.plugins.webhooks.events import record
from fsm_provider.plugins.webhooks.hints import hints
from fsm_provider.plugins.webhooks.settings import Endpoint
from fsm_provider.plugins.webhooks.signature import Headers, Proof, RefusedError, same_text, verify

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

BODY_SECONDS = 10.0
"""How long a body may take to arrive."""
ANSWER_SECONDS = 0.8
"""How long a delivery may wait for the database, after which the sender is asked to come again."""
THREADS = 4
MOST_UNDER_WAY = 64
"""Deliveries whose bodies are held at once; further ones are asked to come again."""
UNKNOWN = Route("-", "-")
UNKNOWN_PER_MINUTE = 60


class _Refusal(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class Refusals:
    """Counts what is refused within a minute, by route."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._minute = -1
        self._counts: dict[Route, int] = defaultdict(int)

    def are_too_many(self, route: Route, most: int) -> bool:
        """Count one, and tell whether there were more than ``most``."""
        minute = int(self._clock() // 60)
        if minute != self._minute:
            for other, refused in self._counts.items():
                logger.warning("Refused %d deliveries for %s within a minute", refused, other)
            self._counts.clear()
            self._minute = minute
        self._counts[route] += 1
        return self._counts[route] > most


class Receiver:
    """Answers ``POST /fsm/webhooks/<connection>/<object>/<token>``."""

    def __init__(
        self, configuration: Configuration | None = None, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._configuration = configuration or Configuration()
        self._answer_seconds = answer_seconds
        self._refusals = Refusals()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fsm-webhooks")
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] not in ("http", "websocket"):
            return
        route, token = _read_path(scope)
        endpoint: Endpoint | None = None
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
            left = self._answer_seconds - (time.monotonic() - started)
            await self._deliver(route, endpoint, scope, receive, within=left)
        except _Refusal as refusal:
            status, reason = refusal.status, refusal.reason
        except Exception as error:  # noqa: BLE001 - its text may quote what was delivered
            where = "".join(traceback.format_tb(error.__traceback__))
            known = route if endpoint else UNKNOWN
            logger.error("A delivery for %s failed with %s\n%s", known, type(error).__name__, where)
            status, reason = 503, "error"
        else:
            await _answer(send, 200)
            return
        status = self._refused(route if endpoint else UNKNOWN, endpoint, status, reason)
        await _answer(send, status)

    async def _deliver(
        self, route: Route, endpoint: Endpoint, scope: Scope, receive: Receive, *, within: float
    ) -> None:
        if self._under_way >= MOST_UNDER_WAY:
            raise _Refusal(503, "busy")
        self._under_way += 1
        try:
            headers = [
                (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
            ]
            _check_head(endpoint, headers)
            body = await _read_body(receive, endpoint.max_body)
        except BaseException:
            self._leave()
            raise
        started = time.monotonic()
        outcome = await self._in_thread(
            lambda: self._take(route, endpoint, headers, body), within=within, at_end=self._leave
        )
        if outcome == "no asset":
            logger.warning(
                "A delivery was not accepted, as no DAG that is parsed uses the asset %s",
                records_of(route.fsm_conn_id, route.watched),
            )
            raise _Refusal(503, "no asset")
        _count(outcome, route)
        logger.info("Delivery for %s %s in %.3f s", route, outcome, time.monotonic() - started)

    def _leave(self) -> None:
        self._under_way -= 1

    async def _endpoint(self, route: Route, token: str) -> Endpoint | None:
        """Give the endpoint whose token this is."""
        if self._configuration.is_fresh(route):
            return self._with_token(route, token, fresher=False)
        return await self._in_thread(
            lambda: (
                self._with_token(route, token, fresher=False) or self._with_token(route, token, fresher=True)
            ),
            within=self._answer_seconds,
        )

    def _with_token(self, route: Route, token: str, *, fresher: bool) -> Endpoint | None:
        endpoint = self._configuration.endpoint(route, fresher=fresher)
        tokens = self._configuration.tokens(route, fresher=fresher) if endpoint else []
        return endpoint if same_text(token, tokens or [""]) and tokens else None

    def _take(self, route: Route, endpoint: Endpoint, headers: Headers, body: bytes) -> str:
        proof = self._verified(route, endpoint, headers, body)
        extra: dict[str, Any] = {
            **hints(body, keep_body=endpoint.keep_body),
            "received_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        return record(records_of(route.fsm_conn_id, route.watched), proof, extra)

    def _verified(self, route: Route, endpoint: Endpoint, headers: Headers, body: bytes) -> Proof:
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

    def _refused(self, route: Route, endpoint: Endpoint | None, status: int, reason: str) -> int:
        _count("refused", route, reason)
        if status == 503:
            return status
        most = endpoint.refusals_per_minute if endpoint else UNKNOWN_PER_MINUTE
        if self._refusals.are_too_many(route, most):
            return 429
        logger.warning("Delivery for %s refused: %s", route, reason)
        return status

    async def _in_thread(
        self,
        function: Callable[[], T],
        *,
        within: float,
        at_end: Callable[[], None] = lambda: None,
    ) -> T:
        work = asyncio.get_running_loop().run_in_executor(self._threads, function)
        work.add_done_callback(lambda _: at_end())
        # Of what nobody waits for any more asyncio would log the error with its text.
        work.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(work), within)
        except TimeoutError:
            # It goes on. If a delivery is stored after all, the sender's repeat of it is dropped.
            raise _Refusal(503, "slow") from None


def _read_path(scope: Scope) -> tuple[Route, str]:
    _, _, rest = scope["path"].partition(f"{URL_PREFIX}/")
    names, _, token = rest.rpartition("/")
    fsm_conn_id, _, watched = names.rpartition("/")
    return Route(fsm_conn_id, watched), token


def _hide_path(scope: Scope, route: Route | None) -> None:
    # Airflow's access log, and uvicorn's, read the path from the scope after the answer.
    path = f"{URL_PREFIX}/{route}/***" if route else f"{URL_PREFIX}/***"
    scope["path"], scope["raw_path"] = path, path.encode()
    scope["query_string"] = b""


def _check_head(endpoint: Endpoint, headers: Headers) -> None:
    given = dict(headers)
    if given.get("content-encoding", "identity").strip().lower() != "identity":
        raise _Refusal(415, "content encoding")
    content_type = given.get("content-type", "").partition(";")[0].strip().lower()
    if endpoint.content_type is not None and content_type != endpoint.content_type.lower():
        raise _Refusal(415, "content type")
    length = given.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or int(length[:20]) > endpoint.max_body:
        raise _Refusal(413, "size")


async def _read_body(receive: Receive, most: int) -> bytes:
    """Read a body, whatever its head says of its length."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refusal(400, "disconnected")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise _Refusal(413, "size")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise _Refusal(408, "slow body") from None


def _count(outcome: str, route: Route, reason: str | None = None) -> None:
    tags = {"connection": route.fsm_conn_id, "object": route.watched}
    count(f"fsm.webhooks.{outcome}", {**tags, "reason": reason} if reason else tags)


async def _answer(send: Send, status: int) -> None:
    accepted = status == 200
    body = json.dumps({"accepted": accepted}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"POST"))
    if status in (429, 503):
        headers.append((b"retry-after", b"60" if status == 429 else b"1"))
    if not accepted:
        # What is left of a body that nobody reads ends with the connection.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
