"""A job whose creation is uncertain, looked up in the service."""

from collections import Counter

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.jobs import FsmCreateJobOperator, FsmCreateJobsOperator
from fsm_provider.testing import faults
from tests.unit.state_store import context_for

JOB = {"customerReference": "PO-1"}
pytestmark = pytest.mark.usefixtures("short_lease")


@pytest.fixture
def find(service):
    """Finds the job in the service; counts how often it looks."""

    def find_existing(hook, request):
        find_existing.looks += 1
        wanted = request.job.customer_reference
        return next((job["id"] for job in service.jobs if job["customerReference"] == wanted), None)

    find_existing.looks = 0
    return find_existing


@pytest.fixture(params=["one", "many"])
def attempt(request, store):
    """Runs an attempt of either operator; returns the job's id."""

    def run(*, cleared=0, run_id="run", job=JOB, **options):
        context = context_for(store, cleared=cleared, run_id=run_id)
        if request.param == "one":
            operator = FsmCreateJobOperator(task_id="task", property_id=7, job=job, **options)
            return operator.execute(context)["id"]
        operator = FsmCreateJobsOperator(task_id="task", jobs=[{"property_id": 7, "job": job}], **options)
        return operator.execute(context)[0]["jobID"]

    return run


def keyed(*keys):
    return [{"property_id": 7, "job": JOB, "key": key} for key in keys]


def lose_the_response(service, *, handled=True):
    service.fail("POST", "/properties/7/jobs", faults.Reset(after_handling=handled))


def test_a_job_is_found_after_a_response_that_was_lost(service, connect, store, attempt, find):
    connect(service)
    lose_the_response(service)

    job_id = attempt(find_existing=find)

    assert [job_id] == [job["id"] for job in service.jobs]
    assert attempt() == job_id
    assert find.looks == len(service.jobs) == 1


def test_a_job_is_found_by_a_later_attempt(service, connect, store, attempt, find):
    connect(service)
    lose_the_response(service)
    with pytest.raises(AirflowFailException):
        attempt()

    assert attempt(find_existing=find, if_uncertain="create") == service.jobs[0]["id"]
    assert len(service.jobs) == 1


def test_without_a_job_if_uncertain_decides(service, connect, store, attempt, find):
    connect(service)
    lose_the_response(service, handled=False)
    for looks in (1, 2):
        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            attempt(find_existing=find)
        assert (find.looks, service.jobs) == (looks, [])

    assert attempt(find_existing=find, if_uncertain="create") == service.jobs[0]["id"]
    assert (find.looks, len(service.jobs)) == (3, 1)


def fails(hook, request):
    raise LookupError("no such view")


@pytest.mark.parametrize(
    ("find_existing", "says"),
    [(fails, "LookupError: no such view"), (lambda *_: {"id": 1}, "find_existing: .* should be an integer")],
)
def test_what_cannot_be_looked_up_stays_uncertain(
    service, connect, store, attempt, find_existing, says, caplog
):
    connect(service)
    lose_the_response(service)
    for options in ({}, {}, {"if_uncertain": "create"}):
        with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
            attempt(find_existing=find_existing, **options)
    assert len(service.jobs) == 1
    assert "could not be looked up" in caplog.text
    assert caplog.text.count(says.partition(":")[0]) >= 2


@pytest.mark.parametrize("store", ["in a database"], indirect=True)
def test_a_job_of_another_run_is_not_found(service, connect, store, attempt, find, caplog):
    connect(service)
    attempt(run_id="monday")
    lose_the_response(service, handled=False)

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        attempt(run_id="tuesday", find_existing=find)
    assert f"found {service.jobs[0]['id']}, which may be that of another write" in caplog.text


def test_a_service_that_answers_all_jobs_with_one_is_not_asked_for_more(service, connect, store, monkeypatch):
    monkeypatch.setattr("fsm_provider.writes.runner.MIN_LEASE", 120.0)
    connect(service)
    other = {"id": 4711, "propertyID": 7, **JOB}
    service.fail("POST", "/properties/7/jobs", faults.Body(other), every=True)
    jobs = keyed(*(f"PM-{number}" for number in range(40)))

    with pytest.raises(AirflowFailException, match="1 created, 20 uncertain, 19 not created"):
        FsmCreateJobsOperator(task_id="task", jobs=jobs, max_concurrency=1).execute(context_for(store))


def test_a_job_is_found_for_one_key_only(service, connect, store, find, caplog):
    connect(service)
    service.fail("POST", "/properties/7/jobs", faults.Reset(), calls=(2,))
    operator = FsmCreateJobsOperator(
        task_id="task", jobs=keyed("A", "B"), max_concurrency=1, find_existing=find
    )

    with pytest.raises(AirflowFailException, match="1 created, 1 uncertain"):
        operator.execute(context_for(store))
    assert "which may be that of another write" in caplog.text


def test_a_job_that_may_be_that_of_two_keys_is_found_for_neither(service, connect, store, find, caplog):
    connect(service)
    service.fail("POST", "/properties/7/jobs", faults.Reset(after_handling=True), calls=(1, 2))
    operator = FsmCreateJobsOperator(task_id="task", jobs=keyed("A", "B"), find_existing=find)

    with pytest.raises(AirflowFailException, match="2 uncertain"):
        operator.execute(context_for(store))
    assert caplog.text.count("which may be that of another write") == 2


def test_what_was_lost_by_an_attempt_that_stopped_is_found_by_the_next(service, connect, store, find):
    connect(service)
    service.fail("POST", "/properties/7/jobs", faults.Reset(after_handling=True), calls=range(1, 21))
    jobs = [{"property_id": 7, "job": {"customerReference": f"PO-{number}"}} for number in range(24)]
    operator = FsmCreateJobsOperator(task_id="task", jobs=jobs, find_existing=find, max_concurrency=1)
    with pytest.raises(
        AirflowFailException, match=r"20 uncertain, 4 not created .*20 lost responses in a row"
    ):
        operator.execute(context_for(store))

    outcomes = operator.execute(context_for(store))

    assert Counter(one["outcome"] for one in outcomes) == {"existing": 20, "created": 4}
