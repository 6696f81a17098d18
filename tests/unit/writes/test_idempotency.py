"""Writes with a key by which the service recognises them, so that one that is uncertain is
repeated.
"""

import json
import signal
import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from traceback import format_exception

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.api import FsmError
from fsm_provider.operators.generic import FsmRequestOperator
from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.operators.webhooks import FsmRegisterWebhookOperator
from fsm_provider.state.schema import LEDGER
from fsm_provider.testing import faults
from fsm_provider.writes import runner
from fsm_provider.writes.task_ledger import PAGE
from tests.unit.state_store import IN_AIRFLOW, DatabaseStore, context_for
from tests.unit.supervisor import supervised
from tests.unit.writes.operators import (
    HEADER,
    JOB,
    attempt_of,
    lose,
    write_job,
    write_jobs,
    write_request,
)

PATH = "/properties/7/jobs"

TIMES = ("sent_at", "lease_until", "key_first_sent_at")


pytestmark = pytest.mark.usefixtures("short_delays")


@pytest.fixture
def service(service_with_keys):
    return service_with_keys


@pytest.fixture
def connection_extra():
    return {"max_retries": 2}


@pytest.fixture
def attempt(store):
    """Runs an attempt to create a job; returns its id."""
    return partial(attempt_of, write_job, store)


@pytest.fixture
def left_uncertain(service, connect, store, attempt):
    """An attempt whose only response was lost."""
    connect(service, max_retries=0)
    lose(service)
    with pytest.raises(FsmError, match="may be repeated"):
        attempt(key="one")


def keys(service, method="POST", path="*"):
    return [sent.headers.get(HEADER.lower()) for sent in service.requests_to(method, path)]


class HandledWith502:
    async def play(self, exchange):
        await exchange.handle()
        await faults.Status(502).play(exchange)


LOST = {
    "reset after it was handled": faults.Reset(after_handling=True),
    "reset before": faults.Reset(),
    "502": faults.Status(502),
    "502 after it was handled": HandledWith502(),
    "408": faults.Status(408),
    "303": faults.Status(303, headers={"Location": "/jobs/1"}),
    "truncated": faults.Truncated(),
}


@IN_AIRFLOW
@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
@pytest.mark.parametrize("write", [write_job, write_jobs, write_request])
def test_a_write_whose_response_was_lost_is_repeated_with_its_key(
    service, connect, store, write, fault
):
    attempt = partial(attempt_of, write, store)
    connect(service)
    service.fail("POST", PATH, fault, calls=(1, 2))

    job_id = attempt()

    assert [job_id] == [job["id"] for job in service.jobs]
    assert len(keys(service)) == 3
    assert len(set(keys(service))) == 1
    assert all(len(key) == 32 for key in keys(service))
    assert attempt() == job_id
    assert len(keys(service)) == 3


def test_a_write_that_stays_uncertain_is_left_to_a_retry_of_the_task(
    service, connect, store, attempt
):
    connect(service)
    service.fail("POST", PATH, HandledWith502(), every=True)
    with pytest.raises(Exception, match="may be repeated by the next attempt") as failure:
        attempt()
    assert not isinstance(failure.value, AirflowFailException)
    assert "is not repeated" not in "".join(format_exception(failure.value)), "its cause says else"
    assert len(keys(service)) == 3

    service.clear_faults()
    assert attempt() == service.jobs[0]["id"]
    assert len(service.jobs) == len(set(keys(service))) == 1


class KilledError(BaseException):
    pass


def kill(*_):
    raise KilledError


def test_what_was_in_flight_when_the_task_was_killed_is_sent_again(
    service, connect, store, attempt
):
    connect(service)
    signal.signal(signal.SIGALRM, kill)
    main_thread = threading.main_thread().ident
    send_signal = faults.Before(
        lambda: signal.pthread_kill(main_thread, signal.SIGALRM), faults.Stall(2)
    )
    service.fail("POST", PATH, send_signal)
    with pytest.raises(KilledError):
        attempt()

    assert attempt() == service.jobs[0]["id"]
    assert len(service.jobs) == len(set(keys(service))) == 1
    assert len(keys(service)) >= 2


