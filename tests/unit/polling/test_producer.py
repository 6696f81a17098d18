"""The watcher of an asset, on the shared streams of Airflow's triggerer, with a fake state store."""

import asyncio
import itertools
import json
from collections import defaultdict
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import SHARED_STREAMS
from tests.unit.clocks import run_hurried

SHARED_STREAMS.require()

from airflow.triggers import shared_stream  # noqa: E402

from fsm_provider.assets.forms import completed_forms  # noqa: E402
from fsm_provider.polling import new_forms  # noqa: E402
from fsm_provider.polling.asset_stores import asset_store_for  # noqa: E402
from fsm_provider.polling.configurations import CONFIGURATIONS, announce, announce_interval  # noqa: E402
from fsm_provider.polling.producer import (  # noqa: E402
    BEGAN,
    CHECK_INTERVAL,
    CONFIRMATION_DELAY,
    ERROR_INTERVAL,
    EVENT_INTERVAL,
    SAVE_INTERVAL,
    FormEventProducer,
)
from fsm_provider.polling.replays import REPLAY, Replay  # noqa: E402
from tests.unit.polling.watching import NAME, Supervisor, watching  # noqa: E402
from tests.unit.supervisor import comms, supervised, unreachable  # noqa: E402


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


@pytest.fixture
def supervisor():
    with supervised(Supervisor()) as running:
        yield running


def polls(service):
    return len([request for request in service.requests if request.status == 200])


def test_history_is_not_emitted_and_new_forms_are(service, supervisor):
    service.seed_forms(15)

    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            assert watcher.events == []
            added = [service.add_form()["id"] for _ in range(3)]
            await watcher.until(lambda: watcher.forms == added)
            seen = polls(service)
            await watcher.until(lambda: polls(service) > seen + 3)
            return watcher.forms, added

    forms, added = run_hurried(run())

    assert forms == added


def test_an_event_has_the_forms_of_a_poll_up_to_a_hundred(service, supervisor):
    service.seed_forms(250)
    service.settings.page_size = 100

    async def run():
        async with watching(start_from="beginning") as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events, watcher.forms

    events, forms = run_hurried(run(), hurry=60.0)

    assert [len(event) for event in events] == [100, 100, 50]
    assert len(set(forms)) == 250


def test_forms_of_later_polls_are_emitted_while_a_backlog_is(service, supervisor):
    service.seed_forms(250)
    service.settings.page_size = 100

    async def run():
        async with watching(start_from="beginning", max_forms_per_event=20) as watcher:
            await watcher.until(lambda: watcher.events)
            seen, added = polls(service), []
            for _ in range(3):
                added.append(service.add_form()["id"])
                events = len(watcher.events)
                await watcher.until(lambda form=added[-1]: form in watcher.forms)
                assert len(watcher.events) <= events + 3
            assert polls(service) > seen + 30
            assert len(watcher.forms) < 200
            assert supervisor.watermark is None
            await watcher.until(lambda: len(watcher.forms) == 253)
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events, watcher.forms

    events, forms = run_hurried(run(), hurry=60.0)

    assert max(map(len, events)) == 20
    assert len(set(forms)) == 253


def test_an_event_that_is_not_stored_stays_pending(service, supervisor, caplog):
    service.seed_forms(3)
    watch = configuration(max_forms_per_event=2)

    first, again, last = run_hurried(events_by_hand(watch, "failed", "acked", "acked"), hurry=60.0)

    assert first == again
    assert len({*first, *last}) == 3
    assert "2 new forms of the asset 'records' could not be stored" in caplog.text


def test_a_configuration_that_comes_back_continues_its_backlog(service, supervisor):
    """Its watermark is behind the other's, but only because forms were pending."""
    service.seed_forms(100, property_ids=[7], first_created=datetime.now(UTC) - timedelta(hours=5))
    since = datetime.now(UTC) - timedelta(hours=6)

    async def run():
        async with watching(start_from=since, property_id=7, max_forms_per_event=5) as watcher:
            await watcher.until(lambda: len(watcher.events) == 2)
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
            first = watcher.forms
        async with watching(start_from=since, property_id=8) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            assert watcher.forms == []
        async with watching(start_from=since, property_id=7) as watcher:
            await watcher.until(lambda: len({*first, *watcher.forms}) == 100, seconds=100)
            return [*first, *watcher.forms]

    assert len(run_hurried(run(), hurry=60.0)) == 100


