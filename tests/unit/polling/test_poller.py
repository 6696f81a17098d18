"""A poll resumes at the page that failed, and a service that hangs delays no other connection."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import pytest

from fsm_provider.api.errors import (
    FsmConnectionError,
    FsmNotFoundError,
    FsmPaginationError,
    FsmRedirectError,
    FsmResponseError,
    FsmServerError,
)
from fsm_provider.api.form_filter import FormFilter, format_time
from fsm_provider.polling.old_polls import PollQuery
from fsm_provider.polling.poller import MAX_PAGE_GAP, FormPoller, PollFailure, poll_forever
from fsm_provider.polling.threads import MAX_THREADS, run_in_thread
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.triggers.forms import FsmFormTrigger
from tests.unit.clocks import HURRY, run_hurried

PAGES = 30
EVERYTHING = PollQuery(wanted=FormFilter())


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


@pytest.fixture
def forms(service):
    """Thirty pages."""
    service.seed_forms(10 * PAGES)
    return service.forms


class Limited:
    """20 requests, and then 429 to any more for 5 s of the hurried clock."""

    def __init__(self, hurry=HURRY, window=5.0, requests=20):
        self.hurry, self.window, self.requests = hurry, window, requests
        self.sent, self.closed_until = 0, None

    async def play(self, exchange):
        now = time.monotonic() * self.hurry
        if self.closed_until is not None and now >= self.closed_until:
            self.sent, self.closed_until = 0, None
        if self.sent == self.requests and self.closed_until is None:
            self.closed_until = now + self.window
        if self.closed_until is not None:
            wait = int(self.closed_until - now) + 1
            return await faults.Status(429, retry_after=wait).play(exchange)
        self.sent += 1
        return await faults.CorrectResponse().play(exchange)


async def polled(
    until=lambda seen: not isinstance(seen, PollFailure), *, interval=1.0, poller=None, filters=None
):
    """Everything that the polls yield, up to the first for which the predicate is true."""
    poller = poller or FormPoller("fsm_default")
    polls = poll_forever(
        poller,
        next_query=lambda now: PollQuery(wanted=FormFilter(**filters or {})),
        ingest=lambda query, result, now: result,
        interval=interval,
        first_after=0.0,
    )
    seen = []
    try:
        async with aclosing(polls), asyncio.timeout(20_000):
            async for one in polls:
                seen.append(one)
                if until(one):
                    return seen
    finally:
        poller.close()


def errors(seen):
    return [
        (type(one.error).__name__, one.progressed)
        for one in seen
        if isinstance(one, PollFailure) and not one.reminder
    ]


def ids(result):
    return [reference["id"] for reference in result.references]


def statuses(service):
    return [request.status for request in service.requests]


def first_pages(service):
    return len([request for request in service.requests if "cursor" not in dict(request.query)])


def test_a_rate_limit_costs_a_poll_one_request_more_than_its_pages(service, forms):
    service.fail("GET", "/forms", Limited(), every=True)

    seen = run_hurried(polled())

    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert PAGES + 1 <= len(service.requests) <= PAGES + 2
    assert set(errors(seen)) == {("FsmRateLimitedError", True)}


@pytest.mark.usefixtures("forms")
def test_a_rate_limit_that_lasts_longer_than_the_tolerance_fails_no_wait(service):
    """It lets a quarter of the listing through in the tolerance: the service is slow, not down."""
    service.fail("GET", "/forms", Limited(requests=4), every=True)
    trigger = FsmFormTrigger(
        fsm_conn_id="fsm_default",
        filters={"created_since": "2000-01-01T00:00:00+00:00"},
        minimum_forms=10 * PAGES,
        form_names=[],
        query_params=None,
        poll_interval=1.0,
        failure_tolerance=12.0,
    )

    async def run():
        async with aclosing(trigger.run()) as events:
            return (await anext(events)).payload

    assert "forms" in run_hurried(run())
    assert len(service.requests) <= 2 * PAGES


@pytest.mark.parametrize(
    "fault",
    [faults.Status(503), faults.Status(429), faults.Reset(), faults.Truncated(), faults.Body(b"<html>")],
)
def test_the_page_that_failed_is_requested_again(service, forms, fault):
    service.fail("GET", "/forms", fault, calls=(7, 8, 9, 20))

    seen = run_hurried(polled())

    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert len(service.requests) == PAGES + 4
    assert first_pages(service) == 1
    assert [progressed for _, progressed in errors(seen)] == [True, False, False, True]


def test_a_poll_starts_with_its_first_page(service, forms):
    service.fail("GET", "/forms", faults.Status(429, retry_after=20), call=20)
    began = datetime.now(UTC)

    seen = run_hurried(polled())

    assert datetime.now(UTC) - began > timedelta(seconds=1)
    assert abs(seen[-1].started - began) < timedelta(seconds=0.7)


@pytest.mark.parametrize("status", [400, 404, 409, 410, 422])
def test_a_cursor_that_expired_in_the_pause_restarts_the_poll(service, forms, status):
    service.fail("GET", "/forms", faults.Status(429, retry_after=10), call=7)
    service.fail("GET", "/forms", faults.Status(status), call=8)

    seen = run_hurried(polled())

    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert errors(seen) == [("FsmRateLimitedError", True)]
    assert first_pages(service) == 2
    assert len(service.requests) == 8 + PAGES


@pytest.mark.parametrize(("call", "requests"), [(1, 1), (2, 2)])
def test_an_error_of_a_poll_that_never_paused_is_no_expired_cursor(service, forms, call, requests):
    service.fail("GET", "/forms", faults.Status(404), call=call)

    (failed,) = run_hurried(polled(lambda seen: True))

    assert isinstance(failed.error, FsmNotFoundError)
    assert len(service.requests) == requests


def test_cursors_that_expire_in_every_pause_are_no_progress(service, forms):
    class Hopeless:
        """Three pages, then a refusal, and no cursor that outlives it."""

        async def play(self, exchange):
            answered = [request.status for request in service.requests][-3:]
            if answered[-1:] == [429]:
                return await faults.Status(410).play(exchange)
            if answered == [200] * 3:
                return await faults.Status(429, retry_after=1).play(exchange)
            return await faults.CorrectResponse().play(exchange)

    service.fail("GET", "/forms", Hopeless(), every=True)

    seen = run_hurried(polled(lambda seen: statuses(service).count(410) == 3))

    assert errors(seen)[0] == ("FsmRateLimitedError", True)
    assert {progressed for _, progressed in errors(seen)[1:]} == {False}


def test_minutes_of_failures_restart_the_poll_and_a_long_retry_after_does_not(service, forms):
    service.fail("GET", "/forms", faults.Status(429, retry_after=int(2 * MAX_PAGE_GAP)), call=7)
    seen = run_hurried(polled(interval=60.0), hurry=3000.0)
    assert len(service.requests) == PAGES + 1

    service.clear_requests()
    service.fail("GET", "/forms", faults.Status(503), calls=range(7, 60))
    seen = run_hurried(polled(interval=60.0), hurry=3000.0)

    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert first_pages(service) >= 2


def rotate(service, connect, token="rotated"):
    service.settings.token = token
    connect(service, max_retries=0)


class Rotating:
    """The token changes before this call, here and in the connection, or only here."""

    def __init__(self, service, act):
        self.service, self.act = service, act

    async def play(self, exchange):
        self.act()
        await faults.Status(401).play(exchange)


def test_a_token_that_is_rotated_in_the_middle_costs_one_request(service, forms, connect):
    service.fail("GET", "/forms", Rotating(service, lambda: rotate(service, connect)), call=7)

    seen = run_hurried(polled())

    assert len(seen) == 1
    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert (len(service.requests), statuses(service).index(401)) == (PAGES + 1, 6)


def test_a_token_that_stays_refused_ends_the_poll_and_is_sent_twice_at_most(service, forms):
    service.fail("GET", "/forms", faults.Status(401), calls=range(7, 99))

    (failed,) = run_hurried(polled(lambda seen: True))

    assert failed.error.status == 401
    assert not failed.progressed
    assert statuses(service).count(401) == 1


def test_a_connection_that_leads_elsewhere_restarts_the_poll_there(service, forms, connect):
    with FakeFieldService(token="another", page_size=10) as other:
        other.seed_forms(15)
        act = Rotating(service, lambda: connect(other, max_retries=0))
        service.fail("GET", "/forms", act, call=7)

        seen = run_hurried(polled())

        assert ids(seen[-1]) == [form["id"] for form in other.forms]
        assert statuses(other) == [200, 200]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (None, FsmConnectionError),
        (faults.Reset(), FsmResponseError),
        (faults.Body(b"<html>"), FsmResponseError),
        (faults.Redirect("/maintenance"), FsmRedirectError),
        (faults.pagination(hasMore=True, nextCursor=None), FsmPaginationError),
        (faults.Status(404), FsmNotFoundError),
    ],
)
def test_a_connection_that_is_corrected_after_an_error_is_used(service, connect, monkeypatch, fault, error):
    if fault:
        service.fail("GET", "/forms", fault, every=True)
    else:
        unreachable = {**service.connection(), "host": "http://127.0.0.1:1", "extra": {"max_retries": 0}}
        monkeypatch.setenv("AIRFLOW_CONN_FSM_DEFAULT", json.dumps(unreachable))
    with FakeFieldService(token="another") as other:
        form = other.add_form()

        async def run():
            poller = FormPoller("fsm_default")
            with pytest.raises(error):
                await poller.read(EVERYTHING)
            connect(other, max_retries=0)
            return await poller.read(EVERYTHING)

        result = asyncio.run(run())

    assert ids(result) == [form["id"]]


def test_a_poll_that_has_read_no_page_reads_as_many_as_the_next_query_allows(service, forms):
    service.fail("GET", "/forms", faults.Status(503))

    async def run():
        poller = FormPoller("fsm_default")
        with pytest.raises(FsmServerError):
            await poller.read(PollQuery(wanted=FormFilter(), max_pages=1))
        return await poller.read(EVERYTHING)

    assert len(run_hurried(run()).references) == len(forms)


def test_a_secrets_backend_that_fails_in_the_middle_loses_no_page(service, forms, connect, monkeypatch):
    def lose():
        service.settings.token = "rotated"
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    service.fail("GET", "/forms", Rotating(service, lose), call=7)

    def is_mended(seen):
        if isinstance(seen, PollFailure):
            connect(service, max_retries=0)
        return not isinstance(seen, PollFailure)

    seen = run_hurried(polled(is_mended))

    assert errors(seen) == [("FsmConnectionError", True)]
    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert first_pages(service) == 1


def test_a_reset_while_the_secrets_backend_is_away_costs_no_further_poll(service, forms, monkeypatch, caplog):
    service.fail("GET", "/forms", faults.Reset(), call=7)
    failures = []

    def lose(seen):
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT", raising=False)
        failures.append(seen)
        return not isinstance(seen, PollFailure) or len(failures) > 1

    seen = run_hurried(polled(lose))

    assert errors(seen) == [("FsmResponseError", True)]
    assert ids(seen[-1]) == [form["id"] for form in forms]
    assert "'fsm_default' cannot be read (AirflowNotFoundException); polling goes on" in caplog.text


def test_a_malformed_connection_is_permanent(service, monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW_CONN_FSM_DEFAULT", json.dumps({"conn_type": "fsm", "host": "", "password": "x"})
    )

    (failed,) = run_hurried(polled(lambda seen: True))

    assert failed.error.permanent
    assert "host" in str(failed.error)


@contextmanager
def hung_service():
    """Accepts every connection and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def connect_to_hung(monkeypatch, base_url, timeout):
    connection = {"conn_type": "fsm", "host": base_url, "password": "x", "extra": {"timeout": timeout}}
    monkeypatch.setenv("AIRFLOW_CONN_FSM_HUNG", json.dumps(connection))


