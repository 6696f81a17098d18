"""The watcher of an asset before Airflow 3.3: its trigger ends with each event, and is started again."""

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import pytest
from sqlalchemy.exc import OperationalError

from fsm_provider.assets.forms import completed_forms
from fsm_provider.polling import asset_stores, restarts
from fsm_provider.polling.asset_stores import database_for
from fsm_provider.polling.producer import EVENT_INTERVAL
from fsm_provider.polling.restarts import MAX_RESTART_DELAY
from fsm_provider.state import assets
from fsm_provider.state.assets import MAX_SILENCE, OWNER, SqlAssetStore
from tests.capabilities import ASSETS
from tests.unit.clocks import run_hurried

ASSETS.require()

from tests.unit.supervisor import supervised  # noqa: E402

NAME = "records"
process = ContextVar("process")
"""The process that a task plays."""


@pytest.fixture(autouse=True)
def database(database, service, connect, monkeypatch):
    """A triggerer of Airflow 3.0 to 3.2, whichever runs the test, and its database."""
    connect(service, max_retries=0)
    monkeypatch.setattr(asset_stores, "AIRFLOW_V_3_3_PLUS", False)
    monkeypatch.setattr(assets, "_claimed", set())
    monkeypatch.setattr(restarts, "_kept", {})
    monkeypatch.setattr(restarts, "sql_store_for", store_for)
    with supervised():
        yield database


def store_for(name, fsm_conn_id):
    return SqlAssetStore(name, partial(database_for, fsm_conn_id), process.get())


class Triggerer:
    """A triggerer with one watcher; it is one of several in a process that does the same.

    :ivar events: the identifiers of the forms in each event that it has taken.
    :ivar stored: set while the database takes events at once.
    :ivar taking: set while the triggerer takes events; it logs them first.
    """

    def __init__(self, trigger_id, settings):
        self.events, self.times, self.trigger_id = [], [], trigger_id
        self.stored, self.taking = asyncio.Event(), asyncio.Event()
        self.stored.set()
        self.taking.set()
        self.yielded = 0
        event, *others = [
            type(one.trigger)(**one.trigger.serialize()[1])
            for one in completed_forms(NAME, **{"poll_interval": 1, **settings}).watchers
        ]
        self.event_trigger = event
        self.task = asyncio.create_task(self._run())
        self.configuration, self.interval = [asyncio.create_task(anext(one.run())) for one in others]

    async def _run(self):
        process.set(str(self.trigger_id))
        while True:
            trigger = type(self.event_trigger)(**self.event_trigger.serialize()[1])
            trigger.trigger_id = self.trigger_id
            async for event in trigger.run():
                self.yielded += 1
                await self.taking.wait()
                self.events.append([form["id"] for form in event.payload["forms"]])
                self.times.append(asyncio.get_running_loop().time())
            await self.stored.wait()

    @property
    def forms(self):
        return [form for event in self.events for form in event]

    async def until(self, predicate, seconds=2000.0):
        async with asyncio.timeout(seconds):
            while not predicate():
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.1)

    async def cancel(self, *tasks):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def triggerer(trigger_id=1, **settings):
    running = Triggerer(trigger_id, settings)
    try:
        yield running
    finally:
        await running.cancel(running.task, running.configuration, running.interval)


@pytest.fixture
def begun(service):
    """Wait until the first poll, whose forms are history, and until the next one is over."""

    async def wait(watcher):
        seen = polls(service)
        await watcher.until(lambda: polls(service) >= seen + 3)

    return wait


@pytest.fixture
def unstored(service, begun):
    """Complete a form, and wait until the triggerer has its event, which the database does not take."""

    async def complete(watcher):
        await begun(watcher)
        watcher.stored.clear()
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.events)
        return form

    return complete


def polls(service):
    return len([request for request in service.requests if request.status == 200])


async def killed(running):
    """As SIGKILL: nothing is kept."""
    running.task.cancel()
    restarts._kept.clear()


