"""What the form sensor says of its wait is the same in poke, reschedule and deferrable mode."""

import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException

from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import faults
from tests.capabilities import TASK_SDK
from tests.unit.sensors.conftest import START, TIMED_OUT, Run
from tests.unit.state_store import TaskInstance

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
TARGET = f"Gas Safety Record, of job 11, created since {START.isoformat()}"
MISSING = "0 of 1 forms: Gas Safety Record is missing"
OTHERS = f"{MISSING}; 3 other forms since then: Photo (2), Boiler Service"


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


@pytest.fixture
def others(service):
    for name in ("Photo", "Boiler Service", "Photo"):
        service.add_form(job_id=11, form_name=name)
    service.add_form(job_id=12, form_name="Elsewhere")


def record(service):
    service.add_form(job_id=11, form_name="Gas Safety Record", id=900)


def test_it_begins_with_one_line_of_what_it_waits_for(service, run, soon, logged):
    soon(record, service, polls=3)

    run(job_id=11, form_names="Gas Safety Record", timeout=300)

    lines = logged("Waiting for ")
    assert len(lines) == 1
    assert re.fullmatch(rf"Waiting for {re.escape(TARGET)}; polling every [\d.]+ s until {TIME}", lines[0])


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ({"minimum_forms": 2}, f"2 forms, created since {START.isoformat()}"),
        (
            {"property_id": 7, "since": "2026-03-01", "form_names": ["Gas", "Oil"]},
            "Gas, Oil, of property 7, created since 2026-03-01T00:00:00+00:00",
        ),
        (
            {"updated_since": "2026-03-01", "form_names": ["Gas"], "minimum_forms": 2, "created_by_id": 71},
            "2 forms named Gas, updated since 2026-03-01T00:00:00+00:00, created by id 71",
        ),
    ],
)
def test_what_it_waits_for(run, logged, arguments, target):
    with pytest.raises(AirflowSensorTimeout, match=re.escape(f": waited for {target}; ")):
        run(timeout=1, **arguments)

    assert {line.partition("; polling")[0] for line in logged("Waiting for ")} == {f"Waiting for {target}"}


def test_a_since_in_the_future_is_warned_of_once(service, run, logged):
    since = datetime.now(UTC) + timedelta(days=1)

    with pytest.raises(AirflowSensorTimeout):
        run(job_id=11, since=since, timeout=1)

    warnings = logged("since: ")
    assert set(warnings) == {f"since: {since.isoformat()} is in the future; no form counts before"}
    assert len(warnings) == 1 or run.mode == "reschedule"  # each of its polls has a process of its own


def test_each_poll_says_what_is_missing_and_what_there_is(service, run, soon, logged, others):
    soon(record, service, polls=3)

    assert run(job_id=11, form_names="Gas Safety Record", xcom="ids") == [900]

    assert set(logged("0 of ")) == {OTHERS}


@pytest.mark.parametrize(
    ("wanted", "there", "text"),
    [
        (
            "Gas",
            ["Gas\nSafety", "Gas\x1b[31m", 5, ["x"], None],
            r"'Gas\nSafety', 'Gas\x1b[31m', (no name), 5, ['x']",
        ),
        ("Gas Record", ["Gas\xa0Record", "gas record"], r"'Gas\xa0Record', gas record"),
    ],
)
def test_names_are_shown_as_they_are_where_one_would_not_see_the_difference(
    service, run, logged, wanted, there, text
):
    for name in there:
        service.add_form(job_id=11, formName=name)

    with pytest.raises(AirflowSensorTimeout):
        run(job_id=11, form_names=wanted, timeout=1)

    assert {line.partition("since then: ")[2] for line in logged("0 of ")} == {text}


def test_a_poll_does_not_list_hundreds_of_names(service, run, soon, logged):
    soon(record, service, polls=2)

    with pytest.raises(AirflowSensorTimeout):
        run(timeout=1, form_names=[f"{number:03}" for number in range(300)])

    assert set(logged("0 of ")) == {"0 of 300 forms: 000, 001, 002, 003, 004 and 295 more are missing"}


def test_the_forms_of_the_entire_account_are_not_named(service, run, soon, logged, others):
    soon(record, service, polls=2)

    run(form_names="Gas Safety Record")

    assert not [line for line in logged("") if "other form" in line]


@pytest.mark.parametrize(("soft_fail", "end"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_timeout_says_all_of_it(service, run, others, soft_fail, end):
    with pytest.raises(end) as ended:
        run(job_id=11, form_names="Gas Safety Record", timeout=1, soft_fail=soft_fail)

    assert re.fullmatch(
        rf"Sensor has timed out after 0:00:\d\d: waited for {re.escape(TARGET)}; {re.escape(OTHERS)}",
        str(ended.value),
    )


@pytest.mark.parametrize("mode", ["poke", "deferred"])
def test_a_timeout_says_how_the_last_poll_failed(service, mode, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503), every=True)

    with pytest.raises(AirflowSensorTimeout) as ended:
        Run(mode)(job_id=11, timeout=1.5)

    assert str(ended.value).endswith("; the last poll failed: GET /forms returned HTTP 503")
    assert service.settings.token not in str(ended.value)


@pytest.mark.parametrize("mode", ["poke", "deferred"])
def test_a_poll_that_succeeds_ends_the_failure_that_a_timeout_tells(service, mode, soon):
    soon(service.fail, "GET", "/forms", faults.Status(503))

    with pytest.raises(AirflowSensorTimeout) as ended:
        Run(mode)(job_id=11, timeout=1.5)

    assert "failed" not in str(ended.value)


@pytest.mark.parametrize(("soft_fail", "end"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_deferral_that_airflow_ends_has_had_no_triggerer(soft_fail, end):
    sensor = FsmFormSensor(task_id="wait", job_id=11, soft_fail=soft_fail)
    wait = f"waited for a form, of job 11, created since {START.isoformat()}; 0 of 1 forms; no triggerer has"

    with pytest.raises(end, match=re.escape(wait)):
        sensor.resume_execution(*TIMED_OUT, {"data_interval_start": START, "ti": TaskInstance()})


HEALTH = {"metadatabase": {"status": "healthy"}, "triggerer": {"status": "healthy"}}


@contextmanager
def api_server(body):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/prefix/api/v2/monitor/health" else 404)
            self.end_headers()
            self.wfile.write(body.encode())

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/prefix"
    finally:
        server.shutdown()
        server.server_close()


@TASK_SDK.needed
@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (json.dumps({**HEALTH, "triggerer": {"status": None}}), True),
        (json.dumps(HEALTH), False),
        ("<html>", False),
    ],
)
@pytest.mark.parametrize("setting", ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__API__BASE_URL"])
def test_a_deferral_without_a_triggerer_is_said_where_airflow_knows(
    service, deferred_run, soon, logged, monkeypatch, body, is_said, setting
):
    soon(service.add_form, job_id=11)

    with api_server(body) as url:
        monkeypatch.setenv(setting, url if setting.endswith("BASE_URL") else f"{url}/execution/")
        deferred_run(job_id=11)

    assert bool(logged("Deferred, but no triggerer runs")) is is_said
