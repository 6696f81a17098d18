"""How long a sensor waits, pauses and fails is the same in poke, reschedule and deferrable mode."""

import time

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout

from fsm_provider.api import FsmRateLimitedError
from fsm_provider.sensors.records import FsmRecordSensor
from fsm_provider.testing import faults
from tests.unit.sensors.conftest import SHORT, Run

AN_HOUR = faults.Status(429, retry_after=3600)
LATE = 6.0
"""Seconds after which something that was to be near a time is not, on a busy machine."""


@pytest.fixture
def seconds():
    """The seconds since the test began."""
    began = time.monotonic()
    return lambda: time.monotonic() - began


def test_retry_after_outlasts_the_tolerance_in_no_mode(service, connect, run, seconds):
    connect(service, max_retries=4)
    service.fail("GET", "/forms", AN_HOUR, every=True)

    with pytest.raises(FsmRateLimitedError, match="the service asks to wait 3600 s"):
        run(job_id=11, failure_tolerance=3, timeout=25)
    assert seconds() < 20


@pytest.mark.parametrize("silent_fail", [False, True])
def test_a_pause_is_as_long_as_the_service_asks_but_a_quarter_of_an_hour_at_most(
    service, connect, monkeypatch, silent_fail
):
    """The clock of the sensor is one that jumps as it sleeps."""
    connect(service, max_retries=0)
    clock = Clock()
    monkeypatch.setattr("fsm_provider.sensors.base.time", clock)
    service.fail("GET", "/forms", faults.Status(503, retry_after=300), call=1)
    service.fail("GET", "/forms", AN_HOUR, calls=(2, 3))
    service.fail("GET", "/forms", faults.Status(503), call=4)
    service.fail("GET", "/forms", faults.Before(lambda: service.add_form(job_id=11)), call=5)

    Run("poke")(job_id=11, failure_tolerance=10_000, silent_fail=silent_fail)

    interval = 1 * SHORT
    slept = [seconds for seconds in clock.slept if seconds]
    assert slept == [300 - interval, 900 - interval, 900 - interval]


class Clock:
    def __init__(self):
        self.jumped = 0.0
        self.slept = []

    def time(self):
        return time.time() + self.jumped

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.jumped += seconds


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(faults.Stall(), id="hangs"),
        pytest.param(faults.Status(429, retry_after=20), id="pauses"),
    ],
)
def test_a_request_that_lasts_longer_than_the_wait_does_not_hold_it(
    service, connect, run, seconds, fault
):
    connect(service, timeout=20)
    service.fail("GET", "/forms", fault, every=True)

    with pytest.raises(AirflowSensorTimeout, match="no poll has succeeded") as ended:
        run(job_id=11, timeout=10)
    assert 10 <= seconds() < 11 + LATE
    assert str(ended.value).endswith("; the last poll did not end in time")


def test_records_that_do_not_come_do_not_hold_the_wait(service, connect, seconds):
    connect(service, timeout=20)
    service.seed_forms(25)
    service.fail("GET", "/forms", faults.Stall(), calls=range(2, 100))  # from its second page on

    with pytest.raises(AirflowSensorTimeout, match=r"the last poll did not end in time$"):
        Run("poke", FsmRecordSensor)(path="/forms", predicate=lambda _: False, timeout=1)
    assert seconds() < 10 + LATE


def test_the_interval_between_two_polls_does_not_hold_the_wait(service, connect, run, seconds):
    connect(service)

    with pytest.raises(AirflowSensorTimeout, match="0 of 1 form"):
        run(job_id=11, timeout=2, poke_interval=600)
    assert 2 <= seconds() < 3 + LATE
    assert len(service.requests) == 2  # at its beginning, and at its end


def test_a_deferrable_sensor_stays_on_the_worker_for_the_last_seconds(
    service, connect, deferred_run, soon
):
    """A task that is resumed sooner after its deferral may be failed by Airflow."""
    connect(service)
    soon(service.add_form, polls=2, job_id=11, id=900)

    assert deferred_run(job_id=11, timeout=10, xcom="ids") == [900]
    assert deferred_run.deferrals == []
