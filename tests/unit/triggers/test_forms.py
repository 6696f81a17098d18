"""Deferred waits that share one stream of polls, in the stream manager of Airflow's triggerer."""

import asyncio
import json
import logging
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from fsm_provider.polling.poller import PollFailure
from fsm_provider.testing import faults
from fsm_provider.triggers.forms import MIN_DEFERRAL, REBROADCAST_INTERVAL, FsmFormTrigger
from tests.capabilities import SHARED_STREAMS
from tests.unit.clocks import HURRY, run_hurried

SHARED_STREAMS.require()

from airflow.triggers import shared_stream  # noqa: E402

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def trigger(*, minimum_forms=1, form_names=(), query_params=None, poll_interval=1.0, **arguments):
    fsm_conn_id = arguments.pop("fsm_conn_id", "fsm_default")
    settings = {name: arguments.pop(name) for name in ("failure_tolerance", "shared") if name in arguments}
    filters = {"created_since": TODAY.isoformat(), **arguments}
    made = FsmFormTrigger(
        fsm_conn_id=fsm_conn_id,
        filters={name: str(value) for name, value in filters.items() if value is not None},
        minimum_forms=minimum_forms,
        form_names=list(form_names),
        query_params=query_params,
        poll_interval=poll_interval,
        **settings,
    )
    made.trigger_id = 1  # as the triggerer gives it
    return made


class Triggerer:
    """Runs triggers on shared streams; ``await waits.start(trigger)`` returns the payload of its event."""

    def __init__(self):
        self.manager = shared_stream.SharedStreamManager()
        self.tasks = []

    def start(self, waiting):
        number = len(self.tasks)
        self.tasks.append(asyncio.create_task(self._run(number, waiting)))
        return self.tasks[-1]

    async def _run(self, number, waiting):
        key = waiting.shared_stream_key()
        events = waiting.filter_shared_stream(
            self.manager.subscribe(trigger_id=number, trigger=waiting, key=key)
        )
        try:
            async for event in events:
                return event.payload
        finally:
            await self.manager.unsubscribe(number, key)


@asynccontextmanager
async def triggerer():
    running = Triggerer()
    try:
        yield running
    finally:
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)
        await running.manager.stop_all()


async def until(service, predicate):
    await asyncio.to_thread(service.wait_for, predicate, 20)


def key(**arguments):
    return trigger(**arguments).shared_stream_key()


@pytest.mark.parametrize(
    "same",
    [
        {"job_id": 21},
        {"property_id": 7},
        {"created_since": (TODAY + timedelta(hours=23)).isoformat()},
        {"minimum_forms": 2},
        {"form_names": ["Gas"]},
        {"failure_tolerance": 1.0},
        {"poll_interval": 1},
    ],
)
def test_waits_that_differ_in_what_references_show_share_a_stream(same):
    assert key(**same) == key()


@pytest.mark.parametrize(
    "other",
    [
        {"fsm_conn_id": "fsm_other"},
        {"poll_interval": 2.0},
        {"created_since": (TODAY - timedelta(seconds=1)).isoformat()},
        {"created_since": None, "updated_since": TODAY.isoformat()},
        {"updated_since": TODAY.isoformat()},
        {"form_category": "Gas"},
        {"form_name_id": 3},
        {"created_by_type": "User"},
        {"created_by_id": 71},
        {"query_params": {"includeDrafts": "true"}},
    ],
)
def test_waits_that_differ_in_what_only_the_service_knows_share_none(other):
    assert key(**other) != key()


@pytest.mark.parametrize("options", [{"shared": False}, {"created_since": None}])
def test_a_wait_that_cannot_share_has_no_key(options):
    assert key(**options) is None


