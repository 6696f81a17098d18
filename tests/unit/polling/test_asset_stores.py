"""What is stored with an asset before Airflow 3.3: rows of a SQL database."""

import asyncio

import pytest
from sqlalchemy import create_engine

from fsm_provider.polling import asset_stores
from fsm_provider.polling.asset_stores import ASSET_STATE, SqlAssetStore

KEY = "fsm_forms/abc/recent"
TABLE = "fsm_asset_state"


@pytest.fixture
def store(database, monkeypatch):
    """Makes the store of an asset."""
    engine = create_engine(database.url)
    ASSET_STATE.create(engine)

    def make(name="records", fsm_conn_id="fsm_default"):
        return SqlAssetStore(name, fsm_conn_id)

    engines = dict.fromkeys(("fsm_default", "fsm_east"), engine)
    monkeypatch.setattr(asset_stores, "_engines", engines)

    yield make
    engine.dispose()


@pytest.mark.parametrize("value", [{"1": "2026-01-31T08:00:00Z"}, [], 60.0, "now", "ü" * 70_000])
def test_a_value_is_stored(store, value):
    async def run():
        first = store()
        before = await first.aget(KEY)
        await first.aset(KEY, "before")
        await first.aset(KEY, value)
        second = store()
        after = await second.aget(KEY)
        return [before, after]

    assert asyncio.run(run()) == [None, value]


def test_each_asset_of_each_connection_and_airflow_has_its_own(store, database, monkeypatch):
    async def run():
        stored = store("gas safety/records")
        await stored.aset(KEY, 1)
        other_name = store("Gas safety/records")
        other_connection = store("gas safety/records", "fsm_east")
        values = [await other_name.aget(KEY), await other_connection.aget(KEY)]
        monkeypatch.setenv("AIRFLOW__FSM__AIRFLOW_NAME", "another")
        values.append(await stored.aget(KEY))
        return values

    assert asyncio.run(run()) == [None, None, None]
    (row,) = database.rows(TABLE)
    assert tuple(row)[1:] == ("fsm_default", "gas safety/records", KEY, "1")


def test_first_writes_at_the_same_moment_are_both_done(store, database):
    async def run():
        await asyncio.gather(*(store().aset(KEY, 1) for _ in range(8)))

    asyncio.run(run())

    assert len(database.rows(TABLE)) == 1
