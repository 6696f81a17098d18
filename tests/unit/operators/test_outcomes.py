"""The outcomes of jobs, wherever an attempt ends: no less and no more than the ledger knows."""

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.jobs import outcomes_as_text
from fsm_provider.testing import FakeFieldService, faults
from tests.unit.operators.jobs import attempt_of, create, request, statuses
from tests.unit.state_store import DatabaseStore, MemoryStateStore


class Killed(BaseException):
    """A kill: nobody catches it."""


JOBS = [request(number, key=f"PM-{number}") for number in (1, 2, 3)]


def attempt(store, jobs=JOBS, *, cleared=0, try_number=1, **options):
    operator = create(jobs, **{"max_concurrency": 1, **options})
    return attempt_of(store, operator, cleared=cleared, try_number=try_number)


@pytest.fixture
def half_done(service, connect, store):
    """An attempt that created the first job, left the second uncertain, and did not create the
    third.
    """
    connect(service, max_retries=0)
    service.fail("POST", "/properties/2/jobs", faults.Reset(after_handling=True))
    service.fail("POST", "/properties/3/jobs", faults.Status(429))
    outcomes, _ = attempt(store)
    assert statuses(outcomes) == ["created", "uncertain", "not_created"]
    return outcomes


def connection_unreadable(service, connect, monkeypatch, store):
    connect(service, timeout="soon")


def token_refused(service, connect, monkeypatch, store):
    service.settings.token = "another"


def service_down(service, connect, monkeypatch, store):
    monkeypatch.setattr(service, "stop", lambda: None)  # which is done here
    FakeFieldService.stop(service)


def store_unwritable(service, connect, monkeypatch, store):
    """For one call, as while the API server restarts, or for as long as a database is tried."""
    if isinstance(store, DatabaseStore):
        store.refuse("INSERT")
        store.refuse("UPDATE")
        return
    store.refuse_once()


@pytest.mark.parametrize("if_uncertain", ["fail", "create"])
@pytest.mark.parametrize(
    (
        "prepare",
        "third",
    ),  # the outcome of a job that is still to be created; None: nothing can be told
    [
        (connection_unreadable, None),
        (token_refused, "rejected"),
        (service_down, "not_created"),
        (store_unwritable, None),
    ],
)
def test_the_outcomes_say_what_the_ledger_knows_wherever_the_attempt_ends(
    service, connect, monkeypatch, store, half_done, prepare, third, if_uncertain
):
    prepare(service, connect, monkeypatch, store)
    before = {key: row["state"] for key, row in store.rows.items()}
    jobs = [*JOBS, request(4)]

    outcomes, error = attempt(store, jobs, cleared=1, if_uncertain=if_uncertain)

    assert error is not None
    assert {key: row["state"] for key, row in store.rows.items() if key in before} == before
    assert len(service.jobs) == 2
    if third is None:
        assert outcomes is None
        return
    assert statuses(outcomes) == ["existing", "uncertain", third, "not_created"]
    assert outcomes[0]["jobID"] == half_done[0]["jobID"]
    assert "no complete response arrived" in outcomes[1]["error"]
    assert [bool(outcome["by"]) for outcome in outcomes] == [True, True, False, False]


@pytest.fixture
def in_conflict(service, connect, store):
    """An attempt whose first job got a 409, and whose third is left to a retry."""
    connect(service, max_retries=0)
    service.fail("POST", "/properties/1/jobs", faults.Status(409))
    service.fail("POST", "/properties/3/jobs", faults.Status(429))
    outcomes, error = attempt(store)
    assert statuses(outcomes) == ["rejected", "created", "not_created"]
    assert not isinstance(error, AirflowFailException)


def test_a_conflict_stays_known_if_a_later_attempt_does_not_come_to_it(service, store, in_conflict):
    service.fail("POST", "/properties/3/jobs", faults.Status(429))

    outcomes, _ = attempt(store, [JOBS[2], *JOBS[:2]], try_number=2)

    assert statuses(outcomes) == ["not_created", "not_created", "existing"]
    assert "POST /properties/1/jobs returned HTTP 409" in outcomes[1]["error"]


