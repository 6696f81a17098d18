"""What the form sensor says of its wait is the same in poke, reschedule and deferrable mode."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException

from fsm_provider.sensors.forms import FsmFormSensor
from fsm_provider.testing import faults
from tests.unit.sensors.conftest import START, TIMED_OUT, Run
from tests.unit.state_store import TaskInstance

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
SINCE = f"created since {START.isoformat()}"
GAS = {"job_id": 11, "form_names": "Gas"}
MANY = [f"{number:03}" for number in range(300)]


@pytest.fixture(autouse=True)
def connected(service, connect):
    connect(service, max_retries=0)


def times_out(run, **arguments):
    """The message of the timeout of a sensor that has polled."""
    with pytest.raises(AirflowSensorTimeout) as ended:
        run(**{"timeout": 1, **arguments})
    return str(ended.value)


def test_it_begins_with_one_line_and_each_poll_says_what_is_missing(service, run, soon, logged):
    soon(
        service.add_form,
        polls=3,
        job_id=11,
        form_name="Gas",
        id=900,
    )

    assert run(**GAS, timeout=300, xcom="ids") == [900]

    (line,) = logged("Waiting for ")
    target = re.escape(f"Waiting for Gas, of job 11, {SINCE}")
    assert re.fullmatch(rf"{target}; polling every [\d.]+ s until {TIME}", line)
    assert set(logged("0 of ")) == {"0 of 1 form: Gas is missing"}


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ({"minimum_forms": 2}, f"2 forms, {SINCE}"),
        (
            {"property_id": 7, "since": "2026-03-01", "form_names": ["Gas", "Oil"]},
            "Gas, Oil, of property 7, created since 2026-03-01T00:00:00+00:00",
        ),
        (
            {
                "updated_since": "2026-03-01",
                "form_names": ["Gas"],
                "minimum_forms": 2,
                "created_by_id": 71,
            },
            "2 forms named Gas, updated since 2026-03-01T00:00:00+00:00, created by id 71",
        ),
        # The property of a job's record is named, though only the job is a filter.
        (
            {"job": {"id": 11, "propertyID": 7}, "form_names": "Gas"},
            f"Gas, of property 7, of job 11, {SINCE}",
        ),
        ({"job": {"id": 11, "propertyID": "a b"}}, f"a form, of job 11, {SINCE}"),
    ],
)
def test_what_it_waits_for(run, logged, arguments, target):
    text = times_out(run, **arguments)

    assert re.match(
        rf"Sensor has timed out after 0:00:\d\d: waited for {re.escape(target)}; 0 of ", text
    )
    assert {line.partition("; polling")[0] for line in logged("Waiting for ")} == {
        f"Waiting for {target}"
    }


def test_a_since_in_the_future_is_warned_of_once(service, run, logged):
    since = datetime.now(UTC) + timedelta(days=1)

    times_out(run, job_id=11, since=since)

    warnings = logged("since: ")
    assert set(warnings) == {f"since: {since.isoformat()} is in the future; no form counts before"}
    assert (
        len(warnings) == 1 or run.mode == "reschedule"
    )  # each of its polls has a process of its own


@pytest.mark.parametrize(
    ("arguments", "there", "text"),
    [
        (
            GAS,
            ["Photo", "Boiler Service", "Photo"],
            "0 of 1 form: Gas is missing; 3 other forms since then: Photo (2), Boiler Service",
        ),
        (
            GAS,
            ["Gas\nSafety", "Gas\x1b[31m", 5, ["x"], None],
            "0 of 1 form: Gas is missing; 5 other forms since then: "
            r"'Gas\nSafety', 'Gas\x1b[31m', (no name), 5, ['x']",
        ),
        (
            {"job_id": 11, "form_names": ["Gas", "Gas Record"]},
            ["Gas", "Gas\xa0Record", "gas record"],
            "1 of 2 forms: Gas Record is missing; there is Gas; 2 other forms since then: "
            r"'Gas\xa0Record', gas record",
        ),
        (
            {"form_names": MANY},
            [],
            "0 of 300 forms: 000, 001, 002, 003, 004 and 295 more are missing",
        ),
        (
            {"form_names": "Gas"},
            ["Photo"],
            "0 of 1 form: Gas is missing",
        ),  # of the entire account
    ],
)
@pytest.mark.parametrize("mode", ["poke"])
def test_a_poll_says_what_is_missing_and_what_there_is(
    service, run, logged, arguments, there, text
):
    """Names are shown as they are where one would not see the difference."""
    service.add_form(job_id=12, form_name="Elsewhere")
    for name in there:
        service.add_form(job_id=11, formName=name)

    assert times_out(run, **arguments, timeout=0).endswith(f"; {text}")
    assert set(logged(text[:5])) == {text}


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("mode", ["poke", "deferred"])
def test_a_timeout_says_how_the_last_poll_failed(service, mode, soon, is_last):
    soon(
        service.fail,
        "GET",
        "/forms",
        faults.Status(503),
        every=is_last,
    )

    text = times_out(Run(mode), job_id=11, timeout=1.5)

    assert text.endswith("; the last poll failed: GET /forms returned HTTP 503") is is_last
    assert ("failed" in text) is is_last


def test_a_poll_pauses_as_long_as_the_service_asks(service):
    service.fail("GET", "/forms", faults.Status(429, retry_after=600), every=True)

    assert "the service asks to wait 600 s" in times_out(Run("poke"), job_id=11, timeout=1.5)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("soft_fail", "end"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)]
)
def test_a_deferral_that_airflow_ends_has_had_no_triggerer(soft_fail, end):
    sensor = FsmFormSensor(task_id="wait", job_id=11, soft_fail=soft_fail)
    wait = f"waited for a form, of job 11, {SINCE}; 0 of 1 form; no triggerer has"

    with pytest.raises(end, match=re.escape(wait)):
        sensor.resume_execution(*TIMED_OUT, {"data_interval_start": START, "ti": TaskInstance()})
