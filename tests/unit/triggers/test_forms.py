"""Deferred waits in a triggerer: what the service is asked, and when a worker is woken."""

import asyncio
import json
import logging
import time
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.polling.waits import CATCH_UP_EVERY, WaitState
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.triggers.forms import MIN_DEFERRAL, FsmFormTrigger
from tests.unit.clocks import hurried, run_hurried

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
UPDATED = "lastUpdatedOnDateTime[gte]"
CREATED = "createdOnDateTime[gte]"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def trigger(
    fsm_conn_id="fsm_default",
    *,
    known=(),
    futile_wakes=0,
    timeout=100_000.0,
    polled=0.0,
    **arguments,
):
    """The trigger of a sensor that polled so many seconds ago; ``known=None``: it knows nothing."""
    now = time.time()
    state = WaitState(
        service=FsmHook(fsm_conn_id).settings.service,
        began=now,
        deadline=now + timeout,
        polled_at=now - polled,
        known=None if known is None else list(known),
        futile_wakes=futile_wakes,
    )
    others = {
        "minimum_forms": 1,
        "form_names": [],
        "query_params": None,
        "poll_interval": 1.0,
        "failure_tolerance": 1e9,
    }
    filters = {"created_since": TODAY.isoformat()}
    for name, value in arguments.items():
        if name in others:
            others[name] = value
        elif value is None:
            filters.pop(name, None)
        else:
            filters[name] = str(value)
    made = FsmFormTrigger(
        fsm_conn_id=fsm_conn_id,
        filters=filters,
        wait=asdict(state),
        **others,
    )
    made.trigger_id = 1  # as the triggerer gives it
    return made


class Triggerer:
    """Runs triggers on one event loop.

    ``await waits.start(trigger)`` returns the wait of its event.
    """

    def __init__(self):
        self.tasks = []

    def start(self, waiting):
        task = asyncio.create_task(self._run(waiting))
        self.tasks.append(task)
        return task

    async def _run(self, waiting):
        async with aclosing(waiting.run()) as events:
            event = await anext(events)
        return event.payload["wait"]

    async def seconds_until(self, wait, most=100_000.0):
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(asyncio.shield(wait), most)
        return asyncio.get_running_loop().time() - began


@asynccontextmanager
async def triggerer():
    running = Triggerer()
    try:
        yield running
    finally:
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)


async def until(service, predicate):
    await asyncio.to_thread(service.wait_for, predicate, 20)


def queries(service):
    return [dict(request.query) for request in service.requests]


# --- what the service is asked ---


@pytest.mark.parametrize(
    ("other", "feeds"),
    [
        ({"job_id": 21}, 1),
        ({"job_id": None, "property_id": 7}, 1),
        ({"created_since": (TODAY - timedelta(days=13)).isoformat()}, 1),
        ({"created_since": None, "updated_since": TODAY.isoformat()}, 1),
        ({"minimum_forms": 2}, 1),
        ({"form_names": ["Gas"]}, 1),
        ({"failure_tolerance": 1.0}, 1),
        ({"poll_interval": 1000}, 1),
        ({"fsm_conn_id": "fsm_other"}, 2),
        ({"poll_interval": 2000.0}, 2),
        ({"form_category": "Gas"}, 2),
        ({"form_name_id": 3}, 2),
        ({"created_by_type": "User"}, 2),
        ({"created_by_id": 71}, 2),
        ({"query_params": {"includeDrafts": "true"}}, 2),
    ],
)
@hurried(60.0)
async def test_waits_share_a_feed_that_differ_only_in_what_references_show(
    service, monkeypatch, other, feeds
):
    """Each feed begins with a listing of changes."""
    monkeypatch.setenv("AIRFLOW_CONN_FSM_OTHER", json.dumps(service.connection()))

    async with triggerer() as waits:
        waits.start(trigger(job_id=1, poll_interval=1000.0))
        waits.start(trigger(**{"job_id": 2, "poll_interval": 1000.0, **other}))
        await asyncio.sleep(30)

    listings_of_changes = [query for query in queries(service) if UPDATED in query]
    assert len(listings_of_changes) == feeds


