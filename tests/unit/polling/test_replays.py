"""Forms that a person asks for are emitted again, whatever is killed, edited or requested meanwhile."""

import json
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.polling.replays import REPLAY, Replay
from fsm_provider.testing import faults
from tests.capabilities import ASSETS

ASSETS.require()

from tests.unit.polling.emitting import Killed, MemoryStore, emit, request  # noqa: E402
from tests.unit.supervisor import supervised  # noqa: E402

SETTINGS = {"start_from": "beginning", "max_forms_per_event": 1}
REQUEST = Replay("1", "fsm_default", datetime(2026, 1, 5, tzinfo=UTC), None)


@pytest.fixture(autouse=True)
def supervisor(service, connect):
    connect(service, max_retries=0)
    with supervised() as running:
        yield running


@pytest.fixture
def store():
    return MemoryStore()


def ago(hours):
    return datetime.now(UTC) - timedelta(hours=hours)


def seed(service, *hours):
    """Complete forms so many hours ago; return their identifiers."""
    return [service.add_form(property_id=7, created=ago(one))["id"] for one in hours]


def emit_all(store, forms):
    assert sorted(emit(store, forms, property_id=7, **SETTINGS)) == forms


def edit(store):
    """Replace the configuration by one of a wider filter."""
    assert emit(store, [], property_id=[7, 8], **SETTINGS) == []


def check_next(service, store):
    """A form that comes now is the only one that is emitted."""
    added = service.add_form(property_id=7)["id"]
    assert emit(store, [added]) == [added]


def replay_killed(service, store, *, kill_after=None, kill_at=None):
    """Emit forms again, be killed at a step, and go on; return whether that step came."""
    _, *wanted, _ = forms = seed(service, 6, 4, 3, 2)
    emit_all(store, forms)
    edit(store)
    replayed = request(store, ago(5), ago(2.5))
    store.writes, store.kill_at = 0, kill_at
    try:
        emitted, was_killed = emit(store, wanted, replayed=replayed, kill_after=kill_after), False
    except Killed as killed:
        (emitted,), was_killed = killed.args, True
        emitted += emit(store, set(wanted) - set(emitted), replayed=replayed)

    store.kill_at = None
    times = Counter(emitted)
    assert set(times) == set(wanted)
    assert times.total() <= len(wanted) + was_killed
    check_next(service, store)
    return was_killed


@pytest.mark.parametrize("step", range(1, 10))
def test_a_watcher_that_is_killed_before_a_write_of_a_replay_goes_on(service, store, step):
    was_killed = replay_killed(service, store, kill_at=step)

    assert was_killed


@pytest.mark.parametrize("events", [1, 2])
def test_a_watcher_that_is_killed_after_an_event_of_a_replay_goes_on(service, store, events):
    assert replay_killed(service, store, kill_after=events)


def test_a_request_while_another_is_carried_out_loses_no_form_of_either(service, store):
    """What a former configuration has stored says that the forms of both were emitted."""
    oldest, early, late, _ = forms = seed(service, 6, 5, 4, 3)
    emit_all(store, forms)
    edit(store)
    request(store, ago(6.5), ago(4.5))
    with pytest.raises(Killed) as killed:
        emit(store, forms, kill_after=1)
    second = request(store, ago(4.5), ago(3.5))

    emitted = killed.value.args[0] + emit(store, [oldest, early, late], replayed=second)

    assert set(emitted) == {oldest, early, late}
    check_next(service, store)


def test_a_request_for_another_connection_changes_nothing(service, store):
    forms = seed(service, 6, 5)
    emit_all(store, forms)
    request(store, ago(7), conn_id="another")
    edit(store)

    check_next(service, store)


def test_a_request_while_the_service_is_away_is_carried_out_when_it_is_back(service, store):
    forms = seed(service, 6, 5)
    emit_all(store, forms)
    replayed = request(store, ago(5.5))
    away = service.fail("GET", "/forms", faults.Status(503), calls=range(1, 6))

    assert emit(store, forms[1:], replayed=replayed) == forms[1:]
    assert away.hits == 5
    check_next(service, store)


def test_a_period_without_forms_emits_none(service, store):
    forms = seed(service, 6, 5)
    emit_all(store, forms)
    replayed = request(store, ago(4), ago(3))

    assert emit(store, [], replayed=replayed) == []
    check_next(service, store)


@pytest.mark.parametrize(
    "garbage",
    [
        "not JSON",
        "null",
        "5",
        "[]",
        "{}",
        json.dumps({**REQUEST.as_dict(), "since": "yesterday"}),
        json.dumps({**REQUEST.as_dict(), "since": 5}),
        json.dumps({**REQUEST.as_dict(), "since": "0001-01-01T00:00:00+14:00"}),
        json.dumps({**REQUEST.as_dict(), "since": "2999-01-01T00:00:00Z"}),
        json.dumps({**REQUEST.as_dict(), "until": {}}),
    ],
)
def test_a_request_that_somebody_has_edited_is_ignored(service, store, garbage, caplog):
    emit_all(store, seed(service, 6, 5))
    store.values[REPLAY] = garbage

    with caplog.at_level(logging.WARNING):
        check_next(service, store)

    assert ("is not what the command stores" in caplog.text) == (garbage != "null")


def test_times_without_a_zone_are_utc():
    stored = {**REQUEST.as_dict(), "since": "2026-01-05T00:00:00"}

    assert Replay.parse(stored) == REQUEST


@pytest.mark.parametrize("until", [None, datetime(2026, 1, 6, tzinfo=UTC)])
def test_a_request_is_read_as_it_was_stored(until):
    replay = Replay("1", "fsm_default", REQUEST.since, until)

    assert Replay.parse(json.loads(json.dumps(replay.as_dict()))) == replay