def test_many_waits_make_one_request_a_poll_and_each_gets_its_own_forms(service):
    async def run():
        async with triggerer() as waits:
            tasks = [waits.start(trigger(job_id=number)) for number in range(200)]
            await until(service, lambda: len(service.requests) >= 3)
            forms = {number: service.add_form(job_id=number)["id"] for number in range(1, 200)}
            found = await asyncio.gather(*tasks[1:])
            assert not tasks[0].done()
            return forms, found, service.requests

    forms, found, requests = run_hurried(run())

    assert [[form["id"] for form in event["forms"]] for event in found] == [[forms[n]] for n in range(1, 200)]
    assert len({request.connection for request in requests}) == 1
    queries = [dict(request.query) for request in requests]
    assert {"jobID" in query for query in queries} == {False}
    # 199 new forms are 20 pages here; apart from these every poll was one request.
    assert len(queries) - len([query for query in queries if "cursor" in query]) < 60


def test_a_wait_that_joins_late_finds_earlier_forms(service):
    async def run():
        async with triggerer() as waits:
            waits.start(trigger(job_id=1))
            form = service.add_form(job_id=2)
            await until(service, lambda: len(service.requests) >= 3)
            return form, await waits.start(trigger(job_id=2))

    form, event = run_hurried(run())

    assert [reference["id"] for reference in event["forms"]] == [form["id"]]


def test_a_form_with_old_times_is_found_by_the_next_full_poll(service):
    async def run():
        async with triggerer() as waits:
            clock = asyncio.get_running_loop().time
            began = clock()
            task = waits.start(trigger(job_id=2, created_since=(TODAY - timedelta(days=3)).isoformat()))
            await until(service, lambda: len(service.requests) >= 3)
            service.add_form(job_id=2, id=900, created=TODAY - timedelta(days=2))
            return await task, clock() - began

    event, took = run_hurried(run(), hurry=300.0)

    assert [reference["id"] for reference in event["forms"]] == [900]
    assert took > 600


def test_no_event_comes_before_the_scheduler_has_noted_the_deferral(service):
    service.add_form(job_id=1)

    async def run():
        clock = asyncio.get_running_loop().time
        async with triggerer() as waits:
            began = clock()
            await waits.start(trigger(job_id=1))
            shared = clock() - began
        service.clear_requests()
        began = clock()
        await anext(trigger(job_id=1).run())
        return shared, clock() - began

    shared, alone = run_hurried(run())

    assert shared >= MIN_DEFERRAL
    assert alone >= MIN_DEFERRAL
    full_polls = [
        request for request in service.requests if "lastUpdatedOnDateTime[gte]" not in dict(request.query)
    ]
    assert len(full_polls) == 1, "a poll whose event could not be sent"


def test_in_dag_test_an_event_does_not_wait_for_a_scheduler(service):
    service.add_form(job_id=1)

    async def run():
        clock = asyncio.get_running_loop().time
        waiting, began = trigger(job_id=1), clock()
        waiting.trigger_id = None
        await anext(waiting.run())
        return clock() - began

    assert run_hurried(run(), hurry=1.0) < MIN_DEFERRAL


async def received(stream, until):
    """Everything that a stream yields, up to the first for which the predicate is true."""
    seen = []
    async for one in stream:
        seen.append(one)
        if until(one):
            break
    return seen


def test_unchanged_snapshots_are_yielded_only_for_waits_that_may_have_joined(service):
    async def run():
        async with aclosing(FsmFormTrigger.open_shared_stream(trigger().serialize()[1])) as stream:
            clock, yields = asyncio.get_running_loop().time, []

            def is_new(polled):
                yields.append((clock(), len(service.requests)))
                return len(polled.changed) > 0 and not polled.full

            quiet = asyncio.create_task(received(stream, is_new))
            await until(service, lambda: len(service.requests) >= 60)
            service.add_form(job_id=1)
            await quiet
            return yields[:-1]

    yields = run_hurried(run())

    assert len(yields) >= 5
    for (earlier, polls_then), (later, polls_now) in pairwise(yields):
        assert later - earlier >= REBROADCAST_INTERVAL - 1  # 0.07 s here: receiving takes time
        assert polls_now - polls_then <= REBROADCAST_INTERVAL + 1  # at most one a second


