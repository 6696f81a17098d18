"""Deferred waits that share their polls."""

import asyncio
import json
import logging
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.testing import faults
from fsm_provider.triggers.forms import MIN_DEFERRAL, FsmFormTrigger
from tests.unit.clocks import HURRY, run_hurried

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

SETTINGS = "failure_tolerance", "shared", "began", "deadline", "log_interval"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def trigger(*, minimum_forms=1, form_names=(), query_params=None, poll_interval=1.0, **arguments):
    fsm_conn_id = arguments.pop("fsm_conn_id", "fsm_default")
    settings = {name: arguments.pop(name) for name in SETTINGS if name in arguments}
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
    """Runs triggers on one event loop; ``await waits.start(trigger)`` returns the payload of its event."""

    def __init__(self):
        self.tasks = []

    def start(self, waiting):
        self.tasks.append(asyncio.create_task(self._run(waiting)))
        return self.tasks[-1]

    async def _run(self, waiting):
        async with aclosing(waiting.run()) as events:
            return (await anext(events)).payload


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


def polls_of_two(service, first, second):
    """The queries of two waits, each beside three that do not differ from it in what counts."""

    async def run():
        async with triggerer() as waits:
            for one in (first, second):
                for number in range(3):
                    waits.start(trigger(**{"job_id": 900 + number, **one}))
            await until(service, lambda: len(service.requests) >= 6)
        return [dict(request.query) for request in service.requests]

    return run_hurried(run())


@pytest.mark.parametrize(
    "same",
    [
        {"job_id": 21},
        {"property_id": 7},
        {"created_since": (TODAY + timedelta(hours=23)).isoformat()},
        {"created_since": (TODAY - timedelta(days=13)).isoformat()},
        {"minimum_forms": 2},
        {"form_names": ["Gas"]},
        {"failure_tolerance": 1.0},
        {"poll_interval": 1},
        {"updated_since": TODAY.isoformat()},
    ],
)
def test_waits_that_differ_in_what_references_show_share_a_listing(service, same):
    queries = polls_of_two(service, {}, same)

    full = [query for query in queries if "lastUpdatedOnDateTime[gte]" not in query]
    assert len(full) == 1
    assert {"jobID" in query for query in queries} == {False}


@pytest.mark.parametrize(
    "other",
    [
        {"fsm_conn_id": "fsm_other"},
        {"poll_interval": 2.0},
        {"created_since": None, "updated_since": TODAY.isoformat()},
        {"form_category": "Gas"},
        {"form_name_id": 3},
        {"created_by_type": "User"},
        {"created_by_id": 71},
        {"query_params": {"includeDrafts": "true"}},
    ],
)
def test_waits_that_differ_in_what_only_the_service_knows_share_none(service, monkeypatch, other):
    monkeypatch.setenv("AIRFLOW_CONN_FSM_OTHER", json.dumps(service.connection()))
    queries = polls_of_two(service, {}, other)

    by_update = [query for query in queries if "createdOnDateTime[gte]" not in query]
    full = [query for query in queries if "lastUpdatedOnDateTime[gte]" not in query]
    assert len(full) == 2 or by_update
    assert {"jobID" in query for query in queries} == {False}


def test_a_wait_that_shall_not_share_polls_alone(service):
    async def run():
        async with triggerer() as waits:
            for number in range(3):
                waits.start(trigger(job_id=number))
            waits.start(trigger(job_id=9, shared=False))
            await until(service, lambda: len(service.requests) >= 8)

    run_hurried(run())

    assert {dict(request.query).get("jobID") for request in service.requests} == {None, "9"}