def test_history_is_not_emitted_and_each_new_form_is_once(service, begun):
    service.seed_forms(15)

    async def run():
        async with triggerer() as watcher:
            await begun(watcher)
            added = []
            for _ in range(3):
                added.append(service.add_form()["id"])
                await watcher.until(lambda: watcher.forms == added)
            await begun(watcher)
            return watcher.events, added

    events, added = run_hurried(run())

    assert events == [[form] for form in added]


def test_many_forms_are_events_of_a_hundred_with_a_pause(service):
    service.seed_forms(250)
    service.settings.page_size = 100

    async def run():
        async with triggerer(start_from="beginning") as watcher:
            await watcher.until(lambda: len(watcher.forms) >= 250)
            return watcher.events, watcher.times

    events, (first, second, third) = run_hurried(run(), hurry=60.0)

    assert [len(event) for event in events] == [100, 100, 50]
    assert len({form for event in events for form in event}) == 250
    assert min(second - first, third - second) >= EVENT_INTERVAL


def test_killed_before_the_restart_it_emits_the_event_again(unstored):
    async def run():
        async with triggerer() as watcher:
            form = await unstored(watcher)
            await killed(watcher)
        async with triggerer() as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_killed_after_the_restart_it_emits_nothing_twice(service, begun):
    async def run():
        async with triggerer() as watcher:
            await begun(watcher)
            service.add_form()
            await watcher.until(lambda: watcher.events)
            await begun(watcher)
            await killed(watcher)
        meanwhile = service.add_form()["id"]
        async with triggerer() as watcher:
            await watcher.until(lambda: watcher.events)
            await begun(watcher)
            return watcher.events, meanwhile

    events, meanwhile = run_hurried(run())

    assert events == [[meanwhile]]


def test_cancelled_before_the_triggerer_has_taken_the_event_it_emits_it_again(service, begun):
    async def run():
        async with triggerer() as watcher:
            await begun(watcher)
            watcher.taking.clear()
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.yielded)
            await watcher.cancel(watcher.task)
            assert watcher.events == []
            watcher.taking.set()
            watcher.task = asyncio.create_task(watcher._run())
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


@pytest.mark.parametrize(("delay", "times"), [(MAX_RESTART_DELAY / 2, 1), (MAX_RESTART_DELAY + 5, 2)])
def test_a_late_restart_confirms_nothing(begun, unstored, delay, times):
    async def run():
        async with triggerer() as watcher:
            form = await unstored(watcher)
            await asyncio.sleep(delay)
            watcher.stored.set()
            await begun(watcher)
            await begun(watcher)
            return watcher.forms, form

    forms, form = run_hurried(run())

    assert forms == [form] * times


def test_each_event_has_its_own_time_to_be_confirmed(service, begun):
    async def run():
        async with triggerer() as watcher:
            await begun(watcher)
            added = [service.add_form()["id"]]
            await watcher.until(lambda: watcher.forms == added)
            await asyncio.sleep(MAX_RESTART_DELAY - 10)
            watcher.stored.clear()
            added.append(service.add_form()["id"])
            await watcher.until(lambda: watcher.forms == added)
            await asyncio.sleep(20)
            watcher.stored.set()
            await begun(watcher)
            return watcher.forms, added

    forms, added = run_hurried(run())

    assert forms == added


