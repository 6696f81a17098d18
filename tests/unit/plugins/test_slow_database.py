"""What the receiver does within the second that a sender gives it, where its database takes longer."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fsm_provider.plugins.webhooks import receiver as module
from tests.unit.plugins.conftest import RunningReceiver


@pytest.fixture
def answer_seconds() -> float:
    return module.ANSWER_SECONDS


@pytest.fixture
def locked_database(receiver: RunningReceiver) -> Iterator[Callable[[], None]]:
    """Nothing can be written until it is called, and what the receiver needs to read it has read."""
    from airflow.settings import engine

    receiver.post(b"the settings are read")
    blocker = sqlite3.connect(engine.url.database, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    yield blocker.close
    blocker.close()
    # Before the tables are emptied: what is under way writes to them.
    assert eventually(receiver) == 200


def test_a_database_that_is_locked_is_waited_for_less_than_a_second(receiver, locked_database):
    tries = [timed(lambda: receiver.post().status_code) for _ in range(3)]

    assert [status for status, _ in tries] == [503] * 3
    # A busy machine may answer later, but hardly three times.
    assert min(seconds for _, seconds in tries) < 1
    locked_database()
    # The sender comes again, whether or not the first try was stored meanwhile.
    assert eventually(receiver) == 200
    assert len(receiver.events) == 2


@pytest.mark.usefixtures("locked_database")
def test_a_body_that_waits_for_the_database_is_counted_until_it_is_stored(receiver, monkeypatch):
    monkeypatch.setattr(module, "MOST_UNDER_WAY", 2)

    seconds = [timed(lambda: receiver.post().status_code) for _ in range(3)]

    assert [status for status, _ in seconds] == [503] * 3
    assert seconds[1][1] > 0.6
    assert seconds[2][1] < module.ANSWER_SECONDS


@pytest.mark.parametrize("each", [0.35, 2.0])
@pytest.mark.usefixtures("locked_database")
def test_settings_that_are_slow_to_read_are_part_of_the_second(receiver, monkeypatch, each):
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
    """Post until that is not answered with 503, and give the status."""
    for _ in range(50):
        if (status := receiver.post().status_code) != 503:
            return status
        time.sleep(0.1)
    return status
