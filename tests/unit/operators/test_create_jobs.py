"""Creating many jobs: what is sent, what is not, and the outcome of each."""

import logging
import time
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)

from fsm_provider.api import FsmInputError, FsmRateLimitedError
from fsm_provider.operators.jobs import job_id_or_skip
from fsm_provider.testing import FakeFieldService, faults
from fsm_provider.writes.runner import MAX_LOST_IN_A_ROW
from tests.unit.operators.jobs import attempt_of, create, request, statuses
from tests.unit.state_store import IN_AIRFLOW, context_for


@pytest.fixture
def attempt(store):
    return partial(attempt_of, store)


LAST = 3
"""The last attempt of a task with two retries."""
BY = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": -1, "airflow": ""}


@pytest.fixture
def logged(caplog, capsys):
    """Return what was logged: Airflow 3 writes the log of an operator to standard output."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.text + capsys.readouterr().out


def references(service):
    return sorted(job["customerReference"] for job in service.jobs)


def test_one_outcome_for_each_input_in_order_and_in_the_log(service, connect, attempt, logged):
    connect(service)

    outcomes, error = attempt(
        create([request(number) for number in range(1, 31)], max_concurrency=8)
    )

    assert error is None
    assert [outcome["index"] for outcome in outcomes] == list(range(30))
    by_id, text = {job["id"]: job for job in service.jobs}, logged()
    assert len(by_id) == 30
    assert "30 jobs: 30 created" in text
    for outcome in outcomes:
        job = by_id[outcome["jobID"]]
        number, reference = outcome["index"] + 1, job["customerReference"]
        assert (outcome["outcome"], outcome["customerReference"]) == ("created", reference)
        assert outcome["propertyID"] == job["propertyID"] == number
        assert (outcome["link"], outcome["by"]) == (None, None)
        about = f"(propertyID {number}, customerReference '{reference}')"
        assert f"POST /properties/{number}/jobs {about}: created, id {job['id']}" in text
    assert attempt(create([])) == ([], None)


def test_a_retry_and_a_cleared_task_create_nothing_more(service, connect, attempt):
    connect(service)
    first, _ = attempt(create([request(1), request(2)]))

    existing = [{**outcome, "outcome": "existing", "by": BY} for outcome in first]
    assert attempt(create([request(1), request(2)])) == (existing, None)
    again, _ = attempt(create([request(2), request(1), request(3)]), cleared=1)

    assert [outcome["jobID"] for outcome in again][:2] == [first[1]["jobID"], first[0]["jobID"]]
    assert references(service) == ["PM-1", "PM-2", "PM-3"]


def test_an_attempt_knows_all_jobs_of_those_before_however_many_there_are(
    service, connect, attempt
):
    """Airflow's store has 64 in a page: the second attempt fills one, and begins the third."""
    connect(service)

    for many in (65, 130, 130):
        jobs = [request(number) for number in range(1, many + 1)]
        outcomes, _ = attempt(create(jobs, max_concurrency=8), cleared=1)

    assert statuses(outcomes) == ["existing"] * 130
    assert len(service.jobs) == 130


def test_the_job_of_an_earlier_attempt_is_not_taken_for_another(service, connect, attempt):
    connect(service)
    attempt(create([request(1)]))
    same_id = {**service.jobs[0], "propertyID": 2, "customerReference": "PM-2"}
    service.fail("POST", "/properties/2/jobs", faults.Body(same_id))

    outcomes, _ = attempt(create([request(1), request(2)]), cleared=1)

    assert statuses(outcomes) == ["existing", "uncertain"]


def test_a_repeated_input_with_a_key_is_one_job(service, connect, attempt):
    connect(service)

    outcomes, _ = attempt(create([request(1, key="A"), request(2), request("1", key="A")]))

    assert outcomes[2] == {**outcomes[0], "index": 2}
    assert references(service) == ["PM-1", "PM-2"]