def test_without_the_setting_no_key_is_sent_and_nothing_repeated_with_one_either(
    service, connect, store, attempt
):
    lose(service)
    for header in ("", HEADER):
        connect(service, idempotency_header=header)
        with pytest.raises(AirflowFailException, match="is not repeated"):
            attempt()
    assert keys(service) == [None]
    assert len(service.jobs) == 1


@pytest.mark.usefixtures("short_lease", "left_uncertain")
@pytest.mark.parametrize("change", [{"idempotency_header": "X-Key"}, {"idempotency_hours": 1e-9}])
def test_what_the_service_may_not_recognise_is_not_repeated(service, connect, attempt, change):
    connect(service, **change)
    with pytest.raises(AirflowFailException, match="is not repeated"):
        attempt(key="one")
    assert len(service.jobs) == len(service.requests) == 1

    if "idempotency_hours" in change:  # past them it may be created, with another key
        attempt(key="one", if_uncertain="create")
        assert len(set(keys(service))) == len(keys(service)) == 2


@pytest.mark.parametrize("status", [400, 409])  # a conflict while the first is under way
def test_a_repeat_that_is_refused_leaves_it_uncertain(service, connect, store, attempt, status):
    connect(service)
    lose(service, call=1)
    service.fail("POST", PATH, faults.Status(status), call=2)
    with pytest.raises(
        AirflowFailException, match=rf"may or may not have taken effect: .*HTTP {status}"
    ):
        attempt()
    assert len(keys(service)) == 2

    assert attempt() == service.jobs[0]["id"]
    assert len(service.jobs) == len(set(keys(service))) == 1


AT_WORK = faults.Status(409, retry_after=1)


@pytest.mark.parametrize("write", [write_job, write_jobs, write_request])
def test_a_write_that_is_still_at_work_is_repeated_with_its_key_after_the_time_that_is_asked_for(
    service, connect, store, write
):
    connect(service)
    lose(service, call=1)
    service.fail("POST", PATH, AT_WORK, call=2)
    started_at = monotonic()

    job_id = attempt_of(write, store)

    assert monotonic() - started_at >= 1
    assert [job_id] == [job["id"] for job in service.jobs]
    assert len(keys(service)) == 3
    assert len(set(keys(service))) == 1


def test_a_write_that_stays_at_work_is_uncertain_and_left_to_a_retry_of_the_task(
    service, connect, store, attempt
):
    connect(service, max_retries=1)
    service.fail("POST", PATH, AT_WORK, every=True)

    said = r"may or may not have taken effect: .* still at work; the service asks to wait 1 s"
    with pytest.raises(Exception, match=said) as failure:
        attempt()
    assert "may be repeated by the next attempt" in str(failure.value)
    assert not isinstance(failure.value, AirflowFailException)
    assert len(keys(service)) == 2

    service.clear_faults()
    assert attempt() == service.jobs[0]["id"]
    assert len(service.jobs) == len(set(keys(service))) == 1


def test_writes_that_are_at_work_are_no_service_that_is_down(service, connect, store, monkeypatch):
    monkeypatch.setattr(runner, "MAX_LOST_IN_A_ROW", 3)
    connect(service)
    lose(service, calls=(1, 2))
    service.fail("POST", "*", faults.Status(409, retry_after=0), calls=(3, 4))
    jobs = [{"property_id": 7, "job": JOB, "key": key} for key in ("one", "two")]
    operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, max_concurrency=2)

    outcomes = operator.execute(context_for(store))

    assert [outcome["outcome"] for outcome in outcomes] == ["created", "created"]
    assert len(service.jobs) == len(set(keys(service))) == 2


@pytest.mark.parametrize("header", [None, HEADER], ids=["no key", "no Retry-After"])
def test_any_other_conflict_is_a_refusal(service, connect, store, attempt, header):
    connect(service, idempotency_header=header)
    conflict = AT_WORK if header is None else faults.Status(409)
    service.fail("POST", PATH, conflict, every=True)

    with pytest.raises(AirflowFailException, match="HTTP 409; what was to be written may exist"):
        attempt()
    assert len(keys(service)) == 1


