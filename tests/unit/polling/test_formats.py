"""What another version of this package has stored with an asset: an upgrade or a downgrade."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.polling.tracker import CHUNKS, RECENT, WATERMARK
from fsm_provider.polling.watcher import CONFIGURATION, OWNER
from fsm_provider.polling.watcher_config import FORMAT
from tests.unit.clocks import hurried
from tests.unit.polling.test_watcher import ONE_KIND
from tests.unit.polling.watching import prefix_of

NEWER = FORMAT + 1
SENTENCE = (
    "The asset 'records' is not watched: what is stored with it was written by a newer version of "
    f"airflow-provider-fsm (format {NEWER}): install that version again, or give the asset another "
    "name"
)
HOUR = timedelta(hours=1)


def ago(time):
    return datetime.now(UTC) - time


def key_of(service, name):
    return name if name == CONFIGURATION else prefix_of(service) + name


async def edit(triggerers, key, edited):
    """Have another version store a value."""
    store = triggerers.store()
    stored = await store.aget(key)
    await store.aset(key, edited(stored or {}))


async def rows(triggerers, service):
    """Return all that is stored with the asset, but who watches it."""
    store = triggerers.store()
    names = [CONFIGURATION, WATERMARK, RECENT, *CHUNKS]
    return {name: await store.aget(key_of(service, name)) for name in names}


async def watched_once(service, triggerers):
    """Watch the asset until a form is emitted, and recorded."""
    async with triggerers.watching(start_from=ago(HOUR)) as watcher:
        form = service.add_form()
        await watcher.until(lambda: watcher.forms == [form["id"]])
        await watcher.settle()


@ONE_KIND
@hurried(60.0)
async def test_each_value_has_its_format(service, triggerers):
    await watched_once(service, triggerers)

    stored = await rows(triggerers, service)
    for name in (CONFIGURATION, WATERMARK, RECENT):
        assert stored[name]["format"] == FORMAT


@ONE_KIND
@pytest.mark.parametrize("name", [CONFIGURATION, WATERMARK, RECENT])
@hurried(60.0)
async def test_a_field_more_harms_nothing(service, triggerers, name):
    def with_more(stored):
        return {**stored, "later": {"a": 1}}

    await watched_once(service, triggerers)
    await edit(triggerers, key_of(service, name), with_more)

    async with triggerers.watching(start_from=ago(HOUR)) as watcher:
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.forms)
        await watcher.polled(5)

    assert watcher.forms == [form]


@ONE_KIND
@pytest.mark.parametrize("name", [WATERMARK, RECENT])
@pytest.mark.parametrize("missing", ["format", "reset", "days", "floor", "watermark"])
@hurried(60.0)
async def test_a_field_fewer_has_a_default(service, triggerers, name, missing):
    await watched_once(service, triggerers)

    def without(stored):
        stored.pop(missing, None)
        return stored

    await edit(triggerers, key_of(service, name), without)
    async with triggerers.watching(start_from=ago(HOUR)) as watcher:
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.forms)
        await watcher.polled(5)

    assert watcher.forms == [form]


@ONE_KIND
@hurried(60.0)
async def test_a_configuration_of_few_fields_has_defaults(service, triggerers):
    async with triggerers.watching() as watcher:
        watcher.tasks[1].cancel()
        few = {"asset_name": "records", "fsm_conn_id": "fsm_default", "poll_interval": 1.0}
        await edit(triggerers, CONFIGURATION, lambda stored: few)
        await watcher.polled(5)
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.forms)

    assert watcher.forms == [form]


@ONE_KIND
@pytest.mark.parametrize("name", [CONFIGURATION, WATERMARK, RECENT, CHUNKS[2]])
@hurried(60.0)
async def test_after_a_downgrade_nothing_is_emitted_or_overwritten_until_the_newer_is_back(
    service, triggerers, name, caplog
):
    await watched_once(service, triggerers)
    key = key_of(service, name)
    before = await triggerers.store().aget(key)
    await edit(triggerers, key, lambda stored: {**stored, "format": NEWER})
    stored = await rows(triggerers, service)

    async with triggerers.watching(polls=0, start_from=ago(HOUR)) as watcher:
        if name != CONFIGURATION:  # a newer one is left as it is
            watcher.tasks[1].cancel()
        form = service.add_form()["id"]
        await watcher.until(lambda: SENTENCE in caplog.text)
        owner = await triggerers.store().aget(OWNER)
        await asyncio.sleep(200)
        assert watcher.forms == []
        assert await rows(triggerers, service) == stored
        assert await triggerers.store().aget(OWNER) == owner  # a newer version may watch it
        await triggerers.store().aset(key, before or {})
        await watcher.until(lambda: watcher.forms)

    assert watcher.forms == [form]
    assert caplog.text.count(SENTENCE) <= 1  # once a process


@ONE_KIND
@hurried(60.0)
async def test_a_newer_configuration_ends_the_watching(service, triggerers, caplog):
    async with triggerers.watching() as watcher:
        watcher.tasks[1].cancel()
        await edit(triggerers, CONFIGURATION, lambda stored: {**stored, "format": NEWER})
        await asyncio.sleep(60)
        service.add_form()
        await asyncio.sleep(200)

    assert watcher.forms == []
