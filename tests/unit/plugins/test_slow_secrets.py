"""The receiver answers while it reads its settings again, from a slow secrets backend."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from airflow.secrets import BaseSecretsBackend

from tests.unit.plugins import signing
from tests.unit.plugins.receivers import TOKEN

OBJECTS = ("properties", "assets", "contracts", "opportunities", "jobs", "appointments")
SECRET = "a signing secret"
SCHEME = {"signature": "hmac", "header": "x-signature"}
SETTINGS = "fsm_webhooks"
SECRETS = "fsm_webhook_secrets_fsm_default_jobs"


class Store:
    """What the secrets backend has, and how it answers. The test changes it."""

    def __init__(self):
        self.values = {}
        self.seconds = 0.0
        self.answers = threading.Event()
        self.answers.set()
        self.asked = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def look_up(self, key):
        with self._lock:
            self.asked.append(key)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.seconds)
        self.answers.wait(60)
        with self._lock:
            self._at_once -= 1
        return self.values.get(key)


store = Store()


class SlowSecrets(BaseSecretsBackend):
    """A secrets backend that Airflow loads by its name."""

    def get_variable(self, key, team_name=None):
        return store.look_up(key)


@pytest.fixture
def response_seconds():
    """Five times what a delivery has, for busy machines; the backend is as much slower."""
    return 4.0


@pytest.fixture
def backend(unknown_receiver, monkeypatch):
    """Six endpoints, each with a path token and a signing secret, in the backend alone.

    It answers at last before the receiver is stopped, whose reading would go on in the next test.
    """
    fresh = Store()
    fresh.values[SETTINGS] = json.dumps(
        {"endpoints": {f"fsm_default/{watched}": SCHEME for watched in OBJECTS}}
    )
    for watched in OBJECTS:
        fresh.values[f"fsm_webhook_secret_tokens_fsm_default_{watched}"] = TOKEN
        fresh.values[f"fsm_webhook_secrets_fsm_default_{watched}"] = SECRET
    monkeypatch.setattr(f"{__name__}.store", fresh)
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", f"{__name__}.SlowSecrets")
    yield fresh
    fresh.seconds = 0.0
    fresh.answers.set()


@pytest.fixture
def configured(backend, unknown_receiver, asset):
    """A receiver that has read the settings."""
    asset()
    assert post(unknown_receiver) == 200
    return unknown_receiver


def post(receiver, body=b"{}", secret=SECRET):
    """Post a signed delivery; return the status of the response."""
    response = receiver.post(body, headers=signing.hexadecimal(secret, body))
    return response.status_code


def post_until(status, receiver):
    """Repeat a delivery until the response has this status."""
    deadline = time.monotonic() + 60
    while post(receiver) != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def begun_delivery(receiver):
    """Send all of a delivery but its body; yield what sends it and returns the response."""
    host, _, port = receiver.base_url.removeprefix("http://").partition(":")
    path = receiver.url().removeprefix(receiver.base_url)
    body = b"late"
    headers = signing.hexadecimal(SECRET, body) | {"Content-Length": str(len(body))}
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Expect: 100-continue", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        # Sent when the path is accepted, and the body is waited for.
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")

        def send_body():
            connection.sendall(body)
            return connection.recv(65536)

        yield send_body


def test_a_delivery_is_accepted_while_the_settings_are_read_for_longer_than_it_has(
    backend, unknown_receiver, asset
):
    asset()
    backend.seconds = 0.5
    assert post(unknown_receiver) == 503  # nothing was read yet: the sender repeats it
    post_until(200, unknown_receiver)

    for number in range(4):
        unknown_receiver.clock.now += 60
        assert post(unknown_receiver, b"%d" % number) == 200

    assert len(unknown_receiver.events) == 5


def test_what_was_read_serves_for_ten_minutes_and_not_longer(backend, configured):
    backend.answers.clear()

    configured.clock.now += 599
    assert post(configured, b"1") == 200
    configured.clock.now += 1
    assert post(configured, b"2") == 503

    assert len(configured.events) == 2
    backend.answers.set()
    post_until(200, configured)


def test_a_reading_counts_from_its_begin(backend, configured):
    """What it has looked up first may have changed before it ended."""
    configured.clock.now += 599
    backend.answers.clear()
    assert post(configured, b"1") == 200
    configured.clock.now += 600
    backend.answers.set()
    time.sleep(1)
    backend.answers.clear()

    assert post(configured, b"2") == 503


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (SETTINGS, '{"endpoints": {}}', 404),
        (SECRETS, "another signing secret", 401),
        ("fsm_webhook_secret_tokens_fsm_default_jobs", TOKEN[::-1], 404),
    ],
)
def test_what_was_removed_is_accepted_until_the_settings_are_read(
    backend, configured, name, value, status
):
    backend.values[name] = value
    backend.answers.clear()
    configured.clock.now += 1

    assert post(configured, b"1") == 200
    backend.answers.set()
    post_until(status, configured)

    assert post(configured, b"2") == status


def test_where_the_settings_cannot_be_read_the_last_ones_serve_for_as_long(
    receiver, monkeypatch, caplog
):
    from airflow.secrets.metastore import MetastoreBackend

    def fail(*args, **kwargs):
        raise OSError(f"no answer for {TOKEN}")

    assert receiver.post(b"1").status_code == 200
    monkeypatch.setattr(MetastoreBackend, "get_variable", fail)

    receiver.clock.now += 599
    assert receiver.post(b"2").status_code == 200
    receiver.clock.now += 1
    assert receiver.post(b"3").status_code == 503

    assert "The receiver's settings were not read: VariableUnreadableError" in caplog.text
    messages = [record.getMessage() for record in caplog.records if "fsm" in record.name]
    assert TOKEN not in "".join(messages)


def test_a_reading_that_fails_is_tried_again_after_a_second(receiver, monkeypatch, caplog):
    from airflow.secrets.metastore import MetastoreBackend

    def fail(*args, **kwargs):
        raise OSError

    monkeypatch.setattr(MetastoreBackend, "get_variable", fail)
    for _ in range(3):
        assert receiver.post().status_code == 503
    receiver.clock.now += 0.9
    assert receiver.post().status_code == 503
    assert caplog.text.count("The receiver's settings were not read") == 1
    receiver.clock.now += 0.1
    assert receiver.post().status_code == 503
    assert caplog.text.count("The receiver's settings were not read") == 2
    monkeypatch.undo()

    receiver.clock.now += 1
    assert receiver.post().status_code == 200


def test_many_deliveries_cause_one_reading(backend, configured):
    backend.asked.clear()
    backend.seconds = 0.1
    configured.clock.now += 5

    with ThreadPoolExecutor(16) as senders:
        statuses = list(senders.map(lambda number: post(configured, b"%d" % number), range(16)))

    post_until(200, configured)
    assert statuses == [200] * 16
    assert backend.asked.count(SETTINGS) == 1
    assert backend.most_at_once == 1


def test_a_delivery_whose_body_comes_late_is_judged_by_what_was_read_meanwhile(backend, configured):
    with begun_delivery(configured) as send_body:
        backend.values[SECRETS] = "another signing secret"
        configured.clock.now += 1
        post_until(401, configured)

        assert send_body().startswith(b"HTTP/1.1 401 ")

    assert len(configured.events) == 1


def test_a_delivery_whose_body_comes_late_is_refused_once_the_settings_are_too_old(
    backend, configured
):
    with begun_delivery(configured) as send_body:
        configured.clock.now += 600

        assert send_body().startswith(b"HTTP/1.1 503 ")

    assert len(configured.events) == 1