def test_a_service_that_hangs_delays_neither_airflow_nor_other_connections(service, monkeypatch):
    service.add_form(id=900)
    with hung_service() as base_url:
        connect_to_hung(monkeypatch, base_url, 3)

        async def run():
            pollers = [FormPoller("fsm_hung") for _ in range(60)]
            hung = [asyncio.create_task(poller.read(EVERYTHING)) for poller in pollers]
            await asyncio.sleep(0.5)
            before = time.monotonic()
            await asyncio.to_thread(lambda: None)
            airflows = time.monotonic() - before
            other = FormPoller("fsm_default")
            found = ids(await other.read(EVERYTHING))
            others = time.monotonic() - before
            other.close()
            threads = [thread for thread in threading.enumerate() if thread.name == "fsm fsm_hung"]
            for task in hung:
                task.cancel()
            await asyncio.gather(*hung, return_exceptions=True)
            for poller in pollers:
                poller.close()
            return airflows, others, found, len(threads)

        airflows, others, found, threads = asyncio.run(run())

    assert airflows < 0.5
    assert others < 1.5
    assert found == [900]
    assert threads == MAX_THREADS


def test_a_request_that_hangs_does_not_keep_the_process_alive(monkeypatch):
    script = """
import asyncio
from fsm_provider.api.form_filter import FormFilter
from fsm_provider.polling.poller import FormPoller
from fsm_provider.polling.old_polls import PollQuery

async def main():
    try:
        async with asyncio.timeout(1.0):
            await FormPoller("fsm_hung").read(PollQuery(wanted=FormFilter()))
    except TimeoutError:
        print("timed out", flush=True)

asyncio.run(main())
print("ended", flush=True)
"""
    with hung_service() as base_url:
        connect_to_hung(monkeypatch, base_url, 60)
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
        )

    lines = ended.stdout.splitlines()  # Airflow 2 logs to them
    assert lines.index("timed out") < lines.index("ended")
    assert ended.returncode == 0, ended.stderr


