"""The form sensor gives the same answer in poke, reschedule and deferrable mode."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from fsm_provider.api import FsmInputError, FsmServerError
from fsm_provider.api.forms import format_time
from fsm_provider.sensors.forms import FAILING_SINCE, FsmFormSensor
from fsm_provider.testing import faults
from tests.unit.sensors.conftest import START, Run, StateStore


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def test_a_form_that_is_there_ends_the_wait_at_the_first_look(service, run):
    form = service.add_form(job_id=11, property_id=2, form_name="Sign-off")

    (reference,) = run(job_id=11)

    assert reference == {
        "id": form["id"],
        "formName": "Sign-off",
        "propertyID": "2",
        "jobID": 11,
        "createdOnDateTime": reference["createdOnDateTime"],
        "lastUpdatedOnDateTime": reference["lastUpdatedOnDateTime"],
    }
    assert len(service.requests) == 1
    assert run.deferrals == []


def test_a_form_that_is_completed_later_ends_the_wait(service, run, soon):
    soon(service.add_form, looks=3, job_id=11, id=900)

    assert run(job_id=11, xcom="ids") == [900]


def test_a_wait_by_itself_looks_once_an_interval(service, deferred_run, soon):
    soon(service.add_form, job_id=11, id=900)

    deferred_run(job_id=11, poke_interval=20)

    assert len(service.requests) == 2


@pytest.mark.parametrize("filters", [{"property_id": 2}, {"job_id": 11}, {}])
def test_property_job_or_whole_account(service, run, filters):
    service.add_form(job_id=10, property_id=1, form_name="Other")
    wanted = service.add_form(job_id=11, property_id=2)

    assert run(xcom="ids", form_names="Gas Safety Record", **filters) == [wanted["id"]]


def test_minimum_forms_waits_for_so_many(service, run, soon):
    first = service.add_form(job_id=11)
    soon(service.add_form, job_id=11, id=900)

    assert run(job_id=11, minimum_forms="2", xcom="ids") == [first["id"], 900]


def test_form_names_waits_for_one_of_each_and_ignores_others(service, run, soon):
    service.add_form(job_id=11, form_name="Photo")
    record = service.add_form(job_id=11, form_name="Gas Safety Record")
    soon(service.add_form, job_id=11, form_name="Sign-off", id=900)

    assert run(job_id=11, form_names=["Sign-off", "Gas Safety Record"], xcom="ids") == [record["id"], 900]


def test_a_form_on_two_pages_counts_once(service, run):
    service.seed_forms(15, first_created=START)
    service.fail("GET", "/forms", faults.RepeatedRecords(), every=True)

    ids = run(xcom="ids", minimum_forms=15)

    assert sorted(ids) == [form["id"] for form in service.forms]


def test_full_records_on_request(service, run, soon):
    soon(service.add_form, job_id=11, id=900)

    (full,) = run(job_id=11, xcom="full")

    assert full["formPDFURL"] == service.forms[0]["formPDFURL"]


@pytest.mark.parametrize("early", ["created", "updated"])
def test_forms_from_before_the_bound_do_not_count(service, run, soon, early):
    bound = {"created": "since", "updated": "updated_since"}[early]
    service.add_form(job_id=11, **{early: START - timedelta(milliseconds=1)})
    soon(service.add_form, job_id=11, id=900, created=START, updated=START)
    # With its old times, a stream would find it by its next whole sweep only, but for its first.
    interval = 15 if run.mode.startswith("deferred") else 1

    assert run(job_id=11, xcom="ids", poke_interval=interval, **{bound: START.isoformat()}) == [900]


def created_after(service):
    return {dict(request.query).get("createdOnDateTime[gte]") for request in service.requests}


def test_the_default_bound_is_the_start_of_the_data_interval(service, run):
    service.add_form(job_id=11)

    run(job_id=11)

    assert created_after(service) == {format_time(START)}


def test_a_run_without_a_data_interval_is_bound_by_its_run_after_time(service, run, soon):
    soon(service.add_form, job_id=11)
    run_after = datetime(2026, 4, 1, tzinfo=UTC)

    run(job_id=11, context={"data_interval_start": None, "dag_run": SimpleNamespace(run_after=run_after)})

    assert created_after(service) == {"2026-04-01T00:00:00.000Z"}


def test_another_bound_replaces_the_default(service, run):
    service.add_form(job_id=11)

    run(job_id=11, updated_since="2026-03-05")

    assert created_after(service) == {None}


def test_a_timeout_fails_the_sensor(run):
    with pytest.raises(AirflowSensorTimeout):
        run(job_id=11, timeout=1)


def test_a_timeout_skips_under_soft_fail(run):
    with pytest.raises(AirflowSkipException):
        run(job_id=11, timeout=1, soft_fail=True)


def go_down(service):
    service.settings.token = "rotated"


def test_a_permanent_error_fails_the_task_without_a_retry(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowFailException, match="GET /forms was answered 401"):
        run(job_id=11)


def test_a_permanent_error_skips_under_soft_fail(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowSkipException):
        run(job_id=11, soft_fail=True)


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_passing_error_is_left_to_airflows_retries_also_under_soft_fail(service, run, soon, soft_fail):
    soon(service.fail, "GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(FsmServerError, match="GET /forms was answered 503"):
        run(job_id=11, soft_fail=soft_fail, failure_tolerance=0)


@pytest.mark.parametrize("fault", [faults.Status(503), faults.Reset(), faults.Status(429, retry_after=1)])
def test_an_outage_is_waited_out(service, run, soon, fault):
    soon(service.fail, "GET", "/forms", fault, every=True)
    soon(service.clear_faults, looks=3)
    soon(service.add_form, looks=3, job_id=11, id=900)

    assert run(job_id=11, xcom="ids", timeout=300) == [900]
    assert {request.status for request in service.requests} != {200}


def test_an_outage_at_the_first_look_is_waited_out(service, run):
    service.fail("GET", "/forms", faults.Status(503))
    service.add_form(job_id=11, id=900)

    assert run(job_id=11, xcom="ids") == [900]


def test_an_outage_that_outlasts_the_tolerance_fails_with_its_error(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(FsmServerError, match="GET /forms was answered 503"):
        run(job_id=11, failure_tolerance=timedelta(seconds=2))


def test_the_tolerance_is_for_one_outage_not_for_all_together(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))
    soon(service.fail, "GET", "/forms", faults.Status(503), looks=3)
    soon(service.add_form, looks=4, job_id=11, id=900)

    assert run(job_id=11, failure_tolerance=1.8, xcom="ids") == [900]


def test_the_patience_of_another_try_is_not_this_ones(service):
    noted = StateStore({FAILING_SINCE: {"try": 0, "since": START.isoformat()}})
    service.fail("GET", "/forms", faults.Status(503))
    service.add_form(job_id=11, id=900)

    context = {"data_interval_start": START, "task_state_store": noted}

    assert Run("reschedule")(job_id=11, xcom="ids", context=context) == [900]
    assert noted == {}


def test_without_a_state_store_a_rescheduled_sensor_has_no_patience(service, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))

    with pytest.raises(FsmServerError):
        Run("reschedule")(job_id=11, context={"data_interval_start": START, "task_state_store": None})


def test_any_error_skips_under_never_fail(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowSkipException):
        run(job_id=11, never_fail=True)


def test_silent_fail_goes_on_after_a_passing_error(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))
    soon(service.add_form, job_id=11, id=900)

    assert run(job_id=11, silent_fail=True, failure_tolerance=0, xcom="ids") == [900]


def test_silent_fail_does_not_prolong_the_timeout(service, deferred_run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))

    with pytest.raises(AirflowSensorTimeout):
        deferred_run(job_id=11, silent_fail=True, failure_tolerance=0, timeout=40)
    first, second = deferred_run.deferrals
    assert second.timeout < first.timeout - timedelta(seconds=0.4)


@pytest.mark.parametrize(("soft_fail", "end"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_silent_fail_ends_at_the_deadline_also_where_the_error_comes_before_the_timeout(soft_fail, end):
    sensor = FsmFormSensor(task_id="wait", job_id=11, silent_fail=True, soft_fail=soft_fail)
    error = FsmServerError(status=503, method="GET", path="/forms").as_dict()
    resumed_with = {"event": {"error": error}, "deadline": datetime.now(UTC).isoformat()}

    with pytest.raises(end):
        sensor.resume_execution("execute_complete", resumed_with, {"data_interval_start": START})


def test_the_triggerer_reads_a_changed_token(service, connect, deferred_run, soon):
    def rotate():
        service.settings.token = "rotated"
        connect(service, max_retries=0)
        service.add_form(job_id=11, id=900)

    soon(rotate, looks=2)

    assert deferred_run(job_id=11, xcom="ids") == [900]
    assert 401 in {request.status for request in service.requests}


@pytest.mark.parametrize("event", [None, {}, {"status": "success"}, "done"])
def test_an_event_of_another_kind_is_refused(event):
    with pytest.raises(RuntimeError, match="none of its own"):
        FsmFormSensor(task_id="wait").execute_complete({}, event)


def test_a_deferral_carries_json_and_no_secret(service, deferred_run, soon):
    soon(service.add_form, job_id=11)

    since = datetime(2026, 3, 1, tzinfo=UTC)
    deferred_run(job_id=11, since=since, form_names=["Gas Safety Record"], failure_tolerance=20)

    (deferral,) = deferred_run.deferrals
    classpath, kwargs = deferral.trigger.serialize()
    assert classpath == "fsm_provider.triggers.forms.FsmFormTrigger"
    assert kwargs == {
        "fsm_conn_id": "fsm_default",
        "filters": {"job_id": "11", "created_since": "2026-03-01T00:00:00+00:00"},
        "minimum_forms": 1,
        "form_names": ["Gas Safety Record"],
        "query_params": None,
        "poll_interval": 1.0,
        "failure_tolerance": 20,
        "shared": False,
    }


@pytest.mark.parametrize(("days", "shared"), [(6.9, True), (7.1, False)])
def test_only_waits_that_go_back_a_few_days_share(service, deferred_run, soon, days, shared):
    soon(service.add_form, job_id=11)

    deferred_run(job_id=11, since=datetime.now(UTC) - timedelta(days=days))

    (deferral,) = deferred_run.deferrals
    assert deferral.trigger.serialize()[1]["shared"] is shared


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"poke_interval": 0.5}, "poke_interval"),
        ({"failure_tolerance": -1}, "failure_tolerance"),
        ({"since": "2026-03-01", "created_since": "2026-03-01"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"created_since": "yesterday"}, "created_since"),
        ({"minimum_forms": 0}, "minimum_forms"),
        ({"minimum_forms": True}, "minimum_forms"),
        ({"form_names": ["Sign-off", ""]}, "form_names"),
        ({"job_id": ""}, "job_id"),
    ],
)
def test_a_bad_argument_is_refused_when_the_dag_is_parsed(argument, field):
    with pytest.raises(FsmInputError, match=rf"^{field}: "):
        FsmFormSensor(task_id="wait", **argument)


def test_a_template_that_found_nothing_does_not_wait_for_ever(service):
    sensor = FsmFormSensor(task_id="wait", job_id="{{ nothing }}")
    sensor.render_template_fields({"nothing": None})

    with pytest.raises(AirflowFailException, match="job_id: is the text 'None'"):
        sensor.execute({"data_interval_start": START})
    assert service.requests == []
