"""Deferred waits that share one stream of sweeps, in the manager that Airflow's triggerer runs them with."""

import asyncio
import json
import logging
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from fsm_provider.polling import Outage
from fsm_provider.testing import faults
from fsm_provider.triggers.forms import EARLIEST_EVENT, RETELL_EVERY, FsmFormTrigger
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
    """Runs triggers on shared streams; ``await waits.first(n)`` is the events of the first n to fire."""

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
def test_what_a_reference_can_be_checked_by_does_not_part_waits(same):
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
def test_what_only_the_service_can_tell_parts_waits(other):
    assert key(**other) != key()


@pytest.mark.parametrize("alone", [{"shared": False}, {"created_since": None}])
def test_a_wait_that_cannot_share_has_no_key(alone):
    assert key(**alone) is None


def test_many_waits_make_one_request_a_sweep_and_each_gets_its_own_forms(service):
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
    # 199 new forms are 20 pages here; but for these every sweep was one request.
    assert len(queries) - len([query for query in queries if "cursor" in query]) < 60


def test_a_wait_that_comes_late_finds_what_came_before(service):
    async def run():
        async with triggerer() as waits:
            waits.start(trigger(job_id=1))
            form = service.add_form(job_id=2)
            await until(service, lambda: len(service.requests) >= 3)
            return form, await waits.start(trigger(job_id=2))

    form, event = run_hurried(run())

    assert [reference["id"] for reference in event["forms"]] == [form["id"]]


def test_a_form_with_old_times_is_found_by_the_next_whole_sweep(service):
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

    assert shared >= EARLIEST_EVENT
    assert alone >= EARLIEST_EVENT
    looks = [
        request for request in service.requests if "lastUpdatedOnDateTime[gte]" not in dict(request.query)
    ]
    assert len(looks) == 1, "a look whose event could not be sent"


def test_in_dag_test_there_is_no_scheduler_to_wait_for(service):
    service.add_form(job_id=1)

    async def run():
        clock = asyncio.get_running_loop().time
        waiting, began = trigger(job_id=1), clock()
        waiting.trigger_id = None
        await anext(waiting.run())
        return clock() - began

    assert run_hurried(run(), hurry=1.0) < EARLIEST_EVENT


async def told(stream, until):
    """What a stream tells until the first of which the predicate is true."""
    seen = []
    async for one in stream:
        seen.append(one)
        if until(one):
            break
    return seen


def test_sweeps_that_bring_nothing_wake_only_those_who_may_have_joined(service):
    async def run():
        async with aclosing(FsmFormTrigger.open_shared_stream(trigger().serialize()[1])) as stream:
            clock, tellings = asyncio.get_running_loop().time, []

            def is_news(seen):
                tellings.append((clock(), len(service.requests)))
                return len(seen.changed) > 0 and not seen.whole

            quiet = asyncio.create_task(told(stream, is_news))
            await until(service, lambda: len(service.requests) >= 60)
            service.add_form(job_id=1)
            await quiet
            return tellings[:-1]

    tellings = run_hurried(run())

    assert len(tellings) >= 5
    for (earlier, sweeps_then), (later, sweeps_now) in pairwise(tellings):
        assert later - earlier >= RETELL_EVERY - 1  # which is 0.07 s here: it is seen later than it is told
        assert sweeps_now - sweeps_then <= RETELL_EVERY + 1  # there is one a second at most


def test_the_end_of_an_outage_is_told_at_once(service):
    async def run():
        async with aclosing(FsmFormTrigger.open_shared_stream(trigger().serialize()[1])) as stream:
            watch = asyncio.create_task(told(stream, lambda seen: isinstance(seen, Outage)))
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", faults.Status(503))
            await watch
            return await told(stream, lambda seen: not isinstance(seen, Outage))

    seen = run_hurried(run())

    assert len(service.requests) - [request.status for request in service.requests].index(503) == 2
    assert len(seen[-1].changed) == 0


def test_each_wait_has_its_own_patience(service):
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
def test_an_error_that_stays_ends_all_waits_at_once_and_no_stream(service, status):
    async def run():
        async with triggerer() as waits:
            tasks = [waits.start(trigger(job_id=number)) for number in range(3)]
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", faults.Status(status), every=True)
            return await asyncio.gather(*tasks)

    events = run_hurried(run())

    assert [event["error"]["status"] for event in events] == [status] * 3


def test_a_connection_that_is_not_there_is_an_error_of_ours(service, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    async def run():
        async with triggerer() as waits:
            return await waits.start(trigger(job_id=1))

    assert run_hurried(run())["error"] == {
        "type": "FsmInputError",
        "message": "connection 'fsm_default': is not defined",
    }


def test_an_outage_is_told_in_the_log_at_a_bounded_rate(service, caplog):
    service.fail("GET", "/forms", faults.Status(503), every=True)

    async def run():
        async with triggerer() as waits:
            waits.start(trigger(job_id=1, failure_tolerance=10_000.0))
            await until(service, lambda: len(service.requests) >= 12)

    with caplog.at_level(logging.WARNING, logger="fsm_provider.polling"):
        run_hurried(run(), hurry=150.0)

    assert 1 <= len([record for record in caplog.records if record.name == "fsm_provider.polling"]) <= 2


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


def test_what_is_serialised_makes_the_same_trigger():
    _, kwargs = trigger(job_id=1, failure_tolerance=5.0, shared=False).serialize()

    assert FsmFormTrigger(**json.loads(json.dumps(kwargs))).serialize()[1] == kwargs