def test_a_thread_runs_in_the_context_of_its_wait_and_passes_on_exceptions():
    variable = ContextVar("of_the_wait", default=None)

    def read():
        if variable.get() == "mine":
            raise LookupError("seen")

    async def run():
        variable.set("mine")
        await run_in_thread("fsm_default", read)

    with pytest.raises(LookupError, match="seen"):
        asyncio.run(run())


def threads_of(fsm_conn_id):
    return [thread for thread in threading.enumerate() if thread.name == f"fsm {fsm_conn_id}"]


def wait_until_ended(threads):
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_wait_that_is_cancelled_ends_at_once_and_its_thread_counts_until_it_has_ended():
    answered = threading.Event()

    async def run():
        tasks = []
        for _ in range(20):
            tasks.append(asyncio.create_task(run_in_thread("cancelled", answered.wait)))
            await asyncio.sleep(0.01)
            tasks[-1].cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        threads = threads_of("cancelled")
        waiting = asyncio.create_task(run_in_thread("cancelled", lambda: "has its turn"))
        await asyncio.sleep(0.1)
        is_waiting = not waiting.done()
        answered.set()
        async with asyncio.timeout(5):
            return [task.cancelled() for task in tasks], threads, is_waiting, await waiting

    cancelled, threads, is_waiting, result = asyncio.run(run())

    assert cancelled == [True] * 20
    assert len(threads) == MAX_THREADS
    assert is_waiting
    assert result == "has its turn"
    wait_until_ended(threads)


