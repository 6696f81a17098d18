"""Webhook deliveries of jobs, only to targets on this machine.

The specification does not show them.

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
"""Makes the headers of a delivery.

Its arguments: the secret, the delivery's identifier, seconds since 1970, and the body.
"""

HOST = "127.0.0.1"
EVENT_TYPES = ["jobs.created", "jobs.updated"]
"""The specification shows only the first."""


def standard_webhooks(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Sign as https://www.standardwebhooks.com specifies."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    signature = hmac.digest(key, signed, hashlib.sha256)
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
    """An event on its way to a webhook, with what became of the attempts so far.

    :param failures: consecutive ones.
    :param accepted: attempts that had a 2xx response.
    """

    webhook: Mapping[str, Any]
    event_type: str
    job_id: int
    body: bytes
    identifier: str
    attempt: int = 0
    failures: int = 0
    accepted: int = 0


class Deliverer:
    """Delivers webhooks while its schedule runs, and reports each attempt.

    Whoever changes a job calls :meth:`deliver`. The threads of the schedule make the attempts;
    each attempt schedules the next one of its delivery, if there is one.
    """

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
                webhook_id = webhook["id"]
                log.info("webhook %d is not delivered: its target is not on %s", webhook_id, HOST)
                continue
            delivery = _Delivery(
                webhook,
                event_type,
                job["id"],
                body=json.dumps(payload, default=str).encode(),
                identifier=f"msg_{secrets.token_hex(12)}",
            )
            delay = self._random.uniform(0, self._deliveries.reorder)
            self._schedule(delivery, delay)

    def _schedule(self, delivery: _Delivery, seconds: float) -> None:
        self.schedule.call(time.monotonic() + seconds, partial(self._attempt, delivery))

    def _attempt(self, delivery: _Delivery) -> None:
        delivery.attempt += 1
        started = time.monotonic()
        status = self._post(delivery)
        attempt = RecordedDelivery(
            delivery_id=delivery.identifier,
            webhook_id=delivery.webhook["id"],
            event_type=delivery.event_type,
            job_id=delivery.job_id,
            attempt=delivery.attempt,
            status=status,
            seconds=time.monotonic() - started,
        )
        self._report(attempt)

        if status is not None and 200 <= status < 300:
            delivery.accepted += 1
            delivery.failures = 0
        else:
            delivery.failures += 1
        if delivery.accepted > self._deliveries.duplicates:
            return
        if delivery.failures >= self._deliveries.attempts:
            return
        self._schedule(delivery, self._backoff(delivery.failures))

    def _backoff(self, failures: int) -> float:
        """Return the seconds before the next attempt, after so many that failed."""
        if failures == 0:
            return 0.0
        backoff: float = self._deliveries.backoff * 2 ** (failures - 1)
        return min(backoff, self._deliveries.max_backoff)

    def _post(self, delivery: _Delivery) -> int | None:
        """Send a delivery; return the status of the response, None if there was none."""
        target = urlsplit(delivery.webhook["targetURL"])
        path = target.path or "/"
        if target.query:
            path = f"{target.path}?{target.query}"
        signature = self._deliveries.sign(
            delivery.webhook["signingSecret"],
            delivery.identifier,
            int(time.time()),
            delivery.body,
        )
        headers = {"Content-Type": "application/json", **signature}
        timeout = self._deliveries.timeout
        try:
            connection = http.client.HTTPConnection(HOST, target.port or 80, timeout=timeout)
            with closing(connection):
                connection.request("POST", path, delivery.body, headers)
                return connection.getresponse().status
        except (OSError, ValueError, http.client.HTTPException):
            return None
