"""The form sensor has the same result in poke, reschedule and deferrable mode."""

import json
import re
import threading
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unicodedata import normalize

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseOperator,
    TaskDeferred,
)

from fsm_provider.api import FsmConnectionEditedError, FsmServerError
from fsm_provider.api.forms import format_time
from fsm_provider.hooks.fsm import FsmHook
from fsm_provider.polling.waiting import text_of_field, waiting_in
from fsm_provider.polling.waits import WaitState
from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import FakeFieldService, faults
from tests.capabilities import RESCHEDULES
from tests.unit.sensors.conftest import SHORT, START, Run
from tests.unit.state_store import MemoryStateStore, TaskInstance


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def delete(service, identifier):
    with service._state.changed:
        records = service._state.forms.records
        records[:] = [stored for stored in records if stored.record["id"] != identifier]
        service._state.changed.notify_all()


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
    (full,) = run(job_id=11, xcom="full")
    assert full["formPDFURL"] == form["formPDFURL"]


@pytest.mark.parametrize(
    ("arguments", "there", "later", "found"),
    [
        (
            {"job_id": 11},
            {"job_id": 12},
            {"job_id": 11},
            [900],
        ),
        (
            {"property_id": 2},
            {"property_id": 1, "job_id": 11},
            {"property_id": 2},
            [900],
        ),
        (
            {"form_names": "Sign-off"},
            {"form_name": "Photo"},
            {"form_name": "Sign-off"},
            [900],
        ),
        (
            {"job_id": 11, "minimum_forms": "2"},
            {"job_id": 11, "id": 1},
            {"job_id": 11},
            [1, 900],
        ),
        (
            {"job_id": 11, "form_names": '["Sign-off", "Gas"]'},
            {"job_id": 11, "form_name": "Gas", "id": 1},
            {"job_id": 11, "form_name": "Sign-off"},
            [1, 900],
        ),
        # The service's spellings of identifiers, and of names that look the same.
        (
            {"property_id": 7},
            {"property_id": 8},
            {"property_id": 7, "propertyID": "0007"},
            [900],
        ),
        (
            {"property": "0007"},
            {"property_id": 8},
            {"property_id": 7},
            [900],
        ),
        (
            {"job_id": 11, "form_names": "Prüfbuch"},
            {"job_id": 11},
            {"job_id": 11, "form_name": normalize("NFD", "Prüfbuch ")},
            [900],
        ),
        # A record that the service knows no times of.
        (
            {"job_id": 11},
            {"job_id": 12},
            {"job_id": 11, "lastUpdatedOnDateTime": None},
            [900],
        ),
    ],
)
def test_a_form_that_is_completed_later_ends_the_wait(
    service, deferred_run, soon, arguments, there, later, found
):
    service.add_form(**{"job_id": 10, **there})
    soon(service.add_form, polls=3, **{"job_id": 10, "id": 900, **later})

    assert deferred_run(xcom="ids", **arguments) == found


def test_forms_that_a_service_lists_beside_the_filters_do_not_count(service, deferred_run, soon):
    service.settings.ignore_filters = True
    service.add_form(job_id=12)
    service.add_form(job_id=11, created=START - timedelta(days=1))
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert deferred_run(job_id=11, xcom="ids") == [900]


def test_a_form_on_two_pages_counts_once(service, run):
    service.seed_forms(15, first_created=START)
    service.fail("GET", "/forms", faults.RepeatedRecords(), every=True)

    ids = run(xcom="ids", minimum_forms=15)

    assert sorted(ids) == [form["id"] for form in service.forms]


def test_a_form_that_is_deleted_or_moves_before_the_worker_polls_does_not_count(
    service, deferred_run, soon
):
    run = deferred_run
    soon(service.add_form, job_id=11, id=900)
    soon(service.add_form, job_id=11, id=901)

    def lose():
        run.before_resuming = lambda: None
        delete(service, 900)
        moved = service._state.form(901).record["jobDetails"]
        service._state.form(901).job_id = 12
        service.update_form(901, jobDetails={**moved, "jobID": 12})
        soon(service.add_form, polls=len(service.requests) + 2, job_id=11, id=902)

    run.before_resuming = lose

    assert run(job_id=11, xcom="ids") == [902]
    assert len(run.deferrals) >= 2