def test_a_thread_may_end_after_its_event_loop(caplog):
    answered = threading.Event()

    async def run():
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await run_in_thread("late", answered.wait)
        return threads_of("late")

    threads = asyncio.run(run())
    answered.set()

    wait_until_ended(threads)
    assert len(threads) == 1
    assert "closed" not in caplog.text


def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    async def run():
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(2 * MAX_THREADS):
                with pytest.raises(RuntimeError, match="can't start"):
                    await run_in_thread("refused", str)
        async with asyncio.timeout(5):
            return await run_in_thread("refused", str)

    assert asyncio.run(run()) == ""


def serving(shift):
    """A clock that is not ours, in ``meta.serverTime`` but not in the records."""

    def rewrite(page):
        at = datetime.now(UTC) + shift
        return {**page, "meta": {**page["meta"], "serverTime": format_time(at)}}

    return faults.Rewrite(rewrite)


@pytest.mark.parametrize("hours", [-10_000, -400, -3, -0.1, 0.1, 3, 23])
def test_a_service_clock_that_is_hours_off_is_ignored_and_logged_once(service, caplog, hours):
    service.fail("GET", "/forms", serving(timedelta(hours=hours)), every=True)

    async def run():
        poller = FormPoller("fsm_default")
        return [await poller.read(EVERYTHING) for _ in range(3)]

    polls = asyncio.run(run())

    assert all(abs(result.started - datetime.now(UTC)) < timedelta(seconds=5) for result in polls)
    (message,) = [message for message in caplog.messages if "serverTime" in message]
    served, ours = [
        datetime.fromisoformat(word.rstrip(":")) for word in message.split() if word.startswith("20")
    ]
    assert abs(served - ours - timedelta(hours=hours)) < timedelta(seconds=5)