def test_many_waits_make_one_request_a_poll_and_each_gets_its_own_forms(service):
    async def run():
        async with triggerer() as waits:
            tasks = [waits.start(trigger(job_id=number)) for number in range(200)]
            await until(service, lambda: len(service.requests) >= 8)
            assert {"jobID" in dict(request.query) for request in service.requests} == {False}
            assert len({request.connection for request in service.requests}) == 1
            forms = {number: service.add_form(job_id=number)["id"] for number in range(1, 200)}
            found = await asyncio.gather(*tasks[1:])
            assert not tasks[0].done()
            return forms, found, service.requests

    forms, found, requests = run_hurried(run())

    assert [[form["id"] for form in event["forms"]] for event in found] == [[forms[n]] for n in range(1, 200)]
    # 199 new forms are 20 pages here; apart from these every poll was one request.
    assert len([request for request in requests if "cursor" not in dict(request.query)]) < 60


def test_a_wait_that_joins_late_finds_earlier_forms(service):
    async def run():
        async with triggerer() as waits:
            waits.start(trigger(job_id=1))
            form = service.add_form(job_id=2)
            await until(service, lambda: len(service.requests) >= 3)
            return form, await waits.start(trigger(job_id=2))

    form, event = run_hurried(run())

    assert [reference["id"] for reference in event["forms"]] == [form["id"]]


def test_a_form_with_old_times_is_found_by_the_next_check(service):
    async def run():
        async with triggerer() as waits:
            clock = asyncio.get_running_loop().time
            began, since = clock(), (TODAY - timedelta(days=3)).isoformat()
            task, *_ = [waits.start(trigger(job_id=job, created_since=since)) for job in range(3)]
            await until(service, lambda: len(service.requests) >= 3)
            service.add_form(job_id=0, id=900, created=TODAY - timedelta(days=2))
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


def test_an_unexpected_error_is_logged_and_the_polls_go_on(service, caplog):
    """Of a handler of a wait's log, when the wait finds a form under another name."""

    class Handler(logging.Handler):
        def emit(self, record):
            if "1 other form" in record.getMessage() and not failed:
                failed.append(record)
                raise OSError("no space left on device")

    failed, log = [], logging.getLogger("tests.full")
    log.addHandler(Handler())
    log.setLevel("INFO")

    async def run():
        async with triggerer() as waits:
            first = trigger(job_id=1, form_names=["Gas"])
            first._log = log
            tasks = [waits.start(one) for one in (first, *(trigger(job_id=number) for number in (2, 3, 4)))]
            await until(service, lambda: len(service.requests) >= 2)
            service.add_form(job_id=1, form_name="Oil")
            async with asyncio.timeout(200):
                while not failed:
                    await asyncio.sleep(0.05)
            for job in (1, 2):
                service.add_form(job_id=job, form_name="Gas")
            async with asyncio.timeout(200):
                return await asyncio.gather(*tasks[:2])

    found = run_hurried(run())

    assert [form["jobID"] for payload in found for form in payload["forms"]] == [1, 2]
    assert "The polls for forms of 'fsm_default' start again" in caplog.text
    assert "OSError: no space left on device" in caplog.text


def test_the_last_wait_ends_the_polls_and_the_next_one_begins_anew(service):
    async def run():
        async with triggerer() as waits:
            await asyncio.gather(*[waits.start(trigger(job_id=number)) for number in range(3)])
        assert tasks_of_streams() == []
        service.clear_requests()
        async with triggerer() as waits:
            waits.start(trigger(job_id=9))
            await until(service, lambda: len(service.requests) >= 1)
            assert len(tasks_of_streams()) == 1
        await asyncio.sleep(0)
        return tasks_of_streams()

    for number in range(3):
        service.add_form(job_id=number)

    assert run_hurried(run()) == []


def tasks_of_streams():
    return [task for task in asyncio.all_tasks() if task.get_name() == "fsm form stream"]


def test_a_wait_that_is_cancelled_does_not_disturb_the_others(service):
    async def run():
        async with triggerer() as waits:
            tasks = [waits.start(trigger(job_id=number)) for number in range(4)]
            await until(service, lambda: len(service.requests) >= 2)
            tasks[0].cancel()
            service.add_form(job_id=3, id=900)
            return await tasks[3]

    assert [form["id"] for form in run_hurried(run())["forms"]] == [900]


