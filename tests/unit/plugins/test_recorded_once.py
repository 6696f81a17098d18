"""Each delivery is recorded once, on a real metadata database, by whichever thread or process."""

import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from fsm_provider.plugins.webhooks import events
from fsm_provider.plugins.webhooks.events import record_delivery
from fsm_provider.plugins.webhooks.signature import DeliveryIdentity
from fsm_provider.storage.lineage import uri_for_records

URI = uri_for_records("fsm_default", "jobs")


def identity(number):
    return DeliveryIdentity(f"msg_{number} {number:032x}", f"sha256:{number + 2**200:064x}")


def record(number, uri=URI, **clock):
    return record_delivery(uri, identity(number), {"type": "jobs.created"}, **clock)


@pytest.fixture(autouse=True)
def active_asset(asset):
    asset()


def test_a_delivery_with_another_key_or_another_digest_is_a_repeat():
    one = identity(1)
    assert record(1) == "accepted"

    assert record(1) == "repeated"
    assert record_delivery(URI, DeliveryIdentity("other", one.digest), {}) == "repeated"
    assert record_delivery(URI, DeliveryIdentity(one.key, "other"), {}) == "repeated"
    assert record_delivery(URI, DeliveryIdentity(one.digest, one.key), {}) == "accepted"


@pytest.mark.parametrize("identifier", ['"quoted"\\', "é家\U0001f525", "100%_", "x" * 255])
def test_an_identifier_may_be_any_text(identifier):
    one = DeliveryIdentity(f"{identifier} {'ab' * 16}", f"sha256:{'cd' * 32}")
    other = DeliveryIdentity(f"{identifier} {'ab' * 16}", f"sha256:{'ef' * 32}")
    another = DeliveryIdentity(f"{identifier}. {'ab' * 16}", f"sha256:{'01' * 32}")

    assert [record_delivery(URI, each, {}) for each in (one, other, another)] == [
        "accepted",
        "repeated",
        "accepted",
    ]


def test_a_delivery_in_several_threads_at_once_is_accepted_once():
    outcomes, start = [], threading.Barrier(8)

    def send():
        start.wait()
        outcomes.extend((number, record(number)) for number in range(10))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(10):
        found = sorted(outcome for sent, outcome in outcomes if sent == number)
        assert found == ["accepted"] + ["repeated"] * 7


def test_a_delivery_that_another_process_has_recorded_is_a_repeat(monkeypatch):
    assert record(1) == "accepted"
    with monkeypatch.context() as other_process:
        other_process.setattr(events, "_read", {})
        assert [record(1), record(2)] == ["repeated", "accepted"]

    assert [record(1), record(2)] == ["repeated"] * 2


def test_assets_have_deliveries_of_their_own(asset):
    other = uri_for_records("fsm_default", "assets")
    asset(other)

    for outcome in ("accepted", "repeated"):
        for number in range(3):
            assert [record(number), record(number, other)] == [outcome] * 2


def test_a_delivery_whose_transaction_fails_is_not_remembered():
    record(1)

    with pytest.raises(Exception, match="JSON serializable"):
        record_delivery(URI, identity(2), {"type": object()})

    assert [record(number) for number in (2, 2, 1)] == ["accepted", "repeated", "repeated"]


def test_an_event_of_somebody_else_is_no_delivery_whatever_it_holds():
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    with create_session() as session:
        asset_id = session.query(AssetModel).filter_by(uri=URI).one().id
        for extra in ({}, {"note": identity(1).digest}, {"delivery": [identity(1).key]}):
            session.add(AssetEvent(asset_id=asset_id, extra=extra))

    assert record(1) == "accepted"


@pytest.mark.parametrize(("seconds", "outcome"), [(-30, "repeated"), (30, "accepted")])
def test_a_delivery_is_remembered_for_24_hours(seconds, outcome):
    record(1)

    later = partial(record, clock=lambda: datetime.now(UTC) + timedelta(hours=24, seconds=seconds))

    assert later(1) == outcome
