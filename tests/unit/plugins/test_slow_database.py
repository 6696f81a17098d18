"""The receiver answers within the second that a sender allows, even with a slow database."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.plugins.receivers import RunningReceiver


@pytest.fixture
def response_seconds(database: None) -> float:
    from fsm_provider.plugins.webhooks.receiver import RESPONSE_SECONDS

    return RESPONSE_SECONDS


@pytest.fixture
def locked_database(receiver: RunningReceiver) -> Iterator[Callable[[], None]]:
    """A lock on all writes until it is called; the receiver has already read its settings."""
    from airflow.settings import engine

    receiver.post(b"the settings are read")
    blocker = sqlite3.connect(engine.url.database, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    yield blocker.close
    blocker.close()
    # Deliveries in flight write to the tables; let them finish before the tables are emptied.
    assert eventually(receiver) == 200


def test_a_sender_is_asked_to_retry_while_the_database_is_locked(receiver, locked_database):
    first = receiver.post()
    second = receiver.post()

    assert first.status_code == 503
    assert second.status_code == 503
    # A busy machine may answer later, but long before the database gives up, after tens of seconds.
    assert min(first.elapsed, second.elapsed).total_seconds() < 5
    locked_database()
    # The sender retries, whether or not the first attempt was stored meanwhile.
    assert eventually(receiver) == 200
    assert len(receiver.events) == 2


@pytest.mark.usefixtures("locked_database")
def test_a_delivery_is_in_flight_until_it_is_stored(receiver, monkeypatch, caplog):
    monkeypatch.setattr("fsm_provider.plugins.webhooks.receiver.MAX_IN_FLIGHT", 2)

    for _ in range(3):
        assert receiver.post().status_code == 503

    reasons = [record.args[1] for record in caplog.records if "refused" in str(record.msg)]
    assert reasons == ["slow", "slow", "busy"]


def test_slow_settings_count_towards_the_second(receiver, monkeypatch):
    from airflow.models import Variable

    release = threading.Event()
    monkeypatch.setattr(Variable, "get", lambda *args, **kwargs: release.wait(30))
    receiver.clock.now += 100

    try:
        assert receiver.post().status_code == 503
    finally:
        release.set()


def eventually(receiver: RunningReceiver) -> int:
    """Post until the status is not 503, for half a minute at most, and return it."""
    end = time.monotonic() + 30
    while True:
        status = receiver.post().status_code
        if status != 503 or time.monotonic() > end:
            return status
        time.sleep(0.05)