@pytest.mark.usefixtures("left_uncertain")
@pytest.mark.parametrize("options", [{}, {"if_uncertain": "create"}])
def test_a_draft_that_was_changed_while_it_is_uncertain_is_not_sent(service, attempt, options):
    """With its key, the service may take it for another write, and both are done."""
    with pytest.raises(AirflowFailException, match="the input is another now, and was not sent"):
        attempt(job={"customerReference": "PO-2"}, key="one", **options)
    assert len(keys(service)) == len(service.jobs) == 1

    attempt(key="one")
    assert len(set(keys(service))) == len(service.jobs) == 1


def let_pass(store, hours):
    """Make all that is stored older than it is."""
    milliseconds = int(hours * 3_600_000)
    if isinstance(store, DatabaseStore):
        with store.engine.begin() as connection:
            connection.execute(
                LEDGER.update().values({name: LEDGER.c[name] - milliseconds for name in TIMES})
            )
        return
    for name in [name for name in store.kept if name.startswith(PAGE)]:
        page = store.get(name)
        for entry in page["entries"].values():
            for time in TIMES:
                if time in entry:
                    entry[time] -= milliseconds
        store.set(name, page)


def test_the_time_that_counts_is_that_of_the_first_request(service, connect, store, attempt):
    connect(service, max_retries=0, idempotency_hours=24)
    lose(service, every=True)

    for hours in (13, 12):
        with pytest.raises(FsmError, match="may be repeated"):
            attempt()
        let_pass(store, hours)
    with pytest.raises(AirflowFailException, match="is not repeated"):
        attempt()
    assert len(keys(service)) == 2


def test_further_headers_go_with_it(service, connect, store):
    connect(service)
    given = {"method": "POST", "path": PATH, "headers": {"X-Trace": "t-1", HEADER.lower(): "mine"}}
    FsmRequestOperator(task_id="task", json={}, **given).execute(context_for(store))
    [sent] = service.requests_to("POST", PATH)
    assert sent.headers["x-trace"] == "t-1"
    assert sent.headers[HEADER.lower()] != "mine"


def test_a_registration_is_repeated_and_its_secret_stored(service, connect, store):
    connect(service)
    service.fail("POST", "/settings/webhooks", faults.Reset(after_handling=True))
    with supervised() as supervisor:
        operator = FsmRegisterWebhookOperator(
            task_id="task",
            object="jobs",
            event_types="jobs.created",
            target_url="https://example.com/hook",
        )
        [registered] = operator.execute(context_for(store))

        (record,) = supervisor.variables.values()
    assert [registered["id"]] == [webhook["id"] for webhook in service.webhooks]
    assert [json.loads(record)["secret"]] == [
        webhook["signingSecret"] for webhook in service.webhooks
    ]
    assert len(keys(service)) == 2
    assert len(set(keys(service))) == 1


def test_a_registration_that_is_not_as_requested_is_not_repeated(service, connect, store):
    connect(service)
    other = faults.Rewrite(lambda webhook: {**webhook, "eventTypes": ["jobs.closed"]})
    service.fail("POST", "/settings/webhooks", other, every=True)
    operator = FsmRegisterWebhookOperator(
        task_id="task",
        object="jobs",
        event_types="jobs.created",
        target_url="https://example.com/hook",
    )

    with supervised(), pytest.raises(AirflowFailException, match="webhook 1 was not registered"):
        operator.execute(context_for(store))
    assert len(keys(service)) == 1


@IN_AIRFLOW
@pytest.mark.parametrize("name", ["Idempotency Key", "Schlüssel", "a:b"])
def test_what_is_no_name_of_a_header_is_refused(service, connect, attempt, name):
    connect(service, idempotency_header=name)
    with pytest.raises(AirflowFailException, match="idempotency_header: holds a character"):
        attempt()


@pytest.mark.parametrize(
    "first", [faults.Status(400), faults.Status(409), faults.Status(429, retry_after=0)]
)
def test_what_was_refused_gets_another_key(service, connect, store, attempt, first):
    connect(service)
    service.fail("POST", PATH, first)
    for cleared in (0, 1):
        with suppress(AirflowFailException):
            attempt(cleared=cleared)
    assert len(service.jobs) == 1
    assert len(set(keys(service))) == len(keys(service)) == 2
