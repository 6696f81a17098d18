"""Webhook deliveries of new jobs, only to targets on this machine; the specification does not show them.

Nothing here is shared with the receiver of deliveries, so that the two cannot share a mistake.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from typing import Any
from urllib.parse import urlsplit

log: logging.Logger = logging.getLogger("fsm_provider.testing")

Sign = Callable[[str, str, int, bytes], Mapping[str, str]]
"""Makes the headers of a delivery from secret, delivery's identifier, seconds since 1970, and body."""

HOST = "127.0.0.1"
THREADS = 4


def standard_webhooks(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Sign as https://www.standardwebhooks.com specifies."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.new(key, f"{delivery_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def body_hmac(header: str = "X-Signature", prefix: str = "") -> Sign:
    """Make a signer that writes the hexadecimal HMAC-SHA256 of the body into one header."""

    def sign(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        return {header: prefix + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}

    return sign


@dataclass(frozen=True)
class Deliveries:
    """How registered targets on 127.0.0.1 are notified of new jobs.

    :param sign: makes the headers that authenticate a delivery.
    :param attempts: consecutive failed attempts, without a 2xx response, after which a delivery is dropped.
    :param backoff: seconds before the second attempt; doubled each time.
    :param max_backoff: the longest wait before an attempt, in seconds.
    :param timeout: seconds to wait for a response.
    :param duplicates: how often an accepted delivery is sent again.
    :param reorder: each delivery is delayed by up to so many seconds, at random.
    :param seed: of the random delays.
    """

    sign: Sign = standard_webhooks
    attempts: int = 8
    backoff: float = 0.2
    max_backoff: float = 3.0
    timeout: float = 5.0
    duplicates: int = 0
    reorder: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class RecordedDelivery:
    """One attempt at a delivery.

    :param delivery_id: the same for each attempt, and for duplicates.
    :param webhook_id: the registration.
    :param job_id: the job that was created.
    :param attempt: counted from 1, duplicates included.
    :param status: the HTTP status returned; None where there was no response.
    :param seconds: the duration of the attempt.
    """

    delivery_id: str
    webhook_id: int
    job_id: int
    attempt: int
    status: int | None
    seconds: float


@dataclass(order=True)
class _Due:
    at: float
    number: int
    webhook: dict[str, Any] = field(compare=False)
    job_id: int = field(compare=False)
    delivery_id: str = field(compare=False)
    body: bytes = field(compare=False)
    attempt: int = field(compare=False, default=1)
    failures: int = field(compare=False, default=0)
    accepted: int = field(compare=False, default=0)


class DeliveryThreads:
    """Delivers webhooks between start and stop, and reports each attempt."""

    def __init__(self, deliveries: Deliveries, report: Callable[[RecordedDelivery], None]) -> None:
        self._deliveries = deliveries
        self._report = report
        self._random = random.Random(deliveries.seed)  # noqa: S311 - for tests
        self._numbers = count()
        self._due: list[_Due] = []
        self._changed = threading.Condition()
        self._running = False
        self._threads: list[threading.Thread] = []

    def job_created(self, job: Mapping[str, Any], webhooks: list[dict[str, Any]]) -> None:
        """Schedule the deliveries of a job."""
        payload = {
            "type": "jobs.created",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "data": dict(job),
        }
        for webhook in webhooks:
            if "jobs.created" not in webhook["eventTypes"]:
                continue
            if urlsplit(webhook["targetURL"]).hostname != HOST:
                log.info("webhook %d is not delivered: its target is not on %s", webhook["id"], HOST)
                continue
            delivery_id = f"msg_{job['id']}_{webhook['id']}"
            body = json.dumps(payload, default=str).encode()
            at = time.monotonic() + self._random.uniform(0, self._deliveries.reorder)
            self._schedule(_Due(at, next(self._numbers), dict(webhook), job["id"], delivery_id, body))

    def start(self) -> None:
        """Deliver from now on."""
        with self._changed:
            self._running = True
            self._start_threads()

    def stop(self) -> None:
        """Drop scheduled deliveries, and wait for those under way."""
        with self._changed:
            self._running = False
            self._due.clear()
            self._changed.notify_all()
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _schedule(self, due: _Due) -> None:
        with self._changed:
            heappush(self._due, due)
            self._start_threads()
            self._changed.notify()

    def _start_threads(self) -> None:
        if self._running and self._due and not self._threads:
            for number in range(THREADS):
                thread = threading.Thread(target=self._work, name=f"fsm-deliveries-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (due := self._next()) is not None:
            started = time.monotonic()
            status = self._post(due)
            seconds = time.monotonic() - started
            self._report(
                RecordedDelivery(due.delivery_id, due.webhook["id"], due.job_id, due.attempt, status, seconds)
            )
            self._schedule_next(due, accepted=status is not None and 200 <= status < 300)

    def _schedule_next(self, due: _Due, *, accepted: bool) -> None:
        settings = self._deliveries
        due.accepted += accepted
        due.failures = 0 if accepted else due.failures + 1
        if due.accepted > settings.duplicates or due.failures >= settings.attempts:
            return
        wait = 0.0
        if due.failures:
            wait = min(settings.backoff * 2 ** (due.failures - 1), settings.max_backoff)
        due.attempt += 1
        due.at = time.monotonic() + wait
        with self._changed:
            if self._running:
                heappush(self._due, due)
                self._changed.notify()

    def _next(self) -> _Due | None:
        with self._changed:
            while self._running:
                if not self._due:
                    self._changed.wait()
                elif (remaining := self._due[0].at - time.monotonic()) > 0:
                    self._changed.wait(remaining)
                else:
                    return heappop(self._due)
        return None

    def _post(self, due: _Due) -> int | None:
        parts = urlsplit(due.webhook["targetURL"])
        signed = self._deliveries.sign(
            due.webhook["signingSecret"], due.delivery_id, int(time.time()), due.body
        )
        connection = http.client.HTTPConnection(HOST, parts.port or 80, timeout=self._deliveries.timeout)
        try:
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path or "/"
            connection.request("POST", path, due.body, {"Content-Type": "application/json", **signed})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
