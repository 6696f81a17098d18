"""What is stored with an asset before Airflow 3.3: JSON in Variables."""

import asyncio

import pytest

from fsm_provider.state import asset_store
from fsm_provider.state.asset_store import (
    MAX_SILENCE,
    RENEW_INTERVAL,
    AssetClaimedError,
    ClaimedAssetStore,
    VariableAssetStore,
)
from fsm_provider.state.variables import WITNESS, VariableUnreadableError
from tests.unit.clocks import run_hurried
from tests.unit.supervisor import MemorySupervisor, supervised

KEY = "fsm_forms/abc/seen/2026-01-31T08"


@pytest.fixture
def supervisor(monkeypatch):
    monkeypatch.setattr(asset_store, "_claimed", set())
    with supervised() as running:
        yield running


@pytest.mark.parametrize("value", [{"1": "2026-01-31T08:00:00Z"}, [], 60.0, "now"])
def test_a_value_is_stored_until_it_is_deleted(supervisor: MemorySupervisor, value):
    async def run():
        store = VariableAssetStore("records")
        before = await store.aget(KEY)
        await store.aset(KEY, value)
        stored = await VariableAssetStore("records").aget(KEY)
        await store.adelete(KEY)
        return before, stored, await store.aget(KEY)

    assert asyncio.run(run()) == (None, value, None)


@pytest.mark.parametrize("name", ["records", "gas safety/records", "ü" * 1500, "my_secret_token"])
def test_any_asset_has_names_that_airflow_takes_and_does_not_mask(supervisor: MemorySupervisor, name):
    asyncio.run(VariableAssetStore(name).aset(KEY, 1))

    (stored,) = supervisor.variables
    assert "/" not in stored
    assert len(stored) <= 250
    assert not any(word in stored for word in ("secret", "token"))


def test_assets_have_values_of_their_own(supervisor: MemorySupervisor):
    asyncio.run(VariableAssetStore("records").aset(KEY, 1))

    assert asyncio.run(VariableAssetStore("Records").aget(KEY)) is None


def test_what_cannot_be_read_is_not_absent(supervisor: MemorySupervisor):
    store = VariableAssetStore("records")
    asyncio.run(store.aset(KEY, 1))
    supervisor.hiding = 100

    with pytest.raises(VariableUnreadableError):
        asyncio.run(store.aget(KEY))


def test_what_somebody_has_edited_is_named(supervisor: MemorySupervisor):
    asyncio.run(VariableAssetStore("records").aset(KEY, 1))
    (name,) = supervisor.variables
    supervisor.variables[name] = "{"

    with pytest.raises(ValueError, match=f"Variable {name} is not what was stored"):
        asyncio.run(VariableAssetStore("records").aget(KEY))


def test_only_the_process_that_has_claimed_an_asset_last_can_write(supervisor: MemorySupervisor):
    async def run():
        first, second = ClaimedAssetStore("records", "1"), ClaimedAssetStore("records", "2")
        await first.claim()
        await first.aset(KEY, 1)
        await second.claim()
        for write in (first.aset(KEY, 2), first.adelete(KEY), first.renew()):
            with pytest.raises(AssetClaimedError):
                await write
        read = await first.aget(KEY)
        await second.aset(KEY, 3)
        return read, await first.aget(KEY)

    assert run_hurried(run()) == (1, 3)
    assert len(supervisor.variables.keys() - {WITNESS}) == 2


def test_a_process_gets_an_asset_back_once_the_owner_is_silent(supervisor: MemorySupervisor):
    async def run():
        first, second = ClaimedAssetStore("records", "1"), ClaimedAssetStore("records", "2")
        await first.claim()
        await second.claim()
        again = asyncio.create_task(ClaimedAssetStore("records", "1").claim())
        for _ in range(20):
            await asyncio.sleep(RENEW_INTERVAL)
            await second.renew()
        waited, began = not again.done(), asyncio.get_running_loop().time()
        await again
        with pytest.raises(AssetClaimedError):
            await second.renew()
        return waited, asyncio.get_running_loop().time() - began

    waited, silent = run_hurried(run(), hurry=100.0)

    assert waited
    assert MAX_SILENCE - RENEW_INTERVAL <= silent <= MAX_SILENCE + 3 * RENEW_INTERVAL


def test_a_process_does_not_wait_for_itself(supervisor: MemorySupervisor):
    async def run():
        for _ in range(3):
            await ClaimedAssetStore("records", "1").claim()

    run_hurried(asyncio.wait_for(run(), RENEW_INTERVAL))