@pytest.mark.parametrize("page", [1, 2])
def test_a_failing_listing_of_one_wait_is_its_own(service, page):
    """The check of a wait that goes back further than the others fails; they go on."""

    async def run():
        async with triggerer() as waits:
            others = [waits.start(trigger(job_id=number)) for number in range(3)]
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", FailsForJob("7", page), every=True)
            old = TODAY - timedelta(days=40)
            for _ in range(30):
                service.add_form(job_id=7, form_name="Other", created=old + timedelta(days=1))
            failing = waits.start(
                trigger(job_id=7, form_names=["Gas"], created_since=old.isoformat(), failure_tolerance=60.0)
            )
            await until(service, lambda: [request.status for request in service.requests].count(500) >= 2)
            service.add_form(job_id=1, id=900)
            found = await others[1]
            assert not failing.done()
            return found, await failing, others[0].done()

    found, error, others_ended = run_hurried(run(), hurry=60.0)

    assert [form["id"] for form in found["forms"]] == [900]
    assert error["error"]["status"] == 500
    assert not others_ended


@pytest.mark.parametrize("fault", [faults.Status(401), faults.Status(429), faults.Stall()])
def test_no_other_wait_suffers_from_what_one_lists_by_itself(service, connect, fault):
    """A refused token, a rate limit or a hanging response, for one job only."""
    connect(service, max_retries=0, timeout=1)

    async def run():
        async with triggerer() as waits:
            clock = asyncio.get_running_loop().time
            others = [waits.start(trigger(job_id=number)) for number in range(3)]
            await until(service, lambda: len(service.requests) >= 2)
            service.fail("GET", "/forms", FailsForJob("7", fault=fault), every=True)
            old = (TODAY - timedelta(days=40)).isoformat()
            for _ in range(200):  # 20 pages: a listing for all since then is dearer than one for each
                service.add_form(job_id=99, created=TODAY - timedelta(days=39))
            failing = [
                waits.start(trigger(job_id=7, created_since=old, failure_tolerance=200.0)) for _ in range(12)
            ]
            await asyncio.sleep(60)
            service.add_form(job_id=1, id=900)
            began = clock()
            found = await others[1]
            took = clock() - began
            healthy = waits.start(trigger(job_id=8, created_since=old))
            service.add_form(job_id=8, id=901, created=TODAY - timedelta(days=39))
            return found, took, await healthy, [await one for one in failing], others[0].done()

    found, took, healthy, errors, others_ended = run_hurried(run(), hurry=30.0)

    assert [form["id"] for form in found["forms"]] == [900]
    assert took < 30
    assert [form["id"] for form in healthy["forms"]] == [901]
    assert all("error" in event for event in errors)
    assert not others_ended


def test_a_listing_of_one_wait_goes_on_at_the_page_at_which_it_was_refused(service):
    for number in range(100):
        service.add_form(job_id=1, form_name="Other", id=number + 1)
    service.add_form(job_id=1, form_name="Gas", id=900)
    service.fail("GET", "/forms", faults.Status(429, retry_after=60), calls=range(4, 1000, 5))

    async def run():
        async with triggerer() as waits:
            return await waits.start(trigger(job_id=1, form_names=["Gas"], failure_tolerance=100.0))

    assert [form["id"] for form in run_hurried(run(), hurry=60.0)["forms"]] == [900]
    assert len([request for request in service.requests if "cursor" not in dict(request.query)]) == 1


