"""What an asset's watcher emits, on the triggers of Airflow 3.3, and on those of 3.0 to 3.2.

What drawn days of a service show is in ``test_simulation.py``: forms that cannot be listed, or have
no time of update; refused listings; other filters; a store that fails, and how little is stored.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.metrics import AirflowMetrics
from fsm_provider.polling import lister
from fsm_provider.polling import watcher as watcher_module
from fsm_provider.polling.tracker import RECENT, WATERMARK
from fsm_provider.polling.watcher import EVENT_INTERVAL, OWNER, RESET
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.clocks import hurried
from tests.unit.polling.watching import prefix_of
from tests.unit.triggers.test_forms import trigger, triggerer

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ONE_KIND = pytest.mark.parametrize("triggerers", ["restarted"], indirect=True)
"""The other triggers have the same watcher."""


def ago(time):
    return datetime.now(UTC) - time


@hurried(60.0)
async def test_history_is_not_emitted_and_each_new_form_is_once(service, triggerers):
    service.seed_forms(15)

    async with triggerers.watching() as watcher:
        added = []
        for _ in range(3):
            form = service.add_form()
            added.append(form["id"])
            await watcher.until(lambda: watcher.forms == added)
        service.update_form(added[0], formName="Gas")
        await watcher.until(lambda: len(watcher.forms) == 4)
        await watcher.polled()

    assert watcher.forms == [*added, added[0]]


class Completes:
    """Completes two forms between the pages of a listing, once the watcher's query is answered.

    The first answer says when the asset began; what was completed before is history.
    """

    def __init__(self, service):
        self.service = service
        self.added = []

    async def play(self, exchange):
        is_between_pages = "cursor" in exchange.request.query_params
        if is_between_pages and self._listings() > 1 and len(self.added) < 2:
            self.added.append(self.service.add_form()["id"])
        await exchange.respond(await exchange.handle())

    def _listings(self):
        queries = [dict(request.query) for request in self.service.requests]
        return len([query for query in queries if "cursor" not in query])


@ONE_KIND
@hurried()
async def test_a_form_that_is_completed_while_the_first_listing_runs_is_emitted(
    service, triggerers
):
    service.settings.page_size = 2
    completes = Completes(service)
    service.seed_forms(12, first_created=ago(HOUR / 2))
    service.fail("GET", "/forms", completes, every=True)

    async with triggerers.watching(polls=0) as watcher:
        await watcher.until(lambda: len(watcher.forms) >= 2)
        await watcher.polled()

    assert sorted(watcher.forms) == completes.added


@hurried(60.0)
async def test_a_backlog_is_emitted_oldest_first_in_events_with_a_pause(service, triggerers):
    service.seed_forms(250, first_created=ago(400 * DAY))
    service.settings.page_size = 100
    times = []

    async with triggerers.watching(polls=0, start_from="beginning") as watcher:
        for number in (1, 2, 3):
            await watcher.until(lambda number=number: len(watcher.events) >= number)
            times.append(asyncio.get_running_loop().time())

    assert [len(event) for event in watcher.events] == [100, 100, 50]
    assert watcher.forms == [form["id"] for form in service.forms]
    first, second, third = times
    assert second - first >= EVENT_INTERVAL - 1
    assert third - second >= EVENT_INTERVAL - 1


@pytest.mark.parametrize("at", ["before it is stored", "as it is stored", "once it is recorded"])
@hurried()
async def test_killed_around_an_event(service, triggerers, at):
    is_recorded = at == "once it is recorded"
    async with triggerers.watching(stored_at_once=is_recorded) as watcher:
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.events)
        if at == "as it is stored" and triggerers.kind == "acknowledged":
            watcher.store()
        if is_recorded:
            await watcher.settle()
        else:
            await asyncio.sleep(0.2)
    meanwhile = service.add_form()["id"]
    async with triggerers.watching(polls=0) as watcher:
        await watcher.until(lambda: meanwhile in watcher.forms)
        await watcher.polled()

    again = [] if is_recorded else [form]
    assert watcher.forms == [*again, meanwhile]


@hurried(60.0)
async def test_a_backlog_goes_on_where_it_was_though_everything_is_edited(service, triggerers):
    service.seed_forms(100, property_ids=[7], first_created=ago(300 * DAY))

    begun = {"start_from": "beginning", "max_forms_per_event": 20}
    async with triggerers.watching(**begun) as first:
        await first.until(lambda: len(first.events) == 2)
        await first.settle()
    edited = {
        "property_id": [7, 8],
        "poll_interval": 2,
        "late_by": 30 * DAY,
        "form_names": None,
    }
    async with triggerers.watching(**edited, max_forms_per_event=50) as watcher:
        await watcher.until(lambda: len(watcher.forms) >= 60)
        await watcher.polled()

    assert first.forms + watcher.forms == [form["id"] for form in service.forms]


@ONE_KIND
@pytest.mark.parametrize("age", [HOUR / 2, 30 * DAY], ids=["each poll", "the first poll alone"])
@hurried()
async def test_killed_amid_a_backlog_of_forms_without_a_time(service, triggerers, age):
    """The service lists them by times that it does not show: at each poll, or at the first."""
    hidden = {"createdOnDateTime": None, "lastUpdatedOnDateTime": None}
    added = [service.add_form(created=ago(age), **hidden)["id"] for _ in range(30)]
    service.settings.page_size = 100

    begin = {"start_from": "beginning", "max_forms_per_event": 20}
    async with triggerers.watching(polls=0, **begin) as first:
        await first.until(lambda: first.events)
        await first.polled()
        await first.settle()
    async with triggerers.watching(polls=0, **begin) as watcher:
        await watcher.until(lambda: len(watcher.forms) >= 10, seconds=300)
        await watcher.polled()

    assert len(first.events) == 1
    assert sorted(first.forms + watcher.forms) == added


@pytest.mark.parametrize(
    "fault",
    [faults.Status(429, retry_after=30), faults.Status(403)],
    ids=str,
)
@ONE_KIND
@hurried(60.0)
async def test_poll_failures_lose_no_form_and_are_logged_and_told(
    service, triggerers, fault, caplog
):
    async def until_told(key, is_it):
        async with asyncio.timeout(2000):
            while not is_it(await triggerers.store().aget(key)):
                await asyncio.sleep(1)

    def is_failing(owner):
        _, _, status = owner
        return str(fault.status) in status.get("error", "") and status["failing_since"]

    def is_well(owner):
        _, _, status = owner
        is_polled = "polled_at" in status and status["polled_at"] >= status["unpolled_since"]
        return "error" not in status and is_polled

    def has_counted(stored):
        return list(stored["days"].values()) == [1]

    async with triggerers.watching() as watcher:
        service.fail("GET", "/forms", fault, every=True)
        seen = len(service.requests)
        form = service.add_form()["id"]
        await watcher.until(lambda: len(service.requests) > seen + 3)
        await watcher.until(lambda: "records' failed" in caplog.text)
        await until_told(OWNER, is_failing)
        service.clear_faults()
        await watcher.until(lambda: watcher.events)
        await until_told(OWNER, is_well)
        await until_told(prefix_of(service) + WATERMARK, has_counted)

    assert watcher.events == [[form]]


@ONE_KIND
@hurried(60.0)
async def test_a_watcher_that_starts_again_and_again_tells_since_when_nobody_has_polled(
    service, triggerers
):
    async def told():
        return await triggerers.store().aget(OWNER)

    async with triggerers.watching():
        while "polled_at" not in (await told())[2]:
            await asyncio.sleep(1)
    owner, _, before = await told()
    service.fail("GET", "/forms", faults.Status(503), every=True)
    for _ in range(2):
        async with triggerers.watching(polls=0), asyncio.timeout(2000):
            while owner in await told():
                await asyncio.sleep(1)
        owner, _, status = await told()
        assert status["unpolled_since"] == before["polled_at"]
        assert "polled_at" not in status


@ONE_KIND
@hurried(60.0)
async def test_the_first_poll_is_told_at_once(service, triggerers, monkeypatch):
    monkeypatch.setattr(watcher_module, "CHECK_EVERY", 10_000.0)

    async def told():
        return (await triggerers.store().aget(OWNER))[2]

    async with triggerers.watching(), asyncio.timeout(100):
        while "polled_at" not in await told():
            await asyncio.sleep(1)
        assert (await told())["poll_interval"] == 1


class SlowAtFirst:
    """Delays the first listing of a property, so that the next ones follow those of changes."""

    def __init__(self):
        self.delay = 0.5

    async def play(self, exchange):
        if "propertyID" in exchange.request.query_params:
            await asyncio.sleep(self.delay)
            self.delay = 0.0
        await faults.CorrectResponse().play(exchange)


@ONE_KIND
@hurried(30.0)
async def test_an_asset_is_well_as_soon_as_polls_succeed(service, triggerers):
    """It does not wait for its next own listing, a quarter of an hour later."""

    async def status():
        _, _, status = await triggerers.store().aget(OWNER)
        return status

    def own_failures():
        failed = [request for request in service.requests if request.status == 503]
        return [request for request in failed if "propertyID" in dict(request.query)]

    service.fail("GET", "/forms", SlowAtFirst(), every=True)
    async with triggerers.watching(polls=6, poll_interval=10, property_id=1) as watcher:
        service.clear_faults()
        service.fail("GET", "/forms", faults.Status(503), every=True)
        await watcher.until(own_failures)
        service.clear_faults()
        await asyncio.sleep(60)

        assert "error" not in await status()


@ONE_KIND
@hurried(60.0)
async def test_a_failure_before_the_first_poll_does_not_name_a_time(service, triggerers, caplog):
    service.fail("GET", "/forms", faults.Status(429), every=True)

    async with triggerers.watching(polls=0) as watcher:
        await watcher.until(lambda: "records' failed" in caplog.text)

    assert "failed, and goes on from its beginning: GET /forms returned HTTP 429" in caplog.text


@ONE_KIND
@hurried(60.0)
async def test_the_last_wait_that_leaves_a_feed_of_an_asset_is_measured(
    service, triggerers, monkeypatch
):
    measured = []
    monkeypatch.setattr(
        AirflowMetrics, "gauge", lambda self, name, value: measured.append((name, value))
    )

    async with triggerers.watching() as watcher, triggerer() as waits:
        waiting = waits.start(trigger(job_id=21, failure_tolerance=0.0))
        await watcher.until(lambda: ("waits", 1) in measured)
        service.fail("GET", "/forms", faults.Status(429), every=True)
        await waiting
        names = [name for name, _ in measured]
        last = {name: measured[-1 - names[::-1].index(name)][1] for name in names}

    assert (last["waits"], last["waits.failures"]) == (0, 0)


@ONE_KIND
@pytest.mark.parametrize("ahead_from", ["the first poll", "the first event", "a restart"])
@hurried(60.0)
async def test_a_service_whose_clock_is_ahead_for_a_while(service, triggerers, ahead_from):
    """Not even a form is lost that comes late."""
    month_ahead = f"{datetime.now(UTC) + 30 * DAY:%Y-%m-%dT%H:%M:%SZ}"

    def with_a_clock_ahead(page):
        return {**page, "meta": {**page["meta"], "serverTime": month_ahead}}

    ahead = faults.Rewrite(with_a_clock_ahead)
    begin = {} if ahead_from == "the first poll" else {"start_from": ago(2 * DAY)}
    forms = []
    added = []

    def from_now_on(when):
        if when == ahead_from:
            service.fail("GET", "/forms", ahead, every=True)

    async def follow(watcher, *times):
        added.extend(service.add_form(created=ago(time))["id"] for time in times)
        await watcher.until(lambda: {*forms, *watcher.forms} >= set(added), seconds=4000)

    from_now_on("the first poll")
    async with triggerers.watching(**begin) as watcher:
        service.clear_faults()
        await watcher.polled()
        await follow(watcher, 0 * DAY)
        from_now_on("the first event")
        await follow(watcher, 0 * DAY)
        await watcher.settle()
        forms += watcher.forms
    from_now_on("a restart")
    async with triggerers.watching(**begin) as watcher:
        service.clear_faults()
        if begin:
            await follow(watcher, 0 * DAY, DAY)
        else:
            await follow(watcher, 0 * DAY)

    assert sorted(forms + watcher.forms) == added


class Shifts:
    """Moves the first form to the end before a second page: the sixth is on no page then."""

    def __init__(self, service):
        self.service = service
        self.moves = 1

    async def play(self, exchange):
        is_between_pages = "cursor" in exchange.request.query_params
        if is_between_pages and self.moves:
            self.moves -= 1
            records = self.service._state.forms.records
            records.append(records.pop(0))
        await faults.CorrectResponse().play(exchange)


@ONE_KIND
@hurried()
async def test_a_listing_that_shifts_while_it_is_read_from_the_beginning_loses_no_form(
    service, triggerers
):
    service.settings.page_size = 5
    service.seed_forms(20, first_created=ago(30 * DAY))
    forms = {form["id"] for form in service.forms}
    service.fail("GET", "/forms", Shifts(service), every=True)

    async with triggerers.watching(polls=0, start_from="beginning") as watcher:
        await watcher.until(lambda: len(watcher.forms) >= 20)

    assert set(watcher.forms) == forms


@ONE_KIND
@hurried(30.0)
async def test_another_service_has_a_state_of_its_own(service, triggerers, connect, monkeypatch):
    monkeypatch.setattr(lister, "READ_CONNECTION_EVERY", 60.0)

    with FakeFieldService() as other:
        async with triggerers.watching() as watcher:
            form = service.add_form()
            forms = [form["id"]]
            await watcher.until(lambda: watcher.forms == forms)
            await watcher.settle()
            other.seed_forms(5, first_created=ago(HOUR))
            connect(other, max_retries=0)
            await watcher.until(lambda: len(other.requests) >= 5)
            form = other.add_form(id=900)
            forms.append(form["id"])
            await watcher.until(lambda: watcher.forms == forms)
            connect(service, max_retries=0)
            service.fail("GET", "/forms", faults.CorrectResponse(), every=True)
            await watcher.polled()

    assert watcher.forms == forms


@ONE_KIND
@hurried(60.0)
async def test_a_listing_that_is_read_again_at_another_service_is_dropped(
    service, triggerers, connect, monkeypatch
):
    monkeypatch.setattr(lister, "READ_CONNECTION_EVERY", 0.0)

    with FakeFieldService(token=service.settings.token) as other:
        other.add_form(id=900)

        def move():
            connect(other, max_retries=0)

        def with_more(page):
            return {**page, "meta": {**page["meta"], "totalRecords": "5"}}

        async with triggerers.watching(start_from=ago(DAY)) as watcher:
            service.fail("GET", "/forms", faults.Before(move, then=faults.Rewrite(with_more)))
            await watcher.until(lambda: watcher.forms)
            await asyncio.sleep(100)
        stored = await triggerers.store().aget(prefix_of(other) + RECENT)

    assert watcher.forms == [900]
    assert "900" in stored


@ONE_KIND
@pytest.mark.parametrize("back", [2 * HOUR, timedelta(0)])
@hurried(60.0)
async def test_watermark_set_emits_what_was_updated_since(service, triggerers, back):
    forms = []
    for hours in (5, 3, 1):
        form = service.add_form(created=ago(hours * HOUR))
        forms.append(form["id"])
    updated_since = forms[2:] if back else []

    async with triggerers.watching(start_from="beginning") as watcher:
        await watcher.until(lambda: watcher.forms == forms)
        await watcher.settle()
        reset = {"id": "1", "time": ago(back).timestamp()}
        key = prefix_of(service) + RESET
        await triggerers.store().aset(key, reset)
        await watcher.polled(30)
    async with triggerers.watching(polls=10) as again:
        assert watcher.forms[3:] + again.forms == updated_since


@pytest.mark.parametrize("trouble", ["away", "inactive"])
# Of the other kind, a database that is away raises.
@pytest.mark.parametrize("triggerers", ["acknowledged"], indirect=True)
@hurried()
async def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(
    service, triggerers, trouble
):
    async with triggerers.watching() as watcher:
        await watcher.settle()
    form = service.add_form()["id"]
    triggerers.supervisor.is_active = trouble != "inactive"
    triggerers.supervisor.failing = 10 * (trouble == "away")
    async with triggerers.watching(polls=0) as watcher:
        await asyncio.sleep(20)
        triggerers.supervisor.is_active = True
        await watcher.until(lambda: watcher.forms)

    assert watcher.forms == [form]


@ONE_KIND
@hurried()  # a write that takes a second is no silence
async def test_two_triggerers_emit_each_form_once_and_one_takes_over(service, triggerers):
    """Airflow 3.0 and 3.1 run the trigger of an asset in every triggerer."""
    async with triggerers.watching(trigger_id=2, polls=0) as second:
        async with triggerers.watching(trigger_id=1, polls=5) as first:
            await asyncio.sleep(30)
            added = [service.add_form()["id"]]
            await first.until(lambda: first.forms + second.forms == added)
            await first.settle()
        added.append(service.add_form()["id"])
        await second.until(lambda: added[1] in second.forms, seconds=1000)

    assert first.forms + second.forms == added


@hurried(60.0)
async def test_a_connection_that_cannot_be_used_is_an_error_once_and_a_corrected_one_is_used(
    service, triggerers, connect, monkeypatch, caplog
):
    wrong = {**service.connection(), "host": "http://"}
    if triggerers.kind == "restarted":
        wrong = service.connection()  # names no database
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(wrong))

    async with triggerers.watching(polls=0) as watcher:
        await watcher.until(lambda: "The asset 'records' is not watched" in caplog.text)
        await asyncio.sleep(100)
        connect(service)
        await watcher.polled()
        form = service.add_form()["id"]
        await watcher.until(lambda: watcher.forms == [form])

    assert caplog.text.count("is not watched") == 1


@ONE_KIND
@hurried(60.0)
async def test_without_a_configuration_it_says_so_every_minute(triggerers, caplog):
    async with triggerers.watching():
        pass  # the tables are there
    async with triggerers.watching(name="other", polls=0) as watcher:
        watcher.tasks[1].cancel()
        said = "The asset 'other' has no configuration yet"
        await watcher.until(lambda: caplog.text.count(said) == 2)


@ONE_KIND
@hurried(60.0)
async def test_assets_share_their_polls_and_each_emits_its_own_forms(service, triggerers):
    assets = [
        {"property_id": 1},
        {"property_id": [1, 2]},
        {"property_id": [2, 3], "form_names": "Photo"},
        {"job_id": [71, 72]},
    ]
    watchers = []

    async with AsyncExitStack() as stack:
        for number, settings in enumerate(assets):
            watching = triggerers.watching(
                name=f"asset {number}",
                trigger_id=number,
                poll_interval=10,
                **settings,
            )
            watchers.append(await stack.enter_async_context(watching))
        await asyncio.sleep(60)
        first = service.add_form(property_id=1, job_id=70)["id"]
        second = service.add_form(property_id=2, job_id=71)["id"]
        photo = service.add_form(property_id=3, job_id=72, form_name=" Photo")["id"]
        seen = len(service.requests)
        began = asyncio.get_running_loop().time()
        for watcher in watchers:
            await watcher.until(lambda watcher=watcher: watcher.events)
        await asyncio.sleep(100)
        took = asyncio.get_running_loop().time() - began
        restarts = sum(len(watcher.events) for watcher in watchers)  # a late one lists once more
        assert len(service.requests) - seen <= took / 10 + 2 + restarts

    assert [sorted(watcher.forms) for watcher in watchers] == [
        [first],
        [first, second],
        [photo],
        [second, photo],
    ]