def test_assets_share_their_polls_and_each_emits_its_own_forms(service, supervisor):
    async def run():
        async with AsyncExitStack() as stack:
            watchers = [
                await stack.enter_async_context(
                    watching(name=f"asset {number}", poll_interval=10, **settings)
                )
                for number, settings in enumerate(
                    [
                        {"property_id": 1},
                        {"property_id": [1, 2]},
                        {"form_names": "Photo"},
                        {"job_id": [71, 72], "reconcile_every": timedelta(seconds=60)},
                    ]
                )
            ]
            await watchers[-1].until(lambda: supervisor.watermarks == 4)
            await asyncio.sleep(30)
            clock = asyncio.get_running_loop().time
            seen, began = polls(service), clock()
            forms = [
                service.add_form(property_id=1, job_id=70)["id"],
                service.add_form(property_id=2, job_id=71)["id"],
                service.add_form(property_id=3, job_id=72, form_name="Photo")["id"],
            ]
            for watcher in watchers:
                await watcher.until(lambda watcher=watcher: watcher.events)
            await asyncio.sleep(100)
            sent = polls(service) - seen
            assert sent <= (clock() - began) / 10 + 1
            return forms, [watcher.forms for watcher in watchers]

    (one, two, three), emitted = run_hurried(run())

    assert emitted == [[one], [one, two], [three], [two, three]]


def test_an_asset_that_is_taken_off_does_not_disturb_the_others(service, supervisor):
    async def run():
        async with watching(name="stays", property_id=1) as stays:
            async with watching(name="goes", property_id=[1, 2]) as goes:
                await goes.until(lambda: supervisor.watermarks == 2)
                both = service.add_form(property_id=1)["id"]
                await goes.until(lambda: goes.forms)
                await stays.until(lambda: stays.forms)
            await stays.until(lambda: ("propertyID", "1") in service.requests[-1].query)
            alone = service.add_form(property_id=1)["id"]
            await stays.until(lambda: len(stays.forms) > 1)
            return stays.forms, [both, alone]

    forms, expected = run_hurried(run())

    assert forms == expected


def test_killed_while_a_backlog_is_emitted_it_emits_the_rest(service, supervisor):
    service.seed_forms(100)

    async def events_of(enough, **settings):
        async with watching(start_from="beginning", max_forms_per_event=20, **settings) as watcher:
            await watcher.until(lambda: len(watcher.events) == enough)
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
            return watcher.forms

    async def run():
        first = await events_of(2)
        unconfirmed = await events_of(1, stored_at_once=False)
        return first, unconfirmed, await events_of(3)

    first, unconfirmed, rest = run_hurried(run(), hurry=60.0)

    assert not {*first} & {*unconfirmed, *rest}
    assert len({*first, *rest}) == len(first) + len(rest) == 100


def test_a_configuration_that_replaces_another_emits_the_rest_of_its_backlog(service, supervisor):
    service.seed_forms(100, property_ids=[7])

    async def run():
        async with watching(start_from="beginning", max_forms_per_event=5) as watcher:
            await watcher.until(lambda: len(watcher.events) == 2)
            edited = completed_forms(NAME, poll_interval=1, start_from="beginning", property_id=7)
            watcher.others.append(asyncio.create_task(anext(edited.watchers[1].trigger.run())))
            await watcher.until(lambda: len(set(watcher.forms)) == 100, seconds=200)
            return watcher.forms

    forms = run_hurried(run(), hurry=60.0)

    assert len(forms) == 100


async def events_by_hand(watch, *outcomes):
    """The forms of the first events, of each of which Airflow notes an outcome."""
    await announce(watch)
    await announce_interval(watch["asset_name"], watch["fsm_conn_id"], 1.0)
    watcher, emitted = producer(watch["asset_name"]), []
    async with aclosing(watcher.open_stream()) as events:
        for outcome in outcomes:
            async with asyncio.timeout(300):
                event, _ = await anext(events)
            emitted.append([form["id"] for form in event["forms"]])
            counts = {"acked": 0, "failed": 0, "rejected": 0, outcome: 1}
            await watcher.advance([(None, shared_stream.AdvanceOutcome(**counts))])
    return emitted