def test_the_end_of_the_failures_is_yielded_at_once(service):
    async def run():
        async with aclosing(FsmFormTrigger.open_shared_stream(trigger().serialize()[1])) as stream:
            failed = asyncio.create_task(received(stream, lambda seen: isinstance(seen, PollFailure)))
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", faults.Status(503))
            await failed
            return await received(stream, lambda seen: not isinstance(seen, PollFailure))

    seen = run_hurried(run())

    assert len(service.requests) - [request.status for request in service.requests].index(503) == 2
    assert len(seen[-1].changed) == 0


def test_each_wait_has_its_own_failure_tolerance(service):
    async def run():
        async with triggerer() as waits:
            hasty = waits.start(trigger(job_id=1, failure_tolerance=20.0))
            calm = waits.start(trigger(job_id=2, failure_tolerance=10_000.0))
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", faults.Status(503, retry_after=300), every=True)
            failed = asyncio.get_running_loop().time()
            error = await hasty
            assert asyncio.get_running_loop().time() - failed < 200
            assert not calm.done()
            service.clear_faults()
            form = service.add_form(job_id=2)
            return error, form, await calm

    error, form, event = run_hurried(run(), hurry=60.0)

    assert error["error"]["type"] == "FsmServerError"
    assert error["error"]["retry_after"] == 300
    assert [reference["id"] for reference in event["forms"]] == [form["id"]]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_permanent_error_ends_all_waits_at_once(service, status):
    async def run():
        async with triggerer() as waits:
            tasks = [waits.start(trigger(job_id=number)) for number in range(3)]
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", faults.Status(status), every=True)
            return await asyncio.gather(*tasks)

    events = run_hurried(run())

    assert [event["error"]["status"] for event in events] == [status] * 3


def test_a_missing_connection_is_tolerated(service, connect, monkeypatch):
    """An unreachable secrets backend raises the same error."""
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    async def run():
        async with triggerer() as waits:
            task = waits.start(trigger(job_id=1))
            await asyncio.sleep(30)
            assert not task.done()
            connect(service, max_retries=0)
            form = service.add_form(job_id=1)
            return form, await task

    form, event = run_hurried(run())

    assert [reference["id"] for reference in event["forms"]] == [form["id"]]


def test_a_connection_that_stays_missing_is_an_error_after_the_tolerance(monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    async def run():
        clock = asyncio.get_running_loop().time
        began = clock()
        async with triggerer() as waits:
            return await waits.start(trigger(job_id=1, failure_tolerance=40.0)), clock() - began

    event, took = run_hurried(run())

    assert event["error"] == {
        "type": "FsmConnectionError",
        "message": "connection 'fsm_default': is not defined, or what it is stored in cannot be reached",
    }
    assert 40 < took < 120


def test_poll_failures_are_logged_at_a_bounded_rate(service, caplog):
    service.fail("GET", "/forms", faults.Status(503), every=True)

    async def run():
        async with triggerer() as waits:
            waits.start(trigger(job_id=1, failure_tolerance=10_000.0))
            await until(service, lambda: len(service.requests) >= 12)

    with caplog.at_level(logging.WARNING, logger="fsm_provider.polling.poller"):
        run_hurried(run(), hurry=150.0)

    assert (
        1 <= len([record for record in caplog.records if record.name == "fsm_provider.polling.poller"]) <= 2
    )


def test_no_thread_sleeps_through_a_retry_after(service):
    service.fail("GET", "/forms", faults.Status(429, retry_after=20), call=1)
    service.add_form(job_id=1, id=900)

    async def run():
        clock = asyncio.get_running_loop().time
        began, slowest, last = clock(), 0.0, clock()
        async with triggerer() as waits:
            task = waits.start(trigger(job_id=1))
            while not task.done():
                await asyncio.sleep(0.5)
                slowest, last = max(slowest, clock() - last), clock()
            return await task, clock() - began, slowest

    event, took, slowest = run_hurried(run())

    assert [reference["id"] for reference in event["forms"]] == [900]
    assert took > 20
    assert slowest < 1.0 * HURRY


def test_a_serialised_trigger_can_be_rebuilt():
    _, kwargs = trigger(job_id=1, failure_tolerance=5.0, shared=False).serialize()

    assert FsmFormTrigger(**json.loads(json.dumps(kwargs))).serialize()[1] == kwargs