@hurried()
async def test_many_waits_are_one_request_a_poll_and_each_is_woken_for_its_own_forms(service):
    async with triggerer() as waits:
        tasks = [waits.start(trigger(job_id=job)) for job in range(100, 300)]
        await until(service, lambda: len(service.requests) >= 5)
        before = len(service.requests)
        for job in (110, 220):
            service.add_form(job_id=job)
        await asyncio.gather(tasks[10], tasks[120])
        woken = [number for number, task in enumerate(tasks) if task.done()]

    assert woken == [10, 120]
    assert before <= 6
    assert all("jobID" not in query for query in queries(service))


@hurried(60.0)
async def test_once_the_last_wait_is_cancelled_nothing_is_asked_any_more(service):
    async with triggerer() as waits:
        waits.start(trigger(job_id=1))
        await until(service, lambda: len(service.requests) >= 3)
    asked = len(service.requests)
    await asyncio.sleep(100)

    assert len(service.requests) <= asked + 1  # which was on its way


@pytest.mark.parametrize(("polled", "known"), [(86_400.0, ()), (0.0, None)])
@pytest.mark.parametrize(("count", "asked"), [(40, [None]), (2, ["100", "101"])])
@hurried()
async def test_waits_whose_polls_are_long_ago_are_one_listing_for_all(
    service, count, asked, polled, known
):
    """As after a restart of the triggerer; few each have their own.

    No listing of changes has them.
    """
    old = datetime.now(UTC) - timedelta(hours=2)
    for job in range(100, 140):
        service.add_form(job_id=job, created=max(old, TODAY), updated=old)

    async with triggerer() as waits:
        started = []
        for job in range(100, 100 + count):
            waiting = trigger(job_id=job, polled=polled, known=known)
            started.append(waits.start(waiting))
        await asyncio.gather(*started)

    first_pages = [query for query in queries(service) if "cursor" not in query]
    by_creation = [query for query in first_pages if CREATED in query]
    jobs = {query.get("jobID") for query in by_creation}
    assert sorted(jobs, key=str) == asked
    assert len(by_creation) == 1 or count == 2


@hurried()
async def test_a_service_that_leaves_out_what_was_never_updated(service):
    """A listing by creation has shown such records: changes are asked for by creation, too."""

    class LeavesOut:
        async def play(self, exchange):
            fault = faults.CorrectResponse()
            if UPDATED in exchange.request.query_params:
                fault = faults.Rewrite(lambda page: {**page, "data": []})
            await fault.play(exchange)

    def has_asked_for_all():
        of_all = [query for query in queries(service) if "jobID" not in query]
        return any(CREATED in query for query in of_all)

    service.fail("GET", "/forms", LeavesOut(), every=True)
    service.add_form(job_id=1, lastUpdatedOnDateTime=None, form_name="Photo")

    async with triggerer() as waits:
        waiting = waits.start(trigger(job_id=1, form_names=["Gas"], known=None))
        await until(service, has_asked_for_all)
        service.add_form(job_id=1, lastUpdatedOnDateTime=None, form_name="Gas")

        assert await waits.seconds_until(waiting) < 200


# --- when a worker is woken ---


@pytest.mark.parametrize(
    ("arguments", "least", "most"),
    [
        ({}, MIN_DEFERRAL, 90),
        ({"poll_interval": 100.0}, 100, 190),
        (
            {"poll_interval": 100.0, "futile_wakes": 2},
            400,
            700,
        ),
        (
            {"poll_interval": 100.0, "futile_wakes": 30},
            CATCH_UP_EVERY,
            1.7 * CATCH_UP_EVERY,
        ),
        ({"poll_interval": 100.0, "timeout": 20}, 20, 90),
    ],
)
def test_a_wake_follows_the_poll_before_by_an_interval_and_twice_as_much_after_each_in_vain(
    service, arguments, least, most
):
    service.add_form(job_id=1)

    async def run():
        async with triggerer() as waits:
            waiting = waits.start(trigger(job_id=1, known=None, **arguments))
            return await waits.seconds_until(waiting)

    hurry = 250.0 if least >= 400 else 100.0
    assert least <= run_hurried(run(), hurry=hurry) <= most


# --- failures ---


class Refuses:
    """A fault of the common listings, or of those of one job."""

    def __init__(self, *, job=None, fault=None):
        self.job = job
        self.fault = fault or faults.Status(403)

    async def play(self, exchange):
        job = exchange.request.query_params.get("jobID")
        fault = self.fault if job == self.job else faults.CorrectResponse()
        await fault.play(exchange)