def producer(asset_name=NAME):
    return FormEventProducer(asset_name, asset_store_for(asset_name, "fsm_default"))


def configuration(**settings):
    asset = completed_forms(NAME, **{"start_from": "beginning", **settings})
    return json.loads(asset.watchers[1].trigger.serialize()[1]["watch"])


def test_an_event_has_a_hundred_forms_at_most_by_default(service, supervisor):
    service.seed_forms(150)

    events = run_hurried(events_by_hand(configuration(), "acked", "acked"), hurry=60.0)

    assert [len(event) for event in events] == [100, 50]


@pytest.mark.parametrize("back", ["reconcile_back", "look_back"])
def test_a_watcher_that_goes_back_as_far_as_can_be_finds_a_form_that_comes_years_late(
    service, supervisor, back
):
    service.seed_forms(3)
    settings = {back: timedelta.max, "reconcile_every": timedelta(seconds=20)}

    async def run():
        async with watching(**settings) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            late = service.add_form(created=datetime(1971, 1, 1, tzinfo=UTC))["id"]
            await watcher.until(lambda: watcher.forms, seconds=200)
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
        async with watching(**settings) as again:
            seen = polls(service)
            await again.until(lambda: polls(service) > seen + 1)
            return late, watcher.events, again.events

    late, events, events_again = run_hurried(run(), hurry=60.0)

    assert (events, events_again) == ([[late]], [])
    assert () in {request.query for request in service.requests}


def test_from_a_time_only_forms_updated_since_are_emitted(service, supervisor):
    now = datetime.now(UTC)
    service.add_form(created=now - timedelta(days=3))
    wanted = service.add_form(created=now - timedelta(days=1))

    async def run():
        async with watching(start_from=now - timedelta(days=2)) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events

    assert run_hurried(run()) == [[wanted["id"]]]


def test_only_forms_that_match_filters_and_names_are_emitted(service, supervisor):
    service.add_form(property_id=1)
    service.add_form(property_id=2, form_name="Photo")
    wanted = service.add_form(property_id=2, form_name="Gas Safety Record")

    async def run():
        async with watching(start_from="beginning", property_id=2, form_names="Gas Safety Record") as watcher:
            await watcher.until(lambda: supervisor.watermark)
            return watcher.events

    assert run_hurried(run()) == [[wanted["id"]]]


def test_killed_before_an_event_is_stored_it_emits_it_again(service, supervisor):
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


def test_killed_after_the_watermark_it_emits_nothing_twice(service, supervisor):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            before = supervisor.watermark
            service.add_form()
            await watcher.until(lambda: watcher.events and supervisor.watermark != before)
        meanwhile = service.add_form()["id"]
        seen = polls(service)
        async with watching() as watcher:
            await watcher.until(lambda: polls(service) > seen + 3)
            return watcher.events, meanwhile

    events, meanwhile = run_hurried(run())

    assert events == [[meanwhile]]


def test_a_form_without_a_readable_time_is_emitted_once_and_again_once_its_content_changes(
    service, supervisor
):
    async def next_polls(watcher):
        seen = polls(service)
        await watcher.until(lambda: polls(service) > seen + 3)

    async def run():
        async with watching(start_from="beginning") as watcher:
            await watcher.until(lambda: len(watcher.forms) == 3 and supervisor.watermark)
            await next_polls(watcher)
        first = watcher.forms
        async with watching(start_from="beginning", reconcile_every=timedelta(seconds=5)) as watcher:
            await next_polls(watcher)
            assert watcher.events == []
            service.update_form(first[0], lastUpdatedOnDateTime=None, formName="Renamed")
            service.update_form(first[2], lastUpdatedOnDateTime="2026-01-31T13:00:00+01:00")
            await watcher.until(lambda: watcher.events)
            await next_polls(watcher)
        return first, watcher.forms

    signatures = itertools.count()
    service.settings.pdf_url = lambda form: f"https://files.example.com/{form}?signature={next(signatures)}"
    service.add_form(lastUpdatedOnDateTime=None)
    service.add_form(lastUpdatedOnDateTime="yesterday")
    service.add_form(lastUpdatedOnDateTime="2026-01-31T12:00:00.000Z")

    first, second = run_hurried(run())

    assert len(set(first)) == 3
    assert second == first[:1]


