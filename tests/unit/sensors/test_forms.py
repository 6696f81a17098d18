"""The form sensor has the same result in poke, reschedule and deferrable mode."""

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from fsm_provider.api import FsmConnectionError, FsmInputError, FsmServerError
from fsm_provider.api.form_filter import format_time
from fsm_provider.sensors.base import FAILING_SINCE
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import faults
from tests.unit.sensors.conftest import MODES, START, Run
from tests.unit.state_store import MemoryStateStore, TaskInstance


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def test_a_form_that_exists_ends_the_wait_at_the_first_poll(service, run):
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
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert run(job_id=11, xcom="ids") == [900]


def test_a_wait_alone_polls_once_an_interval(service, deferred_run, soon):
    soon(service.add_form, job_id=11, id=900)

    deferred_run(job_id=11, poke_interval=20)

    assert len(service.requests) == 2


@pytest.mark.parametrize("filters", [{"property_id": 2}, {"job_id": 11}, {}])
def test_property_job_or_entire_account(service, run, filters):
    service.add_form(job_id=10, property_id=1, form_name="Other")
    wanted = service.add_form(job_id=11, property_id=2)

    assert run(xcom="ids", form_names="Gas Safety Record", **filters) == [wanted["id"]]


def test_minimum_forms_waits_for_that_many(service, run, soon):
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
    # With its old times, a stream finds it only by a full poll: its first, or the next.
    interval = 15 if run.mode.startswith("deferred") else 1

    assert run(job_id=11, xcom="ids", poke_interval=interval, **{bound: START.isoformat()}) == [900]


def created_after(service):
    """The bounds of the listings, without those that all waits share and that have recent changes only."""
    queries = [dict(request.query) for request in service.requests_to("GET", "/forms")]
    listed = [query for query in queries if "jobID" in query or "lastUpdatedOnDateTime[gte]" not in query]
    return {query.get("createdOnDateTime[gte]") for query in listed}


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


def resume(event, **arguments):
    """Resume a sensor whose deadline is past."""
    resumed_with = {"event": event, "deadline": datetime.now(UTC).isoformat()}
    sensor = FsmFormSensor(task_id="wait", job_id=11, **arguments)
    return sensor.resume_execution("execute_complete", resumed_with, {"data_interval_start": START})


TIMED_OUT = {"timed_out": "Sensor has timed out: waited for a form"}


@pytest.mark.parametrize(
    ("xcom", "expected"),
    [
        ("references", {"propertyID": "2", "jobID": 11}),
        ("ids", 900),
        ("full", {"formPDFURL": "https://files.example.com/900"}),
    ],
)
def test_a_form_that_came_since_the_triggers_last_poll_is_returned_at_the_timeout(service, xcom, expected):
    service.add_form(job_id=11, property_id=2, id=900, formPDFURL="https://files.example.com/900")

    (form,) = resume(TIMED_OUT, xcom=xcom)

    assert form == (expected if xcom == "ids" else {**form, **expected, "id": 900})


@pytest.mark.parametrize("xcom", ["references", "ids", "full"])
@pytest.mark.parametrize(
    "fault",
    [None, faults.Status(503), faults.Reset(), faults.Status(401), faults.Body(b"<html>")],
    ids=["none", "503", "reset", "401", "no JSON"],
)
def test_without_such_a_form_the_sensor_times_out_with_the_triggers_message(service, xcom, fault):
    if fault:
        service.add_form(job_id=11)
        service.fail("GET", "/forms", fault, every=True)

    with pytest.raises(AirflowSensorTimeout) as timeout:
        resume(TIMED_OUT, xcom=xcom)
    assert str(timeout.value) == TIMED_OUT["timed_out"]
    assert len(service.requests) == 1