@pytest.mark.parametrize(
    "fault",
    [
        faults.Status(403),
        faults.Status(500),
        faults.Body(b"<html>"),
        faults.pagination(hasMore=True, nextCursor=None),
    ],
)
@hurried()
async def test_where_the_account_wide_listing_fails_each_wait_has_its_own(service, fault):
    service.fail("GET", "/forms", Refuses(fault=fault), every=True)

    async with triggerer() as waits:
        waiting = waits.start(trigger(job_id=1, failure_tolerance=0.0))
        other = waits.start(trigger(job_id=2, failure_tolerance=0.0))
        await until(service, lambda: len(service.requests) >= 6)
        service.add_form(job_id=2)
        woken = await asyncio.wait_for(other, 1_000)

        assert woken["failing_since"] is None
        assert not waiting.done()


@hurried()
async def test_what_fails_for_one_wait_is_its_own(service):
    service.fail("GET", "/forms", Refuses(job="1"), every=True)

    async with triggerer() as waits:
        failing = waits.start(trigger(job_id=1, known=None))
        healthy = waits.start(trigger(job_id=2, known=None))
        waiting = waits.start(trigger(job_id=3, known=None))
        failed = await failing
        assert failed["failing_since"]
        service.add_form(job_id=2)
        woken = await healthy

        assert woken["failing_since"] is None
        assert not waiting.done()


@pytest.mark.parametrize(
    ("fault", "is_permanent"),
    [
        (faults.Status(401), True),
        (faults.Status(503), False),
        (faults.Reset(), False),
    ],
)
@hurried(50.0)
async def test_workers_are_woken_by_what_is_permanent_at_once_else_after_their_tolerance(
    service, fault, is_permanent
):
    """An error of the service's; a 503 of the common listing alone is none, so all fail here."""
    async with triggerer() as waits:
        hasty = waits.start(trigger(job_id=1, failure_tolerance=100.0))
        calm = waits.start(trigger(job_id=2, failure_tolerance=1e6))
        await until(service, lambda: len(service.requests) >= 2)
        service.fail("GET", "/forms", fault, every=True)
        took = await waits.seconds_until(hasty, 10_000)

        assert (await hasty)["failing_since"]
        if is_permanent:
            woken = await asyncio.wait_for(calm, 10_000)
            assert woken["failing_since"]
        else:
            assert took >= 100
            assert not calm.done()


@hurried()
async def test_an_outage_counts_from_its_begin_whatever_failed_for_others_before(service):
    service.fail("GET", "/forms", Refuses(fault=faults.Status(500)), every=True)

    async with triggerer() as waits:
        waiting = waits.start(trigger(job_id=1, failure_tolerance=30.0))
        await asyncio.sleep(90)
        assert not waiting.done()
        with service.refuse_connections():
            took = await waits.seconds_until(waiting, 10_000)

        assert took >= 29
        assert (await waiting)["failing_since"]


@hurried()
async def test_a_service_that_hangs_delays_neither_the_loop_nor_other_connections(
    service, monkeypatch
):
    with FakeFieldService(token=service.settings.token) as hangs:
        hangs.fail("GET", "/forms", faults.Stall(), every=True)
        connection = hangs.connection()
        connection["extra"]["timeout"] = 3
        monkeypatch.setenv("AIRFLOW_CONN_FSM_HANGS", json.dumps(connection))

        async with triggerer() as waits:
            for job in range(10):
                waits.start(trigger("fsm_hangs", job_id=job, poll_interval=float(job + 1)))
            await until(hangs, lambda: hangs.requests)
            waiting = waits.start(trigger(job_id=1))
            service.add_form(job_id=1)
            await waiting


@hurried(60.0)
async def test_polls_pause_as_long_as_the_service_asks(service):
    service.fail("GET", "/forms", faults.Status(429, retry_after=600), every=True)

    async with triggerer() as waits:
        waits.start(trigger(job_id=1, poll_interval=2.0))
        await asyncio.sleep(900)

    assert 2 <= len(service.requests) <= 4


@hurried(60.0)
async def test_a_wait_that_comes_while_polls_pause_is_not_asked_for(service):
    """Both kinds of listings pause, though the service has told but one of them."""
    async with triggerer() as waits:
        waits.start(trigger(job_id=1, poll_interval=100.0))
        await until(service, lambda: service.requests)
        service.fail("GET", "/forms", faults.Status(429, retry_after=600), every=True)
        await until(service, lambda: len(service.requests) == 2)
        waits.start(trigger(job_id=2, poll_interval=100.0, known=None))
        await asyncio.sleep(450)

    assert len(service.requests) == 2