@pytest.mark.parametrize("meta", ["x", [1]])
def test_forms_are_polled_from_a_listing_whose_meta_is_no_object(service, meta):
    service.fail("GET", "/forms", faults.Rewrite(lambda page: {**page, "meta": meta}), every=True)

    result = asyncio.run(FormPoller("fsm_default").read(EVERYTHING))

    assert abs(result.started - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.parametrize("minutes", [-4.9, 0, 4.9])
def test_a_service_clock_that_is_minutes_off_is_used(service, caplog, minutes):
    service.fail("GET", "/forms", serving(timedelta(minutes=minutes)), every=True)

    result = asyncio.run(FormPoller("fsm_default").read(EVERYTHING))

    assert abs(result.started - datetime.now(UTC) - timedelta(minutes=minutes)) < timedelta(seconds=5)
    assert not [message for message in caplog.messages if "serverTime" in message]


def test_a_poll_that_lost_a_record_warns_once(service, forms, caplog):
    service.fail(
        "GET", "/forms", faults.Rewrite(lambda page: {**page, "data": page["data"][1:]}), calls=(2, 2 + PAGES)
    )

    async def run():
        poller = FormPoller("fsm_default")
        return [await poller.read(EVERYTHING) for _ in range(2)]

    assert [len(result.references) for result in asyncio.run(run())] == [len(forms) - 1] * 2
    (message,) = [message for message in caplog.messages if "distinct" in message]
    assert "299 distinct records were read, the service counted 300 at the first page and 300" in message


def test_forms_that_match_no_filter_are_left_out_which_is_logged_once_for_the_filters(service, caplog):
    mine, other = service.add_form(property_id=1, job_id=2), service.add_form(property_id=3, job_id=4)
    ignoring = faults.Rewrite(lambda page: {**page, "data": [mine, other]})
    service.fail("GET", "/forms", ignoring, every=True)
    wanted = [{"job_id": 2}, {"job_id": 2}, {"property_id": 1}]

    async def run():
        return [await FormPoller("fsm_default").read(PollQuery(wanted=FormFilter(**one))) for one in wanted]

    assert [ids(result) for result in asyncio.run(run())] == [[mine["id"]]] * 3
    messages = [message for message in caplog.messages if "did not match the filter" in message]
    assert ["job_id" in message for message in messages] == [True, False]
    assert all("1 forms of the listing" in message and "logged once" in message for message in messages)
