"""The fake notifies registered targets of new jobs, as a sender of webhooks does."""

import hashlib
import hmac
import json
import time

import pytest
from standardwebhooks import Webhook

from fsm_provider.testing import Deliveries
from fsm_provider.testing.__main__ import SIGNING_SECRET
from tests.unit.api.raw import RawServer, http
from tests.unit.testing.conftest import register


class Target(RawServer):
    """A server that records requests, and returns the scheduled statuses."""

    def __init__(self):
        self.statuses = []
        super().__init__(lambda connection, *_: connection.sendall(http(self.next_status())))

    def next_status(self):
        return self.statuses.pop(0) if self.statuses else 200

    @property
    def url(self):
        return f"{self.base_url}/hook?x=1"

    @property
    def received(self):
        """The path, the headers and the body of each request."""
        heads = [request.head.decode().split("\r\n") for request in self.requests]
        headers = [dict(line.split(": ", 1) for line in lines) for _, *lines in heads]
        paths = [line.split()[1] for line, *_ in heads]
        return list(zip(paths, headers, (request.body for request in self.requests), strict=True))


@pytest.fixture
def target():
    with Target() as running:
        yield running


def watched(serve, target, **deliveries):
    return add_webhook(serve(deliveries=Deliveries(**{"backoff": 0.01, **deliveries})), target.url)


def add_webhook(call, url, event_type="jobs.created"):
    register(call, [("eventTypes", event_type)], targetURL=url)
    return call.service


def wait(service, attempts):
    service.wait_for(lambda: len(service.deliveries) >= attempts, timeout=10)
    return service.deliveries


def test_a_job_is_delivered_and_signed_when_it_is_created_and_when_it_is_updated(serve, target):
    service = serve().service
    webhook = service.add_webhook(target.url, SIGNING_SECRET)

    job = service.add_job(7, customerReference="PO-1")
    wait(service, 1)
    updated = service.update_job(job["id"], status="Completed")
    first, second = wait(service, 2)

    assert {path for path, *_ in target.received} == {"/hook?x=1"}
    verify = Webhook(webhook["signingSecret"]).verify
    payloads = [verify(body, headers) for _, headers, body in target.received]
    assert [one["data"] for one in payloads] == [job, updated] != [job, job]
    types = [one["type"] for one in payloads]
    assert types == [first.event_type, second.event_type] == ["jobs.created", "jobs.updated"]
    assert (first.job_id, first.webhook_id, first.attempt, first.status) == (job["id"], 1, 1, 200)
    assert first.delivery_id != second.delivery_id


def test_another_scheme(serve, target):
    def sign(secret, _identifier, _timestamp, body):
        return {"X-Hub-Signature-256": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}

    service = watched(serve, target, sign=sign)

    service.add_job(7)

    wait(service, 1)
    ((_, headers, body),) = target.received
    secret = service.webhooks[0]["signingSecret"].encode()
    expected = hmac.new(secret, body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature-256"] == expected


def test_it_is_tried_again_until_it_is_accepted_or_given_up(serve, target):
    service = watched(serve, target, attempts=3)
    target.statuses = [503, 404, 302, 500, 200]

    service.add_job(7)
    wait(service, 3)
    service.add_job(8)

    wait(service, 5)
    time.sleep(0.2)  # a further attempt would be recorded by then
    attempts = [(attempt.job_id, attempt.status) for attempt in service.deliveries]
    assert attempts == [(1001, 503), (1001, 404), (1001, 302), (1002, 500), (1002, 200)]
    assert len({headers["webhook-id"] for _, headers, _ in target.received}) == 2


def test_a_target_that_is_away_is_tried_again(serve, target):
    service = watched(serve, target, attempts=2)
    target.__exit__()

    service.add_job(7)

    assert [attempt.status for attempt in wait(service, 2)] == [None, None]


def test_duplicates(serve, target):
    service = watched(serve, target, duplicates=2)

    service.add_job(7)

    assert len({attempt.delivery_id for attempt in wait(service, 3)}) == 1


def test_reordered(serve, target):
    service = watched(serve, target, reorder=0.3, seed=1)

    jobs = [service.add_job(7)["id"] for _ in range(8)]

    wait(service, 8)
    received = [json.loads(body)["data"]["id"] for _, _, body in target.received]
    assert sorted(received) == jobs
    assert received != jobs


@pytest.mark.parametrize("url", ["http://127.0.0.1.example.test/hook", "https://example.test/hook"])
def test_nothing_leaves_this_machine_and_no_other_event_is_delivered(serve, target, url):
    call = serve()
    for to, event_type in (
        (url, "jobs.created"),
        (target.url, "jobs.closed"),
        (target.url, "jobs.created"),
    ):
        service = add_webhook(call, to, event_type)

    service.add_job(7)

    wait(service, 1)
    service.stop()  # attempts under way are recorded by then
    assert [attempt.webhook_id for attempt in service.deliveries] == [3]