def test_another_trigger_confirms_nothing(unstored):
    async def run():
        async with triggerer(1) as watcher:
            form = await unstored(watcher)
        async with triggerer(2) as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_a_restart_after_airflow_has_dropped_the_watchers_confirms_nothing(unstored):
    """The event was dropped, too, and SQLite gives the new trigger the ID of the old one."""

    async def run():
        async with triggerer() as watcher:
            form = await unstored(watcher)
        async with triggerer() as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_another_configuration_leaves_the_confirmation_alone(begun, unstored):
    async def run():
        async with triggerer() as watcher:
            form = await unstored(watcher)
            edited = completed_forms(NAME, poll_interval=1, look_back=7200).watchers[1].trigger
            cancelled = asyncio.create_task(watcher.cancel(watcher.configuration))
            await asyncio.sleep(0.1)
            watcher.configuration = asyncio.create_task(anext(edited.run()))
            await cancelled
            watcher.stored.set()
            await begun(watcher)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_of_two_triggerers_that_run_the_trigger_the_last_to_begin_emits(service, begun):
    """Airflow 3.0 and 3.1 run the trigger of an asset in every triggerer."""

    async def run():
        async with triggerer(1) as first:
            await begun(first)
            before = service.add_form()["id"]
            await first.until(lambda: first.forms == [before])
            await begun(first)
            async with triggerer(2) as second:
                await begun(second)
                added = []
                for _ in range(5):
                    added.append(service.add_form()["id"])
                    await second.until(lambda: added[-1] in second.forms)
                await asyncio.sleep(2 * MAX_SILENCE)
                both = first.forms, second.forms
                await second.cancel(second.task)
                after = service.add_form()["id"]
                await first.until(lambda: after in first.forms)
                return both, ([before], added), first.forms, [before, after]

    both, expected, first, expected_first = run_hurried(run(), hurry=60.0)

    assert both == expected
    assert first == expected_first


def test_a_triggerer_that_wakes_up_leaves_alone_what_another_one_has_stored(service, database, begun):
    def values():
        return {row.key: row.value for row in database.rows("fsm_asset_state") if row.key != OWNER}

    async def run():
        async with triggerer(1) as sleeping:
            await begun(sleeping)
            sleeping.stored.clear()
            form = service.add_form()["id"]
            await sleeping.until(lambda: sleeping.events)
            async with triggerer(2) as watcher:
                await watcher.until(lambda: watcher.forms == [form])
                later = [service.add_form()["id"] for _ in range(3)]
                await watcher.until(lambda: len(watcher.forms) == 4)
                await begun(watcher)
                stored = values()
                sleeping.stored.set()
                await asyncio.sleep(20)
            lost = [key for key, value in stored.items() if len(values()[key]) < len(value)]
            return sleeping.forms, [form], later, lost

    forms, expected, later, lost = run_hurried(run())

    assert forms == expected
    assert len(later) == 3
    assert lost == []


def test_a_database_that_is_away_for_a_while_is_not_an_empty_one(service, database, begun, monkeypatch):
    away, in_transaction = [], assets._in_transaction

    def fail_at_first(*arguments):
        if len(away) < 20:
            away.append(arguments)
            raise OperationalError("SELECT", {}, Exception("server closed the connection"))
        return in_transaction(*arguments)

    async def run():
        async with triggerer() as watcher:
            await begun(watcher)
            await killed(watcher)
        form = service.add_form()["id"]
        monkeypatch.setattr(assets, "_in_transaction", fail_at_first)
        async with triggerer() as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run(), hurry=60.0)

    assert len(away) == 20
    assert events == [[form]]


def test_without_a_database_it_says_so_once_and_does_not_poll_until_there_is_one(
    service, database, connect, connection_extra, begun, caplog
):
    service.seed_forms(3)
    conn_id = connection_extra.pop("state_conn_id")
    connect(service)

    async def run():
        async with triggerer() as watcher:
            await asyncio.sleep(120)
            told, asked = list(caplog.records), len(service.requests)
            connect(service, state_conn_id=conn_id)
            await begun(watcher)
            return told, asked

    told, asked = run_hurried(run(), hurry=60.0)

    (record,) = [one for one in told if one.levelname in ("WARNING", "ERROR")]
    for part in (
        f"asset '{NAME}' is not watched: connection 'fsm_default' names no database as its state_conn_id",
        "Airflow 3.3 and newer need none",
        "airflow connections add fsm_state --conn-type sqlite --conn-host /",
    ):
        assert part in record.getMessage()
    assert asked == 0


def test_a_database_that_is_not_defined_is_named(service, database, connect, caplog):
    connect(service, state_conn_id="nowhere")

    async def run():
        async with triggerer():
            await asyncio.sleep(60)

    run_hurried(run(), hurry=60.0)

    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "state_conn_id of connection 'fsm_default'" in record.getMessage()
    assert "nowhere" in record.getMessage()
    assert service.requests == []
