"""Each delivery is recorded once, on a real metadata database; a recorder stands for a process."""

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, islice

import pytest

from fsm_provider.plugins.webhooks.delivery_index import ID_BITS, DeliveryIndex, StoredEvent
from fsm_provider.plugins.webhooks.events import DeliveryRecorder
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity
from fsm_provider.storage.lineage import uri_for_records

URI = uri_for_records("fsm_default", "jobs")


def identity(number):
    return DeliveryIdentity(f"msg_{number} body", f"sha256:{number}")


def record(recorder, number, uri=URI):
    return recorder.record(uri, identity(number), {"type": "jobs.created"})


def store(event_id, number=None):
    """Store an event as another process does: a delivery, or an event of somebody else."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    one = identity(number)
    extra = {} if number is None else {"delivery": one.key, "digest": one.digest}
    with create_session() as session:
        asset_id = session.query(AssetModel).filter_by(uri=URI).one().id
        session.add(AssetEvent(id=event_id, asset_id=asset_id, extra=extra))


def stored_ids():
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(AssetEvent.id).order_by(AssetEvent.id)))


def delete(*event_ids):
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        for event_id in event_ids:
            session.delete(session.get(AssetEvent, event_id))


@pytest.fixture(autouse=True)
def active_asset(asset):
    asset()


class Clock:
    """The current time, moved by the test."""

    def __init__(self):
        self.offset = timedelta()

    def __call__(self):
        return datetime.now(UTC) + self.offset


class TestProcesses:
    def test_a_repeat_after_a_restart_is_dropped(self):
        assert record(DeliveryRecorder(), 1) == "accepted"
        assert record(DeliveryRecorder(), 1) == "repeated"

    def test_a_delivery_with_another_key_or_another_digest_is_a_repeat(self):
        recorder, one = DeliveryRecorder(), identity(1)
        record(recorder, 1)

        assert recorder.record(URI, DeliveryIdentity("other", one.digest), {}) == "repeated"
        assert recorder.record(URI, DeliveryIdentity(one.key, "other"), {}) == "repeated"
        assert recorder.record(URI, DeliveryIdentity(one.digest, one.key), {}) == "accepted"

    def test_processes_that_take_turns_drop_repeats_of_each_other(self):
        recorders = [DeliveryRecorder(), DeliveryRecorder(), DeliveryRecorder()]

        for number in range(30):
            first, second, third = (recorders[(number + turn) % 3] for turn in range(3))
            assert record(first, number) == "accepted"
            assert record(second, number) == "repeated"
            assert record(third, max(number - 5, 0)) == "repeated"

    def test_a_delivery_at_several_processes_and_threads_at_once_is_accepted_once(self):
        recorders = [DeliveryRecorder(), DeliveryRecorder()]
        outcomes, start = [], threading.Barrier(8)

        def send(recorder):
            start.wait()
            outcomes.extend((number, record(recorder, number)) for number in range(10))

        threads = [threading.Thread(target=partial(send, recorders[turn % 2])) for turn in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        for number in range(10):
            assert sorted(result for sent, result in outcomes if sent == number) == ["accepted"] + (
                ["repeated"] * 7
            )

    def test_assets_have_deliveries_of_their_own(self, asset):
        other = uri_for_records("fsm_default", "assets")
        asset(other)
        recorder = DeliveryRecorder()

        for outcome in ("accepted", "repeated"):
            for number in range(3):
                assert [record(recorder, number), record(recorder, number, other)] == [outcome] * 2

    def test_a_delivery_whose_transaction_fails_is_not_remembered(self):
        recorder = DeliveryRecorder()
        record(recorder, 1)

        with pytest.raises(Exception, match="JSON serializable"):
            recorder.record(URI, identity(2), {"type": object()})

        assert [record(recorder, number) for number in (2, 2, 1)] == ["accepted", "repeated", "repeated"]


class TestOtherEvents:
    def test_a_delivery_is_seen_that_appears_after_an_event_with_a_greater_id(self):
        """Only deliveries are stored one after the other."""
        recorder = DeliveryRecorder()
        record(recorder, 1)
        (first,) = stored_ids()
        store(first + 1000)
        assert record(recorder, 1) == "repeated"

        store(first + 500, 2)

        assert record(recorder, 2) == "repeated"

    def test_only_events_that_are_still_stored_make_repeats(self):
        recorder = DeliveryRecorder()
        for number in (1, 2, 3):
            record(recorder, number)
        first, *_ = stored_ids()

        delete(first)

        assert [record(recorder, number) for number in (1, 2, 3)] == ["accepted", "repeated", "repeated"]

    @pytest.mark.parametrize("used_again", [0, 1, 3])
    def test_ids_may_be_used_again_when_the_table_was_emptied(self, used_again):
        recorder = DeliveryRecorder()
        for number in (1, 2, 3):
            record(recorder, number)
        record(recorder, 3)
        ids = stored_ids()
        delete(*ids)
        for event_id in ids[:used_again]:
            store(event_id, 100 + event_id)

        for event_id in ids[:used_again]:
            assert record(recorder, 100 + event_id) == "repeated"
        assert [record(recorder, number) for number in (1, 3, 3)] == ["accepted", "accepted", "repeated"]


class TestTime:
    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize(("seconds", "outcome"), [(-30, "repeated"), (30, "accepted")])
    def test_a_delivery_is_remembered_for_24_hours(self, seconds, outcome, restarted):
        clock = Clock()
        recorder = DeliveryRecorder(clock)
        record(recorder, 1)
        record(recorder, 2)

        clock.offset = timedelta(hours=24, seconds=seconds)

        assert record(DeliveryRecorder(clock) if restarted else recorder, 1) == outcome

    def test_a_clock_that_was_wrong_for_a_time_loses_nothing(self):
        clock = Clock()
        recorder = DeliveryRecorder(clock)
        for _ in range(2):
            record(recorder, 1)
        clock.offset = timedelta(days=3)
        record(recorder, 2)

        clock.offset = timedelta()

        assert [record(recorder, 1), record(recorder, 2)] == ["repeated", "repeated"]


class TestHashes:
    def test_deliveries_with_the_same_hash_are_told_apart(self):
        pairs = list(islice(deliveries_with_the_same_hash(), 5))
        recorder, index, now = DeliveryRecorder(), DeliveryIndex(), datetime.now(UTC)
        one, other = pairs[0]
        stored = [
            StoredEvent(number, now, identity(number).key, identity(number).digest) for number in pairs[0]
        ]
        index.update(now, pytest.fail, lambda since: stored)

        assert {*index.find(identity(one))} == {*index.find(identity(other))} == {one, other}
        for outcome in ("accepted", "repeated"):
            for pair in pairs:
                assert [record(recorder, number) for number in pair] == [outcome] * 2


def deliveries_with_the_same_hash():
    """Yield pairs: the index has 24 bits of a hash, so that among some thousand deliveries two share them."""
    by_hash = {}
    for number in count(1):
        other = by_hash.setdefault(hash(identity(number).key) % 2 ** (64 - ID_BITS), number)
        if other != number:
            yield other, number


class TestIndex:
    NOW = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)

    def event(self, number, hours=0.0):
        one = identity(number)
        return StoredEvent(number, self.NOW + timedelta(hours=hours), one.key, one.digest)

    def test_the_events_of_a_day_are_read_once(self):
        index, first, second = DeliveryIndex(), self.event(1), self.event(2)
        asked = []

        def read_from_id(event_id):
            asked.append(event_id)
            return [event for event in (first, second) if event.id >= event_id]

        index.update(self.NOW, pytest.fail, lambda since: [first])
        for _ in range(2):
            index.update(self.NOW, read_from_id, pytest.fail)

        assert asked == [1, 2]
        assert {*index.find(identity(1))} == {1}
        assert {*index.find(identity(2))} == {2}

    def test_old_deliveries_take_no_memory(self):
        index, day = DeliveryIndex(), [self.event(number, number / 10 - 24) for number in range(1, 241)]
        index.update(self.NOW, pytest.fail, lambda since: day)

        index.update(self.NOW + timedelta(hours=24), lambda event_id: day[-1:], pytest.fail)

        found = [number for number in range(1, 241) if index.find(identity(number))]
        assert 220 <= min(found) <= 230
        assert found == list(range(min(found), 241))

    def test_an_update_that_fails_is_continued(self):
        index, day = DeliveryIndex(), [self.event(number) for number in (1, 2, 3)]

        def failing(since):
            yield from day[:2]
            raise OSError("the database is away")

        with pytest.raises(OSError, match="away"):
            index.update(self.NOW, pytest.fail, failing)
        index.update(self.NOW, lambda event_id: day[event_id - 1 :], pytest.fail)

        assert all(index.find(identity(number)) for number in (1, 2, 3))
