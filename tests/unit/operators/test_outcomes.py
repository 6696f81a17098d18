"""The outcomes of jobs, wherever an attempt ends: no less and no more than the ledger knows."""

import json
import re
import threading

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.state.entries import SupersededError
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.state_store import IN_AIRFLOW, DatabaseStore, MemoryStateStore, context_for


class Killed(BaseException):
    """A kill: nobody catches it."""


def request(number, **more):
    return {"property_id": number, "job": {"customerReference": f"PM-{number}"}, **more}


JOBS = [request(number, key=f"PM-{number}") for number in (1, 2, 3)]


def attempt(store, jobs=JOBS, *, cleared=0, try_number=1, operator=None, **options):
    """Return the outcomes with which the task ends, or None, and its error, if any."""
    context = context_for(store, cleared=cleared, try_number=try_number)
    operator = operator or FsmCreateJobsOperator(
        task_id="create", jobs=jobs, **{"max_concurrency": 1, **options}
    )
    try:
        return operator.execute(context), None
    except BaseException as error:  # noqa: BLE001
        return context["ti"].pushed.get("return_value"), error


def statuses(outcomes):
    return [outcome["outcome"] for outcome in outcomes]


@pytest.fixture
def half_done(service, connect, store):
    """An attempt that created the first job, left the second uncertain, and did not create the third."""
    connect(service, max_retries=0)
    service.fail("POST", "/properties/2/jobs", faults.Reset(after_handling=True))
    service.fail("POST", "/properties/3/jobs", faults.Status(429))
    outcomes, _ = attempt(store)
    assert statuses(outcomes) == ["created", "uncertain", "not_created"]
    return outcomes


def connection_unreadable(service, connect, monkeypatch, store):
    connect(service, timeout="soon")
    return {}


def connection_missing(service, connect, monkeypatch, store):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")
    return {}


def token_refused(service, connect, monkeypatch, store):
    service.settings.token = "another"
    return {}


def service_down(service, connect, monkeypatch, store):
    monkeypatch.setattr(service, "stop", lambda: None)  # which is done here
    FakeFieldService.stop(service)
    return {}


def too_many(service, connect, monkeypatch, store):
    return {"max_jobs": 1}


def store_unwritable(service, connect, monkeypatch, store):
    failing_once(store, monkeypatch)
    return {}


def timed_out(service, connect, monkeypatch, store):
    def fail(*_, **__):
        raise Killed

    monkeypatch.setattr("fsm_provider.writes.bulk.ThreadPoolExecutor", fail)
    return {}


def failing_once(store, monkeypatch):
    """Make the store fail once, as while the API server restarts, or for as long as a database is tried."""
    if isinstance(store, DatabaseStore):
        monkeypatch.setattr("fsm_provider.state.sql_entries.RETRY_SECONDS", 0)
        store.refuse("INSERT")
        store.refuse("UPDATE")
        return
    failures, store_set = [RuntimeError("no API server")], store.set

    def set_(key, value, *, retention=None):
        if failures:
            raise failures.pop()
        store_set(key, value)

    monkeypatch.setattr(store, "set", set_)


ENDS = {
    "connection unreadable": (connection_unreadable, "not_created"),
    "connection missing": (connection_missing, "not_created"),
    "token refused": (token_refused, "rejected"),
    "service down": (service_down, "not_created"),
    "too many": (too_many, "not_created"),
    "store not writable": (store_unwritable, "not_created"),
    "timed out": (timed_out, "not_created"),
}


@pytest.mark.parametrize("cleared", [0, 1])
@pytest.mark.parametrize("if_uncertain", ["fail", "create"])
@pytest.mark.parametrize(("prepare", "third"), ENDS.values(), ids=ENDS)
def test_the_outcomes_say_what_the_ledger_knows_wherever_the_attempt_ends(
    service, connect, monkeypatch, store, half_done, prepare, third, if_uncertain, cleared
):
    options = prepare(service, connect, monkeypatch, store)
    entries = store.entries
    jobs = [*JOBS, request(4)]

    outcomes, error = attempt(store, jobs, cleared=cleared, if_uncertain=if_uncertain, **options)

    assert error is not None
    if isinstance(store, DatabaseStore) and prepare is connection_missing:
        assert statuses(outcomes) == ["unknown"] * 4
        return
    second_is_sent_first = if_uncertain == "create"
    expected = ["existing", "uncertain", "not_created" if second_is_sent_first else third, "not_created"]
    assert statuses(outcomes) == expected
    assert outcomes[0]["jobID"] == half_done[0]["jobID"]
    assert "no complete response arrived" in outcomes[1]["error"]
    assert store.entries == entries
    assert len(service.jobs) == 2


