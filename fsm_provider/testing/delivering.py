"""Webhook deliveries of jobs, only to targets on this machine; the specification does not show
them.

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
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fsm_provider.testing.schedule import Schedule

log: logging.Logger = logging.getLogger("fsm_provider.testing")

Sign = Callable[[str, str, int, bytes], Mapping[str, str]]
"""Makes the headers of a delivery from secret, delivery's identifier, seconds since 1970, and body.
"""

HOST = "127.0.0.1"
EVENT_TYPES = ["jobs.created", "jobs.updated"]
"""The specification shows only the first."""


def standard_webhooks(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Sign as https://www.standardwebhooks.com specifies."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.new(
        key, f"{delivery_id}.{timestamp}.".encode() + body, hashlib.sha256
    ).digest()
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


@dataclass(frozen=True)
class Deliveries:
    """How registered targets on 127.0.0.1 are notified of jobs.

    :param sign: makes the headers that authenticate a delivery.
    :param attempts: consecutive failed attempts, without a 2xx response, after which a delivery is
        dropped.
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
    :param event_type: ``jobs.created`` or ``jobs.updated``.
    :param job_id: the job that was created or updated.
    :param attempt: counted from 1, duplicates included.
    :param status: the HTTP status returned; None where there was no response.
    :param seconds: the duration of the attempt.
    """

    delivery_id: str
    webhook_id: int
    event_type: str
    job_id: int
    attempt: int
    status: int | None
    seconds: float


@dataclass
class _Delivery:
    webhook: Mapping[str, Any]
    event_type: str
    job_id: int
    body: bytes
    identifier: str
    attempt: int = 0
    failures: int = 0
    accepted: int = 0


class Deliverer:
    """Delivers webhooks while its schedule runs, and reports each attempt."""

    def __init__(self, deliveries: Deliveries, report: Callable[[RecordedDelivery], None]) -> None:
        self._deliveries = deliveries
        self._report = report
        self._random = random.Random(deliveries.seed)  # noqa: S311 - for tests
        self.schedule: Schedule = Schedule("fsm-deliveries", threads=4)

    def deliver(
        self, event_type: str, job: Mapping[str, Any], webhooks: list[dict[str, Any]]
    ) -> None:
        """Schedule the deliveries of a job."""
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        payload = {"type": event_type, "timestamp": timestamp, "data": job}
        for webhook in webhooks:
            if event_type not in webhook["eventTypes"]:
                continue
            if urlsplit(webhook["targetURL"]).hostname not in (HOST, "localhost"):
                log.info(
                    "webhook %d is not delivered: its target is not on %s", webhook["id"], HOST
                )
                continue
            identifier = f"msg_{secrets.token_hex(12)}"
            body = json.dumps(payload, default=str).encode()
            delivery = _Delivery(webhook, event_type, job["id"], body, identifier)
            self._schedule(delivery, self._random.uniform(0, self._deliveries.reorder))

    def _schedule(self, delivery: _Delivery, seconds: float) -> None:
        self.schedule.call(time.monotonic() + seconds, partial(self._attempt, delivery))

    def _attempt(self, delivery: _Delivery) -> None:
        settings = self._deliveries
        delivery.attempt += 1
        started = time.monotonic()
        status = self._post(delivery)
        self._report(
            RecordedDelivery(
                delivery.identifier,
                delivery.webhook["id"],
                delivery.event_type,
                delivery.job_id,
                delivery.attempt,
                status,
                time.monotonic() - started,
            )
        )
        accepted = status is not None and 200 <= status < 300
        delivery.accepted += accepted
        delivery.failures = 0 if accepted else delivery.failures + 1
        if delivery.accepted <= settings.duplicates and delivery.failures < settings.attempts:
            backoff = settings.backoff * 2 ** (delivery.failures - 1) if delivery.failures else 0.0
            self._schedule(delivery, min(backoff, settings.max_backoff))

    def _post(self, delivery: _Delivery) -> int | None:
        parts = urlsplit(delivery.webhook["targetURL"])
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path or "/"
        secret, identifier, body = (
            delivery.webhook["signingSecret"],
            delivery.identifier,
            delivery.body,
        )
        headers = self._deliveries.sign(secret, identifier, int(time.time()), body)
        timeout = self._deliveries.timeout
        try:
            with closing(
                http.client.HTTPConnection(HOST, parts.port or 80, timeout=timeout)
            ) as connection:
                connection.request(
                    "POST", path, body, {"Content-Type": "application/json", **headers}
                )
                return connection.getresponse().status
        except (OSError, ValueError, http.client.HTTPException):
            return None