@pytest.mark.parametrize("cleared", [0, 1])
def test_a_conflict_does_not_block_another_attempt(service, store, in_conflict, cleared):
    corrected = [request(1, key="corrected"), *JOBS[1:]]

    outcomes, error = attempt(store, corrected if cleared else JOBS, cleared=cleared, try_number=2)

    assert (statuses(outcomes), error) == (["created", "existing", "created"], None)


class EndingStore(MemoryStateStore):
    """Passes so many reads and writes on; later ones raise an error."""

    def __init__(self, error=RuntimeError, *, reads=-1, writes=-1):
        super().__init__()
        self.error, self.reads, self.writes = error, reads, writes

    def get(self, key, default=None):
        if self.reads == 0:
            raise self.error
        self.reads -= 1
        return super().get(key, default)

    def set(self, key, value, *, retention=None):
        if self.writes == 0:
            raise self.error
        self.writes -= 1
        super().set(key, value)


@pytest.mark.parametrize("reads", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"max_jobs": 1}])
def test_if_the_ledger_cannot_be_read_nothing_is_told_and_nothing_is_sent(
    service, connect, reads, options
):
    connect(service)
    store = EndingStore()
    attempt(store)
    requests = len(service.requests)
    store.reads = reads

    outcomes, error = attempt(store, cleared=1, **options)

    assert outcomes is None
    assert isinstance(error, RuntimeError)
    assert len(service.requests) == requests


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


@pytest.mark.parametrize(("error", "concurrency"), [(Killed, 1), (Killed, 2), (RuntimeError, 2)])
@pytest.mark.parametrize("writes", range(9))
def test_an_end_at_any_write_to_the_store_makes_no_duplicate_and_no_false_outcome(
    service, connect, writes, concurrency, error
):
    connect(service)
    store = EndingStore(error, writes=writes)
    _, ended = attempt(store, max_concurrency=concurrency)
    if ended is None:
        return
    store.writes = -1

    for number in (2, 3):
        outcomes, _ = attempt(store, cleared=1, max_concurrency=concurrency, try_number=number)
        check_outcomes(service, outcomes)
        assert statuses(outcomes).count("uncertain") <= concurrency + concurrency // 2
    assert len(service.jobs) == len({job["customerReference"] for job in service.jobs})


@pytest.mark.parametrize("concurrency", [1, 8])
def test_every_request_has_a_stored_intent_even_after_a_wait(service, connect, store, concurrency):
    connect(service, max_requests_per_second=100)
    intents = []

    def count_intents():
        intents.append(sum(row["state"] == "sending" for row in store.rows.values()))

    service.fail("POST", "/properties/*/jobs", faults.Before(count_intents), every=True)
    for number in (3, 7):
        limited = faults.Status(429, headers={"Retry-After": "0"})
        service.fail("POST", f"/properties/{number}/jobs", faults.Before(count_intents, limited))

    jobs = [request(number) for number in range(1, 31)]
    outcomes, error = attempt(store, jobs, max_concurrency=concurrency)

    assert (statuses(outcomes), error) == (["created"] * 30, None)
    assert len(intents) == 32
    assert min(intents) >= 1
    assert {row["state"] for row in store.rows.values()} == {"done"}
    assert (len(service.jobs), len(service.requests)) == (30, 32)


def test_the_report_has_each_outcome_in_a_row_and_what_needs_a_person_first(half_done, store):
    outcomes, _ = attempt(store, [*JOBS, request(4, key="PM-4, the \n last")])
    shown = outcomes_as_text(outcomes).splitlines()

    assert shown[0] == "4 jobs: 2 created, 1 existing, 1 uncertain"
    assert shown[1].split() == ["key", "property", "outcome", "job", "remark"]
    job = outcomes[0]["jobID"]
    words = [" ".join(line.split()) for line in shown[2:]]
    assert words[0].startswith("PM-2 2 uncertain POST /properties/2/jobs may or may not have")
    assert words[1] == f"PM-1 1 existing {job} by task of run run"
    assert words[2].startswith("PM-3 3 created ")
    assert words[3].startswith("PM-4, the last 4 created ")
    column = shown[1].index("outcome")
    assert shown[2].index("uncertain") == shown[3].index("existing") == column


def test_the_report_of_a_creation_that_failed_before_its_first_job_says_so():
    assert outcomes_as_text(None).splitlines()[0] == "0 jobs: 0 created"