@hurried(60.0)
async def test_a_pause_that_a_worker_was_asked_for_is_that_of_its_trigger(service):
    waiting = trigger(job_id=1, known=None)
    waiting.wait["paused_until"] = time.time() + 600

    async with triggerer() as waits:
        waits.start(waiting)
        await asyncio.sleep(450)
        assert service.requests == []
        await until(service, lambda: service.requests)


@hurried(60.0)
async def test_a_pause_is_no_poll_that_ends_the_failures_before(service):
    """So the tolerance goes on from where it began, on the worker."""
    service.fail("GET", "/forms", faults.Status(429, retry_after=900), every=True)

    async with triggerer() as waits:
        waits.start(trigger(job_id=1, poll_interval=2.0))
        await until(service, lambda: service.requests)
        later = trigger(job_id=2, poll_interval=2.0, timeout=100.0)
        later.wait["failing_since"] = began = time.time() - 60
        woken = await asyncio.wait_for(waits.start(later), 1_000)

    assert woken["failing_since"] == began


@hurried(60.0)
async def test_a_connection_that_cannot_be_read_is_told_to_all_at_once(service, connect):
    async with triggerer() as waits:
        tasks = [waits.start(trigger(job_id=job, poll_interval=100.0)) for job in range(60)]
        await until(service, lambda: service.requests)
        connect(service, timeout="soon")
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(50)

    assert all(task.done() and task.result()["failing_since"] for task in tasks)


@hurried(60.0)
async def test_a_pause_does_not_outlast_the_tolerance_of_a_wait_which_begins_with_the_wait(service):
    service.fail("GET", "/forms", faults.Status(429, retry_after=3600), every=True)

    async with triggerer() as waits:
        first = waits.start(trigger(job_id=1, failure_tolerance=300.0))
        calm = waits.start(trigger(job_id=2, failure_tolerance=100_000.0))
        assert 300 <= await waits.seconds_until(first) < 600
        later = waits.start(trigger(job_id=3, failure_tolerance=300.0, poll_interval=1.0))
        await asyncio.sleep(250)
        assert not later.done()
        woken = await asyncio.wait_for(later, 1_000)
        assert not calm.done()

    failed_for = time.time() - woken["failing_since"]
    assert 250 <= failed_for < 900  # the feed of both pauses until then
    assert len(service.requests) <= 4


@hurried()
async def test_a_wait_that_no_poll_has_begun_wakes_its_worker_once_one_can(service):
    service.fail("GET", "/forms", faults.Status(503), every=True)
    waiting = trigger(job_id=1, known=None)
    waiting.wait["polled_at"] = None

    async with triggerer() as waits:
        task = waits.start(waiting)
        await until(service, lambda: len(service.requests) >= 4)
        assert not task.done()
        service.clear_faults()
        assert await waits.seconds_until(task) < 200


# --- logs, arguments ---


@hurried()
async def test_what_polls_say_is_in_the_log_of_no_task(service):
    current = ContextVar("current", default=None)
    logged = []

    class Handler(logging.Handler):
        def emit(self, record):
            logged.append((current.get(), record.getMessage()))

    handler = Handler()
    log = logging.getLogger("fsm_provider.polling.feed")
    log.addHandler(handler)
    try:
        async with triggerer() as waits:
            current.set("a task")
            waits.start(trigger(job_id=1))
            await until(service, lambda: service.requests)
            service.fail("GET", "/forms", faults.Status(429), every=True)
            seen = len(service.requests)
            await until(service, lambda: len(service.requests) > seen + 3)
    finally:
        log.removeHandler(handler)

    assert logged == [(None, "Polling for forms failed, and goes on: GET /forms returned HTTP 429")]


@hurried()
async def test_a_wait_that_is_damaged_keeps_no_form_from_the_others(service, caplog):
    async with triggerer() as waits:
        waits.start(trigger(minimum_forms="two"))
        healthy = [waits.start(trigger(job_id=7)) for _ in range(2)]
        await until(service, lambda: len(service.requests) > 2)
        service.add_form(job_id=7)

        for wait in healthy:
            await asyncio.wait_for(wait, 300.0)

    assert "A subscriber failed; the others get their forms" in caplog.text
