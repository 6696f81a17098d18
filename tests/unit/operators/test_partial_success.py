"""Tasks that go on with the jobs that exist, while the others are reported."""

import threading

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from fsm_provider.api import FsmInputError
from fsm_provider.operators.jobs import FsmCreateJobsOperator, job_id_or_skip
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes.runner import MAX_LOST_IN_A_ROW
from tests.unit.state_store import context_for

LAST = 3
"""The last attempt of a task with two retries."""


@pytest.fixture
def service():
    with FakeFieldService(properties={1, 2, 3}) as running:
        yield running


@pytest.fixture
def attempt(store):
    """Run one attempt; return what it pushed or returned, and the error, if any."""

    def run(*properties, try_number=LAST, **options):
        jobs = [
            {"property_id": number, "job": {"customerReference": f"PM-{number}"}} for number in properties
        ]
        operator = FsmCreateJobsOperator(task_id="create", jobs=jobs, max_concurrency=1, **options)
        context = context_for(store, try_number=try_number)
        try:
            outcomes, error = operator.execute(context), None
        except (AirflowException, AirflowFailException) as failure:
            outcomes, error = context["ti"].pushed["return_value"], failure
        return [one["outcome"] for one in outcomes], error

    return run


def lose(service, number, **when):
    service.fail("POST", f"/properties/{number}/jobs", faults.Reset(after_handling=True), **when)


GOOD, REJECTED, UNCERTAIN, MISSING = "created", "rejected", "uncertain", "not_created"

PASSES = {
    "any": [[GOOD]],
    "uncertain": [[GOOD], [GOOD, REJECTED], [REJECTED], [GOOD, MISSING]],
    "all": [[GOOD], [GOOD, REJECTED], [GOOD, UNCERTAIN], [GOOD, MISSING]],
    "none": [[GOOD], [GOOD, REJECTED], [REJECTED], [GOOD, UNCERTAIN], [UNCERTAIN], [GOOD, MISSING]],
}
CASES = [
    [GOOD],
    [GOOD, REJECTED],
    [REJECTED],
    [GOOD, UNCERTAIN],
    [UNCERTAIN],
    [GOOD, MISSING],
]
PROPERTIES = {GOOD: 1, REJECTED: 9, UNCERTAIN: 2, MISSING: 3}


@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("case", CASES, ids="+".join)
def test_fail_on_decides_which_outcomes_fail_the_last_attempt(
    service, connect, store, attempt, fail_on, case
):
    connect(service, max_retries=0)
    lose(service, 2)
    service.fail("POST", "/properties/3/jobs", faults.Status(429, retry_after=500))

    outcomes, error = attempt(*[PROPERTIES[outcome] for outcome in case], fail_on=fail_on)

    assert outcomes == case
    assert (error is None) == (case in PASSES[fail_on])


@pytest.mark.parametrize("fail_on", ["uncertain", "all", "none"])
def test_airflows_retries_come_first(service, connect, store, attempt, fail_on):
    connect(service, max_retries=0)
    service.fail("POST", "/properties/3/jobs", faults.Status(429, retry_after=500), every=True)

    for try_number in (1, 2):
        outcomes, error = attempt(1, 9, 3, fail_on=fail_on, try_number=try_number)
        assert isinstance(error, AirflowException)
        assert not isinstance(error, AirflowFailException)
    outcomes, error = attempt(1, 9, 3, fail_on=fail_on, try_number=LAST)
    assert (outcomes, error) == (["existing", "rejected", "not_created"], None)
    assert [job["propertyID"] for job in service.jobs] == [1]


def test_what_no_retry_helps_is_let_pass_at_once(service, connect, store, attempt):
    connect(service)
    assert attempt(1, 9, fail_on="none", try_number=1) == ([GOOD, REJECTED], None)


def test_a_task_that_was_stopped_fails(service, connect, store):
    connect(service)
    jobs = [{"property_id": number, "job": {}} for number in (1, 2)]
    operator = FsmCreateJobsOperator(task_id="create", jobs=jobs, max_concurrency=1, fail_on="none")
    stopped = threading.Event()

    def stop():
        operator.on_kill()
        stopped.set()

    service.fail("POST", "/properties/1/jobs", faults.Before(stop))
    with pytest.raises(AirflowException, match="the task was stopped"):
        operator.execute(context_for(store, try_number=LAST))


@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("try_number", [1, LAST])
def test_a_refused_token_fails_the_task_whatever_may_pass(service, connect, attempt, fail_on, try_number):
    connect(service)
    service.fail("POST", "/properties/2/jobs", faults.Status(401), every=True)

    outcomes, error = attempt(1, 2, 3, fail_on=fail_on, try_number=try_number)

    assert outcomes == [GOOD, REJECTED, MISSING]
    assert isinstance(error, AirflowFailException)
    assert "nothing more was sent: every further request would fail with: " in str(error)
    assert "HTTP 401" in str(error)


@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("try_number", [1, LAST])
def test_a_service_that_is_down_fails_the_task_whatever_may_pass(connect, attempt, fail_on, try_number):
    with FakeFieldService() as service:
        connect(service)
        lose(service, "*", every=True)

        outcomes, error = attempt(*range(1, 26), fail_on=fail_on, try_number=try_number)

    assert outcomes == [UNCERTAIN] * MAX_LOST_IN_A_ROW + [MISSING] * (25 - MAX_LOST_IN_A_ROW)
    assert isinstance(error, AirflowFailException)


def test_an_outcome_without_a_job_skips_its_map_index():
    outcome = {"key": "PM-1", "outcome": "rejected", "jobID": None, "error": "HTTP 404"}
    with pytest.raises(AirflowSkipException, match="PM-1: rejected: HTTP 404"):
        job_id_or_skip(outcome)
    assert job_id_or_skip({**outcome, "outcome": "created", "jobID": 7}) == 7


def test_another_choice_is_refused():
    with pytest.raises(FsmInputError, match="fail_on: 'some' is none of any"):
        FsmCreateJobsOperator(task_id="create", jobs=[], fail_on="some")