# --- since ---


@pytest.mark.parametrize("early", ["created", "updated"])
def test_forms_from_before_the_bound_do_not_count(service, run, soon, early):
    bound = {"created": "since", "updated": "updated_since"}[early]
    just_before = START - timedelta(milliseconds=1)
    service.add_form(job_id=11, **{early: just_before})
    soon(
        service.add_form,
        job_id=11,
        id=900,
        created=START,
        updated=START,
    )
    # With its old times it is found by a catch-up alone, the first or one of 15 minutes later.
    if run.mode == "deferred":
        soon(service.update_form, 900, polls=3, updated=datetime.now(UTC))

    assert run(job_id=11, xcom="ids", **{bound: START.isoformat()}) == [900]


def bounds(service):
    requests = service.requests_to("GET", "/forms")
    queries = [dict(request.query) for request in requests]
    return {query.get("createdOnDateTime[gte]") for query in queries if "jobID" in query}


JOB = {"id": 11, "propertyID": 7, "createdOnDateTime": "2026-03-04T05:06:07+00:00"}


@pytest.mark.parametrize(
    ("arguments", "context", "expected"),
    [
        ({"job_id": 11}, {}, format_time(START)),
        (
            {"job_id": 11},
            {
                "data_interval_start": None,
                "dag_run": SimpleNamespace(run_after=datetime(2026, 4, 1, tzinfo=UTC)),
            },
            "2026-04-01T00:00:00.000Z",
        ),
        (
            {"job_id": 11, "updated_since": "2026-03-05"},
            {},
            None,
        ),
        ({"job": JOB}, {}, "2026-03-04T05:06:07.000Z"),
        (
            {"job": str(JOB)},
            {},
            "2026-03-04T05:06:07.000Z",
        ),
        (
            {"job": JOB, "since": "2026-03-01"},
            {},
            "2026-03-01T00:00:00.000Z",
        ),
        ({"job": 11}, {}, format_time(START)),
        (
            {"job": {"id": 5, "jobID": 11, "createdOnDateTime": "2026-03-04"}},
            {},
            format_time(START),
        ),
        ({"job": {**JOB, "createdOnDateTime": "0001-01-01T00:00:00Z"}}, {}, format_time(START)),
    ],
)
def test_since_and_its_defaults(service, deferred_run, soon, arguments, context, expected):
    soon(service.add_form, polls=2, job_id=11)

    deferred_run(**arguments, context={"data_interval_start": START, **context})

    assert bounds(service) == {expected}


def test_a_since_that_goes_with_the_clock_is_that_of_the_first_poll(service, mode, soon):
    """Before Airflow 3.3 it is not for a later attempt, or in reschedule mode: nothing can be
    stored.
    """

    class Rendered(FsmFormSensor):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.render_template_fields({"now": datetime.now(UTC).isoformat})

    soon(service.add_form, polls=2, job_id=11, id=900)
    context = {"data_interval_start": START, "task_state_store": MemoryStateStore()}

    for _ in ("at first", "cleared"):
        run = Run(mode, Rendered)
        ids = run(job_id=11, since="{{ now() }}", xcom="ids", context=context)
        assert ids == [900]
    assert len(bounds(service)) == 1


def test_the_output_of_the_task_that_creates_the_job_is_a_dependency():
    with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        create = BaseOperator(task_id="create")
        for name, job in {"record": create.output, "id": create.output["id"]}.items():
            FsmFormSensor(task_id=name, job=job)
        FsmFormSensor.partial(task_id="mapped").expand(job=create.output)
    assert create.downstream_task_ids == {"record", "id", "mapped"}


# --- timeouts ---


