"""The fake notifies registered targets of new jobs, as a sender of webhooks does."""

import hashlib
import hmac
import json
import time
from typing import NamedTuple

import pytest
from standardwebhooks import Webhook

from fsm_provider.testing import Deliveries
from fsm_provider.testing.__main__ import SIGNING_SECRET
from tests.unit.api.raw_server import RawServer, http
from tests.unit.testing.caller import register


class ReceivedDelivery(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Target(RawServer):
    """A server that records requests, and returns the scheduled statuses."""

    def __init__(self):
        self.statuses = []
        super().__init__(lambda connection, *_: connection.sendall(http(self.next_status())))

    def next_status(self):
        if not self.statuses:
            return 200
        return self.statuses.pop(0)

    @property
    def url(self):
        return f"{self.base_url}/hook?x=1"

    @property
    def received(self):
        """The deliveries so far."""
        deliveries = []
        for request in self.requests:
            request_line, *lines = request.head.decode().split("\r\n")
            path = request_line.split()[1]
            headers = dict(line.split(": ", 1) for line in lines)
            deliveries.append(ReceivedDelivery(path, headers, request.body))
        return deliveries


@pytest.fixture
def target():
    with Target() as running:
        yield running


def serve_webhook(serve, target, **deliveries):
    """Start a service with a webhook for new jobs, whose attempts follow each other quickly."""
    call = serve(deliveries=Deliveries(**{"backoff": 0.01, **deliveries}))
    return add_webhook(call, target.url)


def add_webhook(call, url, event_type="jobs.created"):
    register(call, [("eventTypes", event_type)], targetURL=url)
    return call.service


def wait_for_attempts(service, count):
    service.wait_for(lambda: len(service.deliveries) >= count, timeout=10)
    return service.deliveries


def test_a_job_is_delivered_and_signed_when_it_is_created_and_when_it_is_updated(serve, target):
    service = serve().service
    webhook = service.add_webhook(target.url, SIGNING_SECRET)

    job = service.add_job(7, customerReference="PO-1")
    wait_for_attempts(service, 1)
    updated_job = service.update_job(job["id"], status="Completed")
    created, updated = wait_for_attempts(service, 2)

    verify = Webhook(webhook["signingSecret"]).verify
    first, second = target.received
    assert first.path == "/hook?x=1"
    assert second.path == "/hook?x=1"
    first_payload = verify(first.body, first.headers)
    second_payload = verify(second.body, second.headers)
    assert first_payload["type"] == created.event_type == "jobs.created"
    assert first_payload["data"] == job
    assert second_payload["type"] == updated.event_type == "jobs.updated"
    assert second_payload["data"] == updated_job != job

    assert created.job_id == job["id"]
    assert created.webhook_id == 1
    assert created.attempt == 1
    assert created.status == 200
    assert created.delivery_id != updated.delivery_id


def test_another_scheme(serve, target):
    def signature_of(secret, body):
        return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()

    def sign(secret, _identifier, _timestamp, body):
        return {"X-Hub-Signature-256": signature_of(secret, body)}

    service = serve_webhook(serve, target, sign=sign)

    service.add_job(7)

    wait_for_attempts(service, 1)
    [delivery] = target.received
    expected = signature_of(service.webhooks[0]["signingSecret"], delivery.body)
    assert delivery.headers["X-Hub-Signature-256"] == expected


def test_it_is_tried_again_until_it_is_accepted_or_given_up(serve, target):
    service = serve_webhook(serve, target, attempts=3)
    target.statuses = [503, 404, 302, 500, 200]

    service.add_job(7)
    wait_for_attempts(service, 3)
    service.add_job(8)
    wait_for_attempts(service, 5)

    time.sleep(0.2)  # a further attempt would be recorded by then
    attempts = [(attempt.job_id, attempt.status) for attempt in service.deliveries]
    assert attempts == [
        (1001, 503),
        (1001, 404),
        (1001, 302),
        (1002, 500),
        (1002, 200),
    ]
    assert len({delivery.headers["webhook-id"] for delivery in target.received}) == 2


def test_a_target_that_is_away_is_tried_again(serve, target):
    service = serve_webhook(serve, target, attempts=2)
    target.__exit__()

    service.add_job(7)

    first, second = wait_for_attempts(service, 2)
    assert first.status is None
    assert second.status is None


def test_duplicates(serve, target):
    service = serve_webhook(serve, target, duplicates=2)

    service.add_job(7)

    attempts = wait_for_attempts(service, 3)
    assert len({attempt.delivery_id for attempt in attempts}) == 1


def test_reordered(serve, target):
    service = serve_webhook(serve, target, reorder=0.3, seed=1)

    job_ids = []
    for _ in range(8):
        job = service.add_job(7)
        job_ids.append(job["id"])

    wait_for_attempts(service, 8)
    delivered = [json.loads(delivery.body)["data"]["id"] for delivery in target.received]
    assert sorted(delivered) == job_ids
    assert delivered != job_ids


@pytest.mark.parametrize("url", ["http://127.0.0.1.example.test/hook", "https://example.test/hook"])
def test_nothing_leaves_this_machine_and_no_other_event_is_delivered(serve, target, url):
    call = serve()
    add_webhook(call, url, "jobs.created")
    add_webhook(call, target.url, "jobs.closed")
    service = add_webhook(call, target.url, "jobs.created")

    service.add_job(7)

    wait_for_attempts(service, 1)
    service.stop()  # attempts under way are recorded by then
    [attempt] = service.deliveries
    assert attempt.webhook_id == 3