def test_the_watermark_moves_after_the_event_is_stored(service, supervisor):
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


def test_an_event_whose_watcher_is_cancelled_as_it_is_stored_is_emitted_again(service, supervisor):
    """Airflow confirms the event of a watcher that no asset has any more, and drops it."""

    async def run():
        async with watching(stored_at_once=False) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.events)
            watcher.store()
            await asyncio.sleep(0.2)
        async with watching() as watcher:
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_a_changed_filter_begins_at_the_watermark_of_the_one_before_it(service, supervisor):
    service.add_form(property_id=2, created=datetime.now(UTC) - timedelta(hours=2))

    async def run():
        async with watching(property_id=1) as watcher:
            await watcher.until(lambda: supervisor.watermark)
            emitted = service.add_form(property_id=1)["id"]
            await watcher.until(lambda: watcher.forms == [emitted])
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
        gap = [service.add_form(property_id=2)["id"] for _ in range(10)]
        async with watching() as watcher:
            await watcher.until(lambda: len(watcher.forms) >= len(gap))
            seen = polls(service)
            await watcher.until(lambda: polls(service) > seen + 3)
            widened = watcher.forms
        async with watching(property_id=1) as watcher:
            seen = polls(service)
            await watcher.until(lambda: polls(service) > seen + 3)
            return gap, widened, watcher.forms

    gap, widened, narrowed = run_hurried(run())

    assert sorted(widened) == gap
    assert narrowed == []


def test_of_versions_that_several_configurations_emitted_the_current_one_counts(service, supervisor):
    form = service.add_form(property_id=1, lastUpdatedOnDateTime=None)["id"]

    async def run():
        emitted = []
        for name, filters in [("A", {"property_id": 1}), ("B", {"job_id": 1}), ("C", {}), ("C", {})]:
            service.update_form(form, lastUpdatedOnDateTime=None, formName=name)
            async with watching(start_from="beginning", **filters) as watcher:
                seen = polls(service)
                await watcher.until(lambda seen=seen: polls(service) > seen + 3)
                await asyncio.sleep(CONFIRMATION_DELAY + 2)
                emitted.append(watcher.events)
        return emitted

    assert run_hurried(run()) == [[[form]], [[form]], [[form]], []]


def test_what_a_forgotten_configuration_emitted_is_not_emitted_again(service, supervisor):
    forms = [service.add_form(property_id=1)["id"] for _ in range(5)]
    edits = [
        {},
        {"property_id": [1, 2]},
        {"look_back": timedelta(hours=2)},
        {"max_forms_per_event": 50},
        {"reconcile_every": timedelta(minutes=30)},
    ]

    async def run():
        settings, events = {"start_from": "beginning", "property_id": 1}, []
        for edit in edits:
            settings |= edit
            async with watching(**settings) as watcher:
                seen = polls(service)
                await watcher.until(lambda seen=seen: polls(service) > seen + 3)
                await asyncio.sleep(CONFIRMATION_DELAY + 1)
                events.append(watcher.events)
        return events

    assert run_hurried(run(), hurry=60.0) == [[forms], [], [], [], []]
    stored = supervisor.asset_state[NAME, CONFIGURATIONS]
    assert "1" not in [one["watch"]["filters"].get("property_id") for one in stored]


async def events_of(other, monkeypatch):
    """Watch with a connection to another service."""
    monkeypatch.setenv("AIRFLOW_CONN_FSM_OTHER", json.dumps(other.connection()))
    async with watching(fsm_conn_id="fsm_other") as watcher:
        await watcher.until(lambda: polls(other) > 3)
        return watcher.events


def test_another_connection_begins_anew(service, supervisor, monkeypatch):
    async def run(other):
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
        other.add_form(id=900, created=datetime.now(UTC) + timedelta(minutes=1))
        return await events_of(other, monkeypatch)

    with FakeFieldService() as other:
        assert run_hurried(run(other)) == []