@pytest.mark.parametrize("status", [400, 500])
def test_a_bound_that_the_service_refuses_is_the_failure_of_its_wait_alone(service, status):
    old = (TODAY - timedelta(days=400)).isoformat()
    service.fail("GET", "/forms", RefusesBefore(TODAY - timedelta(days=365), status), every=True)

    async def run():
        async with triggerer() as waits:
            refused = waits.start(trigger(job_id=1, created_since=old, failure_tolerance=100.0))
            others = [waits.start(trigger(job_id=number, failure_tolerance=100.0)) for number in range(2, 7)]
            error = await refused
            await asyncio.sleep(200)
            service.add_form(job_id=6, id=900)
            return error, await others[-1], [other.done() for other in others[:-1]]

    error, found, others_ended = run_hurried(run(), hurry=60.0)

    assert error["error"]["status"] == status
    assert [form["id"] for form in found["forms"]] == [900]
    assert others_ended == [False] * 4


@pytest.mark.parametrize("status", [429, 500])
def test_a_listing_for_all_that_fails_at_a_page_gives_each_its_forms(service, status):
    """A rate limit only makes it wait; after another error recent changes come first."""
    for number in range(60):
        service.add_form(job_id=number, id=number + 1)
    service.fail("GET", "/forms", faults.Status(status, retry_after=30), call=4)

    async def run():
        async with triggerer() as waits:
            return await asyncio.gather(*[waits.start(trigger(job_id=number)) for number in range(60)])

    found = run_hurried(run())

    assert [[form["id"] for form in event["forms"]] for event in found] == [[n + 1] for n in range(60)]
    first_pages = [
        request
        for request in service.requests
        if not {"cursor", "lastUpdatedOnDateTime[gte]"} & dict(request.query).keys()
    ]
    assert len(first_pages) == 1


class RefusesBefore:
    """A fault of listings that go back further."""

    def __init__(self, oldest, status):
        self.oldest, self.status = oldest, status

    async def play(self, exchange):
        since = exchange.request.query_params.get("createdOnDateTime[gte]")
        if since and datetime.fromisoformat(since) < self.oldest:
            await faults.Status(self.status).play(exchange)
        else:
            await exchange.respond(await exchange.handle())


def test_a_failing_check_does_not_hurry_the_polls(service):
    service.fail("GET", "/forms", FailsForJob("7"), every=True)

    async def run():
        async with triggerer() as waits:
            old = (TODAY - timedelta(days=40)).isoformat()
            for number in range(3):
                waits.start(trigger(job_id=number, poll_interval=60.0))
            await asyncio.sleep(30)
            waits.start(trigger(job_id=7, created_since=old, poll_interval=60.0, failure_tolerance=5_000.0))
            await asyncio.sleep(1_200)

    run_hurried(run(), hurry=120.0)

    assert len([request for request in service.requests if "jobID" not in dict(request.query)]) <= 25


@pytest.mark.parametrize("of", ["all", "one"])
def test_a_success_ends_the_failures_that_a_tolerance_counts(service, of):
    """The listing of one wait comes every 900 s; it fails 300 s, twice."""
    fault = faults.Status(503) if of == "all" else FailsForJob("7")

    async def run():
        async with triggerer() as waits:
            for number in range(3):
                waits.start(trigger(job_id=number, poll_interval=20.0, failure_tolerance=10_000.0))
            await until(service, lambda: len(service.requests) >= 2)
            old = (TODAY - timedelta(days=40)).isoformat()
            waiting = waits.start(
                trigger(job_id=7, poll_interval=20.0, created_since=old, failure_tolerance=400.0)
            )
            await asyncio.sleep(30)
            for healthy in (910.0, 600.0) if of == "all" else (650.0, 600.0):
                await asyncio.sleep(healthy)
                service.fail("GET", "/forms", fault, every=True)
                await asyncio.sleep(300.0 if of == "all" else 560.0)
                service.clear_faults()
            return waiting.done(), {request.status for request in service.requests}

    assert run_hurried(run(), hurry=200.0) == (False, {200, 503 if of == "all" else 500})