def test_all_errors_are_listed_before_anything_is_sent(service, connect):
    connect(service)
    jobs = [
        request(1),
        {"property_id": 2, "job": {"notes": 5}, "key": "PM-2"},
        {"job": {"quotedAmount": "1,5"}},
        "PM-4",
    ]

    with pytest.raises(FsmInputError) as caught:
        create(jobs)

    assert str(caught.value).splitlines() == [
        "jobs[1].job.notes: should be a valid string (key 'PM-2')",
        "jobs[2].property_id: is missing; jobs[2].job.quotedAmount: "
        "should be an amount such as '120' or '99.50', as text or Decimal",
        "jobs[3]: should be a valid dictionary",
    ]
    operator = create("{{ jobs | tojson }}")
    operator.render_template_fields({"jobs": [request(1), {"property_id": 2}]})
    with pytest.raises(AirflowFailException, match=r"jobs\[1\]\.job: is missing"):
        operator.execute(context_for(None))
    assert service.requests == []


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("a, b", "jobs: is text, but no JSON"),
        ('{"property_id": 1}', "jobs: should be a list"),
        (None, "jobs: is None: the template or task output that it comes from is empty"),
        (
            '[{"property_id": 1, "job": {"skills": [NaN]}}]',
            "jobs[0].job.skills: Out of range float values",
        ),
    ],
)
def test_anything_but_a_list_of_jobs_is_refused(service, connect, attempt, jobs, message):
    connect(service)

    assert message in str(attempt(create(jobs))[1])
    assert service.requests == []


@pytest.mark.parametrize(
    "jobs",
    [
        "{{ params.jobs | tojson }}",
        [
            {"property_id": 1, "job": {"notes": note}}
            for note in ("{{ params.note }}", "{{ params.other }}")
        ],
    ],
    ids=["a list", "two that are not equal"],
)
def test_options_and_jobs_may_be_templates(service, connect, attempt, jobs):
    connect(service)
    operator = create(jobs, dry_run="{{ params.dry }}", max_jobs="{{ params.cap }}")
    params = {"jobs": [request(1), request(2)], "note": "a", "other": "b", "dry": False, "cap": 3}
    operator.render_template_fields({"params": params})

    assert statuses(attempt(operator)[0]) == ["created", "created"]


def test_more_than_max_jobs_are_refused_before_the_first_is_sent(service, connect, attempt):
    connect(service)
    attempt(create([request(1), request(2)]))

    outcomes, error = attempt(create([request(number) for number in range(1, 5)], max_jobs=1))

    assert outcomes is None
    assert "max_jobs: 2 jobs are to be created, and one attempt may create 1: none was sent" in str(
        error
    )
    assert isinstance(error, AirflowFailException)
    assert len(service.requests) == 2
    outcomes, error = attempt(create([request(1), request(2), request(3)], max_jobs=1))
    assert (statuses(outcomes), error) == (["existing", "existing", "created"], None)


def test_a_dry_run_says_what_the_ledger_knows_and_sends_and_records_nothing(
    service, connect, attempt, store, logged
):
    connect(service)
    service.fail("POST", "/properties/2/jobs", faults.Reset(after_handling=True))
    attempt(create([request(1), request(2)]))
    rows = store.rows

    outcomes, _ = attempt(create([request(1), request(2), request(3)], dry_run=True))

    assert statuses(outcomes) == ["existing", "uncertain", "valid"]
    assert outcomes[2]["error"] is None
    assert "Dry run: 3 jobs: 0 created, 1 existing, 1 uncertain, 1 valid" in logged()
    assert (len(service.requests), store.rows) == (2, rows)


@pytest.mark.usefixtures("short_lease")
def test_max_jobs_counts_uncertain_jobs_that_are_created_again(service, connect, attempt):
    connect(service)
    service.fail("POST", "/properties/*/jobs", faults.Reset(after_handling=True), calls=(1, 2))
    attempt(create([request(1), request(2)]))

    outcomes, error = attempt(create([request(1), request(2)], max_jobs=1, if_uncertain="create"))

    assert outcomes is None
    assert "max_jobs: 2 jobs are to be created" in str(error)
    assert len(service.jobs) == 2


@pytest.mark.parametrize(
    "respelled",
    [
        request("1"),
        request(1, job={"customerReference": "PM-1", "priority": None}),
        request(1, job={"customerReference": "PM-1", "extra_fields": {}}),
    ],
    ids=str,
)
def test_equal_jobs_are_refused_however_they_are_spelled(service, connect, attempt, respelled):
    connect(service)

    _, error = attempt(create([request(1), respelled]))

    assert str(error) == "jobs[1]: is equal to jobs[0]: leave one out, or give both keys"
    assert service.requests == []


def test_a_rejected_job_stops_no_other_and_fails_the_task_without_a_retry(connect, attempt):
    with FakeFieldService(properties={1, 3}) as service:
        connect(service)
        outcomes, error = attempt(create([request(1), request(2), request(3)]))

    assert statuses(outcomes) == ["created", "rejected", "created"]
    assert "404" in outcomes[1]["error"]
    assert isinstance(error, AirflowFailException)
    assert "3 jobs: 2 created, 1 rejected" in str(error)
    assert "jobs[1] (PM-2) rejected: POST /properties/2/jobs returned HTTP 404" in str(error)