def test_with_changed_input_the_outcomes_of_the_other_jobs_are_known(service, store, half_done):
    outcomes, error = attempt(store, [*JOBS[:2], request(4)], cleared=1)
    assert statuses(outcomes) == ["existing", "uncertain", "created"]  # the third is not in the ledger

    outcomes, error = attempt(store, [*JOBS[:2], request(5)], cleared=2)

    assert isinstance(error, AirflowFailException)
    assert statuses(outcomes) == ["existing", "uncertain", "unknown"]
    assert "customerReference 'PM-4'" in outcomes[2]["error"]
    assert "whether an earlier attempt created it is not known" in outcomes[2]["error"]
    assert len(service.jobs) == 3


@pytest.mark.parametrize("options", [{}, {"max_jobs": 1}, {"dry_run": True}])
@pytest.mark.parametrize("cleared", [0, 1])
def test_jobs_that_exist_under_another_key_are_unknown(service, connect, store, cleared, options):
    connect(service)
    attempt(store, [request(number) for number in (1, 2, 3)])

    outcomes, error = attempt(store, cleared=cleared, **options)

    assert isinstance(error, AirflowFailException)
    assert statuses(outcomes) == ["unknown"] * 3
    assert len(service.jobs) == 3


@pytest.fixture
def in_conflict(service, connect, store):
    """An attempt whose first job got a 409, and whose third is left to a retry."""
    connect(service, max_retries=0)
    service.fail("POST", "/properties/1/jobs", faults.Status(409))
    service.fail("POST", "/properties/3/jobs", faults.Status(429))
    outcomes, error = attempt(store)
    assert statuses(outcomes) == ["rejected", "created", "not_created"]
    assert not isinstance(error, AirflowFailException)


@pytest.mark.parametrize("cleared", [0, 1])
@pytest.mark.parametrize("prepare", [prepare for prepare, _ in ENDS.values()], ids=ENDS)
def test_a_conflict_stays_known_wherever_a_later_attempt_ends(
    service, connect, monkeypatch, store, in_conflict, prepare, cleared
):
    options = prepare(service, connect, monkeypatch, store)

    outcomes, error = attempt(store, cleared=cleared, try_number=2, **options)

    assert error is not None
    if isinstance(store, DatabaseStore) and prepare is connection_missing:
        assert statuses(outcomes) == ["unknown"] * 3
        return
    assert statuses(outcomes) == ["rejected", "existing", "not_created"]
    assert "POST /properties/1/jobs returned HTTP 409" in outcomes[0]["error"]


@pytest.mark.parametrize("status", [400, 401, 402, 404, 409, 422, 429])
def test_a_later_refusal_does_not_hide_a_conflict(service, connect, store, in_conflict, status):
    service.fail("POST", "/properties/1/jobs", faults.Status(status))

    outcomes, _ = attempt(store, try_number=2)

    assert statuses(outcomes)[:2] == ["rejected", "existing"]
    assert outcomes[0]["error"].startswith("POST /properties/1/jobs returned HTTP 409")
    assert outcomes[0]["error"].count(f"returned HTTP {status}") == 1
    connect(service, timeout="soon")
    outcomes, _ = attempt(store, try_number=3)
    assert outcomes[0]["error"].startswith("POST /properties/1/jobs returned HTTP 409")


@pytest.mark.parametrize("cleared", [0, 1])
def test_a_conflict_does_not_block_another_attempt(service, store, in_conflict, cleared):
    corrected = [request(1, key="corrected"), *JOBS[1:]]

    outcomes, error = attempt(store, corrected if cleared else JOBS, cleared=cleared, try_number=2)

    assert (statuses(outcomes), error) == (["created", "existing", "created"], None)


