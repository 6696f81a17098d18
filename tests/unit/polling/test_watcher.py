"""What an asset's watcher emits, on the triggers of Airflow 3.3, and on those of 3.0 to 3.2."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.polling import polls as polls_module
from fsm_provider.polling.watcher import CONFIGURATION, EVENT_INTERVAL, OWNER, RESET, prefix_for
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.clocks import run_hurried

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def polls(service):
    return len([request for request in service.requests if request.status == 200])


def ago(time):
    return datetime.now(UTC) - time


async def polled(watcher, service, times=3):
    seen = polls(service)
    await watcher.until(lambda: polls(service) >= seen + times)


class CommonListing:
    """A fault of listings of the whole account; others are right."""

    def __init__(self, fault):
        self.fault = fault

    async def play(self, exchange):
        narrow = {"propertyID", "jobID"} & set(exchange.request.query_params)
        await (faults.CorrectResponse() if narrow else self.fault).play(exchange)


class Poisoned:
    """A page with a form cannot be sent."""

    def __init__(self, form):
        self.form = form

    async def play(self, exchange):
        right = await exchange.handle()
        if any(one["id"] == self.form for one in json.loads(right.body).get("data") or ()):
            await faults.Status(500).play(exchange)
        else:
            await exchange.respond(right)


def test_history_is_not_emitted_and_each_new_form_is_once(service, triggerers):
    service.seed_forms(15)

    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            added = []
            for _ in range(3):
                added.append(service.add_form()["id"])
                await watcher.until(lambda: watcher.forms == added)
            service.update_form(added[0], formName="Gas")
            await watcher.until(lambda: len(watcher.forms) == 4)
            await polled(watcher, service)
            return watcher.forms, added

    forms, added = run_hurried(run())

    assert forms == [*added, added[0]]


class Completes:
    """Completes two forms between the pages of a listing, once the watcher's own question is answered.

    The first answer says when the asset began; what was completed before is history.
    """

    def __init__(self, service):
        self.service, self.added = service, []

    async def play(self, exchange):
        firsts = [request for request in self.service.requests if "cursor" not in dict(request.query)]
        if "cursor" in exchange.request.query_params and len(firsts) > 1 and len(self.added) < 2:
            self.added.append(self.service.add_form()["id"])
        await exchange.respond(await exchange.handle())


def test_a_form_that_is_completed_while_the_first_listing_runs_is_emitted(service, triggerers):
    service.settings.page_size, completes = 2, Completes(service)
    service.seed_forms(12, first_created=ago(HOUR / 2))
    service.fail("GET", "/forms", completes, every=True)

    async def run():
        async with triggerers.watching() as watcher:
            await watcher.until(lambda: len(watcher.forms) >= 2)
            await polled(watcher, service)
            return watcher.forms

    assert sorted(run_hurried(run())) == completes.added


def test_a_backlog_is_emitted_oldest_first_in_events_with_a_pause(service, triggerers):
    service.seed_forms(250, first_created=ago(400 * DAY))
    service.settings.page_size = 100

    async def run():
        times = []
        async with triggerers.watching(start_from="beginning") as watcher:
            for number in range(3):
                await watcher.until(lambda number=number: len(watcher.events) > number)
                times.append(asyncio.get_running_loop().time())
            return watcher.events, times

    events, times = run_hurried(run(), hurry=60.0)

    assert [len(event) for event in events] == [100, 100, 50]
    assert [form for event in events for form in event] == [form["id"] for form in service.forms]
    assert min(times[1] - times[0], times[2] - times[1]) >= EVENT_INTERVAL - 1


@pytest.mark.parametrize("at", ["before it is stored", "as it is stored", "once it is recorded"])
def test_killed_around_an_event(service, triggerers, at):
    async def run():
        async with triggerers.watching(stored_at_once=at == "once it is recorded") as watcher:
            await polled(watcher, service)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.events)
            if at == "as it is stored" and triggerers.kind == "acknowledged":
                watcher.store()
            await watcher.settle() if at == "once it is recorded" else await asyncio.sleep(0.2)
        meanwhile = service.add_form()["id"]
        async with triggerers.watching() as watcher:
            await watcher.until(lambda: meanwhile in watcher.forms)
            await polled(watcher, service)
            return watcher.forms, form, meanwhile

    forms, form, meanwhile = run_hurried(run())

    assert forms == ([meanwhile] if at == "once it is recorded" else [form, meanwhile])


def test_a_backlog_goes_on_where_it_was_though_everything_is_edited(service, triggerers):
    service.seed_forms(100, property_ids=[7], first_created=ago(300 * DAY))

    async def run():
        async with triggerers.watching(start_from="beginning", max_forms_per_event=20) as watcher:
            await watcher.until(lambda: len(watcher.events) == 2)
            await watcher.settle()
            first = watcher.forms
        edited = {"property_id": [7, 8], "poll_interval": 2, "late_by": 30 * DAY, "form_names": None}
        async with triggerers.watching(**edited, max_forms_per_event=50) as watcher:
            await watcher.until(lambda: len(watcher.forms) >= 60)
            await polled(watcher, service)
            return first, watcher.forms

    first, rest = run_hurried(run(), hurry=60.0)

    assert [*first, *rest] == [form["id"] for form in service.forms]


def test_after_another_filter_what_was_updated_since_it_began_is_emitted_and_no_history(service, triggerers):
    service.add_form(property_id=2, created=ago(2 * HOUR))

    async def run():
        async with triggerers.watching(property_id=1) as watcher:
            await polled(watcher, service)
            other = service.add_form(property_id=2)["id"]
            await polled(watcher, service)
            watcher.configure(property_id=[1, "0002"], late_by=300 * DAY)
            await watcher.until(lambda: watcher.forms)
            await polled(watcher, service, 200)
            return watcher.forms, other

    forms, other = run_hurried(run(), hurry=60.0)

    assert forms == [other]


def test_a_form_that_comes_days_late_is_emitted_by_a_reconciliation(service, triggerers):
    async def run():
        async with triggerers.watching(start_from=ago(5 * DAY)) as watcher:
            await polled(watcher, service)
            late = [service.add_form(created=ago(days * DAY))["id"] for days in (2, 6)]
            await watcher.until(lambda: watcher.forms, seconds=200)
            return watcher.forms, late

    forms, late = run_hurried(run(), hurry=60.0)

    assert forms == late[:1]


@pytest.mark.parametrize(
    "fault",
    [faults.Status(503), faults.Status(429, retry_after=30), faults.Reset(), faults.Status(403)],
    ids=str,
)
def test_poll_failures_lose_no_form_and_are_logged(service, triggerers, fault, caplog):
    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            service.fail("GET", "/forms", fault, every=True)
            seen = len(service.requests)
            form = service.add_form()["id"]
            await watcher.until(lambda: len(service.requests) > seen + 3 and "records' failed" in caplog.text)
            service.clear_faults()
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run(), hurry=60.0)

    assert events == [[form]]


@pytest.mark.parametrize("fault", [faults.Status(403), faults.Body("<html>")], ids=str)
def test_where_the_account_wide_listing_is_refused_assets_by_job_or_property_go_on(
    service, triggerers, fault
):
    service.fail("GET", "/forms", CommonListing(fault), every=True)
    settings = {"north": {"property_id": [1, 2]}, "south": {"job_id": 5}}

    async def run():
        async with (
            triggerers.watching(name="north", trigger_id=1, **settings["north"]) as north,
            triggerers.watching(name="south", trigger_id=2, **settings["south"]) as south,
        ):
            await polled(north, service, 30)
            added = [service.add_form(property_id=place, job_id=5)["id"] for place in (1, 2, 3)]
            await north.until(lambda: len(north.forms) >= 2 and len(south.forms) >= 3)
            return added, sorted(north.forms), sorted(south.forms)

    added, north, south = run_hurried(run(), hurry=30.0)

    assert (north, south) == (added[:2], added)


def test_a_form_that_cannot_be_listed_holds_back_no_other(service, triggerers, caplog):
    service.settings.page_size = 1
    old = service.add_form(created=ago(3 * DAY))["id"]
    service.fail("GET", "/forms", Poisoned(old), every=True)

    async def run():
        async with triggerers.watching(start_from=ago(4 * DAY)) as watcher:
            await polled(watcher, service)
            added = [service.add_form()["id"]]
            await watcher.until(lambda: watcher.forms == added)
            await watcher.until(lambda: "watermark set records" in caplog.text, seconds=4000)
            added.append(service.add_form()["id"])
            await watcher.until(lambda: watcher.forms == added)

    run_hurried(run(), hurry=120.0)


def test_a_form_without_an_update_time_is_emitted_though_the_filter_leaves_it_out(service, triggerers):
    def leave_out(page):
        return {**page, "data": [one for one in page["data"] if one["lastUpdatedOnDateTime"]]}

    class LeavesNullsOut:
        async def play(self, exchange):
            filtered = "lastUpdatedOnDateTime[gte]" in exchange.request.query_params
            await (faults.Rewrite(leave_out) if filtered else faults.CorrectResponse()).play(exchange)

    service.fail("GET", "/forms", LeavesNullsOut(), every=True)

    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            added = []
            for name in ("Gas", "Boiler"):
                added.append(service.add_form(form_name=name, lastUpdatedOnDateTime=None)["id"])
                await watcher.until(lambda: watcher.forms == added, seconds=200)
            service.update_form(added[0], lastUpdatedOnDateTime=None, formName="Changed")
            await watcher.until(lambda: len(watcher.forms) == 3, seconds=200)
            await polled(watcher, service, 10)
            return watcher.forms, added

    forms, added = run_hurried(run(), hurry=30.0)

    assert forms == [*added, added[0]]


def test_versions_of_a_lagging_replica_are_not_emitted_in_turn(service, triggerers):
    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            form = service.add_form()
            await watcher.until(lambda: watcher.forms)
            service.update_form(form["id"])
            await watcher.until(lambda: len(watcher.forms) == 2)
            old = {one: form[one] for one in ("lastUpdatedOnDateTime", "formName")}
            lagging = faults.Rewrite(lambda page: {**page, "data": [one | old for one in page["data"]]})
            for _ in range(5):
                service.fail("GET", "/forms", lagging, calls=(1, 2))
                await polled(watcher, service, 4)
            return watcher.forms, form["id"]

    forms, form = run_hurried(run())

    assert forms == [form, form]


@pytest.mark.parametrize("ahead_from", ["the first poll", "the first event", "a restart"])
def test_a_service_whose_clock_is_ahead_for_a_while(service, triggerers, ahead_from):
    """Not even a form is lost that comes late."""
    month_ahead = f"{datetime.now(UTC) + 30 * DAY:%Y-%m-%dT%H:%M:%SZ}"
    ahead = faults.Rewrite(lambda page: page | {"meta": {**page["meta"], "serverTime": month_ahead}})

    async def run():
        forms, added = [], []
        begin = {} if ahead_from == "the first poll" else {"start_from": ago(2 * DAY)}

        async def follow(watcher, *times):
            added.extend(service.add_form(created=ago(time))["id"] for time in times)
            await watcher.until(lambda: {*forms, *watcher.forms} >= set(added), seconds=4000)

        if ahead_from == "the first poll":
            service.fail("GET", "/forms", ahead, every=True)
        async with triggerers.watching(**begin) as watcher:
            await polled(watcher, service)
            service.clear_faults()
            await polled(watcher, service)
            await follow(watcher, 0 * DAY)
            if ahead_from == "the first event":
                service.fail("GET", "/forms", ahead, every=True)
            await follow(watcher, 0 * DAY)
            await watcher.settle()
            forms += watcher.forms
        if ahead_from == "a restart":
            service.fail("GET", "/forms", ahead, every=True)
        async with triggerers.watching(**begin) as watcher:
            await polled(watcher, service)
            service.clear_faults()
            await follow(watcher, 0 * DAY, *([DAY] if begin else []))
            return sorted([*forms, *watcher.forms]), added

    forms, added = run_hurried(run(), hurry=60.0)

    assert forms == added


def test_a_listing_that_shifts_while_it_is_read_from_the_beginning_loses_no_form(service, triggerers):
    """As the first form moves to the end, the sixth moves to a page that has been read."""
    service.settings.page_size = 5
    service.seed_forms(20, first_created=ago(30 * DAY))
    forms = [form["id"] for form in service.forms]

    def move():
        records = service._state.forms.records
        records.append(records.pop(0))

    service.fail("GET", "/forms", faults.Before(move), call=2)

    async def run():
        async with triggerers.watching(start_from="beginning") as watcher:
            await watcher.until(lambda: len(watcher.forms) >= 20)
            return watcher.forms

    assert set(run_hurried(run())) == set(forms)


def test_another_service_has_a_state_of_its_own(service, triggerers, connect, monkeypatch):
    monkeypatch.setattr(polls_module, "READ_CONNECTION_EVERY", 60.0)

    async def run(other):
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.forms == [form])
            await watcher.settle()
            other.seed_forms(5, first_created=ago(HOUR))
            connect(other, max_retries=0)
            await polled(watcher, other, 5)
            added = other.add_form(id=900)["id"]
            await watcher.until(lambda: added in watcher.forms)
            connect(service, max_retries=0)
            service.fail("GET", "/forms", faults.CorrectResponse(), every=True)
            await polled(watcher, service, 3)
            return watcher.forms, [form, added]

    with FakeFieldService() as other:
        forms, expected = run_hurried(run(other), hurry=30.0)

    assert forms == expected


@pytest.mark.parametrize("back", [2 * HOUR, timedelta(0)])
def test_watermark_set_emits_what_was_updated_since(service, triggerers, back):
    forms = [service.add_form(created=ago(hours * HOUR))["id"] for hours in (5, 3, 1)]

    async def run():
        async with triggerers.watching(start_from="beginning") as watcher:
            await watcher.until(lambda: watcher.forms == forms)
            await watcher.settle()
            reset = {"id": "1", "time": ago(back).timestamp()}
            await triggerers.store().aset(prefix_for(service_of(service)) + RESET, reset)
            await polled(watcher, service, 30)
        async with triggerers.watching() as again:
            await polled(again, service, 10)
            return watcher.forms[3:] + again.forms

    assert run_hurried(run()) == (forms[2:] if back else [])


def service_of(service):
    from fsm_provider.api import Settings

    return Settings.checked({"base_url": service.base_url, "token": "x"}).service


@pytest.mark.parametrize("trouble", ["away", "inactive"])
def test_a_store_that_cannot_be_read_is_not_taken_for_an_empty_one(service, triggerers, trouble, monkeypatch):
    if triggerers.kind == "restarted":
        pytest.skip("a database that is away raises")

    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            await watcher.settle()
        form = service.add_form()["id"]
        triggerers.supervisor.is_active = trouble != "inactive"
        triggerers.supervisor.failing = 10 * (trouble == "away")
        async with triggerers.watching() as watcher:
            await asyncio.sleep(20)
            triggerers.supervisor.is_active = True
            await watcher.until(lambda: watcher.forms)
            return watcher.forms, form

    forms, form = run_hurried(run())

    assert forms == [form]


def test_a_watermark_that_cannot_be_stored_is_stored_later(service, triggerers):
    if triggerers.kind == "restarted":
        pytest.skip("the same code")

    async def run():
        async with triggerers.watching() as watcher:
            await polled(watcher, service)
            await watcher.settle()
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.forms)
            triggerers.supervisor.failing = 4
            await asyncio.sleep(100)
        async with triggerers.watching() as again:
            await polled(again, service)
            return watcher.forms, again.forms, form

    forms, again, form = run_hurried(run(), hurry=60.0)

    assert (forms, again) == ([form], [])


def test_two_triggerers_emit_each_form_once_and_one_takes_over(service, triggerers):
    """Airflow 3.0 and 3.1 run the trigger of an asset in every triggerer."""

    async def run():
        async with triggerers.watching(trigger_id=2) as second:
            async with triggerers.watching(trigger_id=1) as first:
                await polled(first, service, 5)
                await asyncio.sleep(30)
                added = [service.add_form()["id"]]
                await first.until(lambda: first.forms + second.forms == added)
                await first.settle()
            added.append(service.add_form()["id"])
            await second.until(lambda: added[1] in second.forms, seconds=1000)
            return first.forms + second.forms, added

    forms, added = run_hurried(run(), hurry=60.0)

    assert forms == added


def test_a_connection_that_cannot_be_used_is_an_error_once_and_a_corrected_one_is_used(
    service, triggerers, connect, monkeypatch, caplog
):
    wrong = {**service.connection(), "host": "http://"}
    if triggerers.kind == "restarted":
        wrong = service.connection()  # names no database
    monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(wrong))

    async def run():
        async with triggerers.watching() as watcher:
            await watcher.until(lambda: "The asset 'records' is not watched" in caplog.text)
            await asyncio.sleep(100)
            connect(service)
            await polled(watcher, service)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.forms == [form])

    run_hurried(run(), hurry=60.0)

    assert caplog.text.count("is not watched") == 1


def test_without_a_configuration_it_says_so_every_minute(service, triggerers, caplog):
    async def run():
        async with triggerers.watching() as watcher:
            await watcher.until(lambda: polls(service))
            owner = await triggerers.store().aget(OWNER)
        assert owner
        async with triggerers.watching(name="other") as watcher:
            watcher.tasks[1].cancel()
            said = "The asset 'other' has no configuration yet"
            await watcher.until(lambda: caplog.text.count(said) == 2)

    run_hurried(run(), hurry=60.0)


def test_assets_share_their_polls_and_each_emits_its_own_forms(service, triggerers):
    settings = [{"property_id": 1}, {"property_id": [1, 2]}, {"form_names": "Photo"}, {"job_id": [71, 72]}]

    async def run():
        watchers = [
            triggerers.watching(name=f"asset {number}", trigger_id=number, poll_interval=10, **one)
            for number, one in enumerate(settings)
        ]
        async with watchers[0] as one, watchers[1] as two, watchers[2] as three, watchers[3] as four:
            await asyncio.sleep(60)
            clock = asyncio.get_running_loop().time
            forms = [
                service.add_form(property_id=1, job_id=70)["id"],
                service.add_form(property_id=2, job_id=71)["id"],
                service.add_form(property_id=3, job_id=72, form_name=" Photo")["id"],
            ]
            seen, began = len(service.requests), clock()
            for watcher in (one, two, three, four):
                await watcher.until(lambda watcher=watcher: watcher.events)
            await asyncio.sleep(100)
            assert len(service.requests) - seen <= (clock() - began) / 10 + 2
            return forms, [sorted(watcher.forms) for watcher in (one, two, three, four)]

    (one, two, three), emitted = run_hurried(run(), hurry=60.0)

    assert emitted == [[one], [one, two], [three], [two, three]]


def test_what_is_stored_is_little(service, triggerers):
    """At most three writes an event, and ten reads at a restart, with a backlog of years."""
    if triggerers.kind == "restarted":
        pytest.skip("the same code")
    service.seed_forms(300, first_created=ago(900 * DAY))
    service.settings.page_size = 100
    writes, reads = [], []
    from airflow.sdk.execution_time import comms

    def count(message):
        if isinstance(message, comms.SetAssetStateStoreByName):
            writes.append(message.key)
        elif isinstance(message, comms.GetAssetStateStoreByName):
            reads.append(message.key)

    async def run():
        triggerers.supervisor.before = count
        async with triggerers.watching(start_from="beginning", max_forms_per_event=30) as watcher:
            await watcher.until(lambda: len(watcher.forms) == 300)
            await watcher.settle()
        stored = sum(key.endswith(("recent", "watermark")) or "emitted" in key for key in writes)
        assert stored <= 3 * len(watcher.events) + 3
        reads.clear()
        async with triggerers.watching() as again:
            await polled(again, service)
            assert len(reads) - reads.count(CONFIGURATION) + 1 <= 10
            return again.forms

    assert run_hurried(run(), hurry=60.0) == []
    assert len(triggerers.supervisor.asset_state) < 15