def resume(wait=None, *, context=None, **arguments):
    """Resume a sensor whose deadline is past."""
    now = datetime.now(UTC).timestamp()
    event = {
        "wait": asdict(
            WaitState(
                "",
                now - 60,
                now,
                START.isoformat(),
                **(wait or {}),
            )
        )
    }
    sensor = FsmFormSensor(task_id="wait", job_id=11, **arguments)
    context = {"ti": TaskInstance(), "data_interval_start": START, **(context or {})}
    return sensor.resume_execution("execute_complete", {"event": event}, context)


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ({}, AirflowSensorTimeout),
        ({"soft_fail": True}, AirflowSkipException),
        ({"never_fail": True}, AirflowSensorTimeout),
        ({"silent_fail": True}, AirflowSensorTimeout),
    ],
)
def test_a_timeout(service, run, arguments, end):
    service.add_form(job_id=11, form_name="Gas", id=900)

    with pytest.raises(end, match="1 of 2 forms: Sign-off is missing; there is Gas"):
        run(job_id=11, form_names=["Gas", "Sign-off"], timeout=1, **arguments)

    missing = run.task_instance.pushed["missing"]
    assert re.match("waited for Gas, Sign-off, of job 11, .*; 1 of 2 forms: ", missing.pop("text"))
    assert missing == {"form_names": ["Sign-off"], "found": [900]}


def test_a_form_that_came_since_the_triggers_last_poll_is_returned_at_the_timeout(service):
    service.add_form(job_id=11, property_id=2, id=900)

    assert resume(xcom="ids") == [900]


def test_a_timeout_after_a_poll_that_fails_names_the_failure(service):
    service.fail("GET", "/forms", faults.Reset(), every=True)

    task_instance = TaskInstance()
    with pytest.raises(AirflowSensorTimeout, match="no poll has succeeded; the last poll failed: "):
        resume(context={"ti": task_instance}, form_names=["Gas"])
    assert len(service.requests) == 1
    missing = task_instance.pushed["missing"]
    assert "; no poll has succeeded; the last poll failed: " in missing.pop("text")
    assert missing == {"form_names": ["Gas"], "found": []}


@RESCHEDULES.needed
def test_the_time_of_the_first_poll_may_be_text(service):
    """As in ``dag.test()`` of Airflow 3.0."""
    service.add_form(job_id=11, id=900)
    task_instance = TaskInstance()
    task_instance.first_reschedule = datetime.now(UTC).isoformat()
    sensor = FsmFormSensor(task_id="wait", job_id=11, mode="reschedule", xcom="ids")

    assert sensor.execute({"data_interval_start": START, "ti": task_instance}) == [900]


# --- failures ---


@pytest.mark.parametrize(
    ("fault", "arguments", "end"),
    [
        (faults.Status(401), {}, AirflowFailException),
        (
            faults.Status(401),
            {"soft_fail": True},
            AirflowSkipException,
        ),
        (
            faults.Status(401),
            {"never_fail": True},
            AirflowSkipException,
        ),
        (faults.Status(503), {}, FsmServerError),
        (
            faults.Status(503),
            {"soft_fail": True},
            FsmServerError,
        ),
        (
            faults.Status(503),
            {"never_fail": True},
            AirflowSkipException,
        ),
    ],
)
def test_a_permanent_error_fails_the_task_one_not_tolerated_is_left_to_airflows_retries(
    service, run, soon, fault, arguments, end
):
    soon(
        service.fail,
        "GET",
        "/forms",
        fault,
        every=True,
    )

    with pytest.raises(end) as ended:
        run(job_id=11, failure_tolerance=0, **arguments)
    assert end is AirflowSkipException or "GET /forms returned HTTP " in str(ended.value)


@pytest.mark.parametrize("mode", ["poke", "deferred"])
@pytest.mark.parametrize(
    "fault",
    [
        faults.Reset(),
        faults.Status(410),
        faults.pagination(hasMore=True, nextCursor=None),
    ],
    ids=["reset", "410", "pagination"],
)
def test_poll_failures_are_tolerated(service, mode, soon, fault):
    soon(
        service.fail,
        "GET",
        "/forms",
        fault,
        every=True,
    )
    soon(service.clear_faults, polls=3)
    soon(service.add_form, polls=3, job_id=11, id=900)

    run = Run(mode)
    assert run(job_id=11, xcom="ids", timeout=300) == [900]
    assert len(service.requests) > 3