def test_many_jobs_that_are_rejected_in_a_row_stop_no_other(service, connect, attempt):
    connect(service)
    service.fail("POST", "*", faults.Status(400), calls=range(1, MAX_LOST_IN_A_ROW + 2))
    jobs = [request(number) for number in range(MAX_LOST_IN_A_ROW + 2)]

    outcomes, _ = attempt(create(jobs, max_concurrency=1))

    assert statuses(outcomes) == ["rejected"] * (MAX_LOST_IN_A_ROW + 1) + ["created"]


@pytest.mark.parametrize("in_between", ["created", "rejected"])
def test_lost_responses_that_are_not_in_a_row_stop_nothing(service, connect, attempt, in_between):
    connect(service)
    calls = range(1, 2 * MAX_LOST_IN_A_ROW + 3)
    service.fail("POST", "*", faults.Reset(after_handling=True), calls=calls[::2])
    if in_between == "rejected":
        service.fail("POST", "*", faults.Status(400), calls=calls[1::2])

    outcomes, _ = attempt(create([request(call) for call in calls], max_concurrency=1))

    assert statuses(outcomes) == ["uncertain", in_between] * (MAX_LOST_IN_A_ROW + 1)


def test_they_begin_no_more_often_than_the_connection_allows(service, connect, attempt):
    connect(service, max_requests_per_second=20)
    began_at = time.monotonic()

    attempt(create([request(number) for number in range(6)], max_concurrency=6))

    assert len(service.jobs) == 6
    assert time.monotonic() - began_at >= 5 / 20


def test_a_retry_sends_only_what_is_missing(service, connect, attempt):
    connect(service, max_retries=0)
    service.fail("POST", "/properties/2/jobs", faults.Status(429, headers={"Retry-After": "7"}))
    jobs = [request(1), request(2), request(3)]

    outcomes, error = attempt(create(jobs, max_concurrency=1))

    assert statuses(outcomes) == ["created", "not_created", "not_created"]
    assert not isinstance(error, AirflowFailException)
    assert isinstance(error.__cause__, FsmRateLimitedError)
    assert error.__cause__.retry_after == 7
    assert statuses(attempt(create(jobs))[0]) == ["existing", "created", "created"]
    assert references(service) == ["PM-1", "PM-2", "PM-3"]


def test_an_unreachable_service_ends_the_task_early(connect, attempt):
    with FakeFieldService() as service:
        connect(service, max_retries=0)
    outcomes, error = attempt(create([request(number) for number in range(50)], max_concurrency=2))

    assert set(statuses(outcomes)) == {"not_created"}
    assert all("was not reached" in outcome["error"] for outcome in outcomes)
    assert sum(not outcome["error"].startswith("not sent: ") for outcome in outcomes) <= 3
    assert not isinstance(error, AirflowFailException)


@pytest.mark.parametrize("try_number", [1, LAST])
def test_a_stop_finishes_and_records_the_request_in_flight(
    service, connect, attempt, store, try_number
):
    connect(service)
    operator = create([request(1), request(2)], max_concurrency=1, fail_on="none")
    service.fail("POST", "/properties/1/jobs", faults.Before(operator.on_kill))

    outcomes, error = attempt(operator, try_number=try_number)

    assert statuses(outcomes) == ["created", "not_created"]
    assert outcomes[1]["error"] == "not sent: the task was stopped"
    assert "the task was stopped" in str(error)
    assert not isinstance(error, AirflowFailException)
    assert sorted(row["state"] for row in store.rows.values()) == ["done", "free"]


def test_each_outcome_links_to_the_page_of_its_job(service, connect, store):
    jobs = [request(1), request(2)]
    service.fail("POST", "/properties/1/jobs", faults.Status(400), every=True)

    def execute(**extra):
        connect(service, **extra)
        context = context_for(store)
        with pytest.raises(AirflowFailException):
            create(jobs).execute(context)
        return [outcome["link"] for outcome in context["ti"].pushed["return_value"]]

    created = execute(web_url="https://app.example.com/jobs/{id}?at={propertyID}")
    existing = execute(web_url=None)

    (job,) = service.jobs
    page = f"https://app.example.com/jobs/{job['id']}?at=2"
    assert created == [None, page]
    assert existing == [None, None]


def lose(service, number, **when):
    service.fail("POST", f"/properties/{number}/jobs", faults.Reset(after_handling=True), **when)


