"""The watcher of an asset, on the shared streams of Airflow's triggerer, with its state store played."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import SHARED_STREAMS
from tests.unit.clocks import run_hurried

SHARED_STREAMS.require()

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType  # noqa: E402
from airflow.sdk.execution_time import comms, task_runner  # noqa: E402
from airflow.triggers import shared_stream  # noqa: E402

from fsm_provider.assets.forms import completed_forms  # noqa: E402
from fsm_provider.watching import SAVE_EVERY  # noqa: E402

NAME = "records"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


class Supervisor:
    """The triggerer's other end: the state store of one asset, behind messages."""

    def __init__(self):
        self.values = {}
        self.active = True
        self.failing = 0
        self.written_at = []

    async def asend(self, message):
        assert message.name == NAME
        if self.failing:
            self.failing -= 1
            raise self._error(ErrorType.API_SERVER_ERROR)
        match message:
            case comms.GetAssetStateStoreByName():
                if not self.active or message.key not in self.values:
                    return comms.ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)
                return comms.AssetStateStoreResult(value=self.values[message.key])
            case comms.SetAssetStateStoreByName() if self.active:
                self.values[message.key] = message.value
                if message.key.endswith("/watermark"):
                    self.written_at.append(asyncio.get_running_loop().time())
            case comms.DeleteAssetStateStoreByName() if self.active:
                self.values.pop(message.key, None)
            case _:
                raise self._error(ErrorType.API_SERVER_ERROR)
        return None

    def _error(self, kind):
        return AirflowRuntimeError(comms.ErrorResponse(error=kind))

    @property
    def watermark(self):
        """The moment that is stored, None where none is."""
        (stored,) = [value for key, value in self.values.items() if key.endswith("/watermark")] or [None]
        return stored and stored["moment"]


@pytest.fixture
def supervisor(monkeypatch):
    played = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", played, raising=False)
    return played


class Watching:
    """A triggerer with one watcher. Its events are in the database once ``store`` was called.

    :ivar events: the identifiers of the forms in each event, as they come.
    """

    def __init__(self, settings, stored_at_once):
        self.manager = shared_stream.SharedStreamManager(ack_timeout=60.0)
        self.events, self.seqs, self.stored_at_once = [], [], stored_at_once
        asset = completed_forms(NAME, **{"poll_interval": 1, **settings})
        (watcher,) = asset.watchers
        trigger = watcher.trigger
        self.trigger = type(trigger)(**trigger.serialize()[1])
        self.task = asyncio.create_task(self._run())

    async def _run(self):
        key = self.trigger.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=1, trigger=self.trigger, key=key)
        async for event in self.trigger.filter_shared_stream(stream):
            self.seqs.append(self.manager.bind_pending_event(trigger_id=1, key=key))
            self.events.append([form["id"] for form in event.payload["forms"]])
            if self.stored_at_once:
                self.store()

    @property
    def forms(self):
        return [form for event in self.events for form in event]

    def store(self):
        self.manager.confirm_persisted(self.seqs)
        self.seqs.clear()

    async def until(self, predicate, seconds=2000.0):
        async with asyncio.timeout(seconds):
            while not predicate():
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.1)

    async def kill(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.manager.stop_all()


@asynccontextmanager
async def watching(stored_at_once=True, **settings):
    running = Watching(settings, stored_at_once)
    try:
        yield running
    finally:
        await running.kill()


def sweeps(service):
    return len([request for request in service.requests if request.status == 200])


def test_history_is_not_told_of_and_what_comes_is_an_event_a_sweep(service, supervisor):
    service.seed_forms(15)

    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            assert watcher.events == []
            added = [service.add_form()["id"] for _ in range(3)]
            await watcher.until(lambda: watcher.forms == added)
            seen = sweeps(service)
            await watcher.until(lambda: sweeps(service) > seen + 3)
            return watcher.forms, added

    forms, added = run_hurried(run())

    assert forms == added


def test_all_forms_of_a_sweep_are_one_event_up_to_a_hundred(service, supervisor):
    service.seed_forms(250)
    service.settings.page_size = 100

    async def run():
        async with watching(start_from="beginning") as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events, watcher.forms

    events, forms = run_hurried(run(), hurry=60.0)

    assert [len(event) for event in events] == [100, 100, 50]
    assert len(set(forms)) == 250


def test_from_a_time_only_what_was_updated_since(service, supervisor):
    now = datetime.now(UTC)
    service.add_form(created=now - timedelta(days=3))
    wanted = service.add_form(created=now - timedelta(days=1))

    async def run():
        async with watching(start_from=now - timedelta(days=2)) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events

    assert run_hurried(run()) == [[wanted["id"]]]


def test_filters_and_names(service, supervisor):
    service.add_form(property_id=1)
    service.add_form(property_id=2, form_name="Photo")
    wanted = service.add_form(property_id=2, form_name="Gas Safety Record")

    async def run():
        async with watching(start_from="beginning", property_id=2, form_names="Gas Safety Record") as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events

    assert run_hurried(run()) == [[wanted["id"]]]


def test_killed_before_an_event_is_stored_it_tells_of_it_again(service, supervisor):
    async def run():
        async with watching(stored_at_once=False) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            before = supervisor.watermark
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.events)
            assert supervisor.watermark == before
        async with watching() as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_killed_after_the_watermark_it_tells_of_nothing_twice(service, supervisor):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            before = supervisor.watermark
            service.add_form()
            await watcher.until(lambda: watcher.events and supervisor.watermark != before)
        meanwhile = service.add_form()["id"]
        seen = sweeps(service)
        async with watching() as watcher:
            await watcher.until(lambda: sweeps(service) > seen + 3)
            return watcher.events, meanwhile

    events, meanwhile = run_hurried(run())

    assert events == [[meanwhile]]