def test_another_connection_of_an_asset_that_was_long_watched_begins_anew(service, supervisor, monkeypatch):
    """Where the store is the asset's name's, and so survives the connection."""

    async def run(other):
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
        for name, key in supervisor.asset_state:
            if key.startswith(BEGAN):
                month_ago = datetime.now(UTC) - timedelta(days=30)
                supervisor.asset_state[name, key] = month_ago.isoformat()
        for days in (1, 6):
            other.add_form(created=datetime.now(UTC) - timedelta(days=days))
        return await events_of(other, monkeypatch)

    with FakeFieldService() as other:
        assert run_hurried(run(other)) == []


def test_forms_that_come_before_the_configuration_are_new(service, supervisor, monkeypatch):
    monkeypatch.setattr(new_forms, "MAX_START", 0.5)
    service.add_form(created=datetime.now(UTC) - timedelta(hours=3))
    watch = configuration(start_from="now")

    async def run():
        async with asyncio.timeout(10), aclosing(producer().open_stream()) as events:
            event = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.2)
            form = service.add_form()["id"]
            await announce_interval(NAME, "fsm_default", 1.0)
            await announce(watch)
            return (await event)[0]["forms"], form

    forms, form = asyncio.run(run())

    assert [one["id"] for one in forms] == [form]


def test_two_configurations_that_alternate_log_an_error_that_names_both(service, supervisor, caplog):
    async def run():
        for settings in ({"poll_interval": 1}, {"poll_interval": 2, "property_id": 7}, {"poll_interval": 1}):
            assert "alternates" not in caplog.text
            async with watching(**settings):
                opened = polls(service)
                while polls(service) == opened:
                    await asyncio.sleep(0.1)

    run_hurried(run())

    (error,) = [message for message in caplog.messages if "alternates" in message]
    assert "filters={}" in error
    assert "filters={'property_id': '7'}" in error


def test_another_configuration_is_used_within_the_pause_between_two_polls(service, supervisor):
    async def run():
        clock = asyncio.get_running_loop().time
        async with watching(poll_interval=3600) as watcher:
            await watcher.until(lambda: polls(service) == 1)
            for edited in completed_forms(NAME, poll_interval=1, property_id=7).watchers[1:]:
                watcher.others.append(asyncio.create_task(anext(edited.trigger.run())))
            edited_at = clock()
            await watcher.until(lambda: polls(service) > 3)
            return clock() - edited_at, service.requests[-1].query

    seconds, query = run_hurried(run())

    assert seconds < 2 * CHECK_INTERVAL
    assert ("propertyID", "7") in query


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
def test_poll_failures_lose_no_form(service, supervisor, fault):
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


def test_forms_that_come_before_the_first_poll_is_possible_are_new(service, supervisor):
    service.add_form(created=datetime.now(UTC) - timedelta(hours=3))
    service.fail("GET", "/forms", faults.Status(503), every=True)

    async def run():
        async with watching() as watcher:
            await asyncio.sleep(300)
            form = service.add_form()["id"]
            service.clear_faults()
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


def test_a_watcher_that_cannot_poll_says_so_again_and_again(service, supervisor, caplog):
    caplog.set_level("INFO", logger="fsm_provider.polling.producer")

    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.fail("GET", "/forms", faults.Status(503), every=True)
            await asyncio.sleep(1900)
            service.clear_faults()
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run(), hurry=600.0)

    assert events == [[form]]
    ours = [one for one in caplog.records if one.name == "fsm_provider.polling.producer"]
    levels = [one.levelname for one in ours if "olling" in one.message or "polls" in one.message]
    assert levels[0] == "WARNING"
    assert levels[1:-1] in (["ERROR"] * 2, ["ERROR"] * 3)
    assert levels[-1] == "INFO"
    errors = [one.getMessage() for one in ours if one.levelname == "ERROR"]
    assert all(
        "No form of the asset 'records' is emitted, as polls have failed for 0:" in one for one in errors
    )
    assert all("HTTP 503" in one for one in errors)


