"""What is stored with an asset before Airflow 3.3: rows of a SQL database, which one process claims."""

import asyncio

import pytest
from sqlalchemy import create_engine

from fsm_provider.api.errors import FsmInputError
from fsm_provider.state import assets
from fsm_provider.state.assets import MAX_SILENCE, RENEW_INTERVAL, AssetClaimedError, SqlAssetStore
from tests.unit.clocks import run_hurried

KEY = "fsm_forms/abc/seen/2026-01-31T08"
TABLE = "fsm_asset_state"
SERVICE = "https://api.example.com"


@pytest.fixture
def store(database, monkeypatch):
    """Makes the store of an asset."""
    monkeypatch.setattr(assets, "_claimed", set())
    engine = create_engine(database.url)
    assets.asset_state().create(engine)

    def make(name="records", process="1", service=SERVICE):
        async def opened():
            return engine, service

        return SqlAssetStore(name, opened, process)

    yield make
    engine.dispose()


@pytest.mark.parametrize("value", [{"1": "2026-01-31T08:00:00Z"}, [], 60.0, "now", "ü" * 70_000])
def test_a_value_is_stored_until_it_is_deleted(store, value):
    async def run():
        one = store()
        read = [await one.aget(KEY)]
        await one.aset(KEY, "before")
        await one.aset(KEY, value)
        read.append(await store().aget(KEY))
        await one.adelete(KEY)
        await one.adelete(KEY)
        return [*read, await one.aget(KEY)]

    assert asyncio.run(run()) == [None, value, None]


def test_each_asset_of_each_service_and_airflow_has_its_own(store, database, monkeypatch):
    async def run():
        await store("gas safety/records").aset(KEY, 1)
        others = [store("Gas safety/records"), store("gas safety/records", service="https://example.com")]
        read = [await one.aget(KEY) for one in others]
        monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", "another")
        return [*read, await store("gas safety/records").aget(KEY)]

    assert asyncio.run(run()) == [None, None, None]
    (row,) = database.rows(TABLE)
    assert (row.asset_name, row.service, row.key, row.value) == ("gas safety/records", SERVICE, KEY, "1")


def test_what_somebody_has_edited_is_named(store, database):
    asyncio.run(store().aset(KEY, 1))
    database.execute(f"UPDATE {TABLE} SET value = '{{'")

    with pytest.raises(
        FsmInputError, match=f"'{KEY}' of the asset 'records' in the table {TABLE} is not what"
    ):
        asyncio.run(store().aget(KEY))


def test_first_writes_at_the_same_moment_are_both_done(store, database):
    async def run():
        await asyncio.gather(*(store().aset(KEY, 1) for _ in range(8)))

    asyncio.run(run())

    assert len(database.rows(TABLE)) == 1


def test_only_the_process_that_has_claimed_an_asset_last_can_write(store, database):
    async def run():
        first, second = store(process="1"), store(process="2")
        await first.claim()
        await first.aset(KEY, 1)
        await second.claim()
        for write in (first.aset(KEY, 2), first.adelete(KEY), first.renew()):
            with pytest.raises(AssetClaimedError):
                await write
        read = await first.aget(KEY)
        await second.aset(KEY, 3)
        return read, await first.aget(KEY)

    assert asyncio.run(run()) == (1, 3)
    assert len(database.rows(TABLE)) == 2


def test_nothing_is_written_after_another_claim_whatever_is_under_way(store):
    async def run():
        first, second = store(process="1"), store(process="2")
        await first.claim()

        async def write():
            for number in range(1000):
                await asyncio.gather(*(first.aset(f"{KEY} {key}", number) for key in range(3)))

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.2)
        await second.claim()
        read = [[await second.aget(f"{KEY} {key}") for key in range(3)] for _ in range(10)]
        with pytest.raises(AssetClaimedError):
            await writing
        return read

    read = asyncio.run(run())

    assert read[0][0] > 0
    assert read == [read[0]] * 10


def test_a_write_of_an_earlier_claim_of_the_same_process_is_refused(store):
    async def run():
        cancelled, restarted = store(), store()
        await cancelled.claim()
        await restarted.claim()
        await restarted.aset(KEY, 1)
        with pytest.raises(AssetClaimedError):
            await cancelled.aset(KEY, 0)
        return await restarted.aget(KEY)

    assert asyncio.run(run()) == 1


def test_a_process_gets_an_asset_back_once_the_owner_is_silent(store):
    async def run():
        first, second = store(process="1"), store(process="2")
        await first.claim()
        await second.claim()
        again = asyncio.create_task(store(process="1").claim())
        for _ in range(20):
            await asyncio.sleep(RENEW_INTERVAL)
            await second.renew()
        waited, began = not again.done(), asyncio.get_running_loop().time()
        await again
        with pytest.raises(AssetClaimedError):
            await second.renew()
        return waited, asyncio.get_running_loop().time() - began

    waited, silent = run_hurried(run(), hurry=60.0)

    assert waited
    assert MAX_SILENCE - RENEW_INTERVAL <= silent <= MAX_SILENCE + 3 * RENEW_INTERVAL


def test_a_process_does_not_wait_for_itself(store):
    async def run():
        for _ in range(3):
            await store().claim()

    run_hurried(asyncio.wait_for(run(), RENEW_INTERVAL))
