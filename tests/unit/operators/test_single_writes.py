"""One write of a task, sent once, whatever ends an attempt: what is known stays known, and nothing
else.
"""

import logging
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmInputError, FsmRateLimitedError, JobCreate
from fsm_provider.api.errors import FsmConnectionError, FsmNotSentError, FsmRepeatableWriteError
from fsm_provider.api.request import clocks
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import faults
from fsm_provider.writes import runner
from tests.unit.api.secret_checks import chain
from tests.unit.state_store import MemoryStateStore, context_for
from tests.unit.writes.operators import write_job, write_request


@pytest.fixture(params=[write_job, write_request])
def write(request):
    return request.param


class TimeoutOfTask(BaseException):
    """Airflow's exception for a task that times out."""


@contextmanager
def alarm(handler, seconds):
    """Call the handler in the main thread after some seconds, unless the block has ended."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize(
    ("status", "error"), [(400, AirflowFailException), (429, FsmRepeatableWriteError)]
)
def test_a_refusal_leaves_an_uncertain_write_uncertain(
    service, connect, store, write, status, error
):
    connect(service, max_retries=0)
    service.fail("POST", "*", faults.Reset(after_handling=True))
    service.fail("POST", "*", faults.Status(status), call=2)
    attempts = [
        ({}, AirflowFailException),
        ({"if_uncertain": "create"}, error),
        ({}, AirflowFailException),
    ]

    for cleared, (options, raised) in enumerate(attempts):
        with pytest.raises(
            raised, match=r"(?s)may or may not have taken effect.* ledger settle "
        ) as caught:
            write(**options).execute(context_for(store, cleared=cleared))
        said = f"an earlier request may have worked; the last one did not: POST .* HTTP {status}"
        assert bool(re.search(said, str(caught.value))) == bool(cleared)
        behind_it = [getattr(cause, "status", None) for cause in chain(caught.value)]
        assert (status in behind_it) == (cleared == 1)
    assert len(service.jobs) == 1


def test_nothing_is_sent_again_before_the_lease_is_over_and_the_log_says_when(
    service, connect, store, caplog
):
    connect(service, max_retries=0)
    service.fail("POST", "*", faults.Reset(after_handling=True))
    with pytest.raises(AirflowFailException):
        write_job().execute(context_for(store))

    operator = write_job(if_uncertain="create")
    stop = threading.Timer(1, operator.on_kill)
    stop.start()
    with pytest.raises(AirflowFailException):
        operator.execute(context_for(store, cleared=1))

    stop.join()
    assert len(service.requests) == 1
    (until,) = re.findall(r"waiting until (\S+) UTC", caplog.text)
    now = datetime.now(UTC)
    assert until in [f"{now + timedelta(seconds=seconds):%T}" for seconds in range(60, 121)]


@pytest.mark.parametrize(("slept", "requests"), [((59, 0), 1), ((61, 0), 0), ((0, 61), 0)])
def test_a_request_begins_in_the_first_half_of_its_lease_or_never(
    service, connect, store, monkeypatch, slept, requests
):
    """By the clock that is set, and by that which goes on while the machine sleeps."""

    def after_it_slept():
        return tuple(map(sum, zip(clocks(), slept, strict=True)))

    connect(service, max_retries=0)
    with monkeypatch.context() as patch, suppress(FsmConnectionError):
        patch.setattr("fsm_provider.api.request.clocks", after_it_slept)
        write_job().execute(context_for(store))
    assert len(service.requests) == requests

    write_job().execute(context_for(store, cleared=1))
    assert len(service.jobs) == 1


def test_a_response_takes_at_most_a_quarter_of_the_lease(service, connect, store, monkeypatch):
    monkeypatch.setattr(runner, "MIN_LEASE", 4.0)
    monkeypatch.setattr(runner, "LEASE_TIMEOUTS", 0)
    connect(service)
    service.fail("POST", "*", faults.Delay(3))

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        write_job().execute(context_for(store))


@pytest.mark.usefixtures("short_lease")
def test_a_lease_is_no_longer_though_the_clock_of_its_sender_was_fast(
    service, connect, store, monkeypatch
):
    """A ledger in a database has that database's clock."""
    connect(service, max_retries=0)
    service.fail("POST", "*", faults.Reset(after_handling=True))
    clock = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock() + 3600)
        with pytest.raises(AirflowFailException):
            write_job().execute(context_for(store))

    operator = write_job(if_uncertain="create")
    too_long = threading.Timer(20, operator.on_kill)
    too_long.start()
    try:
        operator.execute(context_for(store, cleared=1))
    finally:
        too_long.cancel()

    assert len(service.jobs) == 2