@pytest.fixture
def gauges():
    """All values of each of Airflow's gauges."""
    import airflow.sdk.serde  # noqa: F401 - it would initialise them later
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability import stats

    values = defaultdict(list)

    class Recording(NoStatsLogger):
        @classmethod
        def gauge(cls, stat, value, rate=1, delta=False, *, tags=None):
            values[stat].append(value)

    stats.initialize(factory=Recording, export_legacy_names=False)
    yield values
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def test_an_edit_during_an_outage_does_not_hide_it(service, supervisor, caplog, gauges):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.fail("GET", "/forms", faults.Status(503), every=True)
            await watcher.until(lambda: service.requests[-1].status == 503)
            gauges.clear()
            await asyncio.sleep(2 / 3 * ERROR_INTERVAL)
            edited = completed_forms(NAME, poll_interval=1, property_id=7)
            watcher.others.append(asyncio.create_task(anext(edited.watchers[1].trigger.run())))
            await watcher.until(lambda: ("propertyID", "7") in service.requests[-1].query)
            await asyncio.sleep(2 / 3 * ERROR_INTERVAL)

    run_hurried(run(), hurry=600.0)

    for name in ("poll_age", "failures"):
        measured = gauges[f"fsm.watcher.{name}"]
        assert len(measured) > 5
        assert measured == sorted(measured)
    shown = [message for message in caplog.messages if "the asset 'records'" in message]
    assert [message.split(":")[0] for message in shown] == [
        "Polling for the asset 'records' failed, and goes on",
        "No form of the asset 'records' is emitted, as polls have failed for 0",
    ]


def test_a_watcher_whose_token_is_refused_says_so_as_an_error(service, supervisor, caplog):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            service.settings.token = "rotated"
            await watcher.until(lambda: [r.status for r in service.requests].count(401) > 2)

    run_hurried(run())
    shown = [one for one in caplog.records if "Polling for the asset 'records' failed" in one.getMessage()]
    assert [one.levelname for one in shown] == ["ERROR"]


def test_a_refused_token_is_read_again_until_it_is_replaced(service, connect, supervisor):
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


def test_a_corrected_connection_is_used(service, connect, supervisor):
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
def test_an_unreadable_state_store_does_not_count_as_empty(service, supervisor, trouble):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
        form = service.add_form()["id"]
        supervisor.is_active = trouble != "inactive"
        supervisor.failing = 3
        async with watching() as watcher:
            await watcher.until(lambda: not supervisor.failing)
            await asyncio.sleep(10)
            supervisor.is_active = True
            await watcher.until(lambda: watcher.events)
            return watcher.events, form

    events, form = run_hurried(run())

    assert events == [[form]]


@pytest.fixture
def unreadable(supervisor, caplog):
    """Make the configuration unreadable, or readable; return what the producer has logged of it."""

    def refuse(message):
        if isinstance(message, comms.GetAssetStateStoreByName) and message.key == CONFIGURATIONS:
            raise unreachable()

    def switch(on):
        supervisor.before = refuse if on else lambda message: None
        return [
            (one.getMessage(), str(one.exc_info[1]) if one.exc_info else None)
            for one in caplog.records
            if one.name == "fsm_provider.polling.producer" and "configuration" in one.getMessage()
        ]

    return switch


def test_a_configuration_that_cannot_be_read_at_the_beginning_is_not_taken_for_none(service, unreadable):
    async def run():
        async with watching(start_from="beginning") as watcher:
            await asyncio.sleep(200)
            assert watcher.events == []
            logged = unreadable(False)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.forms == [form])
            return logged

    unreadable(True)
    logged = run_hurried(run(), hurry=60.0)

    assert {message for message, _ in logged} == {
        "The configuration of the asset 'records' could not be read; the watcher tries again"
    }
    assert all("API_SERVER_ERROR" in cause for _, cause in logged)


def test_a_configuration_that_cannot_be_read_meanwhile_ends_nothing(service, supervisor, unreadable):
    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            unreadable(True)
            await asyncio.sleep(5 * CHECK_INTERVAL)
            form = service.add_form()["id"]
            await watcher.until(lambda: watcher.forms == [form])
            return unreadable(False)

    ((message, cause),) = run_hurried(run(), hurry=60.0)

    assert message == "The configuration of the asset 'records' could not be read; the watcher tries again"
    assert "API_SERVER_ERROR" in cause