@pytest.fixture
def last_attempt(service, store):
    """Run an attempt for properties, as a rule the last one; return the outcomes and the error."""
    service.fail("POST", "/properties/9/jobs", faults.Status(404), every=True)

    def run(*properties, try_number=LAST, **options):
        operator = create([*map(request, properties)], max_concurrency=1, **options)
        outcomes, error = attempt_of(store, operator, try_number=try_number)
        return statuses(outcomes), error

    return run


GOOD, REJECTED, UNCERTAIN, MISSING = "created", "rejected", "uncertain", "not_created"

PASSES = {
    "any": [[GOOD]],
    "uncertain": [[GOOD], [GOOD, REJECTED], [REJECTED], [GOOD, MISSING]],
    "all": [[GOOD], [GOOD, REJECTED], [GOOD, UNCERTAIN], [GOOD, MISSING]],
    "none": [[GOOD], [GOOD, REJECTED], [REJECTED], [GOOD, UNCERTAIN], [UNCERTAIN], [GOOD, MISSING]],
}
PROPERTIES = {GOOD: 1, REJECTED: 9, UNCERTAIN: 2, MISSING: 3}


@IN_AIRFLOW
@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("case", PASSES["none"], ids="+".join)
def test_fail_on_decides_which_outcomes_fail_the_last_attempt(
    service, connect, store, last_attempt, fail_on, case
):
    connect(service, max_retries=0)
    lose(service, 2)
    service.fail("POST", "/properties/3/jobs", faults.Status(429, retry_after=500))

    outcomes, error = last_attempt(*[PROPERTIES[outcome] for outcome in case], fail_on=fail_on)

    assert outcomes == case
    assert (error is None) == (case in PASSES[fail_on])


@IN_AIRFLOW
@pytest.mark.parametrize("fail_on", ["uncertain", "all", "none"])
def test_airflows_retries_come_first(service, connect, store, last_attempt, fail_on):
    connect(service, max_retries=0)
    service.fail("POST", "/properties/3/jobs", faults.Status(429, retry_after=500), every=True)

    for try_number in (1, 2):
        outcomes, error = last_attempt(1, 9, 3, fail_on=fail_on, try_number=try_number)
        assert isinstance(error, AirflowException)
        assert not isinstance(error, AirflowFailException)
    outcomes, error = last_attempt(1, 9, 3, fail_on=fail_on, try_number=LAST)
    assert (outcomes, error) == (["existing", "rejected", "not_created"], None)
    assert [job["propertyID"] for job in service.jobs] == [1]


def test_what_no_retry_helps_is_let_pass_at_once(service, connect, store, last_attempt):
    connect(service)
    assert last_attempt(1, 9, fail_on="none", try_number=1) == ([GOOD, REJECTED], None)


@IN_AIRFLOW
@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("try_number", [1, LAST])
def test_a_refused_token_fails_the_task_whatever_may_pass(
    service, connect, last_attempt, fail_on, try_number
):
    connect(service)
    service.fail("POST", "/properties/2/jobs", faults.Status(401), every=True)

    outcomes, error = last_attempt(1, 2, 3, fail_on=fail_on, try_number=try_number)

    assert outcomes == [GOOD, REJECTED, MISSING]
    assert isinstance(error, AirflowFailException)
    assert "nothing more was sent: every further request would fail with: " in str(error)
    assert "HTTP 401" in str(error)


@IN_AIRFLOW
@pytest.mark.parametrize("fail_on", PASSES)
@pytest.mark.parametrize("try_number", [1, LAST])
def test_a_service_that_is_down_fails_the_task_whatever_may_pass(
    connect, last_attempt, fail_on, try_number
):
    with FakeFieldService() as service:
        connect(service)
        lose(service, "*", every=True)

        outcomes, error = last_attempt(*range(1, 26), fail_on=fail_on, try_number=try_number)

    assert outcomes == [UNCERTAIN] * MAX_LOST_IN_A_ROW + [MISSING] * (25 - MAX_LOST_IN_A_ROW)
    assert isinstance(error, AirflowFailException)


def test_an_outcome_without_a_job_skips_its_map_index():
    outcome = {"key": "PM-1", "outcome": "rejected", "jobID": None, "error": "HTTP 404"}
    with pytest.raises(AirflowSkipException, match="PM-1: rejected: HTTP 404"):
        job_id_or_skip(outcome)
    assert job_id_or_skip({**outcome, "outcome": "created", "jobID": 7}) == 7