class FailsForJob:
    """A fault of the listing of one job."""

    def __init__(self, job, page=1, fault=None):
        self.job, self.page, self.fault = job, page, fault or faults.Status(500)

    async def play(self, exchange):
        params = exchange.request.query_params
        if params.get("jobID") == self.job and ("cursor" in params) == (self.page > 1):
            await self.fault.play(exchange)
        else:
            await exchange.respond(await exchange.handle())


async def waits_in_contexts_of_their_own(service, logged, polls, **arguments):
    """Run waits on the jobs 0 to 2, and record what logs in which; a trigger's log is told by its context."""
    current = ContextVar("current", default=None)

    class Handler(logging.Handler):
        def emit(self, record):
            logged.append((record.name.rpartition(".")[2], current.get(), record.getMessage()))

    async def wait(number):
        current.set(number)
        waiting = trigger(job_id=number, **arguments)
        waiting._log = logging.getLogger("test.wait")
        return await anext(waiting.run())

    handler, names = Handler(), ["test.wait", "fsm_provider.polling.poller"]
    for name in names:
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("test.wait").setLevel(logging.INFO)
    try:
        tasks = [asyncio.create_task(wait(number)) for number in range(3)]
        await until(service, lambda: len(service.requests) >= polls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)


def test_tolerated_failures_are_in_the_log_of_each_wait_and_polls_in_none(service):
    service.fail("GET", "/forms", faults.Status(503), every=True)
    logged = []

    run_hurried(waits_in_contexts_of_their_own(service, logged, 3, failure_tolerance=10_000.0))

    failures = [(name, context) for name, context, message in logged if "failed" in message]
    assert sorted(failures, key=str) == [("poller", None), ("wait", 0), ("wait", 1), ("wait", 2)]


def test_what_a_wait_says_is_in_its_own_log(service):
    for number in range(3):
        service.add_form(job_id=number, form_name=f"Photo {number}")
    logged = []

    run_hurried(waits_in_contexts_of_their_own(service, logged, 8, form_names=["Gas"], log_interval=3.0))

    for number in range(3):
        start, *later = [message for _, context, message in logged if context == number]
        others = f"1 other form since then: Photo {number}"
        assert start.startswith(f"Waiting for Gas, of job {number}, created since ")
        assert later.count(others) == 1
        later.remove(others)
        assert all(line.startswith(f"Still waiting for Gas, of job {number}, ") for line in later)
        assert later[-1].endswith(f"; {others}")
    assert [message for _, context, message in logged if context is None] == []


def test_a_wait_that_ends_says_no_more(service, caplog):
    service.add_form(job_id=1)

    async def run():
        waiting = trigger(job_id=1, log_interval=1.0)
        waiting._log = logging.getLogger("test.wait")
        await anext(waiting.run())
        caplog.clear()
        await asyncio.sleep(30)

    with caplog.at_level(logging.INFO, logger="test.wait"):
        run_hurried(run())

    assert [record for record in caplog.records if record.name == "test.wait"] == []


def test_a_trigger_that_another_triggerer_takes_over_counts_from_the_beginning(service):
    """Its deadline passes meanwhile."""
    now = datetime.now(UTC)
    began, deadline = (now - timedelta(hours=2)).isoformat(), (now + timedelta(seconds=20)).isoformat()

    async def run():
        async with triggerer() as waits:
            return await waits.start(trigger(job_id=1, began=began, deadline=deadline))

    text = run_hurried(run())["timed_out"]

    assert text.startswith("Sensor has timed out after 2:00:")
    assert f": waited for a form, of job 1, created since {TODAY.isoformat()}; " in text


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
    times = {"began": TODAY.isoformat(), "deadline": (TODAY + timedelta(days=7)).isoformat()}
    _, kwargs = trigger(job_id=1, failure_tolerance=5.0, shared=False, log_interval=60.0, **times).serialize()

    assert FsmFormTrigger(**json.loads(json.dumps(kwargs))).serialize()[1] == kwargs