class Released(logging.Handler):
    """Lets connections through again, once somebody waits to try again."""

    def __init__(self, refusal):
        super().__init__()
        self.refusal = refusal

    def emit(self, record):
        self.refusal.__exit__(None, None, None)


def test_a_write_whose_connection_was_refused_is_sent_again_by_the_same_attempt(
    service, connect, store
):
    connect(service)
    with (refusal := service.refuse_connections()):
        retries, released = logging.getLogger("fsm_provider.api.retry"), Released(refusal)
        retries.addHandler(released)
        try:
            made = write_job().execute(context_for(store))
        finally:
            retries.removeHandler(released)

    assert [stored["id"] for stored in service.jobs] == [made["id"]]
    assert [row["state"] for row in store.rows.values()] == ["done"]


@pytest.mark.parametrize("extra", [{}, {"max_requests_per_second": 0.01}])
@pytest.mark.parametrize("ended_by", ["stop", "timeout"])
def test_an_interrupted_wait_leaves_nothing_uncertain(
    service, connect, store, write, ended_by, extra
):
    connect(service, **extra)
    service.fail("POST", "*", faults.Status(429, headers={"Retry-After": "100"}))
    if extra:  # the throttle's first turn is free
        FsmRequestOperator(task_id="first", path="/forms").execute({})
    operator, sent, context = write(), len(service.requests), context_for(store)

    def states():
        return {row["state"] for row in store.rows.values()}

    def interrupt(*_):
        raise TimeoutOfTask

    def stop():
        service.wait_for(lambda: extra or service.requests[sent:], 10)
        while states() != {"free"}:  # planned, or recorded as refused
            time.sleep(0.05)
        if ended_by == "stop":
            operator.on_kill()
            return
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    threading.Thread(target=stop).start()
    with alarm(interrupt, 0), pytest.raises((FsmNotSentError, FsmRateLimitedError, TimeoutOfTask)):
        operator.execute(context)

    assert states() == {"free"}
    assert len(service.requests) - sent == (0 if extra else 1)


def test_models_are_rendered_and_stay_as_they_are(service, connect):
    connect(service)
    model = JobCreate(
        customer_reference="PO-{{ run_id }}", skills=None, extra_fields={"site": "{{ run_id }}"}
    )
    many = [{"property_id": 7, "job": model}]
    for run_id in ("r1", "r2"):
        for operator in (
            FsmCreateJobOperator(task_id="create", property_id=7, job=model),
            FsmCreateJobsOperator(task_id="create", jobs=many),
        ):
            operator.render_template_fields({"run_id": run_id})
            operator.execute(context_for(MemoryStateStore()))

    sent = [
        {"customerReference": f"PO-{site}", "skills": None, "site": site} for site in ("r1", "r2")
    ]
    assert [request.json for request in service.requests] == [sent[0]] * 2 + [sent[1]] * 2


def test_models_that_may_come_from_another_task_are_not_rendered():
    operator = FsmCreateJobOperator(task_id="create", property_id=7, job={})
    given = JobCreate(notes="{{ conn.fsm_default.password }}")

    assert operator.render_template(given, {}, None, {id(given)}) is given


def test_a_body_is_the_json_that_a_template_gives(service, connect, store):
    connect(service)
    service.fail("POST", "/x", faults.Status(200, body={"id": 1}))

    with pytest.raises(FsmInputError, match=r"^json: is text, but no JSON: end its template with"):
        FsmRequestOperator(task_id="write", method="POST", path="/x", json="{'a': 1}")
    operator = FsmRequestOperator(task_id="write", method="POST", path="/x", json='{"a": 1}')
    operator.execute(context_for(store))

    assert [request.json for request in service.requests] == [{"a": 1}]


@pytest.mark.parametrize(
    "body",
    [10**5000, {"n": 10**5000}, {(1, 2): 3}, {"a": 1, 2: 3}, {"n": float("nan")}, {"n": "\ud83d"}],
    ids=["number", "a number inside", "a name", "names of two types", "NaN", "half a character"],
)
def test_a_body_that_is_no_json_is_refused_before_anything_is_recorded(
    service, connect, store, body
):
    connect(service)
    operator = FsmRequestOperator(task_id="write", method="POST", path="/x", json=body)

    with pytest.raises(
        AirflowFailException, match=r"^POST /x: its content cannot be written as JSON: "
    ):
        operator.execute(context_for(store))
    assert service.requests == []
