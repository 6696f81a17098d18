"""One write of a task, sent once, whatever ends an attempt: what is known stays known, and nothing else."""

import logging
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from fsm_provider.api import FsmRateLimitedError, JobCreate
from fsm_provider.api.errors import FsmNotSentError, FsmRepeatableWriteError
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import faults
from tests.unit.state_store import MemoryStateStore, context_for


def job(reference="PO-1", **options):
    return FsmCreateJobOperator(
        task_id="write", property_id=7, job={"customerReference": reference}, **options
    )


def request(reference="PO-1", **options):
    return FsmRequestOperator(
        task_id="write",
        method="POST",
        path="/properties/7/jobs",
        json={"customerReference": reference},
        **options,
    )


@pytest.fixture(params=[job, request], ids=["job", "request"])
def write(request):
    return request.param


class TimeoutOfTask(BaseException):
    """Airflow's exception for a task that times out."""


@contextmanager
def alarm(handler, seconds):
    """Call the handler in the main thread after some seconds, unless the block has ended by then."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("short_lease")
def test_a_refusal_leaves_an_uncertain_write_uncertain(service, connect, store, write):
    connect(service)
    service.fail("POST", "*", faults.Reset(after_handling=True))
    service.fail("POST", "*", faults.Status(400), call=2)

    for cleared, options in enumerate([{}, {"if_uncertain": "create"}, {}]):
        with pytest.raises(AirflowFailException, match="may or may not have taken effect") as caught:
            write(**options).execute(context_for(store, cleared=cleared))
        said = (
            "an earlier request may have worked; the last one did not: POST /properties/7/jobs returned HTTP"
        )
        assert (said in str(caught.value)) == bool(cleared)
    assert len(service.jobs) == 1


@pytest.mark.usefixtures("short_lease")
def test_a_rate_limit_leaves_an_uncertain_write_uncertain_and_allows_a_retry(service, connect, store, write):
    connect(service, max_retries=0)
    service.fail("POST", "*", faults.Reset(after_handling=True))
    service.fail("POST", "*", faults.Status(429), call=2)
    with pytest.raises(AirflowFailException):
        write().execute(context_for(store))

    with pytest.raises(FsmRepeatableWriteError, match=r"may or may not .* HTTP 429.* ledger settle "):
        write(if_uncertain="create").execute(context_for(store, cleared=1))

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        write().execute(context_for(store, cleared=2))
    assert len(service.jobs) == 1


def no_connection(connect, service, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")


def bad_connection(connect, service, monkeypatch):
    connect(service, timeout="soon")


def no_secrets_backend(connect, service, monkeypatch):
    def fail(hook, conn_id):
        raise RuntimeError("the secrets backend is away")

    monkeypatch.setattr("fsm_provider.hooks.fsm.FsmHook.get_connection", fail)


@pytest.mark.parametrize("prepare", [no_connection, bad_connection, no_secrets_backend])
def test_nothing_is_recorded_if_the_connection_cannot_be_read(
    service, connect, monkeypatch, store, write, prepare
):
    with monkeypatch.context() as patch:
        connect(service)
        prepare(connect, service, patch)
        with pytest.raises((AirflowException, RuntimeError)):
            write().execute(context_for(store))
        assert store.rows == {}
    connect(service)

    assert write().execute(context_for(store))["id"] == service.jobs[0]["id"]


class Released(logging.Handler):
    """Lets connections through again, once somebody waits to try again."""

    def __init__(self, refusal):
        super().__init__()
        self.refusal = refusal

    def emit(self, record):
        self.refusal.__exit__(None, None, None)


@pytest.mark.parametrize("fault", ["429", "connection refused"])
def test_what_was_not_carried_out_is_sent_again_by_the_same_attempt(service, connect, store, write, fault):
    connect(service)
    if fault == "429":
        service.fail("POST", "*", faults.Status(429, retry_after=0))
    else:
        refusal = service.refuse_connections()
        refusal.__enter__()
        retries, released = logging.getLogger("fsm_provider.api.retry"), Released(refusal)
        retries.addHandler(released)

    made = write().execute(context_for(store))
    if fault != "429":
        retries.removeHandler(released)

    assert [stored["id"] for stored in service.jobs] == [made["id"]]
    assert [row["state"] for row in store.rows.values()] == ["done"]


@pytest.mark.parametrize("extra", [{}, {"max_requests_per_second": 0.01}])
@pytest.mark.parametrize("ended_by", ["stop", "timeout"])
def test_an_interrupted_wait_leaves_nothing_uncertain(service, connect, store, write, ended_by, extra):
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


class TestModelsAreRendered:
    def test_in_a_single_job(self, service, connect):
        connect(service)
        operator = FsmCreateJobOperator(
            task_id="create",
            property_id=7,
            job=JobCreate(customer_reference="PO-{{ run_id }}", skills=None, notes="as it is"),
        )

        operator.render_template_fields({"run_id": "r1"})
        operator.execute({})

        (sent,) = service.requests
        assert sent.json == {"customerReference": "PO-r1", "skills": None, "notes": "as it is"}

    def test_in_many_jobs_and_the_model_is_unchanged(self, service, connect):
        connect(service)
        model = JobCreate(customer_reference="PO-{{ run_id }}", extra_fields={"site": "{{ run_id }}"})
        for run_id in ("r1", "r2"):
            operator = FsmCreateJobsOperator(task_id="create", jobs=[{"property_id": 7, "job": model}])
            operator.render_template_fields({"run_id": run_id})
            operator.execute(context_for(MemoryStateStore()))

        assert [sent.json for sent in service.requests] == [
            {"customerReference": "PO-r1", "site": "r1"},
            {"customerReference": "PO-r2", "site": "r2"},
        ]

    def test_but_not_if_they_may_come_from_another_task(self):
        operator = FsmCreateJobOperator(task_id="create", property_id=7, job={})
        given = JobCreate(notes="{{ conn.fsm_default.password }}")

        assert operator.render_template(given, {}, None, {id(given)}) is given


@pytest.mark.parametrize(
    "body",
    [10**5000, {"n": 10**5000}, {(1, 2): 3}, {"a": 1, 2: 3}],
    ids=["number", "a number inside", "a name", "names of two types"],
)
def test_a_body_that_is_no_json_is_refused_before_anything_is_recorded(service, connect, store, body):
    connect(service)
    operator = FsmRequestOperator(task_id="write", method="POST", path="/x", json=body)

    with pytest.raises(AirflowFailException, match=r"^POST /x: its content cannot be written as JSON: "):
        operator.execute(context_for(store))
    assert service.requests == []