def test_without_its_connection_the_sensor_times_out_with_the_triggers_message(monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    with pytest.raises(AirflowSensorTimeout, match=TIMED_OUT["timed_out"]):
        resume(TIMED_OUT)


def test_a_timeout_skips_under_soft_fail(run):
    with pytest.raises(AirflowSkipException):
        run(job_id=11, timeout=1, soft_fail=True)


def go_down(service):
    service.settings.token = "rotated"


def test_a_permanent_error_fails_the_task_without_a_retry(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowFailException, match="GET /forms returned HTTP 401"):
        run(job_id=11)


def test_a_permanent_error_skips_under_soft_fail(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowSkipException):
        run(job_id=11, soft_fail=True)


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_transient_error_is_left_to_airflows_retries_also_under_soft_fail(service, run, soon, soft_fail):
    soon(service.fail, "GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(FsmServerError, match="GET /forms returned HTTP 503"):
        run(job_id=11, soft_fail=soft_fail, failure_tolerance=0)


@pytest.mark.parametrize(
    "fault",
    [
        faults.Status(503),
        faults.Reset(),
        faults.Status(429, retry_after=1),
        faults.Status(410),
        faults.Redirect("/maintenance"),
        faults.pagination(hasMore=True, nextCursor=None),
    ],
    ids=["503", "reset", "429", "410", "redirect", "pagination"],
)
def test_poll_failures_are_tolerated(service, run, soon, fault):
    soon(service.fail, "GET", "/forms", fault, every=True)
    soon(service.clear_faults, polls=3)
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert run(job_id=11, xcom="ids", timeout=300) == [900]
    assert len(service.requests) > 3


def test_a_failure_of_the_first_poll_is_tolerated(service, run):
    service.fail("GET", "/forms", faults.Status(503))
    service.add_form(job_id=11, id=900)

    assert run(job_id=11, xcom="ids") == [900]


def test_failures_that_outlast_the_tolerance_fail_the_task_with_their_error(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(FsmServerError, match="GET /forms returned HTTP 503"):
        run(job_id=11, failure_tolerance=timedelta(seconds=2))


def test_the_tolerance_is_for_failures_in_a_row_not_for_all_together(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))
    soon(service.fail, "GET", "/forms", faults.Status(503), polls=3)
    soon(service.add_form, polls=4, job_id=11, id=900)

    assert run(job_id=11, failure_tolerance=1.8, xcom="ids") == [900]


def test_each_attempt_has_its_own_failure_tolerance(service):
    stored = MemoryStateStore()
    stored.set(FAILING_SINCE, {"try": 0, "since": START.isoformat()})
    service.fail("GET", "/forms", faults.Status(503))
    service.add_form(job_id=11, id=900)

    context = {"data_interval_start": START, "task_state_store": stored}

    assert Run("reschedule")(job_id=11, xcom="ids", context=context) == [900]
    assert stored.kept == {}


def test_without_a_state_store_a_rescheduled_sensor_tolerates_no_failure(service, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))

    with pytest.raises(FsmServerError):
        Run("reschedule")(job_id=11, context={"data_interval_start": START, "task_state_store": None})


def test_any_error_skips_under_never_fail(service, run, soon):
    soon(go_down, service)

    with pytest.raises(AirflowSkipException):
        run(job_id=11, never_fail=True)


def test_silent_fail_goes_on_after_a_transient_error(service, run, soon):
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
    error = FsmServerError(status=503, method="GET", path="/forms").as_dict()

    with pytest.raises(end):
        resume({"error": error}, silent_fail=True, soft_fail=soft_fail)


def test_the_triggerer_reads_a_changed_token(service, connect, deferred_run, soon):
    def rotate():
        service.settings.token = "rotated"
        connect(service, max_retries=0)
        service.add_form(job_id=11, id=900)

    soon(rotate, polls=2)

    assert deferred_run(job_id=11, xcom="ids") == [900]
    assert 401 in {request.status for request in service.requests}


@pytest.mark.parametrize("event", [None, {}, {"status": "success"}, "done"])
def test_an_event_of_another_kind_is_refused(event):
    with pytest.raises(RuntimeError, match="does not emit"):
        FsmFormSensor(task_id="wait").execute_complete({}, event)


def test_a_deferral_carries_json_and_no_secret(service, deferred_run, soon):
    soon(service.add_form, job_id=11)

    since = datetime(2026, 3, 1, tzinfo=UTC)
    deferred_run(job_id=11, since=since, form_names=["Gas Safety Record"], failure_tolerance=20)

    (deferral,) = deferred_run.deferrals
    classpath, kwargs = deferral.trigger.serialize()
    began, deadline = (datetime.fromisoformat(kwargs.pop(name)) for name in ("began", "deadline"))
    assert deadline - began == timedelta(days=7)
    assert classpath == "fsm_provider.triggers.forms.FsmFormTrigger"
    assert kwargs == {
        "fsm_conn_id": "fsm_default",
        "filters": {"job_id": "11", "created_since": "2026-03-01T00:00:00+00:00"},
        "minimum_forms": 1,
        "form_names": ["Gas Safety Record"],
        "query_params": None,
        "poll_interval": 1.0,
        "failure_tolerance": 20,
        "shared": True,
        "log_interval": 3600.0,
    }


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ({"poke_interval": 0.5}, "poke_interval"),
        ({"failure_tolerance": -1}, "failure_tolerance"),
        ({"log_interval": 0.5}, "log_interval"),
        ({"since": "2026-03-01", "created_since": "2026-03-01"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"since": "0001-01-01T00:00:00+01:00"}, "since"),
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


RECORD = {"id": 12, "formPDFURL": "https://files.example.com/12.pdf?signature=canary"}


@pytest.mark.parametrize("name", ["job_id", "property_id", "form_name_id", "form_category", "form_names"])
@pytest.mark.parametrize("found", [None, RECORD, [RECORD], ""])
def test_a_template_that_renders_an_invalid_value_does_not_wait_for_ever(service, mode, name, found):
    sensor = FsmFormSensor(task_id="wait", **MODES[mode], **{name: "{{ found }}"})
    sensor.render_template_fields({"found": found})

    with pytest.raises(AirflowFailException, match=f"^{name}: ") as refused:
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("name", ["property_id", "job_id", "since", "form_names"])
def test_a_mapped_task_that_is_given_none_does_not_fire_on_any_form(service, mode, name):
    """As ``FsmFormSensor.partial(...).expand(job_id=[None])`` makes it."""
    service.add_form()
    sensor = FsmFormSensor(task_id="wait", **MODES[mode], **{name: None}, _airflow_from_mapped=True)

    with pytest.raises(AirflowFailException, match=f"^{name}: is None"):
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []


@pytest.mark.parametrize(
    "name", ["property_id", "job_id", "created_since", "created_by_id", "since", "form_names"]
)
def test_an_output_that_is_none_does_not_make_any_form_match(service, mode, name):
    service.add_form()
    sensor = FsmFormSensor(task_id="wait", **MODES[mode], **{name: "{{ found }}"})
    setattr(sensor, name, None)  # as an upstream task's output comes

    with pytest.raises(AirflowFailException, match=f"^{name}: is None"):
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ({"minimum_forms": "{{ found }}"}, RECORD),
        ({"since": "{{ found }}"}, None),
        ({"form_names": "{{ found }}"}, ["Gas", "Oil"]),
        ({"form_names": "{{ found | tojson }}"}, []),
        ({"form_names": "{{ found | tojson }}"}, {"Gas": 1}),
        ({"form_names": "{{ found | tojson }}"}, None),
        ({"form_names": ["Gas", "{{ found }}"]}, None),
        ({"job_id": "{{ found | tojson }}"}, [12]),
    ],
)
@pytest.mark.parametrize("silent_fail", [False, True])
def test_a_rendered_value_is_checked_at_the_first_poll(service, mode, argument, found, silent_fail):
    sensor = FsmFormSensor(task_id="wait", silent_fail=silent_fail, **MODES[mode], **argument)
    sensor.render_template_fields({"found": found})

    with pytest.raises(AirflowFailException, match=f"^{next(iter(argument))}: "):
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []


def test_a_rendered_empty_list_of_names_does_not_match_any_form(service, mode):
    sensor = FsmFormSensor(task_id="wait", form_names=["{{ name }}"], **MODES[mode])
    sensor.form_names = []  # as an upstream task's output comes

    with pytest.raises(AirflowFailException, match=r"^form_names: "):
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []


@pytest.mark.parametrize("forever", [10**12, timedelta.max])
def test_a_wait_may_be_as_long_as_can_be(service, run, soon, forever):
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert run(job_id=11, timeout=forever, log_interval=forever, xcom="ids") == [900]


def test_a_name_may_be_digits_alone(service, run):
    form = service.add_form(job_id=11, form_name="2024")

    assert run(job_id=11, form_names="2024", xcom="ids") == [form["id"]]


@pytest.mark.parametrize("names", ['["Sign-off", "Gas"]', ["Sign-off", "Gas"]])
def test_each_rendered_name_is_waited_for(service, run, soon, names):
    gas = service.add_form(job_id=11, form_name="Gas")
    service.add_form(job_id=11, form_name="Photo")
    soon(service.add_form, job_id=11, form_name="Sign-off", id=900)

    assert run(job_id=11, form_names=names, xcom="ids") == [gas["id"], 900]


def move(service, form, job_id):
    service.update_form(form["id"], jobDetails={**form["jobDetails"], "jobID": job_id})


