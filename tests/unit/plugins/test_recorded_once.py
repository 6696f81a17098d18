"""Each delivery is recorded once, on a real metadata database, by whichever thread or process."""

import threading

import pytest

from fsm_provider.storage import uri_for_records

URI = uri_for_records("fsm_default", "jobs")


def record(number, uri=URI):
    from fsm_provider.plugins.webhooks.events import record_delivery

    return record_delivery(uri, f"{number:064x}", {"type": "jobs.created"})


@pytest.fixture(autouse=True)
def active_asset(asset):
    asset()


def test_a_delivery_in_several_threads_at_once_is_accepted_once():
    start = threading.Barrier(8)
    outcomes = {number: [] for number in range(10)}

    def send_all():
        start.wait()
        for number in range(10):
            outcomes[number].append(record(number))

    threads = [threading.Thread(target=send_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for outcomes_of_one in outcomes.values():
        assert sorted(outcomes_of_one) == ["accepted"] + ["repeated"] * 7


def test_an_event_of_somebody_else_is_no_delivery_whatever_it_holds():
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session

    delivery = f"{1:064x}"
    extras = [None, [], {}, {"note": delivery}, {"delivery": [delivery]}]
    with create_session() as session:
        asset = session.query(AssetModel).filter_by(uri=URI).one()
        for extra in extras:
            session.add(AssetEvent(asset_id=asset.id, extra=extra))

    assert record(1) == "accepted"