def test_an_uncertain_outcome_after_a_conflict_reports_both(service, store, in_conflict):
    service.fail("POST", "/properties/1/jobs", faults.Reset(after_handling=True))

    outcomes, _ = attempt(store, try_number=2)

    assert statuses(outcomes) == ["uncertain", "existing", "created"]
    assert "is refused with 409: it may exist already" in outcomes[0]["error"]
    assert statuses(attempt(store, try_number=3)[0]) == ["uncertain", "existing", "existing"]


class FailingStore(MemoryStateStore):
    """Fails at one of its calls: once, or from then on."""

    def __init__(self, method="get"):
        super().__init__()
        self.method = method
        self.calls_left = 10**6
        self.recovers = False

    def get(self, key, default=None):
        self.count("get")
        return super().get(key, default)

    def set(self, key, value, *, retention=None):
        self.count("set")
        super().set(key, value)

    def count(self, method):
        if method != self.method:
            return
        self.calls_left -= 1
        if self.calls_left < 0:
            if self.recovers:
                self.calls_left = 10**6
            raise RuntimeError("no API server")


@pytest.mark.parametrize("pages_read", [0, 1])
@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"max_jobs": 1}])
def test_if_the_ledger_cannot_be_read_all_is_unknown_and_nothing_is_sent(
    service, connect, pages_read, options
):
    connect(service)
    store = FailingStore()
    attempt(store)
    requests = len(service.requests)
    store.calls_left = pages_read

    outcomes, error = attempt(store, cleared=1, **options)

    assert statuses(outcomes) == ["unknown"] * 3
    assert "whether an earlier attempt created it is not known" in outcomes[0]["error"]
    assert isinstance(error, RuntimeError)
    assert len(service.requests) == requests


@pytest.mark.parametrize("recovers", [True, False])
@pytest.mark.parametrize("calls", range(7))
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_store_that_fails_at_any_write_makes_no_duplicate_and_no_false_outcome(
    service, connect, calls, concurrency, recovers
):
    connect(service)
    store = FailingStore("set")
    store.calls_left, store.recovers = calls, recovers

    outcomes, error = attempt(store, max_concurrency=concurrency)
    assert (outcomes is not None) == (recovers or error is None)
    check_outcomes(service, outcomes)
    store.calls_left = 10**6
    outcomes, _ = attempt(store, max_concurrency=concurrency)
    check_outcomes(service, outcomes)
    assert len(service.jobs) == len({job["customerReference"] for job in service.jobs})


def check_outcomes(service, outcomes):
    """Compare the outcomes with the jobs of the service."""
    jobs = {job["customerReference"]: job["id"] for job in service.jobs}
    for outcome in outcomes or []:
        job_id = jobs.get(outcome["customerReference"])
        match outcome["outcome"]:
            case "created" | "existing":
                assert outcome["jobID"] == job_id is not None
            case "not_created" | "rejected":
                assert job_id is None, outcome
            case kind:
                assert kind in ("uncertain", "unknown")


class KillingStore(MemoryStateStore):
    """Passes the first ``writes`` writes on; later ones never return."""

    def __init__(self, writes):
        super().__init__()
        self.writes = writes

    def set(self, key, value, *, retention=None):
        if self.writes == 0:
            raise Killed
        self.writes -= 1
        super().set(key, value)


@pytest.mark.parametrize("cleared", [0, 1])
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("writes", range(5))
def test_a_kill_at_any_write_to_the_store_makes_no_duplicate_and_no_false_outcome(
    service, connect, writes, concurrency, cleared
):
    connect(service)
    store = KillingStore(writes)
    _, error = attempt(store, max_concurrency=concurrency)
    if error is None:
        return
    store.writes = -1

    for number in (2, 3):
        outcomes, _ = attempt(store, cleared=cleared, max_concurrency=concurrency, try_number=number)
        check_outcomes(service, outcomes)
        assert "unknown" not in statuses(outcomes)
        assert statuses(outcomes).count("uncertain") <= concurrency + concurrency // 2
    assert len(service.jobs) == len({job["customerReference"] for job in service.jobs})