def test_the_watermark_waits_for_the_event(service, supervisor):
    async def run():
        async with watching(stored_at_once=False) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            before = supervisor.watermark
            service.add_form()
            await watcher.until(lambda: watcher.events)
            await asyncio.sleep(5)
            assert supervisor.watermark == before
            watcher.store()
            await watcher.until(lambda: supervisor.watermark != before, seconds=30)

    run_hurried(run())


def test_a_reconciliation_finds_a_form_that_came_two_days_late(service, supervisor):
    async def run():
        async with watching(reconcile_every=timedelta(seconds=60)) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            late = service.add_form(created=datetime.now(UTC) - timedelta(days=2))["id"]
            await watcher.until(lambda: watcher.events)
            return watcher.events, late

    events, late = run_hurried(run(), hurry=60.0)

    assert events == [[late]]


@pytest.mark.parametrize("fault", [faults.Status(503), faults.Status(429, retry_after=30), faults.Reset()])
def test_an_outage_loses_nothing(service, supervisor, fault):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.fail("GET", "/forms", fault, every=True)
            seen = len(service.requests)
            form = service.add_form()["id"]
            await watcher.until(lambda: len(service.requests) > seen + 3)
            service.clear_faults()
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run(), hurry=60.0)

    assert events == [[form]]


def test_a_refused_token_is_asked_for_again_until_it_is_mended(service, connect, supervisor):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.settings.token = "rotated"
            form = service.add_form()["id"]
            await watcher.until(lambda: [r.status for r in service.requests].count(401) > 2)
            connect(service, max_retries=0)
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_a_connection_that_is_mended_is_taken_up(service, connect, supervisor):
    async def run(other):
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.fail("GET", "/forms", faults.Status(404), every=True)
            seen = len(service.requests)
            await watcher.until(lambda: len(service.requests) > seen + 2)
            form = other.add_form(id=900)["id"]
            connect(other, max_retries=0)
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    with FakeFieldService() as other:
        events, form = run_hurried(run(other))

    assert events == [[form]]


@pytest.mark.parametrize("trouble", ["failing", "inactive"])
def test_a_state_store_that_cannot_be_read_is_not_taken_for_an_empty_one(service, supervisor, trouble):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
        form = service.add_form()["id"]
        supervisor.active = trouble != "inactive"
        supervisor.failing = 3
        async with watching() as watcher:
            await watcher.until(lambda: not supervisor.failing)
            await asyncio.sleep(10)
            supervisor.active = True
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_a_watermark_that_cannot_be_stored_is_stored_later(service, supervisor):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            before = supervisor.watermark
            supervisor.failing = 2
            first = service.add_form()["id"]
            await watcher.until(lambda: not supervisor.failing)
            await watcher.until(lambda: supervisor.watermark != before)
            second = service.add_form()["id"]
            await watcher.until(lambda: len(watcher.events) > 1)
            return watcher.events, [[first], [second]]

    events, expected = run_hurried(run())

    assert events == expected


def test_a_quiet_watermark_is_stored_once_a_minute(service, supervisor):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            supervisor.written_at.clear()
            await watcher.until(lambda: len(supervisor.written_at) > 1)
            return supervisor.written_at

    first, second = run_hurried(run(), hurry=60.0)

    assert second - first >= SAVE_EVERY - 5  # which is 0.08 s here: it is written later than it is decided
