"""Timeouts, refusals, soft_fail, marking and clearing: the same in every mode of the sensor."""

import time
from collections.abc import Callable
from itertools import count

import pytest

from fsm_provider.testing import FakeFieldService
from tests.system.airflow_api import PATIENCE, wait_until
from tests.system.dags.sensors import MODES
from tests.system.local_airflow import LocalAirflow

WAITING = {"poke": "running", "reschedule": "up_for_reschedule", "deferrable": "deferred"}
job_ids = count(700_001)


@pytest.mark.parametrize("mode", MODES)
def test_sensors_end_alike(airflow: LocalAirflow, mode: str) -> None:
    dag_id = f"sensor_ends_{mode}"
    run_id = airflow.trigger(dag_id)

    airflow.wait_for_run(dag_id, run_id)

    assert airflow.task_states(dag_id, run_id) == {
        "times_out": "failed",
        "times_out_softly": "skipped",
        "is_refused": "failed",
        "is_refused_softly": "skipped",
    }
    tasks = airflow.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
    assert {task["task_id"]: task["try_number"] for task in tasks} == dict.fromkeys(
        airflow.task_states(dag_id, run_id), 1
    )
    assert "GET /forms returned HTTP 401" in airflow.task_log(dag_id, run_id, "is_refused")


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_sensor_stops_polling_and_a_cleared_one_starts_again(
    airflow: LocalAirflow, service: FakeFieldService, mode: str
) -> None:
    dag_id, job_id = f"sensor_waits_{mode}", next(job_ids)

    def polls() -> int:
        # A deferred sensor polls through a stream without a job filter.
        jobs = [dict(request.query).get("jobID") for request in service.requests_to("GET", "/forms")]
        return jobs.count(str(job_id)) + (jobs.count(None) if mode == "deferrable" else 0)

    run_id = airflow.trigger(dag_id, {"job_id": job_id})
    airflow.wait_for_tasks(dag_id, run_id, lambda states: states == {"wait": WAITING[mode]} and polls() > 1)

    airflow.set_task_state(dag_id, run_id, "wait", "failed")

    assert airflow.wait_for_run(dag_id, run_id) == "failed"
    wait_until_quiet(polls, MODES[mode].get("poke_interval", 1) + 5.0)

    airflow.clear(dag_id, run_id, ["wait"])
    before = polls()
    service.wait_for(lambda: polls() > before, PATIENCE)
    form = service.add_form(job_id=job_id)

    assert airflow.wait_for_run(dag_id, run_id) == "success"
    (reference,) = airflow.xcom(dag_id, run_id, "wait")
    assert reference["id"] == form["id"]


def wait_until_quiet(polls: Callable[[], int], seconds: float) -> None:
    """Wait for so many seconds without a poll, more than the interval of the sensor."""

    def is_quiet() -> bool:
        before = polls()
        time.sleep(seconds)
        return polls() == before

    wait_until(is_quiet, "the sensor that was marked as failed stops polling")