@pytest.mark.parametrize("concurrency", [1, 8])
def test_every_request_has_a_stored_intent_even_after_a_wait(service, connect, store, concurrency):
    connect(service, max_requests_per_second=100)
    intents = []

    def count_intents():
        intents.append(sum("result" not in entry for entry in store.entries.values()))

    service.fail("POST", "/properties/*/jobs", faults.Before(count_intents), every=True)
    for number in (3, 7):
        limited = faults.Status(429, headers={"Retry-After": "0"})
        service.fail("POST", f"/properties/{number}/jobs", faults.Before(count_intents, limited))

    jobs = [request(number) for number in range(1, 31)]
    outcomes, error = attempt(store, jobs, max_concurrency=concurrency)

    assert (statuses(outcomes), error) == (["created"] * 30, None)
    assert len(intents) == 32
    assert min(intents) >= 1
    assert all("result" in entry for entry in store.entries.values())
    assert (len(service.jobs), len(service.requests)) == (30, 32)


@IN_AIRFLOW
def test_a_replaced_attempt_pushes_no_outcomes(connect, monkeypatch, store):
    def replaced(key, value, *, retention=None):
        raise RuntimeError("no such task instance")

    with FakeFieldService() as gone:
        connect(gone, max_retries=0)
    monkeypatch.setattr(store, "set", replaced)

    outcomes, error = attempt(store, max_jobs=1)

    assert outcomes is None
    assert "no such task instance" in str(error)


@IN_AIRFLOW
def test_an_attempt_without_missing_jobs_needs_no_connection(service, connect, store, monkeypatch):
    connect(service)
    attempt(store)
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    outcomes, error = attempt(store)

    assert (statuses(outcomes), error) == (["existing"] * 3, None)


def test_the_summary_counts_what_this_attempt_created(service, connect, store, caplog):
    connect(service)
    caplog.set_level("INFO")
    for count in ("3 created", "0 created, 3 existing"):
        attempt(store)
        assert f"3 jobs: {count}" in caplog.messages


@pytest.mark.parametrize("refusal", [faults.Status(400), faults.Status(429), faults.Status(401)])
def test_a_refusal_leaves_an_uncertain_job_uncertain(service, connect, store, half_done, refusal):
    service.fail("POST", "/properties/2/jobs", refusal)

    outcomes, error = attempt(store, cleared=1, if_uncertain="create")

    assert statuses(outcomes)[:2] == ["existing", "uncertain"]
    assert "no complete response arrived" in outcomes[1]["error"]
    assert f"returned HTTP {refusal.status}" in outcomes[1]["error"]
    assert isinstance(error, AirflowFailException) == (refusal.status != 429)
    assert statuses(attempt(store, cleared=2)[0])[:2] == ["existing", "uncertain"]
    assert [job["customerReference"] for job in service.jobs].count("PM-2") == 1


def test_a_stop_in_a_wait_leaves_an_uncertain_job_uncertain(service, store, half_done, connect):
    connect(service)
    service.fail("POST", "/properties/2/jobs", faults.Status(429, headers={"Retry-After": "100"}))
    operator = FsmCreateJobsOperator(task_id="create", jobs=JOBS, max_concurrency=1, if_uncertain="create")
    sent = len(service.requests)
    stop = threading.Thread(
        target=lambda: (service.wait_for(lambda: service.requests[sent:], 10), operator.on_kill())
    )
    stop.start()

    outcomes, error = attempt(store, cleared=1, operator=operator)
    stop.join()

    assert statuses(outcomes) == ["existing", "uncertain", "not_created"]
    assert not isinstance(error, AirflowFailException)
    assert statuses(attempt(store, cleared=2)[0])[:2] == ["existing", "uncertain"]


