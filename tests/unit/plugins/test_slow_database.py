"""The receiver answers within the second that a sender allows, even if its database takes longer."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fsm_provider.plugins.webhooks import receiver as module
from tests.unit.plugins.conftest import RunningReceiver


@pytest.fixture
def response_seconds() -> float:
    return module.RESPONSE_SECONDS


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


def test_a_locked_database_delays_the_response_by_less_than_a_second(receiver, locked_database):
    attempts = [timed(lambda: receiver.post().status_code) for _ in range(3)]

    assert [status for status, _ in attempts] == [503] * 3
    # A busy machine may answer later, but hardly three times.
    assert min(seconds for _, seconds in attempts) < 1
    locked_database()
    # The sender retries, whether or not the first attempt was stored meanwhile.
    assert eventually(receiver) == 200
    assert len(receiver.events) == 2


@pytest.mark.usefixtures("locked_database")
def test_a_body_is_in_flight_until_it_is_stored(receiver, monkeypatch):
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 2)

    seconds = [timed(lambda: receiver.post().status_code) for _ in range(3)]

    assert [status for status, _ in seconds] == [503] * 3
    assert seconds[1][1] > 0.6
    assert seconds[2][1] < module.RESPONSE_SECONDS


@pytest.mark.parametrize("each", [0.35, 2.0])
@pytest.mark.usefixtures("locked_database")
def test_slow_settings_count_towards_the_second(receiver, monkeypatch, each):
    from airflow.models import Variable

    read = Variable.get

    def slow(*args, **kwargs):
        time.sleep(each)
        return read(*args, **kwargs)

    monkeypatch.setattr(Variable, "get", slow)
    receiver.clock.now += 100

    status, seconds = timed(lambda: receiver.post().status_code)

    assert status == 503
    assert seconds < 1.4


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return function(), time.monotonic() - started


def eventually(receiver: RunningReceiver) -> int:
    """Post until the status is not 503, and return it."""
    for _ in range(50):
        if (status := receiver.post().status_code) != 503:
            return status
        time.sleep(0.1)
    return status
