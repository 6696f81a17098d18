"""A job whose creation is uncertain, looked up in the service."""

from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from fsm_provider.operators.jobs import FsmCreateJobsOperator
from fsm_provider.testing import faults
from tests.pages import DOCS, blocks
from tests.unit.state_store import context_for
from tests.unit.writes.operators import JOB, attempt_of, lose, write_job, write_jobs

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


@pytest.mark.parametrize(("sent", "listed"), [("PO-1", "PO-1 "), ("PO-1 ", "PO-1"), (" 7", 7)])
def test_the_function_of_the_page_finds_the_job(service, connect, store, attempt, sent, listed):
    connect(service)
    lose(service)
    jobs = [{"id": 4710, "customerReference": None}, {"id": 4711, "customerReference": listed}]
    listing = {"pagination": {"hasMore": False}, "data": jobs}
    service.fail("GET", "/properties/7/jobs", faults.Status(200, body=listing))
    job = {"customerReference": sent}

    assert attempt(job=job, find_existing=function_of_the_page()) == 4711


@pytest.mark.parametrize("job", [{}, {"customerReference": " "}])
def test_the_function_of_the_page_finds_no_job_without_a_reference(
    service, connect, store, attempt, job
):
    connect(service)
    lose(service)
    jobs = [{"id": 4710, "customerReference": ""}, {"id": 4711, "customerReference": None}]
    listing = {"pagination": {"hasMore": False}, "data": jobs}
    service.fail("GET", "/properties/7/jobs", faults.Status(200, body=listing), every=True)
    find = function_of_the_page()

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        attempt(job=job, find_existing=find, if_uncertain="create")

    assert len(service.jobs) == 1


def function_of_the_page():
    (block,) = (
        block
        for block in blocks("python", pages=[DOCS / "jobs.md"])
        if "find_existing" in block.text
    )
    page = {}
    exec(block.text, page)
    return page["find_existing"]


@pytest.fixture(params=[write_job, write_jobs])
def attempt(request, store):
    """Runs an attempt of either operator; returns the job's id."""
    return partial(attempt_of, request.param, store)


def keyed(*keys):
    return [{"property_id": 7, "job": JOB, "key": key} for key in keys]


@pytest.mark.parametrize("is_later", [False, True], ids=["the same attempt", "a later one"])
def test_a_job_is_found_after_a_response_that_was_lost(
    service, connect, store, attempt, find, is_later
):
    connect(service)
    lose(service)
    if is_later:
        with pytest.raises(AirflowFailException):
            attempt()

    job_id = attempt(find_existing=find, if_uncertain="create")

    assert [job_id] == [job["id"] for job in service.jobs]
    assert attempt() == job_id
    assert find.looks == len(service.jobs) == 1


def test_without_a_job_if_uncertain_decides(service, connect, store, attempt, find):
    connect(service)
    lose(service, handled=False)
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
    [
        (fails, "LookupError: no such view"),
        (lambda *_: {"id": 1}, "find_existing: .* should be an integer"),
    ],
)
def test_what_cannot_be_looked_up_stays_uncertain(
    service, connect, store, attempt, find_existing, says, caplog
):
    connect(service)
    lose(service)
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
    lose(service, handled=False)

    with pytest.raises(AirflowFailException, match="may or may not have taken effect"):
        attempt(run_id="tuesday", find_existing=find)
    assert f"found {service.jobs[0]['id']}, which may be that of another write" in caplog.text


def test_a_service_that_answers_all_jobs_with_one_is_not_asked_for_more(
    service, connect, store, monkeypatch, caplog
):
    monkeypatch.setattr("fsm_provider.writes.runner.MIN_LEASE", 120.0)
    connect(service)
    other = {"id": 4711, "propertyID": 7, **JOB}
    service.fail("POST", "/properties/7/jobs", faults.Body(other), every=True)
    jobs = keyed(*(f"PM-{number}" for number in range(40)))

    with pytest.raises(AirflowFailException, match="1 created, 20 uncertain, 19 not created"):
        FsmCreateJobsOperator(task_id="task", jobs=jobs, max_concurrency=1).execute(
            context_for(store)
        )
    assert caplog.text.count("job 4711 is that of key 'PM-0' as well") == 20


def test_what_may_be_that_of_another_write_is_not_created_again(service, connect, store, find):
    connect(service)
    lose(service, calls=(1, 2))

    for cleared, options in enumerate(({}, {"find_existing": find, "if_uncertain": "create"})):
        operator = FsmCreateJobsOperator(task_id="task", jobs=keyed("A", "B"), **options)
        with pytest.raises(AirflowFailException, match="2 uncertain"):
            operator.execute(context_for(store, cleared=cleared))

    assert len(service.requests) == 2


def test_each_of_some_jobs_that_are_uncertain_at_once_is_found(service, connect, store, find):
    connect(service)
    lose(service, calls=(1, 2))
    jobs = [{"property_id": 7, "job": {"customerReference": reference}} for reference in "AB"]

    outcomes = FsmCreateJobsOperator(task_id="task", jobs=jobs, find_existing=find).execute(
        context_for(store)
    )

    found = {outcome["customerReference"]: outcome["jobID"] for outcome in outcomes}
    assert found == {job["customerReference"]: job["id"] for job in service.jobs}


@pytest.mark.parametrize(
    ("fault", "calls", "outcomes"),
    [
        (faults.Reset(), (2,), "1 created, 1 uncertain"),
        (faults.Reset(after_handling=True), (1, 2), "2 uncertain"),  # it may be that of either
    ],
)
def test_a_job_is_found_for_one_key_only(
    service, connect, store, find, caplog, fault, calls, outcomes
):
    connect(service)
    service.fail("POST", "/properties/7/jobs", fault, calls=calls)
    operator = FsmCreateJobsOperator(
        task_id="task", jobs=keyed("A", "B"), max_concurrency=1, find_existing=find
    )

    with pytest.raises(AirflowFailException, match=outcomes):
        operator.execute(context_for(store))
    assert caplog.text.count("which may be that of another write") == len(calls)