def test_a_refused_duplicate_leaves_the_existing_job_known(service, connect, store):
    connect(service)
    first, _ = attempt(store, JOBS[:1])
    service.fail("POST", "/properties/1/jobs", faults.Status(400))

    outcomes, error = attempt(store, JOBS[:1], cleared=1, if_already_done="create")

    assert statuses(outcomes) == ["existing"]
    assert outcomes[0]["jobID"] == first[0]["jobID"]
    assert "another was not created: POST /properties/1/jobs returned HTTP 400" in outcomes[0]["error"]
    assert isinstance(error, AirflowFailException)
    assert "returned HTTP 400" in str(error)


def test_a_dry_run_reports_what_the_ledger_knows(service, store, half_done):
    requests = len(service.requests)

    outcomes, error = attempt(store, cleared=1, dry_run=True)

    assert (statuses(outcomes), error) == (["existing", "uncertain", "valid"], None)
    assert len(service.requests) == requests


def test_fail_fast_sends_nothing_if_a_job_is_uncertain_from_the_start(service, store, half_done):
    requests = len(service.requests)

    outcomes, _ = attempt(store, cleared=1, on_error="fail_fast", max_concurrency=4)

    assert statuses(outcomes) == ["existing", "uncertain", "not_created"]
    assert len(service.requests) == requests


@pytest.mark.parametrize("existing", [{"PM-2": 4711, "PM-3": 4711}, {"PM-2": "that of PM-1"}])
def test_two_existing_jobs_are_not_one(service, store, half_done, existing):
    requests, known = len(service.requests), half_done[0]["jobID"]
    existing = {key: 4711 if job_id == 4711 else known for key, job_id in existing.items()}

    outcomes, error = attempt(store, cleared=1, existing_jobs=existing)

    assert re.search(r"existing_jobs\.PM-[23]: job \d+ is that of 'PM-[12]'", str(error))
    assert statuses(outcomes)[0] == "existing"
    assert len(service.requests) == requests


def test_existing_jobs_must_not_contradict_the_ledger(service, store, half_done):
    known = half_done[0]["jobID"]

    outcomes, error = attempt(store, cleared=1, existing_jobs={"PM-1": known + 9, "PM-2": 4711})

    assert f"existing_jobs.PM-1: job {known} was created for it, not {known + 9}" in str(error)
    assert statuses(outcomes) == ["existing", "uncertain", "unknown"]
    outcomes, _ = attempt(store, cleared=1, existing_jobs={"PM-1": known, "PM-2": 4711})
    assert outcomes[0]["link"] == half_done[0]["link"]
    assert [outcome["jobID"] for outcome in outcomes[:2]] == [known, 4711]
    assert statuses(outcomes) == ["existing", "existing", "created"]


@pytest.mark.parametrize("store", ["in a database"], indirect=True)
def test_an_attempt_that_was_replaced_before_it_began_leaves_the_outcomes_alone(service, connect, store):
    connect(service)
    late, current = context_for(store), context_for(store)
    operator = FsmCreateJobsOperator(task_id="create", jobs=JOBS)
    operator.execute(current)

    with pytest.raises(SupersededError):
        operator.execute(late)
    assert "return_value" not in late["ti"].pushed


def test_a_dry_run_records_no_existing_jobs(service, store, half_done):
    entries = store.entries

    outcomes, error = attempt(store, cleared=1, existing_jobs={"PM-2": 4711, "PM-3": 4712}, dry_run=True)

    assert (statuses(outcomes), error) == (["existing"] * 3, None)
    assert [outcome["jobID"] for outcome in outcomes[1:]] == [4711, 4712]
    assert store.entries == entries
    outcomes, _ = attempt(store, cleared=1)
    assert statuses(outcomes) == ["existing", "uncertain", "created"]


def test_existing_jobs_are_not_new_to_a_cleared_task_with_other_input(service, store, half_done):
    jobs = [request(1, key="PM-1"), request(4)]

    refused, refusal = attempt(store, jobs, cleared=1)
    outcomes, error = attempt(store, jobs, cleared=1, existing_jobs={refused[1]["key"]: 4711})

    assert "(propertyID 2, customerReference 'PM-2'), which is no longer" in str(refusal)
    assert (statuses(outcomes), error) == (["existing", "existing"], None)
    assert outcomes[1]["jobID"] == 4711


def test_outcomes_are_json(store, half_done):
    assert json.loads(json.dumps(half_done)) == half_done