def test_in_reschedule_mode_a_failed_poll_is_airflows_retry(service):
    service.fail("GET", "/forms", faults.Status(503))

    with pytest.raises(FsmServerError):
        Run("reschedule")(job_id=11)


def test_failures_that_outlast_the_tolerance_fail_the_task_with_their_error(service, run, soon):
    soon(
        service.fail,
        "GET",
        "/forms",
        faults.Status(503),
        every=True,
    )

    with pytest.raises(FsmServerError, match="GET /forms returned HTTP 503"):
        run(job_id=11, failure_tolerance=timedelta(seconds=2))


@pytest.mark.parametrize("mode", ["poke", "deferred"])
def test_the_tolerance_is_for_failures_in_a_row_not_for_all_together(service, mode, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))
    soon(
        service.fail,
        "GET",
        "/forms",
        faults.Status(503),
        polls=3,
    )
    soon(service.add_form, polls=4, job_id=11, id=900)

    tolerance = 1.8 if mode == "deferred" else 1.8 * SHORT
    run = Run(mode)
    assert run(job_id=11, failure_tolerance=tolerance, xcom="ids") == [900]


def test_the_tolerance_ends_also_where_only_the_worker_does_not_reach_the_service(
    service, deferred_run, soon
):
    run = deferred_run
    soon(service.add_form, job_id=11, id=900)
    run.before_resuming = lambda: service.fail("GET", "/forms", faults.Status(503), call=1)

    with pytest.raises(FsmServerError, match="GET /forms returned HTTP 503"):
        run(job_id=11, failure_tolerance=2)


def test_silent_fail_goes_on_after_a_transient_error(service, run, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))
    soon(service.add_form, job_id=11, id=900)

    assert run(job_id=11, silent_fail=True, failure_tolerance=0, xcom="ids") == [900]


def test_the_triggerer_reads_a_changed_token(service, connect, deferred_run, soon):
    def rotate():
        service.settings.token = "rotated"
        connect(service, max_retries=0)
        service.add_form(job_id=11, id=900)

    soon(rotate, polls=2)

    assert deferred_run(job_id=11, xcom="ids", timeout=300) == [900]


def test_a_host_that_is_edited_is_asked_and_the_forms_of_the_old_one_do_not_count(
    service, connect, run, soon
):
    service.add_form(job_id=11, form_name="Gas", id=900)
    with FakeFieldService(token=service.settings.token) as other:
        other.add_form(job_id=11, form_name="Gas", id=1)

        def move():
            connect(other, max_retries=0)
            service.settings.token = "gone"
            other.wait_for(lambda: run.mode == "poke" or other.requests, timeout=20)
            other.add_form(job_id=11, form_name="Sign-off", id=2)

        soon(move)
        if run.mode == "poke":  # one process reads its connection once
            with pytest.raises(FsmConnectionEditedError, match="connection leads to"):
                run(job_id=11, form_names=["Gas", "Sign-off"], failure_tolerance=2)
        else:
            ids = run(job_id=11, form_names=["Gas", "Sign-off"], xcom="ids", timeout=300)
            assert ids == [1, 2]


def test_an_unreachable_secrets_backend_is_tolerated(
    service, connect, deferred_run, soon, monkeypatch
):
    def lose():
        monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")
        threading.Timer(2.5, come_back).start()

    def come_back():
        connect(service, max_retries=0)
        service.add_form(job_id=11, id=900)

    soon(lose)

    assert deferred_run(job_id=11, xcom="ids", timeout=300) == [900]