def test_a_watcher_that_nothing_configures_says_so_every_minute(service, supervisor, unreadable):
    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(150), aclosing(producer().open_stream()) as events:
                await anext(events)

    run_hurried(run(), hurry=60.0)

    logged = unreadable(False)
    assert 1 <= len(logged) <= 2
    assert all("has no configuration yet, so no form is emitted" in message for message, _ in logged)


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
    stored_at = []

    def note(message):
        if isinstance(message, comms.SetAssetStateStoreByName) and message.key.endswith("/watermark"):
            stored_at.append(asyncio.get_running_loop().time())

    async def run():
        async with watching() as watcher:
            await watcher.until(lambda: supervisor.watermark)
            supervisor.before = note
            await watcher.until(lambda: len(stored_at) > 1)
            return stored_at

    first, second = run_hurried(run(), hurry=60.0)

    assert second - first >= SAVE_INTERVAL - 5  # 0.08 s here: the write follows the decision


def test_a_rate_limit_delays_a_watcher_and_loses_no_page(service, supervisor):
    service.seed_forms(300)
    service.fail("GET", "/forms", faults.Status(429, retry_after=5), calls=range(21, 1000, 21))

    async def run():
        once = {"start_from": "beginning", "poll_interval": 3600, "look_back": timedelta(0)}
        async with watching(**once) as watcher:
            await watcher.until(lambda: len(watcher.forms) == 300)
            return len(service.requests)

    assert run_hurried(run()) <= 33


def request_replay(supervisor, since, until=None):
    supervisor.asset_state[NAME, REPLAY] = Replay(str(since), "fsm_default", since, until).as_dict()


def seed_hours(service, *hours):
    """Complete forms so many hours ago; return their identifiers."""
    now = datetime.now(UTC)
    return [service.add_form(property_id=7, created=now - timedelta(hours=ago))["id"] for ago in hours]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_replay_emits_the_forms_since_then_again_and_once(service, supervisor, restarted):
    old, *again = seed_hours(service, 5, 3, 2)

    async def run():
        async with AsyncExitStack() as stack:
            watcher = await stack.enter_async_context(watching(start_from="beginning"))
            await watcher.until(lambda: supervisor.watermark)
            assert watcher.forms == [old, *again]
            if restarted:
                await watcher.kill()
            request_replay(supervisor, datetime.now(UTC) - timedelta(hours=4))
            if restarted:
                watcher = await stack.enter_async_context(watching(start_from="beginning"))
            else:
                watcher.events.clear()
            await watcher.until(lambda: watcher.forms)
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
            await watcher.kill()
            last = await stack.enter_async_context(watching(start_from="beginning"))
            added = service.add_form()["id"]
            await last.until(lambda: last.forms)
            return watcher.forms, last.forms, added

    replayed, later, added = run_hurried(run())

    assert replayed == again
    assert later == [added]


def test_a_replay_that_is_killed_goes_on_though_another_configuration_has_emitted_the_forms(
    service, supervisor
):
    _, *forms = seed_hours(service, 6, 4, 3, 2)

    async def run():
        async with watching(start_from="beginning", property_id=7) as watcher:
            await watcher.until(lambda: supervisor.watermark)
        async with watching(start_from="beginning", property_id=[7, 8]) as watcher:
            await watcher.until(lambda: supervisor.watermarks == 2)
        request_replay(supervisor, datetime.now(UTC) - timedelta(hours=5))
        edited = {"start_from": "beginning", "property_id": [7, 8], "max_forms_per_event": 1}
        async with watching(**edited) as watcher:
            await watcher.until(lambda: watcher.forms)
            await asyncio.sleep(CONFIRMATION_DELAY + 1)
            first = watcher.forms
        async with watching(**edited) as watcher:
            await watcher.until(lambda: len(watcher.forms) >= 2)
            await asyncio.sleep(2 * EVENT_INTERVAL)
            return first, watcher.forms

    first, rest = run_hurried(run())

    assert len(first) == 1
    assert sorted(first + rest) == forms


def test_a_replay_of_another_connection_waits_for_it(service, supervisor):
    seed_hours(service, 3)

    async def run():
        async with watching(start_from="beginning") as watcher:
            await watcher.until(lambda: supervisor.watermark)
            watcher.events.clear()
            request_replay(supervisor, datetime.now(UTC) - timedelta(hours=4))
            supervisor.asset_state[NAME, REPLAY]["fsm_conn_id"] = "another"
            await asyncio.sleep(2 * CHECK_INTERVAL)
            return watcher.forms

    assert run_hurried(run()) == []
