"""The fake notifies registered targets of new jobs, as a sender of webhooks does."""

import hashlib
import hmac
import json
import time

import pytest
from standardwebhooks import Webhook

from fsm_provider.testing import Deliveries
from fsm_provider.testing.delivering import body_hmac
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


def test_a_new_job_is_delivered_and_signed(serve, target):
    service = watched(serve, target)

    job = service.add_job(7, customerReference="PO-1")

    (attempt,) = wait(service, 1)
    ((path, headers, body),) = target.received
    assert path == "/hook?x=1"
    payload = Webhook(service.webhooks[0]["signingSecret"]).verify(body, headers)
    assert (payload["type"], payload["data"]) == ("jobs.created", job)
    assert (attempt.job_id, attempt.webhook_id, attempt.attempt, attempt.status) == (job["id"], 1, 1, 200)


def test_another_scheme(serve, target):
    service = watched(serve, target, sign=body_hmac("X-Hub-Signature-256", "sha256="))

    service.add_job(7)

    wait(service, 1)
    ((_, headers, body),) = target.received
    secret = service.webhooks[0]["signingSecret"].encode()
    expected = hmac.new(secret, body, hashlib.sha256).hexdigest()
    assert headers["X-Hub-Signature-256"] == f"sha256={expected}"


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

    assert {attempt.delivery_id for attempt in wait(service, 3)} == {"msg_1001_1"}


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
    for to, event_type in ((url, "jobs.created"), (target.url, "jobs.closed"), (target.url, "jobs.created")):
        service = add_webhook(call, to, event_type)

    service.add_job(7)

    wait(service, 1)
    service.stop()  # attempts under way are recorded by then
    assert [attempt.webhook_id for attempt in service.deliveries] == [3]


def test_a_service_that_stops_delivers_nothing_more(serve, target):
    held_back = 0.5
    service = watched(serve, target, reorder=held_back, seed=2)  # for nearly as long as it may be

    service.add_job(7)
    service.stop()
    service.start()

    time.sleep(2 * held_back)
    assert target.received == []