def test_a_missing_connection_at_the_first_poll_raises_airflows_own_error(mode, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_FSM_DEFAULT")

    with pytest.raises(AirflowNotFoundException):
        Run(mode)(job_id=11)


@pytest.mark.parametrize("server_time", ["0001-01-01T00:00:00Z", "soon", None])
def test_a_service_without_a_clock(service, deferred_run, soon, server_time):
    def with_time(page):
        meta = {**page["meta"], "serverTime": server_time}
        return {**page, "meta": meta}

    service.fail("GET", "/forms", faults.Rewrite(with_time), every=True)
    soon(service.add_form, polls=3, job_id=11, id=900)

    assert deferred_run(job_id=11, xcom="ids") == [900]


def test_a_time_of_the_repeated_hour_of_summer_time_counts_for_both_readings(service, connect, run):
    connect(service, max_retries=0, server_timezone="Europe/London")
    since = datetime(
        2025,
        10,
        26,
        1,
        15,
        tzinfo=UTC,
    )  # 01:15 GMT, the second 01:15 of that night
    service.add_form(job_id=11, id=900, created=since, createdOnDateTime="2025-10-26T01:30:00")

    assert run(job_id=11, since=since, xcom="ids") == [900]


# --- arguments ---


def test_a_deferral_carries_json_and_no_secret(service, deferred_run, soon):
    soon(service.add_form, job_id=11)

    since = datetime(2026, 3, 1, tzinfo=UTC)
    deferred_run(job_id=11, since=since, form_names=["Gas Safety Record"], failure_tolerance=20)

    (deferral,) = deferred_run.deferrals
    classpath, kwargs = deferral.trigger.serialize()
    wait = kwargs.pop("wait")
    assert wait["deadline"] - wait["began"] == pytest.approx(timedelta(days=7).total_seconds())
    assert wait["known"] == []
    assert classpath == "fsm_provider.triggers.forms.FsmFormTrigger"
    assert not waiting_in(deferral.kwargs).problem
    assert kwargs == {
        "fsm_conn_id": "fsm_default",
        "filters": {"job_id": "11", "created_since": "2026-03-01T00:00:00+00:00"},
        "minimum_forms": 1,
        "form_names": ["Gas Safety Record"],
        "query_params": None,
        "poll_interval": 1.0,
        "failure_tolerance": 20,
    }


def test_a_deferral_says_what_it_waits_for(service, deferred_run, soon):
    job = service.add_job(7)
    service.add_form(job_id=job["id"], property_id=7, form_name="Sign-off", id=1)
    service.add_form(job_id=job["id"], property_id=7, form_name="Photo", id=2)
    soon(service.add_form, polls=3, job_id=job["id"], property_id=7, form_name="Gas", id=900)

    names = ["Sign-off", "Gas"]
    since = START.isoformat()
    deferred_run(job=job, since=since, form_names=names, timeout=600)

    deferral = deferred_run.deferrals[0]
    text = deferral.kwargs["waiting"]
    assert "formPDFURL" not in text
    waiting = waiting_in(json.loads(json.dumps(deferral.kwargs)))
    assert (waiting.fsm_conn_id, waiting.job_id) == ("fsm_default", str(job["id"]))
    assert (waiting.property_id, waiting.missing, waiting.found) == ("7", ["Gas"], ["Sign-off"])
    assert waiting.until - waiting.since == pytest.approx(600)
    assert waiting.forms_since == START.timestamp()
    assert waiting.polled_at == pytest.approx(waiting.since, abs=10)
    assert text_of_field("property_id", "7") in json.dumps(deferral.kwargs)


def test_a_poll_that_finds_the_same_forms_in_another_order_was_in_vain(service):
    known = [[service.add_form(job_id=11)["id"], "Gas Safety Record"] for _ in range(2)]
    now = datetime.now(UTC).timestamp()
    state = WaitState(
        FsmHook("fsm_default").settings.service,
        began=now - 60,
        deadline=now + 600,
        since=START.isoformat(),
        polled_at=now - 30,
        known=known,
    )
    with service._state.changed:
        service._state.forms.records.reverse()
    sensor = FsmFormSensor(task_id="wait", job_id=11, minimum_forms=3, deferrable=True)
    context = {"ti": TaskInstance(), "data_interval_start": START}

    with pytest.raises(TaskDeferred) as deferred:
        sensor.resume_execution("execute_complete", {"event": {"wait": asdict(state)}}, context)

    assert deferred.value.trigger.wait["futile_wakes"] == 1


def test_a_deferral_after_a_poll_that_was_asked_to_pause_says_until_when(service):
    service.fail("GET", "/forms", faults.Status(429, retry_after=600))
    sensor = FsmFormSensor(task_id="wait", job_id=11, deferrable=True, failure_tolerance=300)
    context = {"ti": TaskInstance(), "data_interval_start": START}
    now = datetime.now(UTC).timestamp()

    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context)

    # No longer than failures are tolerated.
    assert deferred.value.trigger.wait["paused_until"] == pytest.approx(now + 300, abs=10)