def test_full_records_of_a_form_that_moves_before_they_are_read_are_waited_for(
    service, each_deferred_run, soon
):
    """The worker polls just before the form comes, and again when it has moved to another job."""
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)

    def leave_and_another_comes():
        move(service, service.forms[0], 12)
        run.before_resuming = lambda: None
        soon(service.add_form, polls=len(service.requests) + 2, job_id=11, id=901)

    run.before_resuming = leave_and_another_comes

    assert [form["id"] for form in run(job_id=11, xcom="full")] == [901]
    first, second = run.deferrals
    assert second.kwargs["deadline"] == first.kwargs["deadline"]


def test_full_records_that_do_not_come_back_time_out(service, each_deferred_run, soon):
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)
    run.before_resuming = lambda: move(service, service.forms[0], 12)

    with pytest.raises(AirflowSensorTimeout):
        run(job_id=11, xcom="full", timeout=40)
    assert len(run.deferrals) == 2


@pytest.mark.parametrize("fault", [faults.Status(503), faults.Reset(), faults.Status(429, retry_after=1)])
def test_a_failure_to_read_full_records_is_tolerated(service, each_deferred_run, soon, fault):
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)

    def fail_once():
        run.before_resuming = lambda: None
        for thread in threading.enumerate():  # a poll that the end of the wait cancelled
            if thread.name == "fsm fsm_default":
                thread.join()
        service.fail("GET", "/forms", fault)

    run.before_resuming = fail_once

    assert [form["id"] for form in run(job_id=11, xcom="full")] == [900]
    assert len(run.deferrals) == 2


def test_a_timeout_after_a_failure_to_read_full_records_names_the_failure(service):
    form = service.add_form(job_id=11)
    service.fail("GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(AirflowSensorTimeout, match="GET /forms returned HTTP 503"):
        resume({"forms": [{"id": form["id"]}]}, xcom="full")


def test_failures_to_read_full_records_are_tolerated_only_for_a_time(service, each_deferred_run, soon):
    """The triggerer reaches the service, the worker does not."""
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)
    run.before_resuming = lambda: service.fail("GET", "/forms", faults.Status(503))

    with pytest.raises(FsmServerError, match="GET /forms returned HTTP 503"):
        run(job_id=11, xcom="full", failure_tolerance=2)
    since = [deferral.kwargs.get("failing_since") for deferral in run.deferrals]
    assert since[0] is None
    assert since[1]
    assert set(since[1:]) == {since[1]}


def test_a_refused_token_when_full_records_are_read_fails_the_task(service, each_deferred_run, soon):
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)
    run.before_resuming = lambda: go_down(service)

    with pytest.raises(AirflowFailException, match="returned HTTP 401"):
        run(job_id=11, xcom="full")


def test_an_unreachable_secrets_backend_is_tolerated(service, connect, run, soon, monkeypatch):
    """In any process that reads the connection next; one in poke mode has already read it."""

    def lose():
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")
        threading.Timer(2.5, come_back).start()

    def come_back():
        connect(service, max_retries=0)
        service.add_form(job_id=11, id=900)

    soon(lose)

    assert run(job_id=11, xcom="ids") == [900]


def test_a_secrets_backend_that_stays_unreachable_fails_the_task_after_the_tolerance(
    service, run_that_reads_its_connection_again, soon, monkeypatch
):
    run = run_that_reads_its_connection_again
    soon(monkeypatch.delenv, "AIRFLOW_CONN_FSM_DEFAULT")

    with pytest.raises(FsmConnectionError, match="'fsm_default': is not defined, or what it is stored in"):
        run(job_id=11, failure_tolerance=2)


def test_a_missing_connection_at_the_first_poll_raises_airflows_own_error(mode, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    with pytest.raises(AirflowNotFoundException):
        Run(mode)(job_id=11)


def test_an_unreachable_secrets_backend_when_full_records_are_read_is_tolerated(
    service, connect, each_deferred_run, soon, monkeypatch
):
    run = each_deferred_run
    soon(service.add_form, job_id=11, id=900)

    def lose():
        run.before_resuming = lambda: None
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")
        threading.Timer(0.5, connect, [service]).start()

    run.before_resuming = lose

    assert [form["id"] for form in run(job_id=11, xcom="full")] == [900]


def test_a_template_that_renders_none_does_not_wait_for_ever(service):
    sensor = FsmFormSensor(task_id="wait", job_id="{{ nothing }}")
    sensor.render_template_fields({"nothing": None})

    with pytest.raises(AirflowFailException, match="job_id: is the text 'None'"):
        sensor.execute({"data_interval_start": START})
    assert service.requests == []