@pytest.mark.parametrize(
    ("bounds", "day"),
    [
        ({"since": "2026-03-01"}, 1),
        ({"updated_since": "2026-03-02"}, 2),
        ({"since": "2026-03-01", "updated_since": "2026-03-02"}, 1),
    ],
)
def test_a_deferral_says_since_when_forms_count(service, deferred_run, soon, bounds, day):
    soon(service.add_form, job_id=11)

    deferred_run(job_id=11, **bounds)

    waiting = waiting_in(deferred_run.deferrals[0].kwargs)
    assert waiting.forms_since == datetime(2026, 3, day, tzinfo=UTC).timestamp()


def test_a_deferral_after_a_failed_poll_says_why_it_failed(service, deferred_run, soon):
    service.fail("GET", "/forms", faults.Status(500))
    soon(service.add_form, polls=3, job_id=11, id=900)

    deferred_run(job_id=11, xcom="ids")

    waiting = waiting_in(deferred_run.deferrals[0].kwargs)
    assert waiting.polled_at is None
    assert waiting.text == "no poll has succeeded"
    assert waiting.problem.startswith("the last poll failed: ")


@pytest.mark.parametrize(
    "kwargs",
    [
        None,
        {},
        {"waiting": None},
        {"waiting": "yes"},
        {"waiting": "[]"},
        {"waiting": {"missing": []}},
        {"waiting": '{"missing": 7}'},
        ["waiting"],
    ],
    ids=str,
)
def test_what_others_have_stored_with_a_deferral_is_not_taken_for_ours(kwargs):
    assert waiting_in(kwargs) is None


RECORD = {"formName": "Gas", "formPDFURL": "https://files.example.com/12.pdf?signature=canary"}
NARROWING = ["property_id", "job_id", "job", "property", "since", "form_names"]


def refused(service, sensor, field):
    with pytest.raises(AirflowFailException, match=rf"^{field}") as error:
        sensor.execute({"data_interval_start": START, "ti": TaskInstance()})
    assert service.requests == []
    assert "canary" not in str(error.value)


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        *(
            ({name: "{{ found }}"}, found)
            for name in (
                "job_id",
                "property_id",
                "form_name_id",
                "form_category",
                "form_names",
                "job",
                "property",
            )
            for found in (None, RECORD, [RECORD], "")
        ),
        ({"minimum_forms": "{{ found }}"}, RECORD),
        ({"since": "{{ found }}"}, None),
        ({"form_names": "{{ found }}"}, ["Gas", "Oil"]),
        ({"form_names": "{{ found | tojson }}"}, []),
        ({"form_names": ["Gas", "{{ found }}"]}, None),
        ({"job_id": "{{ found | tojson }}"}, [12]),
        ({"job": "{{ found | tojson }}"}, RECORD),
    ],
)
def test_a_rendered_value_is_checked_at_the_first_poll(service, argument, found):
    for arguments in ({}, {"silent_fail": True}, {"mode": "reschedule"}, {"deferrable": True}):
        sensor = FsmFormSensor(task_id="wait", **arguments, **argument)
        sensor.render_template_fields({"found": found})

        refused(service, sensor, next(iter(argument)))


@pytest.mark.parametrize("name", NARROWING)
def test_what_is_none_does_not_make_any_form_match(service, name):
    """An output that is None, and ``FsmFormSensor.partial(...).expand(job_id=[None])``."""
    service.add_form()
    sensor = FsmFormSensor(task_id="wait", **{name: "{{ found }}"})
    setattr(sensor, name, None)

    refused(service, sensor, f"{name}: is None")
    mapped = FsmFormSensor(task_id="wait", **{name: None}, _airflow_from_mapped=True)
    refused(service, mapped, f"{name}: is None")
